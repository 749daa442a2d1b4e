"""When windows start, which of them run, and what is set up wrongly. Pure: no I/O, no clock."""

from __future__ import annotations

from . import checks
from .balance import Balance, balance
from .checks import MOST_APART, Finding, address_findings
from .policy import EntryPolicy, Limits, Step, Timing, check_anchor, fingerprint, next_steps, spread_offset
from .starts import count_starts, is_clocked, is_tz_aware_crontab, latest_start, naive_utc, next_start, starts_after

__all__ = (
    "MOST_APART",
    "Balance",
    "EntryPolicy",
    "Finding",
    "Limits",
    "Step",
    "Timing",
    "address_findings",
    "balance",
    "check_anchor",
    "checks",
    "count_starts",
    "fingerprint",
    "is_clocked",
    "is_tz_aware_crontab",
    "latest_start",
    "naive_utc",
    "next_start",
    "next_steps",
    "spread_offset",
    "starts_after",
)
