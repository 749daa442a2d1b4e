"""Which entries there are, as the beats run them: by what they say in the store, and by this process's code.

A process that looks may have older code than the beats, newer code, or none. So what a living beat has loaded is what
is shown. Code counts where the store doesn't know better: no beat lives, or those that do are of a version that doesn't
say what it loads. Pure.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from celery_once_beat.beat import BeatEntry, LoadedSchedule, guard
from celery_once_beat.errors import OnceError, ScheduleError
from celery_once_beat.features.alerts.reasons import why_late
from celery_once_beat.lookup import EntrySeen, Overview
from celery_once_beat.schedules import LoadedDefinition
from celery_once_beat.windows import is_child, task_of_child
from celery_once_beat.wording import printable, short, some

#: Names that a line has of each kind.
_NAMED = 3


@dataclass(frozen=True)
class Listed:
    """One entry that is to be shown."""

    name: str
    task: str
    #: In words.
    schedule: str
    tracked: bool
    seen: EntrySeen
    #: By which its starts are known; None: its schedule is of a type that the store doesn't hold, nor this code.
    entry: BeatEntry | None
    #: For how long an execution owns its window without renewing, seconds; None: that isn't known.
    lease: float | None
    #: Seconds for which a message waits before it may run.
    countdown: float = 0.0
    #: It is as this process's code has it, or as people set it at run time.
    of_code: bool = True
    #: Which beat leaves it out, and why, in words; '' where none that lives does.
    left_out: str = ""
    #: Beats live that have it; or none lives at all. Else it is yet to be loaded, or has left the schedule.
    owned: bool = True

    def after(self, start: datetime) -> datetime | None:
        """Return the first start after ``start``, both aware UTC; None: there is none, or its schedule can't say."""
        try:
            return None if self.entry is None else self.entry.after(start)
        except ScheduleError:
            return None


#: How entries of this process's code may differ from those that the beats run.
_DIFFERENCES = {
    "only here": "no beat runs",
    "only there": "not in this code:",
    "changed": "of another task or schedule:",
}


#: By name what an entry was listed by, and as what. Who looks again and again keeps it: mostly it is the same.
Lines = dict[str, tuple[tuple[object, ...], Listed | None, str]]


def line_up(schedule: LoadedSchedule, overview: Overview, before: Lines | None = None) -> tuple[list[Listed], str]:
    """Return the entries to be shown, and by what the code differs, in one line; ``schedule`` is what this process has.

    '' where nothing differs.
    """
    look = _Look(schedule, overview)
    lines = {} if before is None else before
    differ: dict[str, list[str]] = {}
    listed = []
    for name, seen in overview.entries.items():
        by = look.by(seen)
        known = lines.get(name)
        if known is None or known[0] != by:
            known = lines[name] = (by, *look.line(seen))
        _, line, how = known
        if line is not None:
            listed.append(line)
        if how:
            differ.setdefault(how, []).append(printable(repr(name)))
    for name in lines.keys() - overview.entries.keys():
        del lines[name]
    parts = [f"{words} {some(sorted(differ[how]), _NAMED)}" for how, words in _DIFFERENCES.items() if how in differ]
    says = "This process's code isn't what the beats run, which is shown: "
    return listed, says + "; ".join(parts) if parts else ""


def left_out(overview: Overview) -> dict[str, str]:
    """Return the entries that beats which live leave out, each with one of them and why."""
    return {
        name: f"beat {short(beat.beat)} leaves it out: {printable(why)}"
        for beat in overview.beats
        for name, why in beat.left_out.items()
    }


class _Look:
    def __init__(self, schedule: LoadedSchedule, overview: Overview) -> None:
        self._entries = schedule.entries
        self._overview = overview
        self._alive = {beat.beat for beat in overview.beats}
        self.left_out = left_out(overview)
        #: Until it has loaded all, nobody knows what a beat doesn't have. Meanwhile the others are believed.
        said = [beat.unloaded == 0 for beat in overview.beats]
        self._some_said, self._all_said = any(said), any(said) and all(said)
        self._who = sys.intern(repr((sorted(self._alive), said)))

    def by(self, seen: EntrySeen) -> tuple[object, ...]:
        """Return all by which an entry is listed."""
        name = seen.name
        return seen, self._entries.get(name), self._overview.loaded.get(name), self._who, self.left_out.get(name)

    def line(self, seen: EntrySeen) -> tuple[Listed | None, str]:
        """Return an entry, None where it isn't shown, and how it differs (_DIFFERENCES), or ''.

        One whose task or schedule raises here is left out of what this process has.
        """
        line, how = None, ""
        with guard(partial(self._entries.drop, seen.name), timed=False):
            line, how = self._find(seen)
        owned = not self._alive or self._is_loaded(seen)
        if line is not None and (seen.name in self.left_out or not owned):
            line = replace(line, left_out=self.left_out.get(seen.name, ""), owned=owned)
        return line, how

    def _is_loaded(self, seen: EntrySeen) -> bool:
        """Whether a beat that lives has loaded it."""
        return seen.account is not None and not self._alive.isdisjoint(seen.account.loaders)

    def _find(self, seen: EntrySeen) -> tuple[Listed | None, str]:
        if is_child(seen.name) and seen.account is not None:  # somebody asks for it
            sent, task = "sent by a window", task_of_child(seen.name)
            return Listed(seen.name, task, sent, tracked=True, seen=seen, entry=None, lease=None), ""
        code = self._entries.get(seen.name)
        definition = self._definition(seen)
        if definition is not None and self._runs(seen, known=code is not None):
            return self._as_said(code, seen, definition), self._compare(code, seen) if self._alive else ""
        if code is not None and self._left(code, seen):
            return None, "only here"
        return (None, "") if code is None else (self._of_code(code, seen), "")

    def _compare(self, code: BeatEntry | None, seen: EntrySeen) -> str:
        assert seen.account is not None
        if code is None:
            return "only there"
        return "changed" if code.fingerprint != seen.account.fingerprint and not code.stored else ""

    def _definition(self, seen: EntrySeen) -> LoadedDefinition | None:
        """Return the definition that a beat loaded, if it is still in force and can be read."""
        fingerprint, _, text = self._overview.loaded.get(seen.name, "").partition(" ")
        if seen.account is None or fingerprint != seen.account.fingerprint:
            return None
        try:
            return LoadedDefinition.read(text)
        except ValueError:
            return None  # the code counts, if it has the entry

    def _runs(self, seen: EntrySeen, *, known: bool) -> bool:
        """Whether beats run it; where none lives, whether they did and it matters: it is in the code, or is owed."""
        assert seen.account is not None
        if not self._alive:
            return known or bool(seen.account.open)
        return not self._some_said or self._is_loaded(seen)

    def _left(self, code: BeatEntry, seen: EntrySeen) -> bool:
        """Whether the beats that live don't have the code's entry."""
        if code.stored or seen.trouble or not self._all_said:
            return False
        return not self._is_loaded(seen)

    def _as_said(self, code: BeatEntry | None, seen: EntrySeen, definition: LoadedDefinition) -> Listed:
        assert seen.account is not None
        known = seen.account.fingerprint or ""
        entry = code if code is not None and code.fingerprint == known else None
        if entry is None and definition.schedule is not None:
            try:
                entry = self._entries.make_loaded(seen.name, definition, known)
            except OnceError:
                entry = None  # its name or its options are none; what the beat loaded is shown
        words, waits = (entry or definition).description, definition.countdown or 0.0
        what, own = (seen.name, definition.task, words, definition.tracked), entry is not None and entry is code
        return Listed(*what, seen, entry, definition.lease, countdown=waits, of_code=own)

    def _of_code(self, code: BeatEntry, seen: EntrySeen) -> Listed:
        lease, waits = self._entries.lease_of(code), code.timing.countdown or 0.0
        return Listed(code.name, code.source.task, code.description, code.tracked, seen, code, lease, countdown=waits)


# -- late windows: not done ``deadline`` seconds after their start, by the store alone -----------------------------


@dataclass(frozen=True, slots=True)
class LateWindow:
    """A window that is late."""

    entry: str
    start: datetime
    #: How it stands, a name of ``outcomes.STATES``; ``unclaimed``: no beat has claimed it.
    state: str
    #: The same in words.
    why: str


def deadline_of(listed: Listed) -> timedelta | None:
    """Return the deadline of an entry's windows: as beats have loaded it, else as this process has it. None: none."""
    account = listed.seen.account
    seconds = account.deadline if account else listed.entry.policy.deadline if listed.entry else None
    return None if seconds is None else timedelta(seconds=seconds)


def late_now(listed: Listed, now: datetime) -> tuple[LateWindow, ...]:
    """Return the late windows that are open, the oldest first; then the oldest that no beat has claimed.

    Of a paused entry only what is open can be late: nobody claims the others.
    """
    deadline, account = deadline_of(listed), listed.seen.account
    if deadline is None or account is None:
        return ()
    due = unclaimed(listed)
    late = [
        LateWindow(listed.name, window.start, *why_late(window, account))
        for window in reversed(listed.seen.windows)
        if window.open is not None and not window.open.backfill and window.start + deadline < now
    ]
    if due is not None and due + deadline < now:  # no beat lives, or none makes progress
        late.append(LateWindow(listed.name, due, "unclaimed", "no beat has claimed it"))
    return tuple(late)


def late_last(listed: Listed, now: datetime) -> LateWindow | None:
    """Return the newest window that has ended, if it isn't done, and no window was done for longer than a deadline.

    That time counts from the first window after the last one that was done: of an entry that fails each minute, the
    newest window is always young. Of a paused entry it is None.
    """
    deadline, last, account = deadline_of(listed), listed.seen.last, listed.seen.account
    if deadline is None or last is None or last.past is None or last.state == "done" or (account and account.paused):
        return None
    first = last.start
    if account is not None:
        first = min(first, listed.after(account.last_done or account.born) or first)
    if first + deadline >= now:
        return None
    return LateWindow(listed.name, last.start, *why_late(last, account))


def unclaimed(listed: Listed) -> datetime | None:
    """Return the oldest start that a beat is to claim; None where there is none, or beats are yet to load the entry."""
    account = listed.seen.account
    return None if account is None or account.paused or not listed.owned else listed.after(account.cursor)
