"""Way E: a key of job and time is inserted into a table; the node whose insert took runs the job."""

#: Seconds, instead of a day and an hour.
DAY, HOUR = 6, 2
#: Each job with the seconds between its windows, and those that it takes.
JOBS = {"exp_usr_cart": (DAY, 1.0), "rmnd_usr_buy_notif": (HOUR, 0.3)}
