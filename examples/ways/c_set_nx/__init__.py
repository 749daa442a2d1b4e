"""Way C: ``SET key uuid NX EX``, read it back, run, wait, delete it; in plain code that a timer starts on each node."""

#: Seconds, instead of an hour.
EVERY = 6
#: Each job with the seconds that it takes.
JOBS = {"report": 0.5, "export": 3.5}
