"""What hangs on the core, each feature in a folder of its own. One that is taken off :data:`FEATURES` is gone.

The core decides when a window is claimed, begins and ends. There it calls what features add. It knows that a window may
have to wait; it doesn't know which feature decides that, or when.

In Lua a feature adds ``features/<name>/lua/<hook>.lua``, whose function is ``<name>_<hook>``. A script that has a line
``-- hooks: …`` calls those of all features in turn; a question (all but ``on_…``) until one answers:

=================================  ===================================================================================
``before_all()``                   a begin was asked for: nothing, or the reply that refuses it
``wants_begin()``                  does the feature take part when a window of this entry begins? true; if none does,
                                   ``before_begin`` and ``on_begin`` may be left out
``before_begin(window)``           may this window begin now? nothing, or a verdict. One that ends it has ``outcome``
                                   and perhaps ``why``. One that lets it wait has ``state``; ``first``: the start that
                                   goes before it, '' for a slot; ``over``: windows to skip; ``limit``; ``in_line``.
                                   ``window`` is nil if it is not open
``before_take(window)``            may this overdue window be published again? nothing, or a verdict of the second kind
``lost_turn()``                    has another window taken the turn of this execution? true; if not, it takes it back
``before_load(cursor)``            a beat loads an entry. Nothing; or of a definition that the store has: whether it is
                                   ``in_force``, or ``replaced_by`` a later mark; where it ``counts_from``; whether it
                                   is ``paused``, and its ``mark``
``on_load(stored)``                it is loaded; ``stored`` is what ``before_load`` said
``before_pause()``                 an entry is paused or resumed: has the feature something of it?
``on_pause()``                     that is changed, too; what it answers
``on_claim()``                     the window was claimed, and is to be published
``on_begin(window)``               an open window begins; true: its end is to be recorded at once
``on_wait(window, verdict)``       the window waits, as ``before_begin`` or ``before_take`` decided
``on_release(gone)``               the window doesn't run any more; ``gone``: its message is lost to the workers
``on_begin_alone(repeated)``       a window begins that is open nowhere: its run key alone decides. ``repeated``: it
                                   had, and the reply was lost. Returns how often it has begun by now; nothing: once
``on_end_alone(standing, retry)``  an execution of such a window ends; ``standing`` is what ``hold`` says of it, and
                                   ``retry`` for which it waits. Returns in how many ms it is to run again, or nothing
``wants_close()``                  does it take part when one ends? true; if none does, ``on_close`` and ``on_release``
                                   may be left out
``on_end(window, fields, ran)``    a window that was open ended: the feature may add to the ``fields`` that are written;
                                   ``ran``: for how long it ran, ms, nil where nobody knows
``on_close(start, window, …)``     a window that was open ended, or one is missed; behind these its ``outcome``.
                                   ``window`` is nil if it was never open
``on_sweep(found)``                a beat sweeps this shard; the feature adds its name if it has something to see to
=================================  ===================================================================================

An ``on_…`` hook writes, ``before_take`` and ``lost_turn`` may: what they read of the entry has been checked. What a
feature reads of the entry's hash it names in a line ``-- fields: …``; its keys and arguments in ``-- keys: …`` and
``-- takes: …``.

In Python a feature has up to four modules, which are imported by :func:`parts`:

- ``features/<name>/store.py`` declares its verbs, and calls them through a store's exchange. It may have:

  =============================  =======================================================================================
  ``CONSTANTS``                  what its Lua knows by these names, as Lua text
  ``DEFAULTS``                   what arguments that its Lua takes are where they are left out, if not ''
  ``OF_EXECUTIONS``              its verbs that executions ask for: their scripts are made before a worker forks
  ``special(settings, window)``  the window isn't an entry's: returns a verb's arguments that are special to it, or None
  =============================  =======================================================================================

- ``features/<name>/beat.py`` has a class ``Part``, made for each beat. It may add a source of entries to
  ``beat.entries.sources``, see :mod:`celery_once_beat.beat.sources`. Its hooks are those of
  :class:`celery_once_beat.beat.part.BeatPart`:

  =========================  ===========================================================================================
  ``on_made(entries)``       these are new or changed
  ``on_claimed(entries)``    windows of these were claimed, and their messages are out
  ``before_sweep(report)``   the sweep is sent next; ``report`` is what the beat says of itself. Returns requests of
                             verbs and plain commands that travel with it
  ``after_sweep(…)``         what it ``found``, the store's ``Overdue``, and the ``replies`` to these. Returns windows
                             that are overdue by now, though the sweep didn't find them so
  ``due_in()``               seconds until it looks between two sweeps; infinite where it has no reason to
  ``find_due()``             that time is over: returns windows that are overdue
  ``work()``                 what was overdue is published
  ``on_close()``             beat ends
  =========================  ===========================================================================================

- ``features/<name>/task.py``, imported with ``OnceTask``, may have:

  =========================  ===========================================================================================
  ``TaskMethods``            a base of ``OnceTask``: methods of every task
  ``AroundBody``             a base of the context in which each body runs: see ``BodyContext`` in ``windows``
  ``window_of_block()``      for ``current_window()``: the window in which this code runs, nearer than its task's
  =========================  ===========================================================================================

- ``features/<name>/worker.py``, imported in a worker, may have:

  =========================  ===========================================================================================
  ``on_consumer(consumer)``  a worker starts with this consumer of Celery's; returns a duty, see ``worker.duties``
  ``Part``                   made for each execution of a window by a task; its hooks are those of
                             :class:`celery_once_beat.worker.part.ExecutionPart`
  =========================  ===========================================================================================

  =========================  ===========================================================================================
  ``before_begin(request)``  the store is asked next; whatever it raises, Ignore for example, the window doesn't begin
  ``arguments()``            the arguments of ``begin`` that the feature's Lua takes
  ``on_begin(lease)``        it has begun; true: its end is to be recorded at once. If it raises, the begin is undone
  ``on_refusal(reply)``      it doesn't begin: the window waits, is another's or has ended
  ``renewal()``              what is sent with each renewal of a lease, once :attr:`Lease.renewed_with` has the part
  ``on_renewed(…)``          the ``lease`` and the ``reply`` to that
  ``on_end(over=…)``         the execution has ended; ``over``: so has its window, which no other one runs
  =========================  ===========================================================================================
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

#: Overlap and limits; deadline, on_failure and pauses after failures; histograms; messages that wait in workers; a file
#: for probes; once() and apply_once(); what people order; schedules set at run time; rows in users' transactions.
_ALL = "admission alerts times reserved heartbeat_file keyed orders runtime effects"
#: In the order in which their hooks are called. ``ONCE_FEATURES=`` in the environment takes all off: so the core is
#: tested alone.
FEATURES: tuple[str, ...] = tuple(os.environ.get("ONCE_FEATURES", _ALL).split())


@cache
def parts(kind: str) -> list[Any]:
    """Return the modules ``features/<name>/<kind>.py`` of those features that have one, in their order."""
    found = [f"{__name__}.{name}.{kind}" for name in FEATURES]
    return [import_module(name) for name in found if find_spec(name) is not None]


@cache
def hooks(kind: str, name: str) -> tuple[Any, ...]:
    """Return what features have by this name in those modules."""
    return tuple(getattr(module, name) for module in parts(kind) if hasattr(module, name))
