"""Setups in which the promise doesn't hold, or holds only by luck. Pure: callers gather the facts.

A beat warns of them when it starts; ``celery once doctor`` shows every check.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from celery_once_beat.settings import Settings
from celery_once_beat.wording import shown, some

#: Seconds by which a machine's clock may differ from the server's without a warning.
MOST_APART = 2.0
#: Oldest server whose scripts and commands are used here.
_OLDEST_SERVER = (6, 2)
#: Seconds after which kombu's transports deliver a message again that isn't acknowledged, where nothing else is set.
_VISIBILITY = {"redis": 3600.0, "rediss": 3600.0, "sentinel": 3600.0, "sqs": 1800.0}


class Finding(NamedTuple):
    """One check's answer."""

    check: str
    #: ``ok``; ``warn``: something to fix; ``note``: something to know.
    verdict: str
    found: str
    #: What to set, and where; '' if there is nothing to do.
    advice: str = ""


def server_findings(info: Mapping[str, Any], settings: Settings) -> Iterator[Finding]:
    """Judge what the Redis server says of itself (INFO)."""
    version = str(info.get("redis_version", "?"))
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    name = f"Redis {version}"
    if "server_name" in info:
        name = f"{info['server_name']} {info.get('valkey_version', version)}"
    yield _finding("server", number < _OLDEST_SERVER and name, "use Redis 6.2 or later, or Valkey", name)
    yield from _memory(info)
    lossy = info.get("aof_enabled") not in (1, "1")
    found = lossy and "no append-only file: a restart loses what was written since the last snapshot"
    yield _finding("persistence", found, "set 'appendonly yes' in redis.conf", "append-only file")
    yield from _replicas(int(info.get("connected_slaves", 0)), settings.wait_replicas)


def _finding(check: str, wrong: str | Literal[False], advice: str, right: str) -> Finding:
    """Return a warning that says what is ``wrong``; if nothing is, the ``ok`` that says what is ``right``."""
    return Finding(check, "warn", wrong, advice) if wrong else Finding(check, "ok", right)


def _memory(info: Mapping[str, Any]) -> Iterator[Finding]:
    policy, limit = info.get("maxmemory_policy", "?"), int(info.get("maxmemory", 0))
    evicted = int(info.get("evicted_keys", 0))
    if policy != "noeviction" and not limit:
        advice = "set 'maxmemory-policy noeviction' before a maxmemory is"
        yield Finding("eviction", "note", f"maxmemory-policy is {policy}, and no maxmemory", advice)
        return
    found = f"maxmemory-policy is {policy} with a maxmemory of {limit:,} bytes"
    found += f", {evicted:,} keys evicted so far" if evicted else ""
    advice = "set 'maxmemory-policy noeviction' in redis.conf: an evicted key is a forgotten window"
    yield _finding("eviction", policy != "noeviction" and found, advice, "maxmemory-policy is noeviction")


def _replicas(connected: int, wanted: int) -> Iterator[Finding]:
    if connected and not wanted:
        found = f"{connected} connected, and none is waited for: a failover may lose the last writes"
        yield Finding("replicas", "note", found, "once_beat_wait_replicas = 1 waits for one")
        return
    few = wanted > connected and f"once_beat_wait_replicas = {wanted}, connected: {connected}; nothing runs"
    advice = "connect the replicas, or lower once_beat_wait_replicas"
    yield _finding("replicas", few, advice, f"{connected} connected, {wanted} waited for")


def visibility_of(transport: str, options: Mapping[str, Any]) -> float | None:
    """Return after how many seconds the broker delivers a message again that isn't acknowledged; None: never so."""
    seconds = options.get("visibility_timeout", _VISIBILITY.get(transport))
    return seconds if isinstance(seconds, (int, float)) else None


def lease_findings(
    transport: str, options: Mapping[str, Any], lengths: Iterable[tuple[str, float]]
) -> Iterator[Finding]:
    """Judge leases and countdowns (whose, seconds) against the broker's visibility timeout.

    After a worker's death, a message that is redelivered while the lease still runs is refused, so only recovery runs
    the window again. A message with a longer countdown goes from worker to worker before it is due. A redelivery during
    a long execution is only noise.
    """
    visibility = visibility_of(transport, options)
    if visibility is None:
        yield Finding("visibility timeout", "ok", f"none with {transport}")
        return
    longer = [f"{whose} ({length:g} s)" for whose, length in lengths if length >= visibility]
    short = bool(longer) and f"{visibility:g} s, not more than {', '.join(longer)}"
    advice = "raise broker_transport_options['visibility_timeout'], or lower these"
    yield _finding("visibility timeout", short, advice, f"{visibility:g} s, longer than every lease and countdown")


def node_findings(clocks: Mapping[str, float], settings: Settings) -> Iterator[Finding]:
    """Judge by how much the clocks of Redis' servers (name → seconds) differ: a replica may become the master."""
    if len(clocks) < 2:  # noqa: PLR2004  # one differs from nothing
        return
    apart = max(clocks.values()) - min(clocks.values())
    ahead = ", ".join(f"{name} {clock - min(clocks.values()):+.1f} s" for name, clock in clocks.items())
    also = "" if settings.wait_replicas else "; with once_beat_wait_replicas = 0 a fence can go back"
    found = apart > MOST_APART and f"{apart:.1f} s apart: {ahead}"
    advice = f"run NTP on these machines: a failover moves leases and deadlines by it{also}"
    yield _finding("servers' clocks", found, advice, f"{len(clocks)}, within {MOST_APART:g} s of each other")


def delivery_findings(transport: str, broadcast: Iterable[str]) -> Iterator[Finding]:
    """Judge where messages go; ``broadcast`` are entries whose message every worker gets."""
    if transport == "memory":
        found = "memory:// never leaves its process: only a worker in that of the beat gets a window"
        yield Finding("broker", "warn", found, "set broker_url to a broker that other processes reach")
    names = list(broadcast)
    if names:
        found = f"sent to every worker, and each window runs on one of them: {', '.join(map(shown, names[:5]))}"
        yield Finding("broadcast", "warn", found, "base=celery.Task on a task that is to run on every worker")


def made_by_celery(name: str, task: str) -> bool:
    """Whether an entry's name is the text of its call, as ``add_periodic_task`` makes one that is given none."""
    return name.startswith(f"{task}(") and name.endswith(")")


def moment_findings(entries: Iterable[tuple[str, str]], now: datetime, host: str) -> Iterator[Finding]:
    """Judge entries (name, task) that Celery has named after a value that no other process has: each is another entry.

    ``now`` is when the names were made, about; ``host`` is this machine's name.
    """
    bad = []
    for name, task in entries:
        address = "an address" if _ADDRESS.search(name) else ""
        value = _of_the_moment(name, now, host) if made_by_celery(name, task) else address
        if value:
            bad.append(f"{shown(name[:60])} ({value})")
    if bad:
        yield Finding("names", "warn", f"with a value of the moment in them: {some(bad, 5)}", _NAME_THEM)


_NAME_THEM = (
    "give add_periodic_task a name=: as it is, each beat runs entries of its own, and each start leaves some behind"
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]", re.IGNORECASE)
_MOMENTS = {
    "an address": _ADDRESS,
    "a UUID": re.compile(
        r"(?<![0-9a-f])[0-9a-f]{8}(-?)[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}(?![0-9a-f])", re.IGNORECASE
    ),
    "a time": re.compile(r"\d\d:\d\d:\d\d\.\d{6}|datetime\.datetime\((\d+, ){6}\d"),  # with microseconds
    # Quoted braces are no set, and one member has no order.
    "a set": re.compile(r"""[=(\[ ]\{(?:'[^']*'|"[^"]*"|[^:'"{}]+?), """),
}
#: ISO, Python's repr, or digits alone.
_DATE = re.compile(
    r"(20\d\d)-(\d\d)-(\d\d)|datetime\.date(?:time)?\((20\d\d), (\d\d?), (\d\d?)[,)]|\b(20\d\d)(\d\d)(\d\d)\b"
)
_EPOCH = re.compile(r"(?<![\w.])1\d{9}")
_DAY = 86_400


def _of_the_moment(name: str, now: datetime, host: str) -> str:
    """Return what kind of value in a name is of the moment at which it was made; '' if none is."""
    for kind, pattern in _MOMENTS.items():
        if pattern.search(name):
            return kind
    days = (tuple(int(part) for part in found if part) for found in _DATE.findall(name))
    around = {(day.year, day.month, day.day) for day in (now + timedelta(days=n) for n in (-1, 0, 1))}
    if not around.isdisjoint(days) or any(abs(int(s) - now.timestamp()) < _DAY for s in _EPOCH.findall(name)):
        return "a time"
    return "a host's name" if host and re.search(rf"(?<!\w){re.escape(host)}(?!\w)", name) else ""


def alias_findings(named: Iterable[tuple[str, str, frozenset[str]]]) -> Iterator[Finding]:
    """Judge names that Celery has made: each with its fingerprint, and the living beats that have it.

    Two names of one fingerprint, and no beat has both: it is one entry that each beat names otherwise, or a deployment
    is under way.
    """
    names: dict[str, dict[frozenset[str], str]] = {}
    for name, fingerprint, beats in named:
        if beats:
            names.setdefault(fingerprint.partition("~")[0], {}).setdefault(beats, name)
    for by_beats in names.values():
        (beats, name), *others = by_beats.items()
        other = next((found for found in others if found[0].isdisjoint(beats)), None)
        if other is not None:
            both = [f"{shown(name[:60])} of {' '.join(sorted(beats))}" for beats, name in ((beats, name), other)]
            found = f"beats have other names for the same task and schedule: {', '.join(both)}"
            yield Finding("names", "warn", found, _NAME_THEM)


def zone_findings(loaded: Iterable[tuple[str, Mapping[str, str]]]) -> Iterator[Finding]:
    """Judge whether beats know the same rules of time zones: for each entry beats that live, with its fingerprints."""
    apart: list[str] = []
    beats: set[str] = set()
    for name, by_beat in loaded:
        found = set(by_beat.values())
        if len(found) > len({each.partition("~")[0] for each in found}):
            apart.append(name)
            beats |= by_beat.keys()
    if apart:
        words = f"beats know other rules of the zones of {some([*map(shown, apart)], 5)}: {', '.join(sorted(beats))}"
        advice = (
            "install the same tzdata (for solar schedules: ephem) on these machines; the beat that loaded last counts"
        )
        yield Finding("time zones", "warn", words, advice)


def app_findings(beats: Iterable[tuple[str, str | None]], settings: Settings) -> Iterator[Finding]:
    """Judge whether beats (name, app) of several apps have the same keys; app None: it isn't known."""
    apps = {app: beat for beat, app in beats if app is not None}
    if len(apps) > 1:
        named = ", ".join(f"{app}, as {beat}" for app, beat in apps.items())
        found = f"beats of {len(apps)} apps use the keys {settings.key_prefix}…: {named}"
        advice = "give each app its own once_beat_key_prefix: of two entries with one name only one runs"
        yield Finding("apps", "warn", found, advice)


def clock_findings(offsets: Iterable[tuple[str, float]]) -> Iterator[Finding]:
    """Judge by how much the clocks of beats (name, seconds ahead) differ from the server's."""
    apart = [f"{beat} {offset:+.1f} s" for beat, offset in offsets if abs(offset) > MOST_APART]
    found = bool(apart) and "from the server's: " + ", ".join(apart)
    yield _finding("clocks", found, "run NTP on these machines", f"within {MOST_APART:g} s of the server's")
