"""The store's verbs on real servers: what each answers in each state of a window, and what it leaves behind."""

from __future__ import annotations

import ast
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from processes import wait_until
from proxy import Proxy
from servers import free_port
from stage import (
    DELAY,
    ENTRY,
    EVERY_MINUTE,
    HOLDER,
    LEASE,
    MARGIN,
    MARK,
    MINUTE,
    PUBLISH,
    QUEUE,
    START,
    STATES,
    T0,
    VERBS,
    Stage,
    answer_or_error,
    in_ms,
    nth,
)
from steps import heard, play, promises

from celery_once_beat.contrib.django.row_store import leave_rows
from celery_once_beat.errors import (
    NewerVersionError,
    OnceError,
    StoreDataError,
    StoreUnavailableError,
    UncertainWriteError,
)
from celery_once_beat.features.orders.store import NOTE, Order, read_orders, write_orders
from celery_once_beat.features.reserved.store import receive_many
from celery_once_beat.lookup import Lookup
from celery_once_beat.lookup.reading import read_past
from celery_once_beat.rules import count_starts
from celery_once_beat.store import SHARDS, Ending, shard_of
from celery_once_beat.store import model as r
from celery_once_beat.windows import KeyedWindow, WindowKey, format_instant, task_id

# ----------------------------------------------------------------------------------------------- the table


# answer | next state | deadline, seconds from now | verbs | states in which they answer so
# A deadline of "same" hasn't moved; "-": the window owes no outcome. At a line's end "waits" are three states.
TABLE = """
Claimed revision=1       | open       | 5    | claim; claim, beat-2 | unseen
Claimed revision=1       | open       | same | claim | claimed; published
Moved                    | running A  | same | claim; claim, beat-2 | running
Moved                    | open       | same | claim | died; taken; due again; again; waits
Moved                    | waiting 1  | same | claim; claim, beat-2 | waiting
Moved                    | closed     | -    | claim | closed; long closed
Moved                    | running A  | 31   | claim; claim, beat-2 | ahead
StoreDataError           | unseen     | -    | claim | before
Unknown                  | unknown    | -    | claim; backfill | lost
Moved                    | open       | same | claim, beat-2 | claimed; published; died; taken; waits
Moved                    | closed     | -    | claim, beat-2 | closed
Unchanged                | unseen     | -    | confirm; take overdue; receive, n=0; expired, n=0 | unseen; before
Unchanged                | unseen     | -    | unknown, n=0; abandon; abandon running; republish | unseen; before
Confirmed                | open       | 600  | confirm | claimed; published; taken; again, taken
Unchanged                | running A  | same | confirm; unconfirm; not yet; astray; take; receive, n=0 | running
Unchanged                | running A  | same | expired, n=0; expired, n=1; unknown, n=0; republish | running
Unchanged                | open       | same | confirm; unknown, n=0 | died; due again; again; waits
Unchanged                | waiting 1  | same | confirm; unconfirm; not yet; astray; take; receive, n=0 | waiting
Unchanged                | waiting 1  | same | expired, n=0; unknown, n=0; republish | waiting
Unchanged                | closed     | -    | confirm; take overdue; expired, n=0; unknown, n=0 | closed; long closed
Unchanged                | closed     | -    | abandon; abandon running; receive, n=0; republish | closed; long closed
Unchanged                | running A  | -    | confirm; take overdue; receive, n=0; expired, n=0; unknown, n=0 | ahead
Unchanged                | running A  | -    | abandon; abandon running; republish | ahead
Unchanged                | unknown    | -    | confirm; take overdue; receive, n=0; expired, n=0; unknown, n=0 | lost
Unchanged                | unknown    | -    | abandon; abandon running; republish | lost
Unchanged                | unseen     | -    | unconfirm; not yet; astray | unseen
Confirmed                | open       | 1    | unconfirm | claimed; published; taken
Unchanged                | open       | same | unconfirm; astray | died; waits
Unchanged                | closed     | -    | unconfirm; not yet; astray | closed
Confirmed                | open       | 5    | not yet | claimed; taken
Unchanged                | open       | same | not yet | published; died; waits
Closed outcome=untracked | closed     | -    | astray | claimed; published; taken
Unchanged                | open       | same | take | claimed; published; died; due again; again; waits turn; waits slot
Taken retry=0 attempts=1 | open       | same | take | taken; again, taken
Taken retry=0 attempts=0 | open       | 5    | take | its turn
Taken retry=0 attempts=0 | open       | 5    | take overdue | claimed; published; its turn; waits slot
Taken retry=0 attempts=0 | open       | 5    | take unconsumed | claimed; its turn; waits slot
Unconsumed               | open       | 1    | take unconsumed | published
Unchanged                | running A  | 31   | take overdue; take unconsumed | running
Taken retry=0 attempts=1 | open       | 5    | take overdue; take unconsumed | died; taken; again
Unchanged                | waiting 1  | 62   | take overdue; take unconsumed | waiting
Taken retry=1 attempts=0 | open       | 5    | take overdue; take unconsumed | due again
Unchanged                | open       | 600  | take overdue; take unconsumed | waits turn
Confirmed                | open       | 31   | receive, n=0 | claimed; published; died; taken; again, taken
Unchanged                | running B  | same | receive, n=0; unknown, n=0; republish | followed
Unchanged                | open       | same | receive, n=0 | due again; again; waits
Confirmed                | open       | 31   | receive, n=1 | published; due again
Confirmed                | waiting 1  | 62   | receive, n=1; unknown, n=1 | waiting
Unchanged                | open       | same | receive, n=1 | waits
Begun attempt=1          | running A  | -    | begin A | unseen; ahead; before; lost
Begun attempt=1          | running A  | 31   | begin A | claimed; published; running; died; taken; its turn; waits slot
Busy                     | running B  | same | begin A; abandon | followed
Busy                     | waiting 1  | same | begin A; begin B; begin B, n=2 | waiting
Busy                     | open       | same | begin A | due again
Closed outcome=          | closed     | -    | begin A; begin B | closed; long closed
Waits                    | open       | 600  | begin A; begin B; begin B, n=1; begin B, n=2 | waits turn
Busy                     | running A  | same | begin B; begin B, n=1; abandon | running
Begun attempt=2          | running B  | 31   | begin B | died; taken; followed; again, taken
Busy                     | open       | same | begin B | due again; again
Busy                     | running A  | -    | begin B | ahead
Begun attempt=1          | running B  | -    | begin B | lost
Begun attempt=1          | running B  | 31   | begin B; begin B, n=2 | its turn; waits slot
Begun attempt=1          | running B  | -    | begin B, n=1 | unseen; before
Begun attempt=1          | running B  | 31   | begin B, n=1 | claimed; published; waiting; due again; its turn
Begun attempt=1          | running B  | 31   | begin B, n=1 | waits slot
Begun attempt=2          | running B  | 31   | begin B, n=1 | died
Closed outcome=          | closed     | -    | begin B, n=1 | closed
Stale                    | open       | same | renew A | claimed; published; due again; again; again, taken; waits
Renewed                  | running A  | 31   | renew A | running; died; taken
Stale                    | running B  | same | renew A; hand over A; finish A; finish A, again | followed
Stale                    | waiting 1  | same | renew A; renew B; hand over A, n=2; hand over B; finish A | waiting
Stale                    | waiting 1  | same | finish B; finish A, again | waiting
Stale                    | closed     | -    | renew A; hand over A; finish B | closed; long closed
Renewed                  | running A  | -    | renew A | ahead; lost
Stale                    | running A  | same | renew B; hand over B; finish B | running
Stale                    | open       | same | renew B | died; taken; waits
Renewed                  | running B  | 31   | renew B | followed
Stale                    | closed     | -    | renew B; hand over B | closed
Stale                    | running A  | -    | renew B; hand over B; finish B | ahead
Stale                    | open       | same | hand over A | claimed; published; again; again, taken; waits
HandedOver               | waiting 1  | 660  | hand over A | running; died; taken
HandedOver               | waiting 1  | same | hand over A | waiting
HandedOver               | waiting 1  | -    | hand over A | ahead; lost
Stale                    | open       | same | hand over A, n=2 | waits
Stale                    | open       | same | hand over B | died; waits
Stale                    | open       | same | finish A | claimed; published; due again; waits
Finished                 | closed     | -    | finish A | running; ahead; died; taken; closed; lost
Stale                    | open       | same | finish B | died; taken; due again; again; again, taken; waits
Finished                 | closed     | -    | finish B | followed
Stale                    | open       | same | finish A, again | claimed; waits
Again                    | open       | 60   | finish A, again | running; died
Again                    | open       | same | finish A, again | again; again, taken
Stale                    | open       | same | revoke A | published; due again; waits
Finished                 | closed     | -    | revoke A | running; waiting
Closed outcome=expired   | closed     | -    | expired, n=0 | claimed; published; waits
Unchanged                | open       | same | expired, n=0 | died; due again; again; again, taken
Unchanged                | open       | same | expired, n=1 | claimed; waits
Closed outcome=expired   | closed     | -    | expired, n=1 | waiting; due again
Confirmed                | open       | 1    | unknown, n=0 | claimed; published; taken; again, taken
Unchanged                | open       | same | unknown, n=1 | claimed; published; waits
Confirmed                | open       | 1    | unknown, n=1 | due again
Claimed revision=1       | open       | 10   | backfill | unseen; closed; long closed; before
Open                     | open       | same | backfill | claimed; published; died; taken; due again; again; waits
Open                     | running A  | same | backfill | running
Open                     | waiting 1  | same | backfill | waiting
Open                     | running A  | -    | backfill | ahead
Finished                 | closed     | -    | abandon | claimed; published; died; taken; waiting; due again; again
Finished                 | closed     | -    | abandon | again, taken; waits
Finished                 | closed     | -    | abandon running | claimed; published; running; died; taken; followed
Finished                 | closed     | -    | abandon running | waiting; due again; again; again, taken; waits
Unchanged                | open       | same | republish | claimed; died; taken; due again; again; again, taken; waits
Confirmed                | open       | 0    | republish | published
""".replace("waits\n", "waits turn; its turn; waits slot\n")
ROWS = [
    (state, verb, answer.strip(), after.strip(), deadline.strip())
    for answer, after, deadline, verbs, states in (line.split("|") for line in TABLE.split("\n")[1:-1])
    for verb, state in itertools.product(verbs.strip().split("; "), states.strip().split("; "))
]


def answered(reply: Any) -> str:
    """A reply as the table writes it, with every field that a row may name."""
    fields = getattr(reply, "__dict__", {}) if not isinstance(reply, OnceError) else {}
    shown = [f"{key}={fields[key]}" for key in ("revision", "retry", "attempts", "attempt", "outcome") if key in fields]
    return " ".join([type(reply).__name__, *shown])


@pytest.mark.parametrize(
    ("state", "verb", "answer", "after", "deadline"), ROWS, ids=[f"{row[0]}: {row[1]}" for row in ROWS]
)
def test_a_verb_in_a_state(stage: Stage, state: str, verb: str, answer: str, after: str, deadline: str) -> None:
    """A verb answers and leaves the window as the table says; sent twice, since a reply was lost, it does so again."""
    sent = stage.now()  # what is left of a lease or a wait is counted from when it began
    STATES[state](stage)
    old = stage.deadline()
    first = VERBS[verb](stage)
    said = answered(first).split()
    assert said[0] == answer.split(maxsplit=1)[0]
    assert set(answer.split()) <= set(said)
    for _ in range(2):
        found = stage.deadline()
        assert stage.state() == after
        if deadline == "-":
            assert found is None
        elif deadline == "same":
            assert found == old
        else:
            due = float(deadline) * 1000
            # Which deadline it is; a lease's remainder counts from a little before it was sent.
            assert sent + due - 2000 <= found <= stage.now() + due + 2000
        if verb in ("take overdue", "take unconsumed"):
            break  # what a take moved is overdue no more; see the test of its repetition
        again = VERBS[verb](stage)
        assert str(again) == str(first) if isinstance(first, OnceError) else again == first


@pytest.mark.parametrize("state", ["claimed", "published", "died", "due again", "again"])
def test_a_take_whose_reply_was_lost_answers_again(stage: Stage, state: str) -> None:
    """A take that is sent twice is Taken twice; another beat gets nothing. Once confirmed, neither does."""
    STATES[state](stage)
    stage.overdue()
    first = stage.take("beat-2")
    assert isinstance(first, r.Taken)
    assert first.ordered is None
    assert isinstance(stage.take("beat-1"), r.Unchanged)
    assert stage.take("beat-2") == first
    assert stage.confirm() == r.Confirmed()
    assert isinstance(stage.take("beat-2"), r.Unchanged)


def test_every_state_and_verb_has_its_row() -> None:
    """The table speaks of every state and every verb that this file knows."""
    assert {row[0] for row in ROWS} == set(STATES)
    assert {row[1] for row in ROWS} == set(VERBS)
    assert len(ROWS) == len({row[:2] for row in ROWS}) == 417


# ---------------------------------------------------------------------------------------------------- promises


def _open_and_overdue(stage: Stage) -> None:
    stage.reach("published")
    stage.overdue()


def _loaded_by_two(stage: Stage) -> None:
    for beat in ("beat-1", "beat-2"):
        stage.load(beat, alive=["beat-1", "beat-2"])
    _open_and_overdue(stage)
    stage.overdue(16)


#: What is promised | the entry's limits, then calls of the stage and what they answer, as :data:`PLAIN` and
#: :func:`said` write it. Window 3 starts at ``#3``, and a list ends with or has a comma.
STEPS = """
an order that is open goes on as the schedule's window, whatever the claim asked for |
  at 2; backfill; claim mode=untracked missed=#1, missed_count=1 = Moved 2; open = 2; state = open; even
what can't be published is tried max_attempts times and fails, instead of piling up | max_attempts=2
  claim; confirm impossible; recover; confirm impossible = Closed failed; confirm impossible = Closed failed
  confirm = Unchanged; confirm unsure = Unchanged; confirm impossible revision=1 = Unchanged; counts = failed 1; even
a message that can't be made changes nothing of a window that a worker failed, and isn't told as the beat's |
  reach running; finish A failed; confirm impossible = Unchanged
a window of an unknown entry is put off and hides nothing; once its entry has expired, it goes too |
  reach published; postpone () = no; overdue; postpone () = postponed; swept =; overdue; forget
  postpone () = forgotten; state = unknown
what another living beat knows isn't put off: in a rolling deploy recovery isn't delayed by an old beat |
  reach published; overdue; postpone beat-0,beat-1 = no; take beat-1; overdue; postpone beat-0, = postponed
the last of the beats that had a deleted entry puts its windows off |
  load beat-2; reach published; overdue; postpone beat-2, beat-1 = no; postpone beat-1, beat-2 = postponed; swept =
what no worker closes any more is dropped; not while another beat may know better, nor while it runs |
  reach published; overdue 16; postpone beat-1, beat-2 untracked = no; begin; overdue 16
  postpone () beat-1 untracked = no; swept =; finish A failed 1.0 = Again; overdue 16
  postpone () beat-1 untracked = closed; counts = dropped 1; even
the last that doesn't track an entry drops its windows; who loads it may track it by then; a lost reply is repeated |
  loaded_by_two; postpone beat-1,beat-2 beat-1 untracked = no; postpone beat-1,beat-2 beat-1 untracked = no
  load beat-1 alive=beat-1,beat-2; postpone beat-1,beat-2 beat-2 untracked = no
  load beat-3 alive=beat-1,beat-2,beat-3; postpone beat-1,beat-2,beat-3 beat-1 untracked = no
  postpone beat-1,beat-2 beat-2 untracked = closed; counts = dropped 1; even
  postpone beat-1,beat-2 beat-2 untracked = closed; postpone beat-1,beat-2 beat-1 untracked = no; counts = dropped 1
a load of another definition, also a superseded one, forgets what its beat said |
  loaded_by_two; postpone beat-1,beat-2 beat-1 untracked = no; load beat-2 other alive=beat-1,beat-2 = changed
  load beat-1 loaded_at=1 alive=beat-1,beat-2 = Superseded; postpone beat-1,beat-2 beat-2 untracked = no
within its grace a window is taken and runs, however late | grace=94867200.0
  reach published; recover; overdue; begin
handing over to a retry is no death, however often | max_attempts=1 recover=False
  reach published; begin A 0; hand_over A 1; begin B 1; hand_over B 2; begin C 2; hand_over C 3; begin D 3
  hand_over D 4; lapse; recover = Taken 4 0; begin last 4; finish last; counts = done 1
neither a failure that is to run again nor its retry is a death: the retry begins at once | recover=False
  reach again; begin B = Busy waiting to run again; recover = Taken 0 1; begin B = Begun 2; hand_over B; lapse
  begin C 1 = Begun 2; finish C; counts = done 1
nor where a beat has taken it | recover=False
  reach again; recover = Taken 0 1; begin B = Begun 2; hand_over B; lapse; recover = Taken 1 1; begin C 1 = Begun 2
grace doesn't end what died |
  reach died; load grace=1.0; recover = Taken 0 1; begin B 1 = Begun 2
grace doesn't end a retry |
  reach waiting; lapse; load grace=1.0; recover = Taken 1 0; begin B 1
grace doesn't end what is to run again |
  reach again; load grace=1.0; recover = Taken 0 1; begin B 1 = Begun 2
the same definition goes on where it was, and no counter changes |
  reach closed; load beat-9 known=None = same; cursor = 1; counts = done 1
a new entry goes on from now |
  flush; load known=None = new; cursor = now; since = now; born = now; paused = False
a changed definition goes on from now: counters start anew, and open windows stay open |
  reach closed; claim_nth 2; load beat-2 two alive=beat-1,beat-2 = changed; cursor = now; since = now; counts =; even
  execute B; counts =; apart = done 1; even
what a beat remembers fills in for a cursor that is lost, if it isn't in the future, and moves no other |
  claim; load known=#0 = same; cursor = 1; load known=#5 = same; cursor = 1; flush; load known=#1; cursor = 1
  flush; load known=#999999999; cursor = now
a begin learns of the latest window that was done, also if an older one ends after it |
  claim; learn A =; claim_nth 2; execute B; at 1; finish A; claim_nth 3; learn C = 2; finish C failed
  claim_nth 4; learn D = 2
a changed definition that counts from an earlier instant loses no one-off that is first seen late |
  flush; load known=None counts_from=#3 = new; cursor = 3; since = 3; load counts_from=#9 = same
  load beat-2 two alive=beat-1,beat-2 counts_from=#5 = changed; cursor = 5; since = 5
  load beat-3 three alive=beat-1,beat-2 counts_from=#1 = changed; cursor = 5; since = 5
  load beat-4 four counts_from=#999999999 = changed; cursor = now
what is back counts from when it was last away; every beat may say so, and none takes back what ran since |
  claim; execute; load absent_at=#5 = back; cursor = 5; since = 5; counts =; even; claim start=#6 since=#5
  load beat-2 absent_at=#5 alive=beat-1,beat-2 = same; cursor = 6; since = 5; open = 6; load absent_at=#999999999
  cursor = now
what is back counts from when it came, if that is known; another beat had it by then |
  load absent_at=#5 counts_from=#7 = back; cursor = 7; since = 7
  load beat-2 absent_at=#6 counts_from=#9 alive=beat-1,beat-2 = same; cursor = 7
a one-off that was disabled and is enabled again counts from its first edit since, until it is loaded |
  spent #1 = Spent; spent #2 = Spent; spent #2 disabled=True = Spent; spent #2 disabled=True = Spent; spent #1 = Spent
  spent #2 = Spent; spent #3 #5 = Spent 5; spent #4 #6 = Spent 5; spent #2 #6 disabled=True = Spent 5
  load absent_at=#5 = back; since = 5; spent #4 = Unknown; spent #4 since=#5 = Spent
  spent #4 since=#5 disabled=True = Spent; spent #5 #9 since=#5 = Spent 9
what the last beat has left is in force no more, and counts from when it is loaded again |
  load beat-2 alive=beat-1,beat-2; unload beat-1 alive=beat-1,beat-2 = kept; claim beat-2
  unload beat-2 alive=beat-1,beat-2 = unloaded; unload beat-2 alive=beat-1,beat-2 = unloaded
  claim beat-2 start=#2 since=#1 = Superseded; load beat-1 alive=beat-1,beat-2 = changed; cursor = now
  unload beat-2 alive=beat-1,beat-2 = kept
a dead beat keeps no entry, nor does one with another definition; what isn't in force isn't taken out of it |
  load beat-2; unload beat-1 alive=beat-1, = unloaded; load beat-1 other alive=beat-1,
  unload beat-3 alive=beat-1,beat-3 = kept; claim mark=other = Moved now; flush; unload = unknown
  keys =
pause stops claims, not recovery nor workers; resume goes on from the cursor |
  reach published; pause True; claim start=#2 since=#1 = Paused; paused = True; recover; execute; pause False
  paused = False; claim start=#2 since=#1
an untracked window is claimed and closed in one step: one copy of its message begins, and it isn't recovered |
  claim mode=untracked; claim mode=untracked; claim beat-2 mode=untracked = Moved 1; counts = untracked 1; even
  state = closed; begin A tracked=False; begin B tracked=False = Busy runs alone; renew A; finish A; finish A
  begin C tracked=False = Closed; counts = untracked 1
an untracked claim of what is open, since the store lost its cursor, publishes nothing, also sent again |
  claim; lose_cursor; claim mode=untracked = Moved 1; claim mode=untracked = Moved 1; state = open; even
a window that another beat claimed before the loss is open again, for who finds it overdue |
  claim beat-1; lose; load beat-2 = new; cursor = 0; claim beat-2 = Moved 1; state = open; recover; even
what is passed is missed, with all before it, in one step; repeated, once |
  claim start=#5 mode=pass missed=#1,#2,#3,#4,#5 missed_count=5
  claim start=#5 mode=pass missed=#1,#2,#3,#4,#5 missed_count=5
  claim beat-2 start=#5 mode=pass missed=#1,#2,#3,#4,#5 missed_count=5 = Moved 5
  counts = missed 5; open =; even; begin = Closed
an execution that began before the store lost the claim counts as the window's first |
  reach ahead; claim = Moved 1; lapse; recover = Taken 0 1; begin B = Begun 2
a copy of what a worker had reserved makes no queue longer: a second one may lie there |
  reach published; receive; recover consumed=another,; confirm; receive; overdue
  take consumed=another, = Unconsumed
a backfill is counted apart, and changes nothing of the schedule's account |
  reach closed; lapse; backfill; open = 1 backfill; even; recover; begin B; backfill = Open; finish B; counts = done 1
  apart = done 1; even; cursor = 1
a window that was run ahead by order has its outcome when its time comes |
  backfill; execute; claim = Moved 1; state = closed; open =; counts = done 1; even
an execution of an abandoned window is stale, and a message that is out is refused |
  reach running; abandon running=True = Finished; renew A = Stale; hand_over A = Stale; finish A = Stale
  begin B = Closed; counts = cancelled 1
without a slot an untracked copy comes back: nobody would publish it again |
  claim mode=untracked; begin tracked=False no_slot=reports = Busy runs alone
a time that the store forgot runs alone: a copy isn't told to come back, as no beat would publish it |
  at 3; begin A; begin B = Busy runs alone
a window whose queue nobody consumes ends by its rules when it is looked at | grace=0.0
  reach published; overdue; take consumed=() = Closed missed
a hand-over whose reply was lost for long isn't stale, while nobody has begun since |
  reach running; hand_over A 1 0.0; lapse; mark; hand_over A 1 0.0; unmoved; hand_over A 2 0.0 = Stale
  hand_over B 1 0.0 = Stale; begin C 1; lapse; hand_over A 1 0.0 = Stale
a later retry than the one that is due isn't waited for: only a message of the retry that is due moves the deadline |
  reach running; hand_over; mark; receive 2 = Unchanged; unmoved
what was ordered ahead and hasn't begun becomes the schedule's: one window, not two; its message may be out |
  backfill; mark; claim = Moved 1; unmoved; open = 1; attempts = 0; begin; finish; counts = done 1; apart =; even
so does what was ordered ahead and runs |
  backfill; begin; mark; claim = Moved 1; unmoved; open = 1; attempts = 1; begin; finish; counts = done 1; apart =; even
without its fence only what runs is finished: not what died, or what nothing is known of |
  unfenced = Stale; reach died; unfenced = Stale; begin; unfenced = Finished
a done marker that alone says that a window ran, as the cursor hasn't passed it, lives for the retention |
  claim mode=untracked; begin A tracked=False; finish A; marker = retention; at 7; execute; marker = retention
beside a cursor that has passed its window it may go soon |
  reach closed; marker = marker_ttl
a server that was restarted knows no script, and nobody notices |
  reach published; forget_scripts; begin; forget_scripts; renew; forget_scripts; finish
who has a message reserved, how much it executes and for how long it has had it, is known until it begins |
  reach published; receive holder=celery@a:3:71; holder = by night celery@a 3 71
  receive holder=celery@a:-:71; holder = by night celery@a None 71; begin; holder = by night; lapse
  recover = Taken 0 1; confirm; holder = by night; receive holder=celery@b:0:1; holder = by night celery@b 0 1
  seen = waiting; recover = Taken 0 1; holder = by night
"""
PLAIN = {"confirm": "Confirmed", "receive": "Confirmed", "recover": "Taken", "hand_over": "HandedOver", "even": "True"}
PLAIN |= {"claim": "Claimed", "backfill": "Claimed", "begin": "Begun", "take": "Taken", "finish": "Finished"}
PLAIN |= {"renew": "Renewed", "pause": "Confirmed", "unmoved": "True"}
DOING: dict[str, Callable[..., Any]] = {
    "at": lambda s, number: setattr(s, "start", nth(number)),
    "forget": lambda s: s.raw.delete(s.entry_key),
    "lose": lambda s: s.raw.delete(s.entry_key, s.open_key),
    "lose_cursor": lambda s: s.raw.hset(s.entry_key, "cursor", format_instant(T0)),
    "loaded_by_two": _loaded_by_two,
    "flush": lambda s: s.raw.flushall(),
    "keys": Stage.all_keys,
    "pause": lambda s, paused: s.store.set_paused(ENTRY, paused=paused),
    "paused": lambda s: bool(s.load().pause and s.store.account(ENTRY).paused_at),
    "swept": lambda s: s.store.overdue("beat-1", datetime.now(timezone.utc), 10).shards[s.shard_number].windows,
    "open": lambda s: [number(start) + " backfill" * of for start, of in s.open_windows().items()],
    "cursor": lambda s: number(s.store.account(ENTRY).cursor),
    "mark": lambda s: setattr(s, "marked", s.deadline()),
    "unmoved": lambda s: s.deadline() == s.marked,
    "unfenced": lambda s: s.store.finish(Ending(s.window, "A", 0, "failed")),
    "attempts": lambda s: [each.attempts for each in s.store.account(ENTRY).open.values()],
    "forget_scripts": lambda s: s.raw.script_flush(),
    # Which setting the run key's expiry is of.
    "marker": lambda s: [
        setting
        for setting in ("retention", "marker_ttl")
        if abs(getattr(s.store.settings, setting) - s.raw.pttl(s.run_key) / 1000) < 5
    ],
    "holder": lambda s: [
        word for each in s.store.account(ENTRY).open.values() for word in (each.queue, *(each.holder or ()))
    ],
    "seen": lambda s: Lookup(s.store).entry(ENTRY, 1).windows[0].state,
    "born": lambda s: number(s.store.account(ENTRY).born),
    "learn": lambda s, owner: number(s.begin(owner).last_done),
    "since": lambda s: number(s.store.account(ENTRY).since),
}


def number(start: datetime | None) -> str:
    """Which window of the entry it is; one of today is ``now``."""
    found = (start - T0) // MINUTE if start else ""
    return "now" if start and abs(start - datetime.now(timezone.utc)) < MINUTE else str(found)


def meant(word: str) -> Any:
    """A word of a step as its call takes it."""
    if "," in word:
        return tuple(map(meant, word.removesuffix(",").split(",")))
    if word.startswith("#"):
        return nth(int(word[1:]))
    try:
        return ast.literal_eval(word)
    except (SyntaxError, ValueError):
        return word


def said(reply: Any) -> str:
    """An answer as :data:`STEPS` has it: its name, and what a step may want to know of it."""
    name = type(reply).__name__
    match reply:
        case r.Loaded(news=word):
            found = [word]
        case r.Begun(attempt=more) if more > 1:
            found = [name, more]
        case r.Taken(retry=retry, attempts=attempts) if retry or attempts:
            found = [name, retry, attempts]
        case r.Busy(word) | r.Closed(word) | r.Unchanged(word):
            found = [name, word]
        case r.Moved(start) | r.Spent(start):
            found = [name, number(start)]
        case dict():
            found = [word for outcome in sorted(reply.items()) for word in outcome]
        case list():
            found = reply
        case _:
            found = [reply if isinstance(reply, (str, bool)) else name]
    return " ".join(map(str, found)).strip()


@pytest.mark.parametrize(("limits", "steps"), promises(STEPS))
def test_what_is_promised_step_by_step(stage: Stage, limits: dict[str, str], steps: list[str]) -> None:
    """As the table promises."""
    stage.load(**{limit: meant(word) for limit, word in limits.items()})

    def do(verb: str, *words: str) -> str:
        given = [word for word in words if "=" not in word]
        named = dict(word.split("=") for word in words if "=" in word)
        call = DOING.get(verb) or getattr(Stage, verb)
        return said(call(stage, *map(meant, given), **{name: meant(word) for name, word in named.items()}))

    play(steps, do, PLAIN)


# ------------------------------------------------------------------------------------------ leases that run out


def test_overdue_windows_are_found_in_every_shard(stage: Stage) -> None:
    """One look finds the overdue windows of all entries, wherever they lie, and not those that still have time."""
    names = [f"entry-{number}" for number in range(100)]
    assert {stage.store.entry_key(name).partition("}")[0] for name in names} == {
        f"once:{{{shard}" for shard in range(SHARDS)
    }
    for name in names:
        stage.load(entry=name)
        assert isinstance(stage.claim(entry=name), r.Claimed)
    now = heard(stage.store, "beat-1").now
    assert not any(each.windows for each in stage.store.overdue("beat-1", now, 100).shards)
    later = stage.store.overdue("beat-1", now + timedelta(seconds=PUBLISH + 1), 100)
    assert sorted(key.entry for shard in later.shards for key in shard.windows) == sorted(names)
    assert later.heartbeat.beats == ("beat-1",)


def test_a_member_that_is_no_text_is_passed_over(stage: Stage) -> None:
    """Bytes that aren't UTF-8 among the open windows stop no beat from finding the others."""
    stage.reach("published")
    stage.overdue()
    with redis.Redis.from_url(stage.url) as raw:
        raw.zadd(stage.open_key, {b"\xff\xfe@foreign": 1})
    found = stage.store.overdue("beat-1", datetime.now(timezone.utc), 100)
    readable = [shard for shard in found.shards if not isinstance(shard, OnceError)]
    assert len(readable) >= SHARDS - 1


# ---------------------------------------------------------------------------------------------------- limits


def _begin_and_die(stage: Stage, times: int) -> None:
    for number in range(times):
        assert isinstance(stage.begin(f"dead-{number}-{stage.now()}"), r.Begun)
        stage.lapse()


#: A window's limits, how many of its executions have died, and what it ends as.
LIMITS: list[tuple[dict[str, Any], int, str]] = [
    ({"max_attempts": 2}, 2, "abandoned"),
    ({"max_attempts": 1}, 1, "abandoned"),
    ({"recover": False}, 1, "dropped"),
    ({"expires": 0.001}, 0, "expired"),
    ({"grace": 60.0}, 0, "missed"),
]


@pytest.mark.parametrize("at", ["take", "begin"])
@pytest.mark.parametrize(("limits", "died", "outcome"), LIMITS)
def test_a_limit_closes_the_window(stage: Stage, at: str, limits: dict[str, Any], died: int, outcome: str) -> None:
    """At take and at begin alike. Its reply lost, it answers as the first time; another copy is refused and counted."""
    stage.load(**{name: limit for name, limit in limits.items() if name != "expires"})
    expires = stage.claim(expires=limits.get("expires")).expires
    stage.confirm()
    _begin_and_die(stage, died)
    wait_until(lambda: not expires or stage.now() > expires.timestamp() * 1000, "the expiry passes", 5)
    stage.overdue()
    send = stage.take if at == "take" else stage.begin
    assert [send(), send()] == [r.Closed(outcome)] * 2
    assert stage.take("beat-3") == r.Unchanged("closed")
    assert (stage.state(), stage.counts(), stage.store.account(ENTRY).refused) == ("closed", {outcome: 1}, 0)
    assert stage.begin("B") == r.Closed("")
    assert stage.store.account(ENTRY).refused == 1
    assert stage.even()


def test_running_again_ends_at_max_attempts(stage: Stage) -> None:
    """A window that fails each time runs max_attempts times, and is then failed."""
    stage.load(max_attempts=3)
    stage.reach("published")
    replies = []
    for number in range(3):
        assert stage.begin(f"owner-{number}").attempt == number + 1
        replies.append(stage.finish(f"owner-{number}", "failed", DELAY))
        assert stage.finish(f"owner-{number}", "failed", DELAY) == replies[-1]
        stage.overdue()
        stage.take()
    assert replies == [r.Again(), r.Again(), r.Finished()]
    assert stage.counts() == {"failed": 1}
    assert stage.even()


def _is_ahead(stage: Stage, before: int, seconds: float, within: float = 1000) -> bool:
    """Whether a verb that was sent after ``before`` set the deadline so far ahead, give or take some milliseconds."""
    return before - within < stage.deadline() - seconds * 1000 < stage.now() + within


def _confirm(stage: Stage, seconds: float, within: float = 1000, **given: Any) -> None:
    """Confirm it, which sets its deadline so far ahead."""
    before = stage.now()
    assert stage.confirm(**given) == r.Confirmed()
    assert _is_ahead(stage, before, seconds, within)


def test_what_never_began_is_published_again_at_doubling_steps(stage: Stage) -> None:
    """Its message may only be waiting in a long queue: each publish doubles the time until the next, up to a day."""
    stage.reach("published")
    for factor in (2, 4, 8, 16):
        stage.recover()
        _confirm(stage, START * factor)
    for _ in range(40):
        stage.recover()
    _confirm(stage, 86_400)
    _confirm(stage, 2 * 86_400, wait=2 * 86_400.0)


def test_the_steps_begin_anew_once_it_began(stage: Stage) -> None:
    """An execution that died says that messages arrive: the next one is expected in its usual time."""
    stage.reach("published")
    for _ in range(5):
        stage.recover()
    _begin_and_die(stage, 1)
    stage.recover()
    _confirm(stage, START)


def test_what_could_not_be_published_is_tried_again_soon_and_then_less_often(stage: Stage) -> None:
    """Without a broker a window is near its deadline at first: after 1 s, 2 s, 4 s, up to publish_timeout."""
    stage.reach("claimed")
    for seconds in (1, 2, 4, 8, PUBLISH, PUBLISH):
        _confirm(stage, seconds, within=500, published=r.Published.UNSURE)
        stage.recover()


# --------------------------------------------------------------------------------------------------- fences


def test_a_confirm_that_comes_after_its_message_was_discarded(new_stage: Callable[..., Stage]) -> None:
    """It doesn't put the window off, also where the next publish isn't due any sooner than the confirm was."""
    stage = new_stage(publish_timeout=2.0)
    stage.load()
    stage.reach("published")
    stage.recover()
    assert stage.store.close_window(stage.window, "?", "unknown", 0) == r.Confirmed()
    assert stage.confirm() == r.Unchanged()
    assert stage.deadline() <= stage.now() + 2000


def test_the_fence_grows_with_every_begin(stage: Stage) -> None:
    """Over many begins of an entry, of one window or of several, no fence is equal to or below an earlier one."""
    fences = []
    for number in range(1, 101):
        stage.claim_nth(number)
        for owner in ("A", "B"):
            fences.append(stage.begin(owner).fence)
            assert stage.begin(owner).fence == fences[-1]
            stage.lapse()
    assert all(before < after for before, after in itertools.pairwise(fences))


def test_the_fence_grows_although_the_store_lost_everything(stage: Stage) -> None:
    """The server's clock keeps fences growing where the last one is forgotten."""
    fences = []
    stage.reach("published")
    for number in range(20):
        # Begins of an entry come slower than one a millisecond; here they have to be made to.
        wait_until(lambda: not fences or stage.now() > fences[-1], "the clock passes the last fence", 5, 0.001)
        fences.append(stage.begin(f"owner-{number}").fence)
        stage.raw.flushall()
        if number % 2:
            stage.load()
    assert all(before < after for before, after in itertools.pairwise(fences))


def test_the_fence_grows_while_no_beat_has_loaded_the_entry(new_stage: Callable[..., Stage]) -> None:
    """Queued windows of an entry that the store doesn't know begin with growing fences as well."""
    stage = new_stage()
    fences = []
    for number in range(100):
        stage.start = nth(number)
        fences.append(stage.begin().fence)
    assert all(before < after for before, after in itertools.pairwise(fences))


@pytest.mark.parametrize("kind", ["tracked", "untracked", "keyed"])
def test_the_fence_grows_over_a_failover_to_a_clock_that_is_behind(start_redis, close_later, kind: str) -> None:
    """With wait_replicas the promoted replica knows the last fence, and its own clock can't take it back."""
    server = start_redis(faketime=0, args=("--repl-diskless-sync-delay", "0"))
    replica = start_redis(faketime=-60, args=("--replicaof", f"127.0.0.1 {server.port}"))
    with replica.client() as client:
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", "the replica follows", 60)

    def run(stage: Stage, number: int) -> int:
        start = nth(number)
        window = KeyedWindow("user-1", start, start + MINUTE) if kind == "keyed" else WindowKey(ENTRY, start)

        def certain(verb: Callable[[], Any]) -> Any:
            def sure() -> Any:
                reply = answer_or_error(verb)
                return None if isinstance(reply, UncertainWriteError) else (reply,)

            return wait_until(sure, "a replica has it", 60)

        if kind == "tracked":
            certain(lambda: stage.claim(start=start, since=nth(number - 1)))
        (begun,) = certain(lambda: stage.store.begin(window, "A", LEASE, tracked=kind == "tracked"))
        certain(lambda: stage.store.finish(Ending(window, "A", begun.fence, "done", tracked=kind == "tracked")))
        return begun.fence

    patient = {"wait_replicas": 1, "redis_options": {"socket_timeout": 30.0}}
    stage = close_later(Stage(server.url(), **patient))
    stage.load()
    before = run(stage, 1)
    clocks = stage.store.trip.clocks()
    assert -90 < clocks[f"replica 127.0.0.1:{replica.port}"] - clocks["master"] < -30, "doctor sees it"
    server.kill()
    stage = close_later(Stage(replica.url()))
    stage.raw.execute_command("REPLICAOF", "NO", "ONE")
    assert stage.now() < before, "its clock is behind"
    assert run(stage, 2) > before


# ----------------------------------------------------------------------------------------------- definitions


def test_a_changed_definition_never_goes_back(stage: Stage) -> None:
    """A cursor that is ahead of the clock stays where it is."""
    far = datetime(2999, 1, 1, tzinfo=timezone.utc)
    assert isinstance(stage.claim(start=far), r.Claimed)
    loaded = stage.load("beat-2", "fingerprint-2", alive=("beat-1", "beat-2"))
    assert (loaded.cursor, loaded.news) == (far, "changed")


def test_a_name_whose_entry_has_expired_is_listed_no_more(stage: Stage) -> None:
    """Loads of others come upon it by and by."""
    listed = stage.shard + "entries"
    stage.raw.hset(listed, "expired", "a {}")

    def is_gone() -> bool:
        stage.load(defined="{}")
        return stage.raw.hkeys(listed) == [ENTRY]

    wait_until(is_gone, "a load comes upon it", 30)


def test_another_row_by_the_same_name_is_another_entry(stage: Stage) -> None:
    """It counts from its edit once no other living beat may have the one before, whose pause waits for that one."""
    both, row_key = ("beat-1", "beat-2"), stage.shard + "row:"
    for beat in both:
        assert stage.load(beat, row="r-1", alive=both).news == "same"
    stage.store.set_paused(ENTRY, paused=True, words='{"at": 7}')
    assert stage.load("beat-2", row="r-2", row_at=nth(3), alive=both).beat == "-"
    assert stage.raw.hget(stage.entry_key, "loaders").split()[::3] == ["beat-1"], "it has left the row"
    assert stage.raw.get(row_key + "r-1") == f"- {ENTRY}"
    other = stage.load("beat-2", row="r-2", row_at=nth(3), alive=("beat-2",))
    assert (other.news, other.cursor, other.since, other.pause) == ("changed", nth(3), nth(3), "")
    cursor, _, pause = stage.raw.get(row_key + "r-1").split(" ", 2)
    assert (cursor, pause) == (format_instant(T0), '{"at": 7}')
    assert stage.raw.get(row_key + "r-2") == f"- {ENTRY}"
    counted = stage.load("beat-2", row="r-3", row_at=nth(5), counts_from=nth(4), alive=("beat-2",))
    assert counted.since == nth(4)
    assert stage.load("beat-2", alive=("beat-2",)).news == "same"
    assert not stage.raw.hexists(stage.entry_key, "row"), "it is of no row"


def test_a_row_takes_its_cursor_and_its_pause_to_its_new_name(stage: Stage) -> None:
    """Once the last beat that lives has left it by its old name; there it isn't paused any more."""
    both, row_key = ("beat-1", "beat-2"), stage.shard + "row:r-1"
    for beat in both:
        stage.load(beat, row="r-1", alive=both)
    words = '{"at": 7, "by": "anna"}'
    stage.store.set_paused(ENTRY, paused=True, words=words)
    assert leave_rows(stage.store, "beat-1", [(ENTRY, "r-2"), (ENTRY, "r-1")]) == ["unknown", "kept"]
    assert leave_rows(stage.store, "beat-2", [(ENTRY, "r-1")]) == ["unloaded"]
    cursor, _, pause = stage.raw.get(row_key).split(" ", 2)
    assert (cursor, pause) == (format_instant(T0), words)
    assert not stage.store.account(ENTRY).paused
    for entry, brought, kept in (("a", pause, pause), ("b", "-", ""), ("c", "", "")):
        assert stage.load(entry=entry, row="r-1", pause=brought).pause == kept
    stage.raw.set(stage.store.keys.for_entry("a", "r-1")["row_key"], "- c", ex=60)
    assert leave_rows(stage.store, "beat-1", [("a", "r-1")]) == ["unloaded"]
    assert stage.raw.get(stage.store.keys.for_entry("a", "r-1")["row_key"]) == "- c", "another entry has it by now"


def test_of_the_living_the_beat_that_loaded_last_is_right(stage: Stage) -> None:
    """A later definition supersedes the earlier ones: their claims change nothing, and their loads say by whom."""
    first = stage.load("beat-1")
    wait_until(lambda: stage.now() > first.loaded_at, "another millisecond", 5, 0.001)
    alive = ("beat-1", "beat-2")
    later = stage.load("beat-2", "fingerprint-2", alive=alive)
    assert later.news == "changed"
    old = stage.claim("beat-1", start=later.cursor + MINUTE, since=later.cursor)
    assert old == r.Superseded("")
    again = stage.load("beat-1", loaded_at=first.loaded_at, alive=alive)
    assert again == r.Superseded("beat-2", first.loaded_at)
    assert stage.store.account(ENTRY).cursor == later.cursor
    same = stage.load("beat-2", "fingerprint-2", loaded_at=later.loaded_at, alive=alive)
    assert same == r.Loaded(later.cursor, later.loaded_at, "same", "", later.since)
    new = stage.claim("beat-2", start=later.cursor + MINUTE, since=later.cursor, mark="fingerprint-2")
    assert isinstance(new, r.Claimed)


def test_a_superseded_beat_takes_the_entry_back_when_the_other_is_gone(stage: Stage) -> None:
    """A failed rollout doesn't stop the schedule: no window falls between, and the cursor never goes back."""
    first = stage.load("beat-1")
    wait_until(lambda: stage.now() > first.loaded_at, "another millisecond", 5, 0.001)
    later = stage.load("beat-2", "fingerprint-2", alive=("beat-1", "beat-2"))
    taken_back = stage.load("beat-1", loaded_at=first.loaded_at, alive=("beat-1",))
    assert taken_back.cursor == later.cursor  # nobody claimed since: it goes on where the other began
    assert stage.load("beat-1", loaded_at=first.loaded_at, alive=("beat-1",)).news == "same"
    gone = stage.claim("beat-2", start=later.cursor + MINUTE, since=later.cursor, mark="fingerprint-2")
    assert gone == r.Superseded("")


def test_taken_back_late_it_goes_on_from_when_the_other_was_last_alive(new_stage: Callable[..., Stage]) -> None:
    """Where the cursor is older than the other's death can be, windows since that death are claimed, none older."""
    stage = new_stage()
    stage.load("beat-2", "fingerprint-2")  # long ago: its cursor is T0
    before = stage.now()
    taken_back = stage.load("beat-1", loaded_at=1, alive=("beat-1",))
    ago = before - in_ms(taken_back.cursor)
    assert taken_back.news == "changed"
    assert 15_000 <= ago <= 30_000
    assert stage.store.account(ENTRY).since == taken_back.cursor


def test_a_load_that_the_store_forgot_counts_from_where_it_did(new_stage: Callable[..., Stage]) -> None:
    """After a failover that lost it a changed definition runs no window from before its change."""
    stage = new_stage()
    stage.load("beat-2", "fingerprint-2")
    counted_from = datetime.fromtimestamp(stage.now() / 1000 - 300, timezone.utc)
    again = stage.load("beat-1", loaded_at=1, counted_from=counted_from, alive=("beat-1",))
    assert (again.news, again.cursor, again.since) == ("changed", counted_from, counted_from)


# ------------------------------------------------------------------------------ entries that come, go and are back


def test_a_one_off_that_the_store_does_not_know(stage: Stage) -> None:
    """Nothing is kept of it."""
    assert stage.spent(entry="no such", disabled=True) == r.Unknown()
    assert stage.all_keys() == [stage.entry_key]


def test_who_comes_later_counts_for_one_that_stood_still(stage: Stage) -> None:
    """A beat that came, and loaded, after another swept the shard isn't taken for gone by that one."""
    heard(stage.store, "slow")
    heard(stage.store, "quick")
    assert isinstance(stage.load("quick", "fingerprint-2"), r.Loaded)
    assert isinstance(stage.load("slow", loaded_at=1), r.Superseded)
    assert stage.store.unload_many("third", [(ENTRY, "fingerprint-2")]) == ["kept"]


# -------------------------------------------------------------------------------------------------- who lives


def has_it(stage: Stage, beat: str, mark: str, loaded_at: int = 1) -> bool:
    """Load the entry as ``beat`` did before; returns whether its definition counts."""
    return isinstance(stage.load(beat, mark, loaded_at=loaded_at), r.Loaded)


@pytest.fixture
def two(stage: Stage) -> Stage:
    """The entry as two beats have it that live, each another definition of it; that of ``later`` counts."""
    heard(stage.store, "earlier")
    heard(stage.store, "later")
    assert has_it(stage, "earlier", MARK, 0)
    assert has_it(stage, "later", "fingerprint-2", 0)
    assert not has_it(stage, "earlier", MARK)
    return stage


def test_a_beat_that_stood_still_has_its_definition_back(two: Stage) -> None:
    """Frozen for longer than it may be silent, it is gone, and another's definition counts; until it is back."""
    at = two.now()
    two.silent(16, "later")
    assert two.store.overdue("earlier", T0, 0).new == set()
    assert has_it(two, "earlier", MARK)
    two.silent(0, "earlier")
    assert two.shard_number in two.store.overdue("later", T0, 0).new, "it is told that it was gone"
    assert has_it(two, "later", "fingerprint-2", at)
    assert not has_it(two, "earlier", MARK)


def test_while_a_shard_is_away_no_beat_grows_old(two: Stage) -> None:
    """Its node was away, for however long: the first beat that gets there again doesn't take the others for gone."""
    for seconds in (16, 3600, 86_400):
        two.silent(seconds, "earlier")
        two.silent(seconds + 2, "later")
        assert not has_it(two, "earlier", MARK), "the node is back, and it hasn't swept it yet"
        assert two.store.overdue("earlier", T0, 0).new == set()
        assert not has_it(two, "earlier", MARK)
        assert two.store.unload_many("earlier", [(ENTRY, "fingerprint-2")]) == ["kept"]
        assert two.store.overdue("later", T0, 0).new == set()
    assert has_it(two, "later", "fingerprint-2", two.now())


def test_who_is_gone_is_seen_by_one_that_comes_seldom(two: Stage) -> None:
    """Also by sweeps that lie far apart: a few of them are enough."""
    sweeps = 0
    while not has_it(two, "earlier", MARK):
        for beat in ("earlier", "later"):  # half a minute passes
            if two.raw.zscore(two.beats_key, beat) is not None:
                two.raw.zincrby(two.beats_key, -30_000, beat)
        heard(two.store, "earlier")
        sweeps += 1
        assert sweeps < 5
    assert sweeps == 3


def test_a_beat_that_ends_in_order_is_gone_at_once(two: Stage) -> None:
    """In every shard, so that its definitions count no more."""
    two.store.leave("later")
    assert has_it(two, "earlier", MARK)
    two.store.leave("earlier")
    assert [*two.raw.scan_iter("once:*beats")] == []


def test_a_clock_that_goes_back_makes_no_beat_older_or_younger(two: Stage) -> None:
    """What lies in the future then counts as it did before: who lives does, and who doesn't is gone as soon as any."""
    two.silent(-3600, "earlier")
    two.silent(-3590, "later")
    assert two.store.overdue("earlier", T0, 0).new == set()
    assert not has_it(two, "earlier", MARK)
    two.raw.zincrby(two.beats_key, -6000, "later")
    heard(two.store, "earlier")
    assert has_it(two, "earlier", MARK)


# ------------------------------------------------------------------------------------------------- many beats


def test_who_is_gone_takes_no_place_of_one_that_lives(stage: Stage) -> None:
    """However many loaded an entry later and are gone: who has it still is known, and keeps it."""
    for n in range(20):
        stage.load(f"gone-{n}", alive=[f"gone-{n}" for n in range(20)])
    stage.load("old", loaded_at=1, alive=("old",))
    assert stage.raw.hget(stage.entry_key, "loaders").split()[::3] == ["old"]
    assert stage.unload("other", alive=("old", "other")) == "kept"


def test_who_isnt_listed_any_more_takes_its_entry_back(stage: Stage) -> None:
    """It lives, and those who loaded after it are gone: what another made of it meanwhile holds until it says so."""
    beats = [f"beat-{n}" for n in range(1, 40)]
    at = {beat: stage.load(beat, alive=beats).loaded_at for beat in beats}
    alive = ("beat-1", "older")
    back = stage.load("older", "fingerprint-2", loaded_at=1, alive=alive)
    assert back.news == "changed"
    assert stage.claim("beat-1") == r.Superseded("")
    again = stage.load("beat-1", loaded_at=at["beat-1"], alive=alive)
    assert again.news == "changed"
    assert in_ms(again.cursor) <= stage.now() - 15_000, "no window falls between"
    assert isinstance(stage.load("older", "fingerprint-2", loaded_at=1, alive=alive), r.Superseded)


def test_a_beat_that_is_gone_decides_nothing_by_a_time_to_come(stage: Stage) -> None:
    """The server's clock went back: what was loaded at a time that lies in the future is no sign of life."""
    at = stage.now() + 60_000
    stage.raw.hset(stage.entry_key, "loaders", f"gone fingerprint-2 {at}")
    assert isinstance(stage.load("beat-1", loaded_at=1, alive=("beat-1",)), r.Loaded)
    stage.raw.hset(stage.entry_key, mapping={"loaders": f"gone {MARK} {at}", "fingerprint": MARK})
    assert stage.unload("beat-1", alive=("beat-1",)) == "unloaded"


def test_a_first_load_is_the_latest_whatever_the_clock_says(stage: Stage) -> None:
    """A deploy while the server's clock is behind counts at once; and no time is written that can't be read."""
    at = stage.now() + 60_000
    stage.raw.hset(stage.entry_key, "loaders", f"beat-2 fingerprint-2 {at} foreign f {10**20}")
    new = stage.load("beat-3", "fingerprint-3", alive=("beat-2", "beat-3"))
    assert (new.news, new.loaded_at) == ("changed", at + 1)
    assert isinstance(stage.load("beat-2", "fingerprint-2", loaded_at=at, alive=("beat-2", "beat-3")), r.Superseded)
    stage.raw.hset(stage.entry_key, "loaders", f"beat-2 fingerprint-2 {10**15 - 1}")
    assert stage.load("beat-3", "fingerprint-3", alive=("beat-3",)).loaded_at == 10**15 - 1


def test_a_beat_heard_of_in_the_future_is_gone_as_soon_as_any(stage: Stage) -> None:
    """The server's clock went back: who doesn't live isn't taken for alive until the old time is reached."""
    beats = stage.store.keys.of_beats["beats"]
    stage.raw.zadd(beats, {"killed": stage.now() + 3_600_000})
    assert heard(stage.store, "beat-1").beats == ("beat-1", "killed")
    assert stage.raw.zscore(beats, "killed") <= stage.now()


# ------------------------------------------------------------------------------------- pause, untracked, passed


def test_a_beat_with_another_definition_takes_nothing(stage: Stage) -> None:
    """Recovery is for the beats whose definition is in force; the window stays overdue for them."""
    stage.reach("published")
    stage.overdue()
    old = stage.deadline()
    assert isinstance(stage.take("beat-2", "fingerprint-2"), r.Unchanged)
    assert stage.deadline() == old
    assert isinstance(stage.take("beat-1"), r.Taken)


def test_an_untracked_window_that_another_beat_claimed_before_the_loss_is_counted(stage: Stage) -> None:
    """Also where the hash is lost and the claim key isn't, every window that the cursor passes has an account."""
    assert isinstance(stage.claim("beat-1", mode="untracked"), r.Claimed)
    stage.raw.delete(stage.entry_key)
    assert stage.load("beat-2").cursor == T0
    assert stage.claim("beat-2", mode="untracked") == r.Moved(nth(1))
    assert stage.even()


@pytest.mark.parametrize("mode", ["run", "untracked"])
@pytest.mark.parametrize("how", ["paused", "loaded", "late"])
def test_a_claim_that_is_sent_again_answers_the_same(stage: Stage, mode: str, how: str) -> None:
    """Whatever has come since it was carried out, and however long it is sent: else nobody publishes it."""
    claimed, claim_key = stage.claim(mode=mode), stage.run_key.replace(":run:", ":claim:")
    match how:
        case "paused":
            stage.store.set_paused(stage.window.entry, paused=True)
        case "loaded":
            stage.load("beat-2", "fingerprint-2")
        case "late":
            stage.raw.pexpire(claim_key, 5000)
    assert replace(stage.claim(mode=mode), missed=0) == claimed
    assert stage.raw.pttl(claim_key) > 5000


@pytest.mark.parametrize("end", [lambda s: s.finish("A", "failed", 3600.0), lambda s: s.hand_over("A", 1, 3600.0)])
@pytest.mark.parametrize("confirmed", [False, True])
def test_who_wakes_takes_its_window_from_the_beat_that_had_taken_it(stage: Stage, end: Any, confirmed: bool) -> None:
    """Its lease was over, and it fails or retries: the beat's message counts no longer, nor does its queue."""
    stage.reach("taken" if confirmed else "died")
    if not confirmed:
        stage.recover()
    assert isinstance(end(stage), r.Again | r.HandedOver)
    assert stage.take() == r.Unchanged("not overdue")
    stage.raw.delete(stage.run_key)
    assert stage.take() == r.Unchanged("not overdue"), "also once its retry is late"
    assert isinstance(stage.recover(consumed=["another"]), r.Taken)


def test_a_window_that_ran_though_the_cursor_didnt_know_isnt_missed(stage: Stage) -> None:
    """Passed over: one that failed counts as failed, one that runs or waits becomes open, only the rest is missed."""
    stage.start = nth(1)
    stage.execute("A", "failed")
    stage.start = nth(2)
    before = stage.now()
    running = stage.begin("runs")
    stage.start = nth(3)
    stage.begin("waits")
    assert stage.hand_over("waits", 4) == r.HandedOver()
    starts = tuple(nth(number) for number in range(1, 5))
    assert isinstance(stage.claim(start=nth(5), missed=starts, missed_count=4), r.Claimed)
    assert stage.counts() == {"failed": 1, "missed": 1}
    assert set(stage.store.account(ENTRY).open) == {nth(2), nth(3), nth(5)}
    assert stage.even()
    stage.start = nth(2)
    assert _is_ahead(stage, before, LEASE + MARGIN)
    assert stage.begin("runs").fence == running.fence
    assert stage.finish("runs") == r.Finished()
    stage.start = nth(3)
    assert isinstance(stage.begin("other"), r.Busy)
    assert isinstance(stage.begin("retry", 4), r.Begun)
    assert stage.finish("retry") == r.Finished()
    assert stage.counts() == {"done": 2, "failed": 1, "missed": 1}
    assert stage.even()


@pytest.mark.parametrize("delay", [0.0, 40.0])
def test_a_taken_over_retry_whose_message_is_lost_is_recovered_soon(stage: Stage, delay: float) -> None:
    """A retry of a window that the store forgot is due when it was, not a retention later, and nothing older begins."""
    stage.reach("ahead")
    assert stage.hand_over("A", 1, delay) == r.HandedOver()
    asked = stage.now()
    assert stage.claim() == r.Moved(nth(1))
    due = stage.deadline()
    assert delay - 1 <= (due - asked) / 1000 <= delay + 5
    assert stage.raw.pttl(stage.run_key) / 1000 <= delay + 5
    assert stage.begin("B", 0) == r.Busy("waiting for retry 1")
    stage.lapse()
    stage.overdue()
    assert stage.take().retry == 1
    assert isinstance(stage.begin("C", 1), r.Begun)


# -------------------------------------------------------------------------------------------------- backfill


# ------------------------------------------------------------------------------------------------ who ordered what


def test_the_log_of_orders_keeps_what_was_ordered_of_late(stage: Stage) -> None:
    """Newest first, by the server's clock: that of 90 days, and of that so many records."""
    orders, day = stage.store.keys.orders, 86_400_000
    for days in (91, 89):
        old = f'{days} {{"what": "run", "entry": "{days}", "by": "", "note": "", "about": ""}}'
        stage.raw.zadd(orders, {old: stage.now() - days * day})
    for number in range(205):
        write_orders(stage.store, {stage.store.new_id(): Order("run", f"entry-{number}", "anna", "why", "about")})
    found = read_orders(stage.store)
    assert [record.order.entry for record in found] == [*(f"entry-{number}" for number in range(204, -1, -1)), "89"]
    assert found[0].order == Order("run", "entry-204", "anna", "why", "about")
    assert abs(in_ms(found[0].at) - stage.now()) < 60_000
    assert stage.raw.pttl(orders) > 89 * day
    ((_, newest),) = stage.raw.zrange(orders, -1, -1, withscores=True)
    stage.raw.zadd(orders, {f"{number} x": newest + number for number in range(10_000)})
    write_orders(stage.store, {"refused": Order("run", "entry", "anna")})
    write_orders(stage.store, {"refused": Order("run", "entry", "anna", about="refused: why")})
    assert stage.raw.zcard(orders) == 10_000
    assert [record.order.about for record in read_orders(stage.store)][:2] == ["refused: why", ""], (
        "what was refused once"
    )


def test_an_order_that_is_sent_twice_stands_once(stage: Stage) -> None:
    """Since redis-py repeats a command whose reply was lost."""
    call = NOTE.request({"orders": stage.store.keys.orders}, request="0123", words='{"what": "run"}')
    for _ in range(2):
        stage.store.trip.one(call)
    assert stage.raw.zcard(stage.store.keys.orders) == 1


@pytest.mark.parametrize("text", ["", "call", "call {}", "call []", 'call {"what": 7}', "call " + "[" * 9999])
def test_a_foreign_record_of_an_order_is_named(stage: Stage, text: str) -> None:
    """In its place, with the key; all others are shown."""
    write_orders(stage.store, {stage.store.new_id(): Order("run", "entry", "anna")})
    stage.raw.zadd(stage.store.keys.orders, {text: 1e12, "another {}": "inf"})
    found = [record.order for record in read_orders(stage.store)]
    assert [order.what for order in found] == ["unreadable", "run", "unreadable"]
    assert all("once:orders" in order.note for order in found if order.what == "unreadable")


def _second_copy(stage: Stage, queue: str | None = QUEUE) -> None:
    stage.claim()
    stage.confirm(queue=queue)
    stage.recover()
    stage.confirm(queue=queue)


@pytest.mark.parametrize("queue", [None, "-", "", "q" * 201])
def test_what_may_be_anywhere_is_published_again(stage: Stage, queue: str | None) -> None:
    """An exchange routes the message, or the queue's name can't be kept: nobody knows whether a worker gets it."""
    _second_copy(stage, queue)
    stage.recover(consumed=[])


@pytest.mark.parametrize("queue", ["a b", "ä:/%", "a", "b c"])
def test_a_queue_is_known_by_its_whole_name(stage: Stage, queue: str) -> None:
    """Whatever it is called; a part of another's name isn't it."""
    _second_copy(stage, queue)
    for consumed in ({"a b", "ä:/%", "a", "b c"} - {queue}, {queue + queue}):
        stage.overdue()
        assert stage.take(consumed=consumed) == r.Unconsumed(queue, 0)
    stage.recover(consumed=["x", queue, "y"])


def test_what_is_older_than_a_window_that_is_done_is_published_again(stage: Stage) -> None:
    """Its queue gets to a worker in a way that nobody sees, by dead letters say, and its message is lost."""
    for number in (1, 2, 3):
        stage.claim_nth(number)
        stage.confirm()
    stage.start = nth(2)
    stage.begin()
    assert stage.finish() == r.Finished()
    for number, expected in ((1, r.Taken), (3, r.Unconsumed)):
        stage.start = nth(number)
        stage.overdue()
        assert isinstance(stage.take(consumed=[]), expected)


def test_what_waits_for_a_worker_is_looked_at_after_an_eighth_of_its_age(stage: Stage) -> None:
    """At most ten minutes later, so that what an exhausted queue lost is soon published for a worker that comes."""
    STATES["published"](stage)
    field = f"w:{format_instant(stage.start)}"
    account = stage.raw.hget(stage.entry_key, field)
    for hours, seconds in ((1 / 60, 7.5), (1, 450.0), (24, 600.0)):
        claimed = round(stage.now() - hours * 3_600_000)
        words = account.split()
        words[5] = str(claimed)
        stage.raw.hset(stage.entry_key, field, " ".join(words))
        stage.overdue()
        before = stage.now()
        assert isinstance(stage.take(consumed=[]), r.Unconsumed)
        assert before + 1000 * seconds <= stage.deadline() <= stage.now() + 1000 * seconds + 1000


def test_workers_say_what_they_consume(stage: Stage) -> None:
    """Each for itself; what one has given up is over after a while, and what nobody says any more after a day."""
    store = stage.store
    store.consume("w-1", "b", ["a", "by night"])
    store.consume("w-2", "c", ["a"])
    now = store.snapshot().now
    found, unreadable = store.workers(now, 30.0)
    assert unreadable == []
    assert {name: (each.broker, each.queues) for name, each in found.items()} == {
        "w-1": ("b", {"a", "by night"}), "w-2": ("c", {"a"}),
    }  # fmt: skip
    key, old = store.keys.workers, stage.now() - 86_400_000
    stage.raw.zadd(key, {"w-1 b a": old - 1000, "w-1 b by%20night": stage.now() - 40_000, "w-9 b a": 2 * stage.now()})
    store.consume("w-2", "c", ["x"])
    assert {*store.workers(now, 86_400.0)[0]} == {"w-1", "w-2"}, "a time that lies ahead is no sign of life"
    assert {*store.workers(now, 30.0)[0]} == {"w-2"}
    assert not stage.raw.zscore(key, "w-1 b a")
    assert 0 < stage.raw.pttl(key) <= 86_400_000


# --------------------------------------------------------------------------------------------------- abandon


def test_an_abandoned_window_is_counted_and_told_as_such(stage: Stage) -> None:
    """Its outcome counts by the law; the history says which worker had it last, not who gave it up."""
    stage.reach("published")
    stage.begin("celery@host-b:1:delivery/1")
    assert stage.abandon("anna:1:order-1", running=True) == r.Finished()
    assert stage.counts() == {"cancelled": 1}
    assert stage.even()
    (record,) = (read_past(text) for text in stage.raw.lrange(stage.history_key, 0, -1))
    assert (record.outcome, record.attempts, record.worker) == ("cancelled", 1, "celery@host-b")


def test_what_never_began_is_kept_with_who_ended_it(stage: Stage) -> None:
    """Nobody ran it, so its record's last word says who discarded its message; what is read shows no worker."""
    stage.reach("published")
    assert stage.store.close_window(stage.window, "celery@host-b:1:delivery/1", "revoked", 0) == r.Closed("revoked")
    (text,) = stage.raw.lrange(stage.history_key, 0, -1)
    assert text.endswith(" 0 beat-1 @host-b")
    assert read_past(text).worker == ""


# ---------------------------------------------------------------------------------------------------- history


def test_a_foreign_key_in_the_historys_place_stops_no_window(stage: Stage) -> None:
    """The history is for people: the key is left as it is, and every window is claimed, executed and counted."""
    stage.raw.set(stage.history_key, "foreign")
    stage.start = nth(2)
    assert stage.claim(missed=(nth(1),), missed_count=1) == r.Claimed(1, None, 1)
    stage.execute()
    assert stage.counts() == {"missed": 1, "done": 1}
    assert (stage.raw.get(stage.history_key), stage.raw.ttl(stage.history_key)) == ("foreign", -1)
    stage.raw.delete(stage.history_key)


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_history_keeps_the_last_windows_and_no_more(new_stage: Callable[..., Stage], size: int) -> None:
    """history_size windows an entry, 0 for none."""
    stage = new_stage(history_size=size)
    stage.load()
    for number in range(1, 8):
        stage.claim_nth(number)
        stage.execute(f"owner-{number}")
    lines = stage.raw.lrange(stage.history_key, 0, -1)
    assert [line.split()[:2] for line in lines] == [[f"{nth(7 - n):%Y-%m-%dT%H:%M:%S}", "done"] for n in range(size)]


def test_refused_copies_are_counted(new_stage: Callable[..., Stage]) -> None:
    """Each message that a worker refuses, in the account; and of the newest windows by window, whenever it comes."""
    stage = new_stage(history_size=2)
    stage.load()
    for number in (1, 2, 3, 4):
        stage.claim_nth(number)
        stage.begin()
        assert number == 4 or stage.finish() == r.Finished()
    for number in (4, 1, 3):
        stage.start = nth(number)
        assert isinstance(stage.begin("copy"), r.Busy | r.Closed)
    assert stage.store.account(ENTRY).refused == 3
    refused = stage.raw.hkeys(stage.store.keys.of_entry("refused", ENTRY))
    assert {*refused} == {format_instant(nth(3)), format_instant(nth(4))}


# ---------------------------------------------------------------------------------- what others put in our keys

#: Verbs without a window of their own, in the table's way.
OTHER_VERBS: dict[str, Callable[[Stage], Any]] = {
    "load": lambda s: s.load(),
    "pause": lambda s: s.store.set_paused(ENTRY, paused=True),
    "account": lambda s: s.store.account(ENTRY),
    "spent": lambda s: s.spent(disabled=True),
    "heartbeat": lambda s: heard(s.store, "beat-1"),
    "leave": lambda s: s.store.leave("beat-1"),
    "overdue": lambda s: s.store.overdue("beat-1", datetime.now(timezone.utc), 10),
    "resume": lambda s: s.store.set_paused(ENTRY, paused=False),
}
ALL_VERBS = {**VERBS, **OTHER_VERBS}


@pytest.mark.parametrize("verb", [*(verb for verb in VERBS if verb != "claim, beat-2"), *list(OTHER_VERBS)[:4]])
def test_a_newer_versions_hash_isnt_guessed_at(stage: Stage, verb: str) -> None:
    """A hash of version 2 is left as it is by every verb, and the error names the key and says what to do."""
    stage.reach("running")
    stage.overdue()
    stage.raw.hset(stage.entry_key, "v", "2")

    def content() -> Any:
        keys = {key: stage.raw.type(key) for key in stage.all_keys()}
        return keys, stage.raw.hgetall(stage.entry_key), stage.raw.get(stage.run_key)

    before, deadline = content(), stage.deadline()
    reply = answer_or_error(lambda: ALL_VERBS[verb](stage))
    assert isinstance(reply, NewerVersionError)
    assert stage.entry_key in str(reply)
    assert "upgrade" in str(reply)
    assert content() == before
    if verb not in ("take overdue", "take unconsumed"):  # which moves the deadline itself, to be overdue
        assert stage.deadline() == deadline


ACCOUNT = f"w:{format_instant(nth(1))}"
HOLDING = ("claim", "take", "receive, n=0", "begin A", "renew A", "hand over A", "finish A", "backfill")
WRITING = (*HOLDING, "expired, n=0", "abandon")
OPEN = ("claim", "confirm", "take overdue", "begin A", "finish A")
#: A key of the stage, or a field of the entry's hash; what a stranger put there; the verbs that name it.
FOREIGN: list[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = [
    (("entry_key", "open_key"), ("a set",), (*WRITING, "confirm")),
    (("run_key",), ("a set",), WRITING),
    (("entry_key",), ("a set",), ("load", "pause", "account", "spent")),
    (("once:beats",), ("a set",), ("heartbeat", "overdue", "leave")),
    (("run_key",), ("garbage", "run:A", "run:x:A", "wait:x:A", ""), HOLDING),
    (("v", "fence"), ("garbage",), OPEN),
    (("v",), ("garbage",), ("load",)),
    ((ACCOUNT,), ("garbage", "1 2 3", "a b c d e f g h i owner beat"), (*OPEN, "expired, n=0", "backfill")),
    ((ACCOUNT, "w:garbage", "c:done", "cursor"), ("x",), ("account",)),
]
NAMED = [row for rows in FOREIGN for row in itertools.product(*rows)]


@pytest.mark.parametrize(("where", "what", "verb"), NAMED)
def test_what_is_not_ours_is_named(stage: Stage, where: str, what: str, verb: str) -> None:
    """The error says which key it is, and which field or what type; what is there stays."""
    if verb != "claim" or where == ACCOUNT:
        stage.reach("published")
    key = getattr(stage, where, "once:beats" if where == "once:beats" else stage.entry_key)
    if what == "a set":
        stage.raw.delete(key)
        stage.raw.sadd(key, "foreign")
        stage.raw.expire(key, 60)
    elif where == "run_key":
        stage.raw.set(key, what, ex=60)
    else:
        stage.raw.hset(key, where, what)
    there = stage.raw.dump(key)
    reply = answer_or_error(lambda: ALL_VERBS[verb](stage))
    assert isinstance(reply, StoreDataError)
    assert key in str(reply)
    assert stage.raw.dump(key) == there
    if what == "a set":
        assert "set" in str(reply)
    elif where == ACCOUNT and verb != "account":
        assert where in str(reply)


def test_a_bad_entry_stops_no_other_in_its_pipeline(stage: Stage) -> None:
    """One entry's foreign key, one's newer hash: the others of the pipeline are claimed."""
    names = [f"entry-{number}" for number in range(20)]
    for name in names:
        stage.load(entry=name)
    bad, newer = names[3], names[7]
    stage.raw.delete(stage.store.entry_key(bad))
    stage.raw.set(stage.store.entry_key(bad), "foreign", ex=60)
    stage.raw.hset(stage.store.entry_key(newer), "v", "9")
    replies = stage.store.claim_many("beat-1", [r.ClaimRequest(WindowKey(n, nth(1)), T0, MARK) for n in names])
    found = {name: type(reply).__name__ for name, reply in zip(names, replies, strict=True)}
    assert found.pop(bad) == "StoreDataError"
    assert found.pop(newer) == "NewerVersionError"
    assert set(found.values()) == {"Claimed"}


@pytest.mark.parametrize("what", ["run key", "account", "counter"])
def test_a_claim_that_fails_has_counted_nothing(stage: Stage, what: str) -> None:
    """A foreign key that stops a claim halfway leaves no half behind: at each tick again, it counts nothing twice."""
    stage.start = nth(1)
    stage.execute()
    stage.start = nth(2)
    if what == "run key":
        stage.raw.set(stage.run_key, "foreign", ex=60)
    elif what == "counter":
        stage.raw.hset(stage.entry_key, "c:missed", "foreign")
    else:
        stage.raw.zadd(stage.open_key, {stage.member: 1})
        stage.raw.expire(stage.open_key, 60)
        stage.raw.hset(stage.entry_key, f"w:{format_instant(stage.start)}", "foreign")
    there = stage.raw.hgetall(stage.entry_key), stage.raw.dump(stage.history_key)
    for _ in range(3):
        reply = stage.claim(start=nth(4), missed=(nth(1), nth(2), nth(3)), missed_count=3)
        assert isinstance(reply, StoreDataError)
    assert (stage.raw.hgetall(stage.entry_key), stage.raw.dump(stage.history_key)) == there


@pytest.mark.parametrize("verb", [name for name in VERBS if name != "load"])
@pytest.mark.parametrize("state", ["published", "running", "waiting"])
def test_no_key_is_left_forever_where_an_entrys_hash_is_lost_alone(stage: Stage, state: str, verb: str) -> None:
    """An evicted hash isn't replaced by one without expiry, whatever a worker or a beat does next."""
    STATES[state](stage)
    stage.raw.delete(stage.entry_key)
    answer_or_error(lambda: VERBS[verb](stage))
    forever = [key for key in stage.all_keys() if stage.raw.ttl(key) < 0]
    stage.raw.flushall()
    assert forever == []


# ------------------------------------------------------------------------------------------------ names of all kinds

NAMES = {
    "braces": "a{b}c{}{7}",
    "at": "a@b@2026-01-01T00:00:00.000000Z",
    "colons": ":run:a:b:",
    "spaces": " a  b ",
    "newlines": "a\nb\r\n",
    "unicode": "ночной отчёт 夜 🌙",
    "quotes": "a'b\"c\\d%s",
    "long": "x" * 10_240,
    "null": "a\x00b",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_an_entry_may_have_any_name(stage: Stage, name: str) -> None:
    """Whatever stands in a name, a window goes all its way, and the one next to it isn't touched."""
    store, key, other = stage.store, WindowKey(name, nth(2)), name + "@"
    for entry in (name, other):
        assert stage.load(entry=entry).cursor == T0
    missed = (nth(1),)
    assert isinstance(stage.claim(entry=name, start=nth(2), missed=missed, missed_count=1), r.Claimed)
    found = store.overdue("b", datetime.now(timezone.utc) + timedelta(seconds=PUBLISH + 1), 10)
    assert [each for shard in found.shards for each in shard.windows] == [key]
    begun = store.begin(key, "A", LEASE)
    assert store.hand_over(key, "A", begun.fence, 1, 0.0) == r.HandedOver()
    begun = store.begin(key, "B", LEASE, 1)
    assert store.renew_many([r.Renewal(key, "B", begun.fence, LEASE, True)]) == [r.Renewed()]
    assert store.finish(Ending(key, "B", begun.fence, "done")) == r.Finished()
    assert store.account(name).counts == {"missed": 1, "done": 1}
    assert store.account(name).last_done == nth(2)
    assert store.account(other).counts == {}
    account = store.account(name)
    assert account.accounted == count_starts(EVERY_MINUTE, account.since, account.cursor)


def test_a_lease_is_kept_whatever_the_entry_holds(stage: Stage) -> None:
    """While it lasts nothing else is read."""
    stage.reach("running")
    stage.raw.hset(stage.entry_key, "fence", "foreign")
    assert stage.renew("A") == r.Renewed()


def test_owners_may_have_odd_names(stage: Stage) -> None:
    """An owner's colons, braces and digits don't confuse the run key."""
    for number, owner in enumerate(("w@h:1:2", "run:x:9", "done:", "{1}", "wait:3:x")):
        stage.claim_nth(number + 1)
        begun = stage.begin(owner)
        assert stage.begin(owner) == begun
        assert stage.hand_over(owner, 1) == r.HandedOver()
        assert stage.hand_over(owner, 1) == r.HandedOver()
        assert isinstance(stage.begin(owner, 1), r.Begun)
        assert stage.finish(owner) == r.Finished()
        assert stage.finish(owner) == r.Finished()


# ------------------------------------------------------------------------------------------------- a bad network


@pytest.mark.parametrize(
    ("state", "verb"),
    [("unseen", "claim"), ("published", "begin A"), ("running", "finish A, again"), ("closed", "backfill")],
)
def test_no_verb_is_lost_with_its_reply(new_stage, any_server, state: str, verb: str) -> None:
    """Its reply cut, a verb is repeated by the client and answers as it did the first time."""
    plain = new_stage()
    plain.load()
    STATES[state](plain)
    expected = answered(VERBS[verb](plain))
    plain.raw.flushall()
    with Proxy(any_server.port) as proxy:
        stage = new_stage(proxy.url())
        stage.load()
        STATES[state](stage)
        proxy.lose_reply()
        assert answered(VERBS[verb](stage)) == expected
        assert proxy.lost == 1
        assert stage.even()


def test_a_store_that_cant_be_reached_says_so_without_its_password(new_stage: Callable[..., Stage]) -> None:
    """The port is closed: verbs raise StoreUnavailableError, which names host and port and no secret."""
    port = free_port()
    stage = new_stage(f"redis://someone:s3cret-word@127.0.0.1:{port}/0")
    for call in (stage.claim, stage.begin, stage.finish, lambda: heard(stage.store, "b")):
        with pytest.raises(StoreUnavailableError) as caught:
            call()
        assert str(port) in str(caught.value)
        assert "s3cret" not in str(caught.value)
        assert not isinstance(caught.value, UncertainWriteError)


def _keyed(stage: Stage) -> KeyedWindow:
    return KeyedWindow("user-1", stage.start, stage.start + MINUTE)


def _keyed_runs(stage: Stage) -> None:
    stage.fences["A"] = stage.store.begin(_keyed(stage), "A", LEASE).fence


def _dead_and_overdue(stage: Stage) -> None:
    stage.reach("died")
    stage.overdue()


def _heard(stage: Stage) -> None:
    heard(stage.store, "beat-1")


def untracked(stage: Stage, beat: str, *alive: str) -> str:
    """A beat that doesn't track the entry says so of an overdue window; these are alive."""
    (reply,) = stage.postpone(alive, beat=beat, why="untracked")
    return str(reply)


def _untracked_by_one(stage: Stage) -> None:
    _loaded_by_two(stage)
    assert untracked(stage, "beat-1", "beat-1", "beat-2") == "no"


#: What a full server still does, with what has to be before it: whatever is there goes on and ends.
ON_A_FULL_SERVER: dict[str, tuple[Callable[[Stage], Any], Callable[[Stage], Any], Any]] = {
    "load": (STATES["claimed"], lambda s: s.load(), r.Loaded),
    "load, another beat": (STATES["claimed"], lambda s: s.load("beat-2"), r.Loaded),
    "claim": (STATES["unseen"], lambda s: s.claim(), r.Claimed),
    "confirm": (STATES["claimed"], lambda s: s.confirm(), r.Confirmed),
    "confirm, not published": (STATES["claimed"], lambda s: s.confirm(published=r.Published.UNSURE), r.Confirmed),
    "take": (_open_and_overdue, lambda s: s.take(), r.Taken),
    "take, dead": (_dead_and_overdue, lambda s: s.take(), r.Taken),
    "put off": (_open_and_overdue, lambda s: s.postpone([])[0], "postponed"),
    "drop, beside another": (_untracked_by_one, lambda s: untracked(s, "beat-2", "beat-1", "beat-2"), "closed"),
    "say that it is untracked": (_loaded_by_two, lambda s: untracked(s, "beat-1", "beat-1", "beat-2"), "no"),
    "receive": (STATES["published"], lambda s: s.receive(), r.Confirmed),
    "begin": (STATES["published"], lambda s: s.begin("A"), r.Begun),
    "begin, sent twice": (STATES["running"], lambda s: s.begin("A"), r.Begun),
    "begin, its lease ran out": (STATES["died"], lambda s: s.begin("A"), r.Begun),
    "begin, a copy": (STATES["running"], lambda s: s.begin("B"), r.Busy),
    "begin, the retry": (STATES["waiting"], lambda s: s.begin("B", 1), r.Begun),
    "renew": (STATES["running"], lambda s: s.renew("A"), r.Renewed),
    "renew, its lease ran out": (STATES["died"], lambda s: s.renew("A"), r.Renewed),
    "renew a key": (
        _keyed_runs,
        lambda s: s.store.renew_many([r.Renewal(_keyed(s), "A", s.fences["A"], LEASE, False)])[0],
        r.Renewed,
    ),
    "hand over": (STATES["running"], lambda s: s.hand_over("A", 1), r.HandedOver),
    "hand over a key": (
        _keyed_runs, lambda s: s.store.hand_over(_keyed(s), "A", s.fences["A"], 1, 1.0), r.HandedOver
    ),
    "finish": (STATES["running"], lambda s: s.finish("A"), r.Finished),
    "finish, failed": (STATES["running"], lambda s: s.finish("A", "failed"), r.Finished),
    "finish, to run again": (STATES["running"], lambda s: s.finish("A", "failed", DELAY), r.Again),
    "finish a key": (_keyed_runs, lambda s: s.store.finish(Ending(_keyed(s), "A", s.fences["A"], "done")), r.Finished),
    "finish a key, to run again": (
        _keyed_runs, lambda s: s.store.finish(Ending(_keyed(s), "A", s.fences["A"], "failed", DELAY)), r.Again
    ),
    "discard": (STATES["published"], lambda s: s.discard("expired"), r.Closed),
    "heartbeat": (_heard, lambda s: heard(s.store, "beat-1"), r.Heartbeat),
    "sweep": (_heard, lambda s: s.store.overdue("beat-1", T0, 10).shards[s.shard_number], r.Swept),
    "pause": (STATES["claimed"], lambda s: s.store.set_paused(ENTRY, paused=True), r.Confirmed),
    "abandon": (STATES["published"], lambda s: s.abandon(), r.Finished),
    "note": (STATES["claimed"], lambda s: write_orders(s.store, {"id": Order("pause", ENTRY, "anna")}), type(None)),
}  # fmt: skip


@pytest.mark.parametrize("what", ON_A_FULL_SERVER)
def test_on_a_full_server_what_is_there_goes_on_and_ends(new_stage, any_server, what: str) -> None:
    """With maxmemory reached and noeviction no lease is lost, and nothing runs twice for want of room."""
    before, call, expected = ON_A_FULL_SERVER[what]
    with any_server.client() as admin:
        admin.config_set("maxmemory-policy", "noeviction")
        stage = new_stage()
        stage.load()
        before(stage)
        admin.config_set("maxmemory", 1)
        try:
            assert isinstance(stage.load(entry="another"), StoreUnavailableError), "it is full"
            answer = call(stage)
        finally:
            admin.config_set("maxmemory", 0)
    assert answer == expected if isinstance(expected, (str, bool)) else isinstance(answer, expected), answer


# ------------------------------------------------------------------------------------------------- wait_replicas


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for replicas that never come for a moment only."""
    monkeypatch.setattr("celery_once_beat.store.roundtrip._WAIT_MS", 20)


@pytest.mark.usefixtures("impatient")
def test_a_write_that_no_replica_has_is_uncertain(new_stage: Callable[..., Stage]) -> None:
    """What one would act on isn't taken for granted; a refusal is, since nobody acts on it."""
    certain, stage = new_stage(), new_stage(wait_replicas=1)
    certain.load()
    certain.reach("closed")  # all scripts are known
    certain.raw.delete(*certain.all_keys())
    certain.load()
    assert isinstance(stage.claim(), UncertainWriteError)
    assert isinstance(certain.claim(), r.Claimed)  # it had been carried out; asked again, it says so
    assert isinstance(stage.claim("beat-2"), r.Moved)
    with pytest.raises(UncertainWriteError, match="wait_replicas"):
        stage.begin("A")
    with pytest.raises(UncertainWriteError):
        stage.begin("A")
    stage.fences["A"] = certain.begin("A").fence
    assert isinstance(stage.begin("B"), r.Busy)
    assert stage.finish("B") == r.Stale()
    with pytest.raises(UncertainWriteError):
        stage.finish("A")
    assert certain.finish("A") == r.Finished()
    assert stage.begin("B") == r.Closed("")
    assert certain.counts() == {"done": 1}


#: Each verb that is acted on, and the state before it.
_ACTED_ON = {
    "claim": "unseen", "take": "published", "begin A": "published", "renew A": "running", "hand over A": "running",
    "finish A": "running", "finish A, again": "running", "backfill": "closed", "abandon": "published",
    "resume": "unseen",
}  # fmt: skip


@pytest.mark.parametrize("verb", _ACTED_ON)
@pytest.mark.usefixtures("impatient")
def test_a_verb_that_is_sent_again_is_as_uncertain(start_redis, verb: str, monkeypatch) -> None:
    """Asked again on another connection, whose own writes it is that WAIT waits for, it isn't certain either."""
    server = start_redis(args=("--repl-diskless-sync-delay", "0"))
    replica = start_redis(args=("--replicaof", f"127.0.0.1 {server.port}"))
    patient = {"socket_timeout": 30.0}
    certain, stage = Stage(server.url()), Stage(server.url(), wait_replicas=1, redis_options=patient)
    send = ALL_VERBS[verb]
    certain.load()
    certain.reach(_ACTED_ON[verb])
    if verb == "take":
        certain.overdue()
    stage.fences = certain.fences
    with replica.client() as client:
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", "the replica follows", 60)
    replica.pause()
    for _ in range(2):
        assert isinstance(answer_or_error(lambda: send(stage)), UncertainWriteError)
        stage.store.close()  # the next one goes on another connection
    replica.resume()
    with replica.client() as client:
        offset = certain.raw.info("replication")["master_repl_offset"]
        wait_until(lambda: client.info("replication")["slave_repl_offset"] >= offset, "the replica has it", 60)
    monkeypatch.setattr("celery_once_beat.store.roundtrip._WAIT_MS", 20_000)  # it answers, perhaps slowly
    assert not isinstance(send(stage), UncertainWriteError)
    certain.close()
    stage.close()


# ------------------------------------------------------------------------------------------ beats, threads, chance


def test_beats_come_and_go(stage: Stage) -> None:
    """A beat is alive from its first heartbeat until it leaves, or until it hasn't been heard of for 15 s."""
    before = stage.now()
    first = heard(stage.store, "beat-1")
    assert first.beats == ("beat-1",)
    assert before - 1 <= in_ms(first.now) <= stage.now() + 1
    assert set(heard(stage.store, "beat-2").beats) == {"beat-1", "beat-2"}
    stage.store.leave("beat-1")
    assert heard(stage.store, "beat-2").beats == ("beat-2",)
    stage.raw.zadd("once:beats", {"silent": stage.now() - 15_001, "lately": stage.now() - 10_000})
    assert set(heard(stage.store, "beat-2").beats) == {"beat-2", "lately"}


def test_of_many_at_once_one_claims_and_one_begins(new_stage: Callable[..., Stage]) -> None:
    """Eight beats claim one window, eight workers begin it, at the same time: one of each does."""
    stages = [new_stage() for _ in range(8)]
    stages[0].load()
    barrier = threading.Barrier(8)

    def at_once(verb: Callable[[int], Any]) -> list[type]:
        with ThreadPoolExecutor(8) as pool:
            return [type(reply) for reply in pool.map(lambda n: (barrier.wait(60), verb(n))[1], range(8))]

    assert at_once(lambda n: stages[n].claim(f"beat-{n}")).count(r.Claimed) == 1
    assert at_once(lambda n: stages[n].begin(f"w-{n}")).count(r.Begun) == 1


def test_a_copy_of_the_schedules_message_does_nothing_to_an_order(stage: Stage) -> None:
    """Its task id isn't the order's: it neither runs the window, nor closes it, nor puts it off."""
    stage.reach("closed")
    ordered = stage.backfill()
    assert isinstance(ordered, r.Claimed)
    prefix = stage.store.settings.key_prefix
    copy = replace(stage.window, sent_as=task_id(prefix, ENTRY, stage.start))
    deadline = stage.deadline()
    assert receive_many(stage.store, [(copy, 0, LEASE, HOLDER)]) == [r.Unchanged()]
    assert stage.store.close_window(copy, "P", "revoked", 0) == r.Unchanged()
    assert stage.store.close_window(copy, "?", "unknown", 0) == r.Unchanged()
    assert stage.deadline() == deadline
    assert stage.store.begin(copy, "A", LEASE) == r.Closed("")
    assert stage.recover().ordered == ordered.ordered is not None
    message = replace(stage.window, sent_as=task_id(prefix, ENTRY, stage.start, ordered.ordered))
    assert receive_many(stage.store, [(message, 0, LEASE, HOLDER)]) == [r.Confirmed()]
    assert isinstance(stage.store.begin(message, "B", LEASE), r.Begun)
    assert stage.finish("B") == r.Finished()
    assert stage.apart() == {"done": 1}


@pytest.mark.parametrize(("holder", "ends"), [("A:1", True), ("A", True), ("AB:1", False), ("B:A:1", False)])
def test_without_its_fence_a_delivery_ends_its_own_execution(stage: Stage, holder: str, ends: bool) -> None:
    """The main process knows the delivery, not what its child called the execution; another's stays untouched."""
    stage.reach("published")
    assert isinstance(stage.begin(holder), r.Begun)
    finish = lambda fence: stage.store.finish(Ending(stage.window, "A", fence, "failed", 60.0))  # noqa: E731
    if holder != "A":
        assert finish(stage.fences[holder]) == r.Stale(), "who knows a fence has to be its owner"
    for _ in range(2):  # the reply to the first was lost
        assert finish(0) == (r.Again() if ends else r.Stale())


def test_an_expired_copy_by_a_clock_that_is_ahead_closes_nothing(stage: Stage) -> None:
    """The server's clock says whether a window has expired; it is published again soon, whoever confirms it late."""
    stage.load()
    assert isinstance(stage.claim(expires=60.0), r.Claimed)
    assert stage.discard("expired") == r.Confirmed()
    deadline = stage.deadline()
    assert deadline <= stage.now() + 1000
    assert stage.confirm() == r.Unchanged()
    assert stage.deadline() == deadline
    assert stage.raw.hget(stage.entry_key, "discarded") is None


def test_a_copy_that_expires_by_itself(stage: Stage) -> None:
    """What the message says goes before what the window says: a retry's is its own, an order's window has none."""
    assert isinstance(stage.claim(expires=60.0), r.Claimed)
    now = datetime.fromtimestamp(stage.now() / 1000, timezone.utc)
    assert stage.store.close_window(stage.window, "P", "expired", 0, now + MINUTE) == r.Confirmed()
    assert stage.store.close_window(stage.window, "P", "expired", 0, now - MINUTE) == r.Closed("expired")
    stage.backfill()
    assert stage.store.close_window(stage.window, "P", "expired", 0, now + MINUTE) == r.Confirmed()


def test_each_living_beat_has_its_look_before_a_window_is_dropped(stage: Stage) -> None:
    """One that isn't listed, or not yet, may track it, and takes it then: of seventeen only the newest are listed."""
    beats = [f"beat-{number}" for number in range(1, 18)]
    for beat in beats:
        stage.load(beat, alive=beats)
    stage.reach("published")
    stage.overdue(14)
    assert {untracked(stage, beat, *beats) for beat in beats[1:]} == {"no"}
    assert isinstance(stage.take(beats[0]), r.Taken)
    stage.overdue(15.1)
    assert untracked(stage, beats[-1], *beats) == "closed"


def test_what_is_overdue_is_read_past_what_nobody_can_move(stage: Stage) -> None:
    """A page that was of no use is passed over at the next look."""
    stage.load()
    for number in (1, 2, 3):
        stage.claim(start=nth(number), since=nth(number - 1))
    now = heard(stage.store, "beat-1").now + timedelta(seconds=PUBLISH + 1)
    shard = shard_of(ENTRY)
    pages = [stage.store.overdue("beat-1", now, 2, {shard: skip}).shards[shard].windows for skip in (0, 2, 4)]
    assert pages == [[WindowKey(ENTRY, nth(1)), WindowKey(ENTRY, nth(2))], [WindowKey(ENTRY, nth(3))], []]


def test_missed_windows_are_told_as_they_are_counted(stage: Stage) -> None:
    """A claim's reply says how many windows it counted as missed: not those that ran all the same."""
    stage.load()
    stage.store.begin(WindowKey(ENTRY, nth(2)), "A", LEASE, tracked=False)  # though the cursor doesn't know
    starts = (nth(1), nth(2), nth(3))
    reply = stage.claim(start=nth(4), missed=starts, missed_count=3)
    assert reply.missed == 2
    assert stage.counts() == {"missed": 2}
    again = stage.claim(start=nth(4), missed=starts, missed_count=3)
    assert again == replace(reply, missed=0), "they were told"


def test_a_keys_hash_is_kept_as_long_as_its_windows(stage):
    """A begin prolongs it to that, and never shortens it."""
    _keyed_runs(stage)
    (kept,) = (key for key in stage.raw.scan_iter("*user-1*") if stage.raw.type(key) == "hash")
    retention = stage.store.settings.retention * 1000
    assert retention - 60_000 < stage.raw.pttl(kept) <= retention
    stage.raw.pexpire(kept, round(2 * retention))
    stage.start += MINUTE
    _keyed_runs(stage)
    assert stage.raw.pttl(kept) > retention


def test_a_keys_window_that_runs_again_is_told_so_twice(stage):
    """Its finish answers as the first time, also where it is sent again: the reply may have been lost."""
    _keyed_runs(stage)
    ending = Ending(_keyed(stage), "A", stage.fences["A"], "failed", again=60.0)
    first, second = stage.store.finish(ending), stage.store.finish(ending)
    assert 0 < second.after <= first.after == 60
    assert stage.store.begin(_keyed(stage), "B", LEASE) == r.Busy("waiting to run again")
