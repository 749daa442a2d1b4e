"""Rules: what beats do. A beat may be as slow, and die, wherever it likes."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, dataclass, field
from datetime import datetime

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from machine.rules import START_TIMEOUT, Rules, entries, maybe, nothing, several
from machine.world import DEFINITIONS, ENTRIES, TICK, Message, Told

from celery_once_beat.rules import EndRules
from celery_once_beat.rules.policy import next_steps
from celery_once_beat.store import model as r
from celery_once_beat.store.model import ClaimRequest, Confirmation, LoadRequest
from celery_once_beat.windows import WindowKey, next_start, starts_after


@dataclass
class Job:
    """A window that a beat has claimed or taken, and is to publish and confirm."""

    window: WindowKey
    revision: int
    retry: int = 0
    published: int | None = None


@dataclass
class Beat:
    """What one beat process knows."""

    name: str
    definition: str
    cursor: dict[str, datetime] = field(default_factory=dict)
    known: dict[str, datetime] = field(default_factory=dict)
    #: When its schedule had no such entry; it has it again.
    absent: dict[str, datetime] = field(default_factory=dict)
    loaded_at: Counter[str] = field(default_factory=Counter)
    jobs: list[Job] = field(default_factory=list)


class BeatRules(Rules):
    """Two beats; one that ends is replaced by another."""

    beats: list[Beat]

    def new_beat(self, definition: str) -> Beat:
        beat = Beat(self.new_name("beat"), definition)
        self.world.store.heartbeat(beat.name)
        return beat

    def load(self, beat: Beat, entry: str) -> None:
        request = LoadRequest(
            entry, beat.name, beat.definition, 30 * 86_400.0,
            EndRules(**self.limits, **self.told),
            beat.loaded_at[entry], beat.known.get(entry), absent_at=beat.absent.get(entry),
        )  # fmt: skip
        before = self.world.books.accounts[entry]

        def told(reply, *_):
            # Under a new definition, or where the entry was in no schedule for a while, the account begins anew.
            begins_anew = isinstance(reply, r.Loaded) and reply.news in {"changed", "back"} and before is not None
            return Told(entry=entry, counted=Counter({k: -n for k, n in before.counts.items()} if begins_anew else {}))

        load = lambda: self.world.store.load_many([request])[0]  # noqa: E731
        reply = self.world.ask("load", load, told)
        beat.loaded_at[entry] = reply.loaded_at
        if isinstance(reply, r.Loaded):
            beat.cursor[entry] = beat.known[entry] = reply.cursor
            assert reply.cursor >= beat.absent.pop(entry, reply.cursor), "no window counts of a time without the entry"

    @rule(which=several, entry=entries, twice=maybe)
    def claim(self, which, entry, twice):
        self.claim_by(self.beats[which % 2], entry, twice=twice)

    @rule(which=several, entry=entries, copies=maybe)
    def claim_and_begin(self, which, entry, copies):
        """What nearly always happens, in one step, so that the other rules find executions to work on."""
        beat = self.beats[which % 2]
        self.claim_by(beat, entry)
        self.send_all(beat)
        delivered = list(self.world.queue)
        self.world.queue.clear()
        for message in delivered:
            self.begin_next(message)
        if copies:  # to be delivered again
            self.world.queue += delivered[:2]

    def send_all(self, beat: Beat) -> None:
        for job in beat.jobs:
            self.world.queue.append(Message(job.window, job.retry, ENTRIES[job.window.entry]))
            job.published = 1
            self.confirm_by(job)
        beat.jobs.clear()

    def claim_by(self, beat: Beat, entry: str, *, twice: bool = False) -> None:
        if entry not in beat.cursor:
            self.load(beat, entry)
        if entry not in beat.cursor:
            return
        cursor, now = beat.cursor[entry], self.world.time
        due = next_start(DEFINITIONS[beat.definition], cursor)
        if now < due:  # a beat sleeps until then
            self.world.pass_time((due - now).total_seconds() + TICK / 2)
            now = self.world.time
        steps = next_steps(list(starts_after(DEFINITIONS[beat.definition], cursor, now)), now, self.policy)
        step = steps[0]
        window = WindowKey(entry, step.start)
        mode = ("run" if ENTRIES[entry] else "untracked") if step.run else "pass"
        request = ClaimRequest(
            window, cursor, beat.definition, mode, self.expires, step.all_missed, step.all_missed_count
        )

        def told(reply, before, after):
            told = Told(entry=entry)
            account, was = after.accounts[entry], before.accounts[entry]
            if isinstance(reply, (r.Claimed, r.Moved)) and account and was and account.cursor != was.cursor:
                told.counted["missed"] = reply.missed
                told.counted["untracked"] = mode == "untracked"
                # A backfill before its time has its outcome already; it is counted now.
                for start in (*step.all_missed, *([step.start] if mode == "run" else ())):
                    ended = self.world.ended(WindowKey(entry, start))
                    told.counted.update(ended[:1])
            return told

        reply = self.world.ask("claim", lambda: self.world.store.claim_many(beat.name, [request])[0], told, twice=twice)
        if isinstance(reply, r.Claimed):
            beat.cursor[entry] = beat.known[entry] = step.start
            if step.run:
                beat.jobs.append(Job(window, reply.revision))
        elif isinstance(reply, r.Moved):
            beat.cursor[entry] = beat.known[entry] = reply.cursor
        else:
            assert isinstance(reply, (r.Paused, r.Superseded, r.Unknown)), reply
            del beat.cursor[entry]

    @precondition(lambda self: any(beat.jobs for beat in self.beats))
    @rule(which=several, fate=st.sampled_from(["sent", "sent", "sent", "twice", "lost", "perhaps", "not", "never"]))
    def publish(self, which, fate):
        job = self.pick([job for beat in self.beats for job in beat.jobs], which)
        copies = {"sent": 1, "twice": 2, "perhaps": 1}.get(fate, 0)
        job.published = {"perhaps": 0, "not": 0, "never": -1}.get(fate, 1)
        for _ in range(copies):
            self.world.queue.append(Message(job.window, job.retry, ENTRIES[job.window.entry]))

    @precondition(lambda self: any(job.revision for beat in self.beats for job in beat.jobs))
    @rule(which=several, twice=maybe)
    def go_on(self, which, twice):
        """A beat that publishes for long renews its claims, and leaves to others what they have taken meanwhile."""
        beat, job = self.pick([(b, j) for b in self.beats for j in b.jobs if j.revision], which)
        renewal = Confirmation(job.window, job.revision, r.Published.NOT_YET, START_TIMEOUT)
        reply = self.world.ask(
            "confirm", lambda: self.world.store.confirm_many([renewal])[0], self.ends(job.window), twice=twice
        )
        if isinstance(reply, r.Unchanged):
            beat.jobs.remove(job)

    @precondition(lambda self: any(job.published is not None for beat in self.beats for job in beat.jobs))
    @rule(which=several, twice=maybe)
    def confirm(self, which, twice):
        beat, job = self.pick([(b, j) for b in self.beats for j in b.jobs if j.published is not None], which)
        beat.jobs.remove(job)
        self.confirm_by(job, twice=twice)

    def confirm_by(self, job: Job, *, twice: bool = False) -> None:
        if not job.revision:
            return  # closed at its claim
        confirmation = Confirmation(job.window, job.revision, job.published, START_TIMEOUT)
        self.world.ask(
            "confirm", lambda: self.world.store.confirm_many([confirmation])[0], self.ends(job.window), twice=twice
        )

    @rule(which=several, twice=maybe)
    def take(self, which, twice):
        beat = self.beats[which % 2]
        self.take_by(beat, twice=twice)

    def take_by(self, beat: Beat, *, twice: bool = False) -> None:
        found = self.world.store.overdue(beat.name, self.world.time, 100)
        # In an order of their own: those whose deadlines are of one tick come in one that the machine's load decides.
        windows = (each for shard in found.shards for each in shard if isinstance(each, WindowKey))
        for window in sorted(windows, key=astuple):
            reply = self.world.ask(
                "take",
                lambda window=window: self.world.store.take_many(beat.name, [(window, beat.definition)])[0],
                self.ends(window),
                twice=twice,
            )
            if isinstance(reply, r.Taken):
                beat.jobs.append(Job(window, reply.revision, reply.retry))

    @rule(which=several, entry=entries, said=maybe, twice=maybe)
    def entry_leaves(self, which, entry, said, twice):
        """A beat's schedule has no such entry any more, and has it again when it claims next."""
        beat = self.beats[which % 2]
        if said and beat.loaded_at[entry]:  # else it was back before the store was told
            left = [(entry, beat.definition)]
            unload = lambda: self.world.store.unload_many(beat.name, left)[0]  # noqa: E731
            self.world.ask("unload", unload, nothing, twice=twice)
        for known in (beat.cursor, beat.known, beat.loaded_at):
            known.pop(entry, None)
        beat.absent[entry] = self.world.time

    @rule(which=several, leaves=maybe, definition=st.sampled_from([*DEFINITIONS, "ten"]))
    def beat_ends(self, which, leaves, definition):
        if leaves:
            self.world.store.leave(self.beats[which % 2].name)
        self.beats[which % 2] = self.new_beat(definition)
