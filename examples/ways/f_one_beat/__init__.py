"""Way F: several beats, of which one works: it holds a lock, and the others wait for it."""

import os
from importlib.util import find_spec

#: Seconds, instead of some minutes.
EVERY = 2
#: Whether the lock is RedBeat's: where that is installed, unless WAYS_LOCK=own is set.
REDBEAT = find_spec("redbeat") is not None and os.environ.get("WAYS_LOCK") != "own"
