"""What the board's page says, and that who follows its changes sees the same page."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_once_beat.status import BeatStatus, EntryStatus, Report, Sight
from celery_once_beat.store.lookup import WindowSeen
from celery_once_beat.store.model import OpenWindow, Past
from celery_once_beat.web.board import words
from celery_once_beat.web.board.page import Cell, Line, Page, changes, make_page
from celery_once_beat.windows import parse_instant

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 11, 21, 1, tzinfo=timezone.utc)


def past(start: datetime = START, **more: Any) -> WindowSeen:
    told = {
        "start": start, "outcome": "done", "claimed": start, "begun": start + timedelta(seconds=1.2),
        "closed": start + timedelta(seconds=4), "attempts": 1, "missed": 0, "beat": "host-a:17", "worker": "host-b",
    }  # fmt: skip
    refused = more.pop("refused", 0)
    record = Past(**{**told, **more})
    return WindowSeen(start, record.outcome, past=record, refused=refused)


def running(start: datetime = START, state: str = "running", begun: datetime | None = START) -> WindowSeen:
    return WindowSeen(start, state, open=OpenWindow(start, begun, 1, 0, False, False, "host-a:17:x", "host-b:1:d/1"))


def entry(name: str = "nightly-report", **more: Any) -> EntryStatus:
    told = {"task": "proj.report", "schedule": "0 2 * * *", "tracked": True, "next": START + timedelta(days=1), **more}
    return EntryStatus(name, "scheduled", **told)


def sight(
    *entries: EntryStatus, stories: dict[str, list[WindowSeen]] | None = None, beats: tuple[BeatStatus, ...] = ()
) -> Sight:
    return Sight(Report(parse_instant("2026-11-21T02:03:04.500000Z"), 0.0, 0.001, beats, entries), stories or {})


def page_of(*stories: WindowSeen, zone: Any = BERLIN, **more: Any) -> Page:
    return make_page(sight(entry(**more), stories={"nightly-report": list(stories)}), zone, Page())


def labels(*stories: WindowSeen, **more: Any) -> list[str]:
    (line,) = page_of(*stories, **more).lines.values()
    return [cell.label for cell in line.cells]


def test_what_a_screen_reader_hears() -> None:
    """Entry, local time, how it ended, how late: in that order, as people say it."""
    assert labels(past()) == ["nightly-report, 21 November 02:00, done, 1.2 s late"]
    assert labels(past(begun=START + timedelta(milliseconds=40))) == [
        "nightly-report, 21 November 02:00, done, on time"
    ]
    assert labels(past(begun=START + timedelta(hours=2, minutes=5, seconds=1), refused=2)) == [
        "nightly-report, 21 November 02:00, done, 2 h 5 min late, 2 refused"
    ]
    assert labels(past(outcome="missed", begun=None, attempts=0, missed=4)) == [
        "nightly-report, 21 November 02:00, missed, and 3 before it"
    ]
    assert labels(running(), running(START, "overdue", None), running(START, "published", None)) == [
        "nightly-report, 21 November 02:00, running, on time",
        "nightly-report, 21 November 02:00, overdue",
        "nightly-report, 21 November 02:00, waits",
    ]
    assert labels(past(START + timedelta(seconds=4.44), begun=None)) == [
        "nightly-report, 21 November 02:00:04.44, done"
    ]
    assert labels(past(START + timedelta(seconds=30), begun=None)) == ["nightly-report, 21 November 02:00:30, done"]


def test_what_isnt_known_gets_no_class_of_its_own() -> None:
    """An outcome is text from Redis: what isn't one of ours is 'other'."""
    (line,) = page_of(past(outcome='x" onclick="y'), past(outcome="\x1b" * 100)).lines.values()
    assert [cell.state for cell in line.cells] == ["other", "other"]
    assert all(cell.label.isprintable() and len(cell.label) < 100 for cell in line.cells)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nightly-report", "nightly-report"),
        ("ünïcödé 🦔", "ünïcödé 🦔"),
        ("<b>", "<b>"),  # the template escapes
        ("a\nb", r"'a\nb'"),
        ("\u202eabc", r"'\u202eabc'"),
        ("half \udcff", r"'half \udcff'"),
        ("x" * 201, "x" * 199 + "…"),
        ("\n" * 100_000, "'" + r"\n" * 99 + "…"),
    ],
)
def test_names_from_outside_are_printable_and_short(text: str, shown: str) -> None:
    """Nothing that moves a cursor, turns the direction or breaks an encoding."""
    assert words.plain(text) == shown
    words.plain(text).encode()


@given(st.text(st.characters()), st.integers(8, 300))
def test_any_text_is_printable_and_short(text: str, most: int) -> None:
    """The same for whatever text there is."""
    shown = words.plain(text, most)
    assert shown.isprintable()
    assert len(shown) <= most
    shown.encode()


def test_a_story_of_each_kind() -> None:
    """Local time and UTC, who claimed and who began, what isn't known yet as a dash."""

    def told(story: WindowSeen, zone: Any = BERLIN) -> dict[str, str]:
        page = page_of(story, zone=zone)
        (line,) = page.lines.values()
        window = page.window(line.id, line.cells[0].start)
        assert window
        return dict(words.story_words(window, zone))

    done = told(past())
    assert done["Window"] == "21 November 2026 02:00:00 CET (2026-11-21 01:00:00 UTC)"
    assert done["Outcome"] == "done: executed, and recorded"
    assert done["Claimed"] == "21 November 2026 02:00:00 CET (2026-11-21 01:00:00 UTC)"
    assert done["Beat"] == "host-a:17"
    assert done["Begun"] == "21 November 2026 02:00:01.200 CET (2026-11-21 01:00:01.200 UTC), by worker host-b"
    assert (done["Late"], done["Took"]) == ("1.2 s", "2.8 s")
    ordered = page_of(past(ordered=True))
    (line,) = ordered.lines.values()
    window = ordered.window(line.id, line.cells[0].start)
    assert window
    assert window.ordered == window.claimed, "its task id is of the order"
    waits = told(running(state="published", begun=None), timezone.utc)
    assert waits["Window"] == "21 November 2026 01:00:00 UTC"
    assert waits["State"] == "waits: no worker has begun it yet"
    assert (waits["Begun"], waits["Late"]) == ("-", "-")
    assert "Took" not in waits
    missed = told(past(outcome="missed", begun=None, attempts=0, missed=3, worker=""))
    assert missed["Missed with it"] == "2 windows before it"


def test_an_instant_at_the_calendars_ends() -> None:
    """A foreign record may say any year: it is shown, if not in local time."""
    for year in (1, 9999):
        start = datetime(year, 1 if year == 1 else 12, 1 if year == 1 else 31, tzinfo=timezone.utc)
        for zone in (ZoneInfo("Pacific/Auckland"), ZoneInfo("America/Los_Angeles")):
            (line,) = page_of(past(start, begun=None, claimed=START, closed=START), zone=zone).lines.values()
            assert line.cells[0].label


def test_windows_that_arent_on_the_page() -> None:
    """No story is made up for them."""
    page = page_of(past())
    (line,) = page.lines.values()
    assert page.window(line.id, line.cells[0].start)
    assert page.window(line.id, "2026-11-21T02:00:00.000000Z") is None
    assert page.window("0" * 16, line.cells[0].start) is None


def test_when_it_starts_next() -> None:
    """Local time; with its day where that isn't today."""

    def told(text: str) -> str:
        (line,) = page_of(next=parse_instant(text)).lines.values()
        return line.next

    assert told("2026-11-21T22:59:59.000000Z") == "next 23:59:59"
    assert told("2026-11-21T23:00:00.000000Z") == "next 22 November 00:00"


def test_the_headline_and_the_beats() -> None:
    """How many, and what of them is to be looked at; a beat that fell silent says so."""
    beats = (BeatStatus("a:1:x", 0.4, 0.0, 0.0031, 2, 0, "1"), BeatStatus("b\n:2:y", 9.4))
    page = make_page(
        sight(entry("a", attention=("paused",)), entry("b", open=3, running=1, overdue=1), beats=beats), BERLIN, Page()
    )
    assert page.headline == "2 entries, 1 needs attention, 1 running, 3 open, 1 overdue"
    assert page.worries == 1
    assert page.as_of == "03:03:04 Europe/Berlin"
    assert page.beats == (
        ("a:1:x", "lag 0.0 s, clock +0.003 s, entries 2, version 1"),
        (r"'b\n:2:y'", "silent for 9 s"),
    )


def test_what_is_the_same_is_not_made_again() -> None:
    """Cells are made where an entry's windows are others, so that a look costs what has changed."""
    stories = {"a": [past()], "b": [past()]}
    first = make_page(sight(entry("a"), entry("b"), stories=stories), BERLIN, Page())
    second = make_page(sight(entry("a"), entry("b"), stories={**stories, "b": [past(), past()]}), BERLIN, first)
    (a, b), (old_a, old_b) = second.lines.values(), first.lines.values()
    assert a.cells is old_a.cells
    assert b.cells is not old_b.cells


# -- changes --------------------------------------------------------------------------------------------------------

CELLS = st.lists(
    st.builds(
        Cell, st.sampled_from(["t1", "t2", "t3", "t4"]), st.sampled_from(["done", "failed"]), st.sampled_from("xy")
    ),
    unique_by=lambda cell: cell.start,
).map(lambda cells: tuple(sorted(cells, key=lambda cell: cell.start, reverse=True)))
WORDS = st.sampled_from(["", "one", "two"])


@st.composite
def pages(draw: st.DrawFn) -> Page:
    ids = draw(st.sampled_from([("a", "b"), ("a", "b"), ("a",)]))
    lines = {
        line: Line(
            line, line, draw(WORDS), draw(WORDS), tuple(draw(st.lists(WORDS, max_size=2))), draw(CELLS), line, "t", ()
        )
        for line in ids
    }
    beats = draw(st.sampled_from([(), (("x", "1"),)]))
    return Page(lines, beats, draw(WORDS), draw(st.integers(0, 2)), draw(WORDS), draw(WORDS))


def follow(page: Page, news: dict[str, Any]) -> Page:
    """What a viewer of ``page`` sees who does as the news say: as board.js does."""
    lines = dict(page.lines)
    for line_id, change in news.pop("lines").items():
        old = lines[line_id]
        cells = {cell.start: cell for cell in old.cells if cell.start not in change.get("gone", ())}
        cells.update((start, Cell(start, state, label)) for start, state, label in change.get("cells", ()))
        given = {key: tuple(value) if key == "attention" else value for key, value in change.items()}
        given = {key: value for key, value in given.items() if key in ("about", "next", "attention")}
        ordered = tuple(sorted(cells.values(), key=lambda cell: cell.start, reverse=True))
        lines[line_id] = replace(old, cells=ordered, **given)
    news["beats"] = tuple(map(tuple, news.get("beats", page.beats)))
    return replace(page, lines=lines, **news)


@given(pages(), pages())
def test_who_follows_the_changes_sees_the_page(old: Page, new: Page) -> None:
    """Whatever changed, and through JSON; other entries are another page."""
    news = changes(old, new)
    if old.lines.keys() != new.lines.keys():
        assert news is None
        return
    assert follow(old, json.loads(json.dumps(news))) == new


def test_what_hasnt_changed_isnt_told() -> None:
    """A quiet second is a few bytes, however many entries there are."""
    stories = {f"e{n}": [past()] for n in range(500)}
    page = make_page(sight(*(entry(name) for name in stories), stories=stories), BERLIN, Page())
    assert len(json.dumps(changes(page, page))) < 200
