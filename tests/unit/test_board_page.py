"""What the board's page says, and that who follows its changes sees the same page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from starlette.datastructures import QueryParams

from celery_once_beat.lookup import Past, WindowSeen
from celery_once_beat.outcomes import STATES
from celery_once_beat.status import BeatStatus, EntryStatus, Report, Sight, WindowStatus, WorkerStatus
from celery_once_beat.store.account import OpenWindow
from celery_once_beat.web.board import words
from celery_once_beat.web.board.axis import ZOOMS
from celery_once_beat.web.board.choice import GROUPS, SORTS, Choice
from celery_once_beat.web.board.feed import news_between
from celery_once_beat.web.board.grid import Grid, Shown
from celery_once_beat.web.board.page import LOOKS, Page, make_page
from celery_once_beat.web.board.site import make_templates
from celery_once_beat.windows import parse_instant

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 11, 21, 1, tzinfo=timezone.utc)
BEATS = (BeatStatus(beat="a:1:x", heard=0.1),)


def past(start: datetime = START, **more: Any) -> WindowSeen:
    told = {
        "start": start, "outcome": "done", "claimed": start, "begun": start + timedelta(seconds=1.2),
        "closed": start + timedelta(seconds=4), "attempts": 1, "missed": 0, "beat": "host-a:17", "worker": "host-b",
    }  # fmt: skip
    refused, done_by = more.pop("refused", 0), more.pop("done_by", None)
    record = Past(**{**told, **more})
    return WindowSeen(start, record.outcome, past=record, refused=refused, done_by=done_by)


def running(start: datetime = START, state: str = "running", begun: datetime | None = START) -> WindowSeen:
    of = OpenWindow(start, begun, 1, 0, False, False, "plain", "host-a:17:x", "host-b:1:d/1")
    return WindowSeen(start, state, open=of)


def by(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def entry(name: str = "nightly-report", **more: Any) -> EntryStatus:
    told = {"task": "proj.report", "schedule": "0 2 * * *", "tracked": True, "next": START + timedelta(days=1), **more}
    return EntryStatus(name, "scheduled", **told)


def sight(
    *entries: EntryStatus, stories: dict[str, list[WindowSeen]] | None = None, beats: tuple[BeatStatus, ...] = BEATS
) -> Sight:
    return Sight(Report(parse_instant("2026-11-21T02:03:04.500000Z"), 0.0, 0.001, beats, entries), stories or {})


def page_of(*stories: WindowSeen, zone: Any = BERLIN, **more: Any) -> Page:
    return make_page(sight(entry(**more), stories={"nightly-report": list(stories)}), zone, Page())


def labels(*stories: WindowSeen, **more: Any) -> list[str]:
    (line,) = page_of(*stories, **more).lines.values()
    return [words.label(line.name, WindowStatus.of(seen), BERLIN) for seen in line.windows]


@pytest.mark.parametrize(
    ("window", "heard"),
    [
        (past(), "02:00, done, 1.2 s late"),
        (past(begun=by(7501), refused=2), "02:00, done, 2 h 5 min late, 2 refused"),
        (past(outcome="missed", begun=None, attempts=0, missed=4), "02:00, missed, and 3 before it"),
        (running(), "02:00, running, on time"),
        (running(START, "overdue", None), "02:00, overdue"),
        (past(by(4.44), begun=None), "02:00:04.44, done"),
        (past(done_by=by(3)), "02:00, done, 1.2 s late, 1.0 s past its deadline"),
        (past(outcome="skipped", begun=None, attempts=0, done_by=by(3)), "02:00, skipped"),
    ],
)
def test_what_a_screen_reader_hears(window: WindowSeen, heard: str) -> None:
    """Entry, local time, how it ended, how late: in that order, as people say it."""
    assert labels(window) == [f"nightly-report, 21 November {heard}"]


def told(window: WindowSeen, zone: Any = BERLIN) -> dict[str, str]:
    """Its story, 75 seconds after its start: what each line is called, and what it says."""
    story = make_templates("shop", zone).get_template("story.html").module.story(WindowStatus.of(window), zone, by(75))
    lines = re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", story)
    return {term: Markup(said).striptags() for term, said in lines}


def test_a_story_of_each_kind() -> None:
    """Local time to the second, who claimed and who began, for how long it runs, what isn't known yet as a dash."""
    done = told(past())
    assert done["Begun"] == "21 November 2026 02:00:01 CET, by worker host-b"
    assert (done["Late"], done["Took"]) == ("1.2 s", "2.8 s")
    assert WindowStatus.of(past(ordered=True)).ordered == START, "its task id is of the order"
    assert told(running())["Running for"] == "1 min 15 s"
    waits = told(running(state="published", begun=None), timezone.utc)
    assert waits["State"] == "waits: no worker has begun it yet"
    assert (waits["Begun"], waits["Late"]) == ("-", "-")
    assert not {"Took", "Running for"} & waits.keys()
    for_that = replace(running(state="buffered", begun=None), waits_for=START - timedelta(hours=1))
    assert told(for_that)["Waits for"] == "the window of 21 November 2026 01:00:00 CET"
    assert words.label("a", WindowStatus.of(for_that), BERLIN).endswith(", waits its turn, for that of 01:00")
    for_slot = replace(running(state="buffered", begun=None), limit="reports")
    assert told(for_slot)["Waits for"] == "a slot of the limit reports"
    assert words.label("a", WindowStatus.of(for_slot), BERLIN).endswith(", waits its turn, for a slot of reports")
    missed = told(past(outcome="missed", begun=None, attempts=0, missed=3, worker=""))
    assert missed["Missed with it"] == "2 windows before it"
    assert missed["Published"] == "-"


def test_what_ended_past_its_deadline_is_seen() -> None:
    """By how much, in words and by a line below its cell; what is open is so in its story alone."""

    def done_by(window: WindowSeen) -> str:
        return told(window, timezone.utc)["To be done by"]

    assert done_by(past(done_by=by(3))) == "21 November 2026 01:00:03 UTC: 1.0 s past it"
    assert done_by(past(done_by=by(4))) == "21 November 2026 01:00:04 UTC"
    assert done_by(replace(running(), done_by=by(70))) == "21 November 2026 01:01:10 UTC: 5.0 s past it"

    def row(*windows: WindowSeen) -> str:
        return list(show(page_of(*windows), Choice()).rows.values())[1]

    assert 'class="done past-deadline"' in row(past(done_by=by(3)))
    assert "past" not in row(past(done_by=by(4)), replace(running(), done_by=by(1)))
    both = row(past(START + timedelta(minutes=1), done_by=by(600)), past(done_by=by(3)))
    assert "2 windows: 2 done, 1 past the deadline" in both


@pytest.mark.parametrize(
    ("windows", "more", "said"),
    [
        ([past(), past(START - timedelta(hours=1))], {}, "Everything ran as planned: 2 of 2 since midnight"),
        ([past(), past(START - timedelta(hours=3), outcome="failed")], {}, "Everything ran as planned: 1 of 1 since"),
        ([past(outcome="missed", missed=3)], {}, "0 of the 3 windows since midnight ran as planned"),
        ([past(done_by=by(3)), past()], {}, "1 of the 2 windows since midnight ran as planned"),
        ([past()], {"reasons": ("paused",)}, "1 of the 1 windows since midnight ran as planned"),
        ([past()], {"outcomes": {"done": 9}}, "Everything ran as planned: 1 of 1 since midnight that Redis still has"),
    ],
)
def test_whether_the_day_went_as_planned(windows: list[WindowSeen], more: dict[str, Any], said: str) -> None:
    """Of the windows since the app's midnight that were to run, how many are done in time."""
    page = page_of(*windows, **more)
    assert page.planned(BERLIN).startswith(said)
    assert ("20 November 23:00" in page.planned(timezone.utc)) == (not said.startswith("No"))


# -- what is chosen -------------------------------------------------------------------------------------------------


def new_grid() -> Grid:
    return Grid(make_templates("shop", BERLIN), BERLIN)


def show(page: Page, choice: Choice) -> Shown:
    return new_grid().show(page, choice)


CHOICES = st.builds(
    Choice,
    look=st.sampled_from(["", *LOOKS]),
    search=st.text(max_size=20),
    state=st.sampled_from(["", *STATES]),
    group=st.sampled_from(list(GROUPS)),
    open=st.lists(st.text(min_size=1, max_size=5), unique=True, max_size=4).map(tuple),
    sort=st.sampled_from(list(SORTS)),
    zoom=st.sampled_from(list(ZOOMS.values())),
    number=st.integers(1, 99),
    zone=st.sampled_from([None, timezone.utc]),
    acts=st.booleans(),
)


def names(page: Page, **chosen: Any) -> list[str]:
    shown = show(page, Choice(**chosen))
    return [page.lines[key[1:]].name if key[0] == "e" else "group" for key in shown.rows if key != "axis"]


@pytest.fixture
def mixed() -> Page:
    stories = {
        "mail-b": [past(outcome="failed")],
        "mail-a": [past(START - timedelta(minutes=5))],
        "stock": [past(START - timedelta(days=3), outcome="failed")],
    }
    return make_page(
        sight(
            entry("stock", attention=("paused",), reasons=("paused",), task="proj.stock", next=None),
            entry("mail-a", next=START + timedelta(hours=9)),
            entry("mail-b", next=START + timedelta(hours=8)),
            stories=stories,
        ),
        BERLIN,
        Page(),
    )


def test_search_filters_and_sort(mixed: Page) -> None:
    """By name or task, by attention, by a state within the time that is shown; in the order that is asked for."""
    assert names(mixed) == ["stock", "mail-a", "mail-b"]
    assert names(mixed, search="MAIL") == ["mail-a", "mail-b"]
    assert names(mixed, search="proj.stock") == ["stock"]
    assert names(mixed, look="attention") == ["stock"]
    assert names(mixed, state="failed") == ["mail-b"]
    assert names(mixed, state="failed", zoom=ZOOMS["week"]) == ["stock", "mail-b"]
    assert names(mixed, sort="name") == ["mail-a", "mail-b", "stock"]
    assert names(mixed, sort="next") == ["mail-b", "mail-a", "stock"]
    assert names(mixed, sort="newest") == ["mail-b", "mail-a", "stock"]
    assert show(mixed, Choice(search="mail")).parts["found"] == "2 of 3 shown"
    rows = "".join(show(mixed, Choice(group="prefix")).rows.values())
    assert re.findall(r'class="(group[^"]*)"', rows) == ["group worry mild", "group"], "red isn't for a pause"


# -- links to other tools -------------------------------------------------------------------------------------------


def test_links_keep_what_comes_from_outside_in_its_place() -> None:
    """Each value is percent-encoded; a link that needs what isn't known is left out."""
    templates = {"Logs": "https://logs.example/{task_id}?q={entry}#{task}", "Worker": "https://w.example/{worker}"}
    each = {"Log": "https://logs.example/{worker}/{attempt}"}
    assert list(words.links_of(each, words.fields_of(WindowStatus.of(past(attempts=2)), "a", None), 2)) == [
        ("Log, attempt 1", "https://logs.example/host-b/1"),
        ("Log, attempt 2", "https://logs.example/host-b/2"),
    ]
    hostile = "a/../b?x=1&y={task}#<script>\n\udcff@evil.example"
    fields = words.fields_of(WindowStatus.of(past(worker="")), hostile, "proj.{entry}")
    made = dict(words.links_of(templates, {**fields, "task_id": "id-1"}))
    assert made == {
        "Logs": "https://logs.example/id-1?q=a%2F..%2Fb%3Fx%3D1%26y%3D%7Btask%7D%23%3Cscript%3E%0A%ED%B3%BF%40evil.example"
        "#proj.%7Bentry%7D"
    }


# -- changes --------------------------------------------------------------------------------------------------------


def reports() -> Iterator[Sight]:
    """Some moments of one board, each unlike the one before it."""
    yield sight(entry("a"), entry("b"))
    yield sight(entry("a"), entry("b"), stories={"a": [past()]})
    yield sight(entry("a"), entry("b"), stories={"a": [past(outcome="failed")]})
    yield sight(entry("b", attention=("paused",)), entry("a"), stories={"a": [past(outcome="failed")]})
    yield sight(entry("b"), entry("c"), beats=(BeatStatus(beat="x", heard=0.1),))
    yield sight()


@given(st.permutations(list(range(6))), CHOICES)
def test_who_follows_the_changes_sees_the_page(order: list[int], choice: Choice) -> None:
    """Whatever changed, the rows that a viewer puts in their places are those of the page as it is then."""
    grid, page, moments = new_grid(), Page(), list(reports())
    seen = grid.show(page, choice)
    rows, parts = dict(seen.rows), dict(seen.parts)
    for number in order:
        page = make_page(moments[number], BERLIN, page)
        shown = grid.show(page, choice)
        news = news_between(seen, shown)
        rows.update(news["rows"])
        if "order" in news:
            rows = {key: rows[key] for key in news["order"]}
        parts.update(news["parts"])
        assert (rows, parts) == (shown.rows, shown.parts)
        assert list(rows) == list(shown.rows)
        assert grid.at(shown.position) is shown
        seen = shown


@given(st.dictionaries(st.sampled_from(["only", "q", "state", "group", "sort", "zoom", "page", "zone"]), st.text()))
def test_any_address_is_a_view(asked: dict[str, str]) -> None:
    """What isn't known is left out; nothing fails."""
    assert show(Page(), Choice.of(QueryParams(asked))).rows


def test_moments_are_forgotten() -> None:
    """Each holds a list of all entries: a board that is watched for hours doesn't grow."""
    grid = new_grid()
    page = make_page(sight(entry(), stories={"nightly-report": [past()]}), BERLIN, Page())
    shown = [grid.show(replace(page, stale=str(second)), Choice()).position for second in range(300)]
    assert sum(grid.at(position) is not None for position in shown) <= 60
    assert grid.at(shown[-1]) is not None


def test_workers_are_named() -> None:
    """With what they run and consume, or when heard of; of very many only how many more there are."""
    seen = [WorkerStatus("a\u202e", None, 1), WorkerStatus("d", 7.0, 2, ("by\nnight", "x"))]
    report = replace(sight(entry()).report, workers=tuple(seen))
    expected = ((r"'a\u202e'", "1 running"), ("d", r"2 running, consumes 'by\nnight, x'"))
    assert tuple(words.workers(report, BERLIN)) == expected
    many = tuple(WorkerStatus(f"w{number:03}", 1.0, 0) for number in range(200))
    told = tuple(words.workers(replace(report, workers=many), BERLIN))
    assert (len(told), told[-1]) == (13, ("188 more", ""))
