"""The app of the other tests, as a company runs it: its log records carry fields of its own, and its Python is in FIPS
mode.
"""

import hashlib
import logging

BLAKES = [name for name in vars(hashlib) if name.startswith("blake2")]
for name in BLAKES:
    delattr(hashlib, name)


def refused(*_, usedforsecurity=True):
    raise ValueError("[digital envelope routines] unsupported")


hashlib.md5 = refused

FIELDS = [
    "action",
    "entry",
    "start",
    "owner",
    "attempt",
    "task",
    "state",
    "queue",
    "count",
    "outcome",
    "fence",
    "offset",
    "shard",
    "entries",
    "once_action",
]
make_record = logging.getLogRecordFactory()


def with_fields(*args, **kwargs):
    record = make_record(*args, **kwargs)
    record.__dict__.update(dict.fromkeys(FIELDS, "the company's"))
    return record


logging.setLogRecordFactory(with_fields)

from apps.once_app import *  # noqa: E402, F403  # with the above in force
from apps.once_app import app  # noqa: E402, F401
