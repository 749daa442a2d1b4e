"""No line of a log ends anything: whatever factories, filters and logger classes an application has."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest

from celery_once_beat.logs import Logged, about, guarded, log_window
from celery_once_beat.windows import WindowKey

TAKEN = ("action", "entry", "owner", "task", "once_entry")


def _raises(*_: object, **__: object) -> logging.LogRecord:
    raise LookupError("not in a request")


def _with_fields(*args: object, **kwargs: object) -> logging.LogRecord:
    record = logging.LogRecord(*args, **kwargs)  # type: ignore[arg-type]
    record.__dict__.update(dict.fromkeys(TAKEN, "theirs"))
    return record


@pytest.fixture
def logger(caplog: pytest.LogCaptureFixture) -> Iterator[logging.Logger]:
    before = logging.getLogRecordFactory()
    logger = logging.getLogger("celery_once_beat.tests")
    yield guarded(logger)
    logging.setLogRecordFactory(before)
    logger.filters.clear()


def test_names_that_a_record_has_already(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    """The record keeps what its factory put on it; ours is beside it, or left out."""
    logging.setLogRecordFactory(_with_fields)
    logger.warning("once: %s", 1, extra=about("a", entry="b", owner="c", name="d", args="e", message="f", asctime="g"))
    (record,) = caplog.records
    fields = record.__dict__
    assert {fields[name] for name in TAKEN} == {"theirs"}
    assert (fields["once_action"], fields["once_owner"], fields["once_name"]) == ("a", "c", "d")
    assert (record.name, record.getMessage()) == (logger.name, "once: 1")
    assert record.funcName == "test_names_that_a_record_has_already"


@pytest.mark.parametrize("where", ["factory", "filter", "handler"])
def test_hooks_that_raise(where: str, logger: logging.Logger, capfd: pytest.CaptureFixture[str]) -> None:
    """What they raise is printed, and goes no further."""
    handler = logging.NullHandler()
    match where:
        case "factory":
            logging.setLogRecordFactory(_raises)
        case "filter":
            logger.addFilter(_raises)  # type: ignore[arg-type]
        case "handler":
            handler.handle = _raises  # type: ignore[method-assign, assignment]
    logger.addHandler(handler)
    try:
        logger.error("once: a line", extra=about("a"))
    finally:
        logger.removeHandler(handler)
    assert "LookupError: not in a request" in capfd.readouterr().err


def test_a_lasting_trouble_is_new_once() -> None:
    """Again where its reason is another, or where it was over."""
    logged = Logged()
    assert [logged.is_new("a", why) for why in (None, None, "x", "x", "y")] == [True, False, True, False, True]
    assert logged.is_new("b", "y")
    logged.end("b")
    logged.end("b")
    assert logged.has("y")
    assert logged.is_new("b", "y")


def test_a_line_about_a_window(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    """It names the window and who logs it; its text stays a template, by which tools group lines."""
    key = WindowKey("e", datetime(2026, 3, 1, tzinfo=timezone.utc))
    log_window(logger, logging.WARNING, "window_late", key, "is %s", "late", owner="beat")
    (record,) = caplog.records
    assert record.getMessage() == "once: window 2026-03-01T00:00:00.000000Z of 'e' is late"
    assert (record.msg, record.funcName) == ("once: window %s of %r is %s", test_a_line_about_a_window.__name__)
    fields = {name: record.__dict__[name] for name in ("action", "entry", "start", "owner")}
    assert fields == {"action": "window_late", "entry": "e", "start": "2026-03-01T00:00:00.000000Z", "owner": "beat"}


def test_what_is_logged_once_fills_no_memory() -> None:
    """What is foreign may be new each time: after many others a thing is logged again."""
    logged = Logged()
    assert [logged.is_new("one") for _ in range(2)] == [True, False]
    assert all(logged.is_new(number) for number in range(10_000))
    assert logged.is_new("one")
