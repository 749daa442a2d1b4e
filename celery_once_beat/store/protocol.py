"""The protocol: who decides, the states of a window, what each failure does.

Who decides
-----------
The server does, and its clock. A verb is one Lua script: it looks, decides and writes in one step, and takes its time
from the server. A client that sleeps for an hour between two verbs finds out in the second.

Of an entry there is a hash, which has its *cursor* (the latest claimed start) and the *account* of each open window;
of its shard the *open set*, windows with their deadlines; of a window the *claim marker* (who claimed it) and the *run
key* (who executes it, for which retry it waits, or how it ended).

Each begin gets a *fence*: the server's time, in ms, or one more than the largest fence of the entry and the window,
if that is more. So it is also the time of the begin, or a little later. It grows with each begin of the entry, even if
the clock goes back; fences of two entries can't be compared. A failover may lose begins: new fences are larger than the
lost ones once the new server's clock is past them. Until then a new fence may equal a lost one, or be smaller. The
store tells executions apart by their owners; a job that compares fences may let the older one win.

``keys.py`` says what expires when: everything but run-time definitions, some time after the last contact. What a
tracked window owes never depends on the expiry of a marker or run key. CONTRIBUTING.md says where a new verb, outcome
or policy goes.

Cursor and open set are authoritative. A window that starts after ``born`` (the cursor when the hash was made), and not
after the cursor, owes an outcome exactly while it is in the open set. Claim marker and run key settle races. For
windows of untracked entries, and those that the store lost, these two alone decide.

States of a window; beside each arrow stands the verb. Its account's ``state`` is coarser, see STATES: ``claimed`` and
``published`` leave it as it was, at first ``plain``, and differ by ``message``. ``running`` is ``plain``, with a run
key::

    unseen ──claim──▶ claimed ──confirm──▶ published
       │                 │                     │
       │ claim, passed   └───────begin─────────┤
       │ or untracked                          ▼
       │                      ┌──────────── running ◀───begin(n)───   retry(n)
       │                      │ finish         │ hand_over              ▲
       ▼                      ▼                └────────────────────────┘
    closed ◀──────────────────┘

    claimed   ◀── take, of an overdue one: claimed and not confirmed; published and not begun; its lease ran out; its
                  retry didn't come; to run again, and its time has come; waiting, and made overdue
    again     ◀── finish, where it is to run again
    closed    ◀── an end rule, at take or at begin; close: its message expired or was revoked; confirm, where the
                  message can't be made, or no worker will know the window; postpone, where no beat has the entry
    closed    ◀── abandon, by order
    waits     ◀── begin: it isn't the window's turn, or its limit has no free slot. Its message is dropped
    waits     ◀── take: it still isn't its turn
    claimed   ◀── backfill, of a closed one, by order

A claimed window's deadline is ``claim_lease`` ahead, which a beat renews while it publishes; a published one's is
``start_timeout`` ahead, and its account names the queue that got the message. While a worker holds the message and
hasn't begun, ``receive`` keeps the deadline one lease ahead.
Any beat that tracks the entry, or did until it went astray, and whose definition of it is in force, may take a window
whose deadline has passed. The take moves the deadline, so only one beat gets it.

A window whose message is out is taken only while a worker consumes the queue that has it: else a copy would lengthen
the queue, or run once more in workers that know no windows. Workers report every few seconds what they consume, by
``consume``. It is taken all the same, at doubling steps, where nobody can tell who consumes its queue (an exchange
routes the message, or workers have another broker than the beat that asks), or a later window of the entry is done.

What each failure does
----------------------
- A worker doesn't report for WORKER_TTL: it counts as gone, and its queues as not consumed. What was published to them
  stays open, is looked at again after an eighth of its age, within ten minutes, and is published again once a worker
  reports that it consumes the queue. A worker that couldn't report (Redis was away, its process was frozen) does so as
  soon as it can.
- A worker lives and hangs: windows of its queues are published again at doubling steps.
- A window waits for its turn: the script that ends the window before it makes it overdue.
- A window waits for a slot: its worker asked for one before begin, and the limit lists who waits. A slot is a lease: it
  is free when it is released, or its holder died. While windows wait, beats look five times a second. For a free
  slot a beat calls the first that waits, and makes it overdue. A call lapses after two seconds: if that beat died, the
  next one calls.
- What waited is overdue: if no beat lives, it stays so until one does. If the beat that took it dies, another takes it
  after ``claim_lease``. If its message is lost, it is published again, at doubling steps: the first after
  ``start_timeout``, and within a minute if it waited for its turn, since others wait for it.
- A caller dies between two verbs: the window stays open and becomes overdue; a beat takes it. The same if its worker
  was killed, running it or with its message reserved, or its retry's message is lost.
- A reply is lost and the command is sent again, up to three times in one call: every verb is idempotent for its owner,
  and gives it the same right; the repeated reply may lack counts and lists of other windows. A message that is put back
  comes with another owner. If its begin was carried out, the copy is refused for a lease, and that begin counts as an
  execution that died.
  An owner is one beat process, or one execution of one *delivery* of a message, ``<delivery>:<execution>``. A worker's
  main process, which ends what its child began, knows the delivery alone.
- An execution outlives its lease: it has the window again. It is *stale* if another execution has the window or, while
  it is open, began it; if it was closed, handed over or put back in line; or if windows run one by one and another has
  the turn.
- A definition is set, changed or deleted at run time: the store's counts, whatever beats have loaded. The same step
  puts its new fingerprint in force. A beat with the old one is refused, and loads again. What was due before a change
  stays owed by the old definition; before a deletion, nothing. A living beat's own schedule takes precedence.
- A deploy changes an entry: its new beats don't know the old definition. The new one counts from its first load. A
  window that was due before and not claimed never runs; one that was claimed is published with the new arguments.
- A beat dies: its definitions stop counting once a sweep of the shard is BEAT_TTL later than its own last one. What it
  had claimed of untracked entries and not published is lost. If it was only frozen, the reply to its next sweep shows
  that it was forgotten, and it loads its entries again.
- A node is away: no beat of its shards ages. After a data loss the store knows no beat, and each loads again.
- An entry lists its newest few loaders. If more beats load it, only those listed decide. If they die, an older
  definition may count for a moment; a living beat with a later one is refused its next claim, loads again, and takes
  the entry back.
- The server's clock goes back: nothing that was claimed is claimed again. Entries aren't claimed until the old time
  is reached, and beats log it. A time in the future is no sign that a beat lives.
- A beat dies while it sends an alert: another sends it after ``publish_timeout``. So an alert is sent at least once,
  and twice only then.
- A parent dies between opening a tracked child and confirming that its message is out: the child is overdue, and a beat
  publishes it from what the store keeps. Its hash has no cursor, so the open set and the run key decide its windows.
- An entry leaves a beat's schedule: once no living beat has it, unload puts its definition out of force. Open windows
  continue to their outcomes. Windows of the time without it never count, whoever loads it again.
- An entry's row of a database gets another name: once no living beat has the old name, unload puts its cursor and pause
  aside, and the load by the new name takes them over. A load that finds another row's entry waits for that entry's
  beats, then puts its state aside. If a beat dies in between, it stays there.
- A one-off has had its window and is disabled: spent keeps the time of that edit. A beat that finds it enabled with a
  later edit knows that it is to run once more, even if no beat saw it disabled.
- The store loses its last writes; ``wait_replicas`` prevents that over a failover. A lost claim is found at the entry's
  next claim or load, and the window is claimed again. If it has a run key, which a renewal of its lease writes anew,
  the claim opens it or counts it by that. If that is lost too, the window may run twice, or count as missed though it
  ran. A lost begin makes its execution stale, and the window runs twice. After a lost finish it runs again once its
  lease is over.
- The store loses everything: the same. A beat that gets Unknown loads its entries anew, from the cursors that it knew.
- A key holds something foreign: StoreDataError names it, and only that entry is affected. Where it is for people alone,
  as a history is, windows go on without it.
- Redis doesn't answer: StoreUnavailableError, after a short retry; the command may have been carried out.

Counters ``c:<outcome>`` obey the conservation law (see ``EntryAccount.accounted``); ``x:<outcome>`` count backfills and
windows of earlier definitions, which it leaves out.
"""

from __future__ import annotations

from types import MappingProxyType

#: What is known of the message of an open window, as its account has it.
MESSAGES = MappingProxyType(
    {
        "none": "not yet, or no more: it is claimed, reserved by a worker, running, handed over, or waits",
        "taken": "a beat has taken the window, to publish it again",
        "sent": "it is out, and nobody has begun",
    }
)
#: The state of an open window, as its account has it, and what each means.
STATES = MappingProxyType(
    {
        "plain": "none of those below: not begun yet, running, or its execution died",
        "retry": "its last owner has handed it over to a retry",
        "again": "it failed, and is to run again at its deadline; no copy may begin before a beat has taken it",
        "again_due": "it failed, and a beat has taken it to run again",
        "waits_turn": "a begin found that another window of its entry goes first; until it begins",
        "waits_slot": "a begin found no free slot of its limit; until it begins",
    }
)
