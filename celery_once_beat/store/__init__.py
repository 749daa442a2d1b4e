"""Coordination through Redis. Read ``protocol`` first. The only importer of redis.

A verb is declared in ``scripts``, decided by its file in ``lua/``, and called through :class:`Store`. ``keys`` names
what it writes, ``model`` has requests and replies as types, ``codec`` how that is written. ``lookup`` reads for people.
"""

from __future__ import annotations

from .account import EntryAccount, Holder, OpenWindow
from .clients import check_client
from .codec import read_app
from .entries import loaded_as, loaders_of, read_many, scan_loaded
from .keys import SHARDS, shard_of
from .model import (
    RUNS_ALONE,
    SET_ANEW,
    ActedOn,
    Again,
    BeatReport,
    Begun,
    Busy,
    Claimed,
    ClaimRequest,
    Closed,
    Confirmation,
    Confirmed,
    ConfirmReply,
    Ending,
    Finished,
    Heartbeat,
    Loaded,
    LoadRequest,
    Loss,
    Moved,
    Overdue,
    Paused,
    Published,
    Renewal,
    Renewed,
    Spent,
    Stale,
    Superseded,
    Taken,
    Unchanged,
    Unconsumed,
    Unknown,
    Waits,
    WorkerSeen,
)
from .roundtrip import raised
from .scripts import Request, make_of_executions
from .verbs import Store, member_of, new_store, store_instead, store_of, stores_made_by
