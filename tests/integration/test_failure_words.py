"""Failures carry their words: in the store, in history, status, board and signal; a setting says how much of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from deliveries import WINDOW, Worker
from markupsafe import escape
from stage import ENTRY, Stage, nth

from celery_once_beat.lookup import Lookup
from celery_once_beat.status import WindowStatus
from celery_once_beat.store import store_of
from celery_once_beat.store.model import Again, Ending, Finished, Published
from celery_once_beat.web.board.site import make_templates
from celery_once_beat.wording import failure_words


class Unwritable(Exception):  # noqa: N818  # a name as users have them
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "how", "words"),
    [
        (ValueError("no such user"), "message", "ValueError: no such user"),
        (ValueError("\n\n  third"), "message", "ValueError: third"),
        (ValueError("x" * 500), "message", "ValueError: " + "x" * 188),
        (ValueError(), "message", "ValueError"),
        (ValueError("half \udcff"), "message", "ValueError: half ?"),
        (Unwritable(), "message", "Unwritable"),
        (ValueError("to pg://user:s3cret@db/x failed"), "message", "ValueError: to pg://user:***@db/x failed"),
        (ValueError("'redis://:s3/cr@t:x@host:1/0'"), "message", "ValueError: 'redis://:***@host:1/0'"),
        (ValueError("amqp://a:s3cret@h;amqp://b:s3cret@h2"), "message", "ValueError: amqp://a:***@h2"),
        (ValueError("x://u:" + "s3cret" * 500 + "@h"), "message", "ValueError: x://u:***@h"),
        (ValueError("redis://h?db=1&password=s3cret&x=1"), "message", "ValueError: redis://h?db=1&password=***&x=1"),
        (ValueError("host=h PASSWORD='s3 cret' user=u"), "message", "ValueError: host=h PASSWORD=*** user=u"),
        (ValueError("http://host:80/path, a@b"), "message", "ValueError: http://host:80/path, a@b"),
        (ValueError("://a:" * 100_000), "message", "ValueError: " + ("://a:" * 38)[:188]),
        (ValueError("password s3cret"), "type", "ValueError"),
        (ValueError("password s3cret"), "none", ""),
    ],
)
def test_the_words_of_a_failure(error: Exception, how: str, words: str) -> None:
    """Type and first line, at most 200 characters, without passwords; the type alone; or nothing."""
    assert failure_words(error, how) == words


def test_the_setting(new_worker: Callable[..., Worker], redis_url: str) -> None:
    """A worker records as much of a failure as the app says."""
    worker = new_worker(redis_url, once_beat_failure_text="type")

    def body() -> None:
        raise ValueError("password s3cret")

    with pytest.raises(ValueError, match="s3cret"):
        worker.deliver(body)
    assert Lookup(store_of(worker.app)).entry(WINDOW.entry, 1).windows[0].failure == "ValueError"


def fail(stage: Stage, number: int, again: float | None = None, said: str | None = None) -> Any:
    """Let the window of that number fail, with words of its own."""
    stage.start = nth(number)
    stage.claim(since=nth(number - 1))
    stage.confirm()
    begun = stage.begin()
    words = f"ValueError: {number}" if said is None else said
    return stage.store.finish(Ending(stage.window, "A", begun.fence, "failed", again, failure=words))


def test_the_last_ten_failures_are_kept(stage: Stage) -> None:
    """Of each entry, also of one that runs again; they expire as the entry does."""
    for number in range(1, 13):
        assert fail(stage, number) == Finished()
    assert isinstance(fail(stage, 13, again=60.0), Again)
    key = stage.store.keys.of_entry("failures", ENTRY)
    assert stage.raw.hlen(key) == 10
    assert stage.raw.pttl(key) > 0
    seen = Lookup(stage.store).entry(ENTRY, 20)
    assert [window.failure for window in seen.windows][:10] == [f"ValueError: {number}" for number in range(13, 3, -1)]
    assert {window.failure for window in seen.windows[10:]} == {""}


def test_a_foreign_key_stops_no_end(stage: Stage) -> None:
    """What stands in the place of the words is left as it is, and shown as nothing."""
    key = stage.store.keys.of_entry("failures", ENTRY)
    stage.raw.set(key, "foreign", ex=60)
    assert fail(stage, 1) == Finished()
    assert stage.raw.get(key) == "foreign"
    assert Lookup(stage.store).entry(ENTRY, 1).windows[0].failure == ""


def test_a_window_that_never_began_says_where_to_look(stage: Stage) -> None:
    """Its message can't be made: the logs have the words. One that began and said nothing is shown so."""
    stage.load(max_attempts=1)
    stage.claim()
    stage.confirm(Published.IMPOSSIBLE)
    assert fail(stage, 2, said="") == Finished()
    failures = [each.failure for each in Lookup(stage.store).entry(ENTRY, 2).windows]
    assert failures == ["", "its message couldn't be made or read: the logs say why"]


def test_words_are_untrusted(stage: Stage) -> None:
    """A text that would move a terminal's cursor, or be markup, is shown as text."""
    hostile = "Error: \x1b[2J<script>alert(1)</script>"
    assert fail(stage, 1, said=hostile) == Finished()
    window = WindowStatus.of(Lookup(stage.store).entry(ENTRY, 1).windows[0])
    macros = make_templates("shop", timezone.utc).get_template("story.html").module
    story = macros.story(window, timezone.utc, datetime.now(timezone.utc))
    assert f"<dt>Failure</dt><dd>{escape(repr(hostile))}</dd>" in story
