"""The protocol: who decides, the states of a window, what each failure does.

Who decides
-----------
The server does, and its clock. A verb is one Lua script: it looks, decides and writes in one step, and takes its time
from the server. A client that sleeps for an hour between two verbs finds out in the second.

The cursor of an entry and its open windows are the truth that doesn't age: a window with
``born < start <= cursor`` is judged by ``open`` alone. The NX markers guard the moments in which two act at
once, and alone decide for every other window: the store lost data, or the message is of an untracked entry.

States of a window; beside each arrow stands the verb::

    unseen ──claim──▶ claimed ──confirm──▶ published
       │                 │                     │
       │ claim, passed   └───────begin─────────┤
       │ or untracked                          ▼
       │                      ┌──────────── running ◀───begin(n)─── waiting(n)
       │                      │ finish         │ hand_over              ▲
       ▼                      ▼                └────────────────────────┘
    closed ◀──────────────────┘

    published ◀── take: a deadline passed (claimed; a lease ran out; a retry's message is lost)
    published ◀── finish, where it is to run again
    closed    ◀── a limit, at take or at begin; close: its message expired or was revoked, or it has a result from a
                  worker that doesn't know windows; confirm, where no worker will know the window
    closed    ◀── abandon, by order
    waits     ◀── begin: it isn't the window's turn, or its limit has no free slot; its message is gone
    published ◀── take, once whatever ended the window before it, or a beat that found a slot, made it overdue
    claimed   ◀── backfill, of a closed one, by order

claimed and published differ in the deadline only: ``claim_lease``, which a beat renews while it publishes, and
``start_timeout``. While the message waits in a worker, ``receive`` keeps the deadline of what nobody runs a lease away.
Whoever finds a deadline passed takes the window; the deadline that the take moves is the mutex between beats.

What each failure does
----------------------
- The holder of a slot dies: the slot is a lease. A beat's next look finds it free.
- The end of a window makes the next in line overdue in the same script. If no beat lives then, that one waits until one
  does. If a beat dies once it has taken it, or its message is lost, another publishes it within a minute.
- A caller dies between two verbs: the window stays open and becomes overdue; a beat takes it. The same if its worker
  was killed, running it or with its message reserved, or its retry's message is lost.
- A reply is lost and the command is sent again: every verb is idempotent for its owner and answers as it
  did the first time. An owner is one beat process, or one execution of one *delivery* of a message,
  ``<delivery>:<execution>``. A worker's main process, which ends what its child began, knows the delivery alone.
- An execution outlives its lease: it has the window again if nobody began since, else it is stale.
- People set, change and delete definitions at run time: the store's is the truth, whatever beats know. Each has a
  fingerprint of its own, which is put in force in the step that sets it. So nothing is claimed by an old one any more:
  a beat that doesn't know the new one is refused, and reads it. The cursor stays, so that the windows up to the change
  stay owed: beats find them by the old one. A definition of a living beat's own schedule goes first.
- A beat dies: what it loaded no longer counts once it hasn't swept the shard for BEAT_TTL, while others did. One that
  was frozen so long is told so at its next sweep, and loads its entries again: if it loaded last, it is right again.
- A node of a cluster, or the one server, is away: no beat grows old in its shards. Once it is back each has its time to
  sweep them before it counts as gone. A store that lost its data knows no beat, and tells each so.
- More beats load an entry than it lists: only the newest few decide. If those die, an older definition may count for a
  moment; a living beat with a later one is refused its next claim, loads again, and takes the entry back.
- The server's clock goes back: nothing that was claimed is claimed again. Entries stand still until the old time is
  reached, and beats say so. A time in the future is no sign that a beat lives.
- A beat dies while it says that a window is late, or how it ended: another says it after ``publish_timeout``. So it is
  said at least once, and twice only then.
- An entry leaves a beat's schedule: once no living beat has it, unload puts its definition out of force. Open windows
  go on to their outcomes. Windows of the time without it never count, whoever loads it again.
- A one-off has had its window and is disabled: spent keeps the time of that edit. A beat that finds it enabled with a
  later edit knows that it is to run once more, even if no beat saw it disabled.
- The store loses its last writes: windows beyond the cursor are decided by the run key; a claim that passes
  them takes over what the run key says.
- The store loses everything: the same. A beat that gets Unknown loads its entries anew, from the cursors that it knew.
- A key holds something foreign: StoreDataError names it, and only that entry is affected.
- Redis doesn't answer: StoreUnavailableError, after a short retry; the command may have been carried out.

Counters ``c:<outcome>`` obey the conservation law (see ``rules.balance``); ``x:<outcome>`` count backfills and windows
of earlier definitions, which it leaves out.
"""

from __future__ import annotations

from types import MappingProxyType

#: The state of an open window, as its account has it, and what each means.
STATES = MappingProxyType(
    {
        "held": "before the first begin, while it runs, and after an execution died",
        "retry": "its last owner has handed it over to a retry",
        "again": "it failed, and is to run again at its deadline; no copy may begin before a beat has taken it",
        "again_due": "a beat has taken it then",
        "waits_turn": "a begin found that another window of its entry goes first; until it begins",
        "waits_slot": "a begin found no free slot of its limit; until it begins",
    }
)
