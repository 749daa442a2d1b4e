"""The verbs of windows: keys, what each verb is asked and answers. ``roundtrip`` sends them, ``lua/`` decides.

Who decides
-----------
The server does, and its clock. A verb is one Lua script of ``lua/``: it looks, decides and writes in one step,
and takes its time from the server. A client that sleeps for an hour between two verbs finds out in the second.

The cursor of an entry and its open windows are the truth that doesn't age: a window with
``born < start <= cursor`` is judged by ``open`` alone. The NX markers guard the moments in which two act at
once, and alone decide for every other window: the store lost data, or the message is of an untracked entry.

States of a window; in every line what is written beside the arrow is a verb::

    unseen ──claim──▶ claimed ──confirm──▶ published
       │                 │                     │
       │ claim, passed   └───────begin─────────┤
       │ or untracked                          ▼
       │                      ┌──────────── running ◀───begin(n)─── waiting(n)
       │                      │ finish         │ hand_over              ▲
       ▼                      ▼                └────────────────────────┘
    closed ◀──────────────────┘

    published ◀── take: a deadline passed (claimed; a lease ran out; a retry's message is lost)
    published ◀── finish, where it is to run again
    closed    ◀── a limit, at take or at begin; close: its message expired or was revoked, or its result says that
                  somebody has executed it who knows no windows; confirm, of one that no worker will know
    claimed   ◀── backfill, of a closed one, by order

claimed and published differ in the deadline only: ``publish_timeout``, ``start_timeout``. Whoever finds a
deadline passed takes the window; the deadline that the take moves is the mutex between beats.

What each failure does
----------------------
- A caller dies between two verbs: the window stays open and becomes overdue; a beat takes it. So does one whose
  worker was killed, or whose retry's message is lost.
- A reply is lost and redis-py repeats the command: every verb is idempotent for its owner and answers as it
  did the first time. An owner is one beat process, or one execution of one *delivery* of a message,
  ``<delivery>:<execution>``; a worker's main process, which ends what its child began, knows the delivery alone.
- An execution outlives its lease: it has the window again if nobody began since, else it is stale.
- A beat dies: what it loaded counts no more once it hasn't been heard of for BEAT_TTL.
- More beats load an entry than it lists: only the newest few decide. If those die, another definition may be taken for
  the newest; a beat that has a later one is refused its next claim, loads again, and takes the entry back.
- The server's clock goes back: nothing that was claimed is claimed again; entries stand still until the old time is
  reached, and beats say so. No time in the future says that a beat lives.
- An entry leaves a beat's schedule: once no living beat has it, unload puts its definition out of force. What is open
  goes on to its outcome; the windows of the time without it never count, whoever loads it again.
- A one-off has had its window and is disabled: spent keeps which edit that was, in the same step. A beat that finds it
  enabled knows by a later edit that somebody wants it once more, also where no beat saw it disabled.
- The store loses its last writes: windows beyond the cursor are decided by the run key; a claim that passes
  them takes over what the run key says.
- The store loses everything: the same; a beat that gets Unknown loads its entries anew, from the cursors that it knew.
- A key holds something foreign: StoreDataError names it, and only that entry is affected.
- Redis doesn't answer: StoreUnavailableError, after a short retry; the command may have been carried out.

Keys (prefix ``once:``; the shard is the hash tag, so that one script's keys share a slot of a cluster)::

    once:{7}:entry:<name>            hash   cursor, born, definition, fence, open windows' accounts, counters
                                            30 days or three intervals from a beat's last contact; its fields: prelude
    once:{7}:open                    zset   <name>@<start> → deadline, server ms; as its longest-lived entry
    once:{7}:claim:<name>:<start>    string the beat that claimed it; marker_ttl
    once:{7}:run:<name>:<start>      string run:<owner>:<fence>, the lease | wait:<n>:<owner>, until the retry is due |
                                            done:<outcome>:<owner>, marker_ttl, or the retention where it alone decides
    once:{7}:history:<name>          list   the last windows' outcomes; as the entry
    once:{7}:refused:<name>          hash   start → copies refused, of the latest windows, for people; as the entry
    once:key:{<hash>}:entry:<key>    hash   fence, the largest that a begin of the key was given; as its windows' keys
    once:key:{<hash>}:claim|run:<key>:<start>
                                     string the same for a window of a user's key (``keyed``); the retention, or as long
                                            as the window, if that is longer
    once:beats                       zset   live beats → last seen, server ms; BEAT_TTL
    once:{once:beats}:reports        hash   live beats → what each says of itself, for people; BEAT_TTL
    once:{once:beats}:apps           hash   live beats → of which app each is, JSON, for people; BEAT_TTL

Every key expires by itself. Counters ``c:<outcome>`` obey the conservation law (see ``audit``); ``x:<outcome>``
count what is outside it: backfills, and windows of an earlier definition.
"""

from __future__ import annotations

from .codec import read_app
from .lookup import BeatSeen, EntrySeen, Lookup, Overview, Story
from .model import (
    RUNS_ALONE,
    Again,
    BeatReport,
    Begun,
    Busy,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Closed,
    Confirmation,
    Elsewhen,
    EntryAccount,
    Finished,
    Heartbeat,
    Loaded,
    LoadRequest,
    Moved,
    OpenWindow,
    Overdue,
    Past,
    Paused,
    Published,
    Renewal,
    Renewed,
    Spent,
    Stale,
    Superseded,
    Taken,
    Unchanged,
    Unknown,
)
from .verbs import Store, store_of

__all__ = (
    "RUNS_ALONE",
    "Again",
    "BeatReport",
    "BeatSeen",
    "Begun",
    "Busy",
    "ClaimReply",
    "ClaimRequest",
    "Claimed",
    "Closed",
    "Confirmation",
    "Elsewhen",
    "EntryAccount",
    "EntrySeen",
    "Finished",
    "Heartbeat",
    "LoadRequest",
    "Loaded",
    "Lookup",
    "Moved",
    "OpenWindow",
    "Overdue",
    "Overview",
    "Past",
    "Paused",
    "Published",
    "Renewal",
    "Renewed",
    "Spent",
    "Stale",
    "Store",
    "Story",
    "Superseded",
    "Taken",
    "Unchanged",
    "Unknown",
    "read_app",
    "store_of",
)
