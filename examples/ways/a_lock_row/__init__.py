"""Way A: a row in a table says which node runs the job, in what state it is and since when."""

#: Seconds, instead of an hour.
EVERY = 5
