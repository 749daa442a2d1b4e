"""When windows start, which of them run, and what is set up wrongly. Pure: no I/O, no clock."""

from __future__ import annotations

from . import checks
from .budget import budget, spend
from .checks import MOST_APART, Finding
from .cron_times import CronTimes, every_hour
from .policy import (
    EntryPolicy,
    Step,
    Timing,
    check_anchor,
    check_instant,
    check_zone,
    fingerprint,
    next_steps,
    same_definition,
    spread_offset,
    zone_rules,
    zones_of,
)
from .pure import PureSchedule, in_zone
from .starts import (
    CRON_FIELDS,
    calendar_start,
    count_starts,
    grid_number,
    grid_start,
    is_clocked,
    is_polled,
    is_tz_aware_crontab,
    latest_start,
    next_start,
    starts_after,
)
from .wall_clock import by_wall_clock, first_instant, naive_utc
from .zones import find_zone, plain_zone, read_zone, zone_name
