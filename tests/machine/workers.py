"""Rules: what workers do, and the broker between them and the beats."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from machine.rules import START_TIMEOUT, Rules, maybe, nothing, rarely, several
from machine.world import LEASE, OFF, Execution, Message

from celery_once_beat.features.reserved.store import receive_many
from celery_once_beat.store import Ending
from celery_once_beat.store import model as r
from celery_once_beat.store.model import Renewal


class WorkerRules(Rules):
    """Any number of workers: each delivery of a message may begin, sleep, end and die by itself."""

    @precondition(lambda self: self.world.queue)
    @rule(which=several, stays=rarely, twice=maybe, dies=rarely)
    def begin(self, which, stays, twice, dies):
        message = self.pick(self.world.queue, which)
        if not stays:
            self.world.queue.remove(message)
        execution = self.begin_by(message, twice=twice)
        if execution and not dies:
            self.world.running.append(execution)

    @precondition(lambda self: self.world.queue)
    @rule(which=several, twice=maybe)
    def receive(self, which, twice):
        message = self.pick(self.world.queue, which)

        def send():
            return receive_many(self.world.store, [(message.window, message.retry, LEASE)])[0]

        self.world.ask("receive", send, nothing, twice=twice)

    def all_die(self) -> None:
        self.world.running.clear()

    def begin_next(self, message: Message) -> None:
        execution = self.begin_by(message)
        if execution:
            self.world.running.append(execution)

    def begin_by(self, message: Message, *, twice: bool = False) -> Execution | None:
        world = self.world
        owner, window, sent = self.new_name("worker"), message.window, world.time

        def send():
            return world.store.begin(window, owner, LEASE, message.retry, tracked=message.tracked)

        reply = world.ask("begin", send, self.ends(window), about=window, twice=twice)
        if not isinstance(reply, r.Begun):
            return None
        others = [e for e in world.running if e.message.window == window and e.until > sent]
        assert world.lossy or not others, f"{owner} began {window}, which {others} have"
        assert reply.fence > world.fences[window.entry], "the fence grows"
        world.fences[window.entry] = reply.fence
        self.begun.setdefault((window, world.backfills[window]), set()).add(reply.fence)
        return Execution(message, owner, reply.fence, sent + timedelta(seconds=LEASE))

    @precondition(lambda self: self.world.running)
    @rule(which=several, twice=maybe)
    def renew(self, which, twice):
        execution, sent = self.pick(self.world.running, which), self.world.time
        renewal = Renewal(execution.message.window, execution.owner, execution.fence, LEASE, execution.message.tracked)
        reply = self.world.ask("renew", lambda: self.world.store.renew_many([renewal])[0], nothing, twice=twice)
        if isinstance(reply, r.Renewed):
            execution.until = sent + timedelta(seconds=LEASE)
        else:
            self.world.running.remove(execution)

    @precondition(lambda self: self.world.running)
    @rule(
        which=several,
        outcome=st.sampled_from(["done", "done", "failed"]),
        again=st.sampled_from([None, 0.0, 30.0 + OFF]),
        twice=maybe,
    )
    def finish(self, which, outcome, again, twice):
        execution = self.pick(self.world.running, which)
        self.world.running.remove(execution)
        self.finish_by(execution, outcome, again if outcome == "failed" else None, twice=twice)

    def finish_by(self, execution: Execution, outcome: str, again: float | None = None, *, twice: bool = False):
        window, tracked = execution.message.window, execution.message.tracked

        def send():
            return self.world.store.finish(
                Ending(window, execution.owner, execution.fence, outcome, again, tracked=tracked)
            )

        return self.world.ask("finish", send, self.ends(window, outcome), twice=twice)

    @precondition(lambda self: self.world.running)
    @rule(
        which=several,
        delay=st.sampled_from([0.0, 2.0 + OFF, 100.0 + OFF]),
        copies=st.sampled_from([1, 1, 0, 2]),
        twice=maybe,
    )
    def hand_over(self, which, delay, copies, twice):
        self.hand_over_by(self.pick(self.world.running, which), delay, copies, twice=twice)

    def hand_over_by(self, execution: Execution, delay: float, copies: int, *, twice: bool) -> None:
        message = execution.message
        self.world.running.remove(execution)

        def send():
            return self.world.store.hand_over(
                message.window, execution.owner, execution.fence, message.retry + 1, delay, START_TIMEOUT,
                tracked=message.tracked,
            )  # fmt: skip

        reply = self.world.ask("hand_over", send, nothing, twice=twice)
        if isinstance(reply, r.HandedOver):
            # A retry is no death: it doesn't count.
            self.begun.get((message.window, self.world.backfills[message.window]), set()).discard(execution.fence)
            retry = Message(message.window, message.retry + 1, message.tracked)
            self.world.queue += [retry] * copies

    @precondition(lambda self: self.world.running)
    @rule(which=several)
    def execution_dies(self, which):
        self.world.running.remove(self.pick(self.world.running, which))

    @precondition(lambda self: self.world.running)
    @rule(which=several)
    def revoke_running(self, which):
        self.revoke_by(self.pick(self.world.running, which))

    def revoke_by(self, execution: Execution):
        self.world.running.remove(execution)
        window, tracked = execution.message.window, execution.message.tracked

        def send():
            return self.world.store.finish(Ending(window, execution.owner, 0, "revoked", tracked=tracked))

        return self.world.ask("revoke", send, self.ends(window, "revoked"))

    @precondition(lambda self: self.world.queue)
    @rule(which=several, outcome=st.sampled_from(["expired", "revoked"]), twice=maybe)
    def discard(self, which, outcome, twice):
        message = self.pick(self.world.queue, which)
        if outcome == "expired" and self.expires is None:
            return
        self.world.queue.remove(message)
        owner = self.new_name("main")

        def send():
            return self.world.store.close_window(message.window, owner, outcome, message.retry)

        self.world.ask("close", send, self.ends(message.window), twice=twice)

    @precondition(lambda self: self.world.queue)
    @rule(which=several, twice=maybe)
    def discard_unknown(self, which, twice):
        message = self.pick(self.world.queue, which)
        self.world.queue.remove(message)

        def send():
            return self.world.store.discarded(message.window, message.retry)

        self.world.ask("discarded", send, self.ends(message.window), twice=twice)

    @precondition(lambda self: self.world.queue)
    @rule(which=several)
    def message_is_lost(self, which):
        self.world.queue.remove(self.pick(self.world.queue, which))
