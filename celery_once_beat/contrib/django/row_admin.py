"""For an admin of django-celery-beat's rows: how their windows stand, and what one may do about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timezone
from itertools import islice
from typing import Any

from celery import current_app
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.db import router, transaction
from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe
from django.utils.timezone import localtime

from celery_once_beat.client import OrderedBy
from celery_once_beat.errors import OnceError
from celery_once_beat.outcomes import STATES
from celery_once_beat.wording import in_zone, printable, some, span

from . import row_windows
from .row_windows import RowWindows

#: Windows of a row in the list.
_IN_LIST = 3
#: From this urgency on what needs attention is in the colour of errors.
_GRAVE = 3
#: What the form shows of a row.
_IN_FORM = ("once_next", "once_windows", "once_attention")
#: Between lines.
_LINES = mark_safe("<br>")
#: Most characters of the name of who ordered something.
_MOST_BY = 200
#: As the field of the change list's form is called; the note is of what is done to all selected rows.
_NOTE = "once_note"
#: Most messages after an action, and rows that one of them names.
_MOST_MESSAGES, _MOST_NAMED = 10, 10


class _NotedActionForm(ActionForm):  # type: ignore[misc]  # Django has no types
    """Beside the actions: why."""

    # Not every theme of the admin shows labels here.
    once_note = forms.CharField(
        label="Note:",
        required=False,
        max_length=1000,
        widget=forms.TextInput({"placeholder": "Note: why", "aria-label": "Note"}),
    )


class OnceAdminMixin:
    """For an admin of ``PeriodicTask``: put it first among the bases.

    The list and the form of a row say when it starts next, how its last windows ended, and what to look at. Actions run
    its newest window, pause it and resume it, for who may change the row.
    """

    action_form = _NotedActionForm

    @property
    def media(self: Any) -> Any:
        """As the base's, with this mixin's colours."""
        return super().media + forms.Media(css={"all": ["celery_once_beat/admin.css"]})  # type: ignore[misc]

    # -- what is shown ----------------------------------------------------------------------------------------

    def get_list_display(self: Any, request: Any) -> tuple[str, ...]:
        """As the base's, with the columns of this mixin behind the first."""
        first, *others = super().get_list_display(request)  # type: ignore[misc]
        return (first, "once_next", "once_last", "once_attention", *others)

    def get_readonly_fields(self: Any, request: Any, obj: Any = None) -> tuple[str, ...]:
        """As the base's; a row that is there has the fields of this mixin too."""
        fields = super().get_readonly_fields(request, obj)  # type: ignore[misc]
        return tuple(fields) if obj is None else (*fields, *_IN_FORM)

    def get_fieldsets(self: Any, request: Any, obj: Any = None) -> list[Any]:
        """As the base's; a row that is there has its windows too."""
        fieldsets = [*super().get_fieldsets(request, obj)]  # type: ignore[misc]
        shown = {name for _, options in fieldsets for name in options["fields"] if isinstance(name, str)}
        if obj is not None and shown.isdisjoint(_IN_FORM):
            fieldsets.append(("Windows", {"fields": _IN_FORM}))
        return fieldsets

    def get_changelist_instance(self: Any, request: Any) -> Any:
        """As the base's; the store is asked once for all rows of the page, when the first of them is shown."""
        changelist = super().get_changelist_instance(request)  # type: ignore[misc]
        for row in changelist.result_list:  # an action comes by here too, and shows none
            row._once_page = changelist.result_list  # noqa: SLF001  # ours
        return changelist

    @admin.display(description="next window")
    def once_next(self, row: Any) -> str:
        """When the row starts next."""
        status = self._windows(row).status
        if not row.enabled:
            return "disabled"
        return _moment(status.next) if status and status.next else "-"

    @admin.display(description="last windows")
    def once_last(self, row: Any) -> str:
        """The last windows of the row and how each stands, on one line, with a link to the row's page on the board."""
        found = self._windows(row)
        windows = ((_moment(window.start), _state(window.state)) for window in found.windows[:_IN_LIST])
        told = format_html_join(", ", "{} {}", windows) or "-"
        return format_html('<span class="once-windows">{} {}</span>', told, _link(found.board))

    @admin.display(description="last windows")
    def once_windows(self, row: Any) -> str:
        """The last windows of the row, a line each."""
        found = self._windows(row)
        windows = ((_story(window),) for window in found.windows)
        return format_html("{}<br>{}", format_html_join(_LINES, "{}", windows) or "-", _link(found.board))

    @admin.display(description="attention")
    def once_attention(self, row: Any) -> str:
        """What somebody should look at: why the row is left out, who paused it, what failed."""
        found = self._windows(row)
        status = found.status
        texts = (found.trouble, *(status.attention if status else ()))
        told = "; ".join(printable(in_zone(text, _moment)) for text in texts if text)
        grave = status is None or status.urgency >= _GRAVE
        return format_html('<span class="once-{}">{}</span>', "grave" if grave else "mild", told) if told else "-"

    def _windows(self, row: Any) -> RowWindows:
        if not hasattr(row, "_once_windows"):
            rows = getattr(row, "_once_page", [row])
            found = row_windows.read_windows(rows, self._once_app())
            for each in rows:
                each._once_windows = found[each.name]  # noqa: SLF001  # ours
        return row._once_windows  # noqa: SLF001  # ours

    def _once_app(self) -> Any:
        app = getattr(self, "celery_app", current_app)
        return getattr(app, "_get_current_object", lambda: app)()

    # -- what one may do --------------------------------------------------------------------------------------

    def get_actions(self: Any, request: Any) -> dict[str, Any]:
        """As the base's, with those of this mixin for who may change rows. Others get what asks for another right."""
        actions: dict[str, Any] = super().get_actions(request)  # type: ignore[misc]
        if not self.has_change_permission(request):
            return {name: each for name, each in actions.items() if hasattr(each[0], "allowed_permissions")}
        if actions:
            for name in ("once_run", "once_pause", "once_resume"):
                actions[name] = self.get_action(name)
        return actions

    @admin.action(description="Run the newest window of selected tasks")
    def once_run(self, request: Any, rows: Any) -> None:
        """Run the newest window of each row, also one that ran before: a beat publishes it within two seconds."""

        def order(rows: list[Any], by: OrderedBy) -> list[str | OnceError]:
            starts = row_windows.run(rows, self._once_app(), by)
            return [f"window {_moment(at)} is run by order" if isinstance(at, datetime) else at for at in starts]

        self._do(request, rows, order)

    @admin.action(description="Pause selected tasks")
    def once_pause(self, request: Any, rows: Any) -> None:
        """Have no further windows claimed until they are resumed; open windows continue."""
        self._set_paused(request, rows, "paused")

    @admin.action(description="Resume selected tasks")
    def once_resume(self, request: Any, rows: Any) -> None:
        """Have windows claimed again; those of the pause are caught up on as ``catch_up`` says."""
        self._set_paused(request, rows, "resumed")

    def _set_paused(self, request: Any, rows: Any, done: str) -> None:
        def order(rows: list[Any], by: OrderedBy) -> list[str | OnceError]:
            wrong = row_windows.set_paused(rows, self._once_app(), by, paused=done == "paused")
            words = f"{done} by {printable(by.name)}" + (f": {printable(by.note)}" if by.note else "")
            return [words if why is None else why for why in wrong]

        self._do(request, rows, order)

    def _do(self: Any, request: Any, rows: Any, order: Callable[[list[Any], OrderedBy], list[str | OnceError]]) -> None:
        """Carry out ``order`` for the rows that this user may change; what it says stands in each row's history."""
        changed: list[Any] = []
        others: list[Any] = []
        for row in rows:
            (changed if self.has_change_permission(request, row) else others).append(row)
        try:
            answers = order(changed, _ordered_by(request)) if changed else []
        except OnceError as exc:
            answers = [exc] * len(changed)
        found: dict[tuple[bool, str], list[Any]] = defaultdict(list)
        if others:
            found[False, "you may not change it"] = others
        with transaction.atomic(using=router.db_for_write(self.model)):
            for row, answer in zip(changed, answers, strict=True):
                done = isinstance(answer, str)
                if done:
                    self.log_change(request, row, answer)
                found[done, printable(str(answer))].append(row)
        for (done, text), those in islice(found.items(), _MOST_MESSAGES):
            self.message_user(request, f"{_named(those)}: {text}", messages.SUCCESS if done else messages.ERROR)
        left = sum(map(len, [*found.values()][_MOST_MESSAGES:]))
        if left:
            self.message_user(request, f"and {left} more rows, which aren't named here", messages.WARNING)


def _ordered_by(request: Any) -> OrderedBy:
    return OrderedBy(request.user.get_username()[:_MOST_BY], " ".join(request.POST.get(_NOTE, "").split()))


def _named(rows: list[Any]) -> str:
    return some([f'"{printable(row.name)}"' for row in rows], _MOST_NAMED)  # a first letter would become a capital


def _link(board: str) -> str:
    return format_html('<a href="{}">board</a>', board) if board else ""


def _moment(instant: datetime) -> str:
    """An instant in the time zone that Django shows; without the day where that is today."""
    there, now = localtime(instant), localtime(datetime.now(timezone.utc))
    return f"{there:%H:%M:%S}" if there.date() == now.date() else f"{there:%Y-%m-%d %H:%M:%S}"


def _state(state: str) -> str:
    return STATES[state].said if state in STATES else printable(state)


def _story(window: Any) -> str:
    parts = [_moment(window.start), _state(window.state)]
    if window.missed > 1:
        parts.append(f"and {window.missed - 1} before it")
    if window.late is not None:
        parts.append(f"{span(max(window.late, 0.0))} late")
    past = window.past_deadline()
    if past is not None:
        parts.append(f"{span(past)} past its deadline")
    if window.took is not None:
        parts.append(f"took {span(window.took)}")
    if window.worker:
        parts.append(f"on {printable(window.worker)}")
    return ", ".join(parts)
