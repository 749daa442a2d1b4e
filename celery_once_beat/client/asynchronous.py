"""The same for asyncio: each method of :class:`Schedules` in a thread of its store's."""

from __future__ import annotations

import builtins
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from celery import Celery

from celery_once_beat.background import called_within
from celery_once_beat.errors import OnceError
from celery_once_beat.options import check_seconds

from .schedules import Schedules
from .value import Schedule

P = ParamSpec("P")
R = TypeVar("R")


def _twin(
    method: Callable[Concatenate[Schedules, P], R],
) -> Callable[Concatenate[AsyncSchedules, P], Coroutine[Any, Any, R]]:
    """The same method, awaited."""

    @functools.wraps(method)
    async def twin(self: AsyncSchedules, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._call(functools.partial(method, self.sync, *args, **kwargs))

    return twin


class AsyncSchedules:
    """The methods of ``Schedules``, to be awaited; ``list`` by ``async for``. It is made in the same way.

    A call that takes longer than ``timeout`` seconds raises StoreUnavailableError: while Redis hangs, each call waits
    that long, however many there are. It may have been carried out all the same, and so may one that is cancelled.
    """

    def __init__(
        self,
        app: Celery[Any] | None = None,
        *,
        url: str | None = None,
        key_prefix: str | None = None,
        redis_options: Mapping[str, Any] | None = None,
        timeout: float = 10.0,
    ) -> None:
        #: What does the work, in threads.
        self.sync = Schedules(app, url=url, key_prefix=key_prefix, redis_options=redis_options)
        self._timeout: float = check_seconds(0.001)("AsyncSchedules, timeout", timeout)

    async def _call(self, call: Callable[[], R]) -> R:
        return await called_within(self._timeout, self.sync._store, call)  # noqa: SLF001  # of the same box

    set = _twin(Schedules.set)
    change = _twin(Schedules.change)
    set_many = _twin(Schedules.set_many)
    pause = _twin(Schedules.pause)
    resume = _twin(Schedules.resume)
    delete = _twin(Schedules.delete)
    delete_many = _twin(Schedules.delete_many)
    get = _twin(Schedules.get)
    get_many = _twin(Schedules.get_many)
    names = _twin(Schedules.names)
    changes = _twin(Schedules.changes)
    next = _twin(Schedules.next)
    run = _twin(Schedules.run)
    backfill = _twin(Schedules.backfill)
    history = _twin(Schedules.history)
    history_many = _twin(Schedules.history_many)
    status = _twin(Schedules.status)
    status_many = _twin(Schedules.status_many)
    close = _twin(Schedules.close)

    async def list(
        self,
        prefix: str = "",
        after: str = "",
        wrong: Callable[[OnceError], None] | None = None,
        *,
        where: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Schedule]:
        """As ``Schedules.list``: ``async for``."""
        pages = self.sync._pages(prefix, after, wrong, where)  # noqa: SLF001  # of the same box
        while (page := await self._call(functools.partial(builtins.next, pages, None))) is not None:
            for each in page:
                yield each
