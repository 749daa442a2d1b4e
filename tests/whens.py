"""``make whens``: cron lines in all time zones, around the changes of their clocks, against an independent cron.

Each schedule is a random line in one of all zones of the IANA database, and is asked for its next starts around one of
that zone's changes since 1970. cronsim says what it finds there. Where its rule is another one, the difference is
counted under the rule, and the starts have to be those of a plain reading of ours: cronsim says which local times the
line means, as in UTC, and each is placed on the zone's clock by trying.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import cache
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim

from celery_once_beat.schedules import cron
from celery_once_beat.windows import starts_after

UTC = timezone.utc
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
#: Starts of each schedule.
STARTS = 11
#: How far a sparse line is followed.
SPAN = 800 * DAY

#: Where cronsim's rule, Debian cron's, is another one than ours.
RULES = {
    "star minutes": "with * minutes Debian cron follows the clock also at fixed hours, which start once here",
    "seconds": "of six fields cronsim knows no rule for skipped and repeated times; here they are as five",
    "part of a minute": "cronsim goes in whole minutes; a clock has changed by a part of one (Monrovia, 1972)",
    "star hours": "with * hours cronsim steps over a change in whole hours, or to midnight, whatever the clock shows",
}


def first(low: datetime, high: datetime, is_so: Callable[[datetime], bool]) -> datetime:
    """The first whole second of which this is so: it isn't of the one, and is of the other."""
    while high - low > timedelta(seconds=1):
        middle = (low + (high - low) // 2).replace(microsecond=0)
        low, high = (low, middle) if is_so(middle) else (middle, high)
    return high


@cache
def changes(zone: str) -> tuple[datetime, ...]:
    """The instants at which its offset changes, to the second."""
    tz, week = ZoneInfo(zone), 7 * DAY
    found, instant = [], datetime(1970, 1, 1, tzinfo=UTC)
    while instant.year < 2040:
        later, before = instant + week, instant.astimezone(tz).utcoffset()
        if later.astimezone(tz).utcoffset() != before:
            found.append(first(instant, later, lambda at, before=before: at.astimezone(tz).utcoffset() != before))
        instant = later
    return tuple(found)


def some_line(rng: random.Random, near: datetime) -> str:
    """A line that has something to do around a local time."""
    hours = sorted({(near.hour + n) % 24 for n in rng.sample(range(-3, 4), rng.randint(1, 3))})
    two = f"{rng.randrange(30)},{rng.randrange(30, 60)}"
    nth = f"{near.isoweekday() % 7}#{(near.day + 6) // 7}"
    fields = (
        ["0", str(rng.randrange(60)), two, "*/15", "*", "5-50/15"],
        [",".join(map(str, hours)), str(near.hour), "*", "*/2", f"{min(hours)}-{max(hours)}", "0"],
        ["*", "*", "*", str(near.day), f"{near.day},L", "*/2", "1-28/3"],
        ["*", "*", "*", str(near.month), f"{min(near.month, 6)}-{max(near.month, 7)}"],
        ["*", "*", "*", str(near.isoweekday()), "mon-fri", nth, "6L"],
    )
    seconds = rng.choice(["", "", "", "", f"{rng.randrange(60)} ", "*/30 "])
    return seconds + " ".join(map(rng.choice, fields))


class Bounded(CronSim):
    """It can go round for ever where a clock goes back (Colombo, 2006)."""

    ticks = 0

    def tick(self, *args: int, **kwargs: int) -> None:
        self.ticks += 1
        if self.ticks > 500_000:
            raise StopIteration
        super().tick(*args, **kwargs)


def of_cronsim(line: str, begin: datetime, tz: ZoneInfo) -> list[datetime]:
    """What cronsim finds in the zone. Times that are skipped together are one start here.

    Where a clock goes back, it can find the same ones for ever, or begin before what it was asked for.
    """
    found: dict[datetime, None] = {}
    for start in islice(Bounded(line, begin.astimezone(tz)), 20 * STARTS):
        instant = start.astimezone(UTC)
        if instant > begin + SPAN or len(found) == STARTS:
            break
        if instant > begin:
            found[instant] = None
    return list(found)


def by_reading(line: str, begin: datetime, tz: ZoneInfo) -> list[datetime]:
    """What our rule says of the local times that the line means, as cronsim has them in UTC."""
    hours = line.split()[-4]
    repeats = hours == "*" or (hours.startswith("*/") and hours[2:].isdigit())
    local = begin.astimezone(tz).replace(tzinfo=UTC) - 2 * DAY
    found: set[datetime] = set()
    for wall in takewhile((local + SPAN + 4 * DAY).__ge__, CronSim(line, local)):
        found |= {start for start in placed(wall.replace(tzinfo=None), tz, repeats=repeats) if start > begin}
        # Clocks go back by a day at most.
        if len([start for start in found if start.astimezone(tz).replace(tzinfo=UTC) < wall - 2 * DAY]) >= STARTS:
            break
    return [start for start in sorted(found) if start <= begin + SPAN][:STARTS]


def placed(wall: datetime, tz: ZoneInfo, *, repeats: bool) -> Iterator[datetime]:
    """The instants at which a local time starts."""
    both = [wall.replace(tzinfo=tz, fold=fold).astimezone(UTC) for fold in (0, 1)]
    shown = sorted({each for each in both if each.astimezone(tz).replace(tzinfo=None) == wall})
    if repeats:
        yield from shown
    elif shown:
        yield shown[0]
    else:  # after the gap
        yield first(min(both), max(both), lambda at: at.astimezone(tz).replace(tzinfo=None) > wall)


def exception(line: str, begin: datetime, tz: ZoneInfo) -> str | None:
    """The rule by which cronsim may differ where a clock changes; None: there is none."""
    offsets = [(begin + n * DAY).astimezone(tz).utcoffset() or timedelta(0) for n in range(4)]
    if any(offset % timedelta(minutes=1) for offset in offsets):
        return "part of a minute"
    *seconds, minutes, hours, _, _, _ = line.split()
    if hours.startswith("*"):
        return "star hours"
    if seconds:
        return "seconds"
    return "star minutes" if minutes.startswith("*") else None


def check(schedules: int, seed: int) -> Counter[str]:
    """Compare so many schedules; returns how many starts agree, and by which rules the others are ours."""
    rng = random.Random(seed)
    zones = sorted(available_timezones() - {"localtime", "Factory"})  # each machine has its own
    rng.shuffle(zones)
    counted: Counter[str] = Counter()
    for number in range(schedules):
        zone = zones[number % len(zones)]
        tz = ZoneInfo(zone)
        some_day = datetime(1970, 1, 1, tzinfo=UTC) + rng.randrange(25_000) * DAY
        instants = changes(zone) or (some_day,)
        change = rng.choice(instants)
        line = some_line(rng, (change - HOUR).astimezone(tz))
        begin = change - timedelta(minutes=rng.randrange(48 * 60), microseconds=rng.choice([0, 0, 1]))
        found = list(islice(starts_after(cron(line, tz=tz), begin, begin + SPAN), STARTS))
        counted["starts"] += len(found)
        counted["schedules"] += 1
        counted[f"zone {zone}"] = 1
        if found == of_cronsim(line, begin, tz):
            counted["as cronsim"] += len(found)
            continue
        rule = exception(line, begin, tz)
        expected = by_reading(line, begin, tz)
        if rule is None or found != expected:
            raise AssertionError(
                f"seed {seed}, schedule {number}: {line!r} in {zone} after {begin.isoformat()}:\n"
                f"  here    {[start.isoformat() for start in found]}\n"
                f"  cronsim {[start.isoformat() for start in of_cronsim(line, begin, tz)]}\n"
                f"  by rule {[start.isoformat() for start in expected]}"
            )
        counted[rule] += len(found)
    return counted


def report(counted: Counter[str]) -> str:
    """Say what was compared."""
    zones = sum(name.startswith("zone ") for name in counted)
    lines = [
        f"{counted['starts']} starts of {counted['schedules']} schedules in {zones} zones",
        f"  {counted['as cronsim']} as cronsim has them",
        *(f"  {counted[rule]} by another rule: {words}" for rule, words in RULES.items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = parser.parse_args().seed
    began = time.process_time()
    result = check(100_000, chosen)
    sys.stdout.write(f"seed {chosen}: {report(result)}\n{time.process_time() - began:.0f} s of CPU\n")
