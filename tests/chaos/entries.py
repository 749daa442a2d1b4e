"""What is scheduled in the chaos runs."""

__all__ = ("EDITED", "EDITS_LEASE", "ENTRIES", "LEASE", "PERIODS")

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
}

#: Names of the schedules that are edited, and the seconds between windows that an edit may set.
EDITED = [f"user-{number}" for number in range(30)]
PERIODS = (1, 1.5, 2, 3)
#: Longer, since a short run of them is played beside other tests: what gets no time for so long is out of contact.
EDITS_LEASE = 6.0
