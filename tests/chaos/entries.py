"""What is scheduled in the chaos runs."""

#: Seconds: what is frozen for longer than that may come back too late.
LEASE = 2.0

#: Entry → task, seconds between windows, seconds that the body takes. All are grids from the epoch.
ENTRIES = {
    **{f"short{n}": ("chaos.app.work", 1.0, 0.02) for n in range(5)},
    "late acks": ("chaos.app.work_late", 1.0, 0.1),
    "longer than its lease": ("chaos.app.work", 6.0, 3.0),
    "long, late acks": ("chaos.app.work_late", 5.0, 1.7),
    "retries": ("chaos.app.retrying", 2.0, 0.1),
    "odd grid": ("chaos.app.work", 1.7, 0.3),
    "newest waits": ("chaos.app.work", 1.0, 1.4),
    "in turn": ("chaos.app.work", 3.0, 1.2),
    "in turn, with retries": ("chaos.app.retrying", 4.0, 0.2),
    **{f"shares{n}": ("chaos.app.work", 2.0, 0.5) for n in range(3)},
    "shares, in turn": ("chaos.app.work_late", 4.0, 1.0),
}
#: Places of each limit.
LIMITS = {"shared": 2}
#: Entry → its ``once``.
ONCE: dict[str, dict[str, str]] = {
    "newest waits": {"overlap": "buffer_one"},
    "in turn": {"overlap": "buffer_all"},
    "in turn, with retries": {"overlap": "buffer_all"},
    **{f"shares{n}": {"limit": "shared"} for n in range(3)},
    "shares, in turn": {"overlap": "buffer_all", "limit": "shared"},
}
#: Entries of which no two windows run at once; of those the ones of which windows are skipped.
IN_TURN = {entry for entry, once in ONCE.items() if "overlap" in once}
SKIPS = {entry for entry, once in ONCE.items() if once.get("overlap") == "buffer_one"}
#: Limit → the entries that share it.
SHARED = {limit: {entry for entry, once in ONCE.items() if once.get("limit") == limit} for limit in LIMITS}
