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

from celery_once_beat.features.orders.store import Order, OrderRecord
from celery_once_beat.lookup import Past, WindowSeen
from celery_once_beat.outcomes import STATES
from celery_once_beat.status import BeatStatus, EntryStatus, Report, Sight, Trouble, WindowStatus, WorkerStatus
from celery_once_beat.store.account import OpenWindow
from celery_once_beat.web.board import words
from celery_once_beat.web.board.axis import ZOOMS, bars_of, cells_of, make_axis
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
    of = OpenWindow(start, begun, 1, 0, False, False, "held", "host-a:17:x", "host-b:1:d/1")
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
        (past(begun=by(0.04)), "02:00, done, on time"),
        (past(begun=by(7501), refused=2), "02:00, done, 2 h 5 min late, 2 refused"),
        (past(outcome="missed", begun=None, attempts=0, missed=4), "02:00, missed, and 3 before it"),
        (running(), "02:00, running, on time"),
        (running(START, "overdue", None), "02:00, overdue"),
        (running(START, "published", None), "02:00, waits"),
        (past(by(4.44), begun=None), "02:00:04.44, done"),
        (past(by(30), begun=None), "02:00:30, done"),
        (past(done_by=by(3)), "02:00, done, 1.2 s late, 1.0 s past its deadline"),
        (past(done_by=by(4)), "02:00, done, 1.2 s late"),
        (past(outcome="skipped", begun=None, attempts=0, done_by=by(3)), "02:00, skipped"),
    ],
)
def test_what_a_screen_reader_hears(window: WindowSeen, heard: str) -> None:
    """Entry, local time, how it ended, how late: in that order, as people say it."""
    assert labels(window) == [f"nightly-report, 21 November {heard}"]


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


def test_a_story_of_each_kind() -> None:
    """Local time to the second, who claimed and who began, for how long it runs, what isn't known yet as a dash."""

    def told(story: WindowSeen, zone: Any = BERLIN) -> dict[str, str]:
        story_words = words.story_words(WindowStatus.of(story), zone, START + timedelta(seconds=75))
        return {term: Markup(said).striptags() for term, said in story_words}

    done = told(past())
    assert done["Window"] == "21 November 2026 02:00:00 CET"
    assert done["Outcome"] == "done: executed, and recorded"
    assert done["Claimed"] == "21 November 2026 02:00:00 CET, by beat host-a:17"
    assert done["Begun"] == "21 November 2026 02:00:01 CET, by worker host-b"
    assert (done["Late"], done["Took"]) == ("1.2 s", "2.8 s")
    assert "Running for" not in done
    assert WindowStatus.of(past(ordered=True)).ordered == START, "its task id is of the order"
    assert told(running())["Running for"] == "1 min 15 s"
    waits = told(running(state="published", begun=None), timezone.utc)
    assert waits["Window"] == "21 November 2026 01:00:00 UTC"
    assert waits["State"] == "waits: no worker has begun it yet"
    assert waits["Published"] == "its message is out, or on its way"
    assert (waits["Begun"], waits["Late"]) == ("-", "-")
    assert not {"Took", "Running for"} & waits.keys()
    for_that = replace(running(state="buffered", begun=None), waits_for=START - timedelta(hours=1))
    assert told(for_that)["Waits for"] == "the window of 21 November 2026 01:00:00 CET"
    assert told(for_that)["Published"] == "yes, and again once it is its turn"
    assert words.label("a", WindowStatus.of(for_that), BERLIN).endswith(", waits its turn, for that of 01:00")
    for_slot = replace(running(state="buffered", begun=None), limit="reports")
    assert told(for_slot)["Waits for"] == "a slot of the limit reports"
    assert words.label("a", WindowStatus.of(for_slot), BERLIN).endswith(", waits its turn, for a slot of reports")
    missed = told(past(outcome="missed", begun=None, attempts=0, missed=3, worker=""))
    assert missed["Missed with it"] == "2 windows before it"
    assert missed["Published"] == "-"


def test_what_ended_past_its_deadline_is_seen() -> None:
    """By how much, in words and by a line below its cell; what is open is so in its story alone."""

    def story(window: WindowSeen) -> str | None:
        told = dict(words.story_words(WindowStatus.of(window), timezone.utc, by(75))).get("To be done by")
        return told and Markup(told).striptags()

    assert story(past(done_by=by(3))) == "21 November 2026 01:00:03 UTC: 1.0 s past it"
    assert story(past(done_by=by(4))) == "21 November 2026 01:00:04 UTC"
    assert story(replace(running(), done_by=by(70))) == "21 November 2026 01:01:10 UTC: 5.0 s past it"
    assert story(past()) is None

    def row(*windows: WindowSeen) -> str:
        return list(show(page_of(*windows), Choice()).rows.values())[1]

    assert 'class="done past-deadline"' in row(past(done_by=by(3)))
    assert "past" not in row(past(done_by=by(4)), replace(running(), done_by=by(1)))
    both = row(past(START + timedelta(minutes=1), done_by=by(600)), past(done_by=by(3)))
    assert "2 windows: 2 done, 1 past the deadline" in both


def test_when_it_starts_next() -> None:
    """Local time; with its day where that isn't today. Nothing starts without a beat."""

    def told(text: str, **more: Any) -> str:
        row = list(show(replace(page_of(next=parse_instant(text)), **more), Choice()).rows.values())[1]
        return Markup(row.partition('class="next">')[2].partition("</div>")[0]).striptags()

    assert told("2026-11-21T22:59:59.000000Z") == "23:59:59"
    assert told("2026-11-21T23:00:00.000000Z") == "22 Nov 00:00"
    assert told("2026-11-21T22:00:00.000000Z", cause="no beat lives") == "no beat lives"
    assert make_page(sight(beats=()), BERLIN, Page()).cause == "no beat lives"


def test_what_concerns_all_entries_is_at_the_head() -> None:
    """In the zone of all other times; so are the reasons of entries, and a paused one has no next start."""
    seen = sight(entry("a", attention=("late since 2026-11-21T02:00:00Z",), paused=True))
    trouble = Trouble("data lost", "Redis lost its data at 2026-11-21T01:15:00Z", stops_all=False)
    page = make_page(replace(seen, report=replace(seen.report, troubles=(trouble,))), BERLIN, Page())
    for chosen, lost, late in ((None, "02:15", "03:00"), (timezone.utc, "01:15", "02:00")):
        shown = show(page, Choice(zone=chosen))
        rows = "".join(shown.rows.values())
        assert shown.parts["trouble"] == f"Redis lost its data at 21 November {lost}"
        assert f"<b>late since 21 November {late}</b>" in rows
        assert 'class="next">paused<' in rows


def test_the_log_of_orders_is_in_one_zone() -> None:
    """The windows that an order names, too."""
    order = Order("run", "a", "anna", about="2026-11-21T01:15:00Z")
    page = (
        make_templates("shop", BERLIN)
        .get_template("log.html")
        .render(log=[OrderRecord(parse_instant("2026-11-21T03:00:00.000000Z"), order)])
    )
    assert "<td>21 November 04:00</td><td>run</td><td>a</td><td>21 November 02:15</td>" in page


def test_the_headline_and_the_beats() -> None:
    """How many need what, each kind a filter; what a beat says that isn't as it should be."""
    beats = (
        BeatStatus(0.0031, 0.0, 2, 0, "1", beat="a:1:x", heard=0.4),
        BeatStatus(beat="b\n:2:y", heard=9.4),
        BeatStatus(-0.7, 2.0, 2, 0, unloaded=1, beat="c:3:z", heard=0.4),
    )
    worried = {"attention": ("1 overdue", "paused"), "reasons": ("overdue", "paused"), "paused": True}
    page = make_page(sight(entry("a", **worried), entry("b", running=1), beats=beats), BERLIN, Page())
    parts = {name: Markup(html).striptags() for name, html in show(page, Choice()).parts.items()}
    assert parts["as-of"] == "As of 03:03:04 Europe/Berlin"
    assert parts["headline"] == "1 entry needs attention · no window has ended since midnight · 1 running"
    assert parts["beats"] == (
        r"a:1:x entries 2, version 1 'b\n:2:y' silent for 9 s "
        "c:3:z has yet to load 1, lag 2.0 s, clock -0.700 s, entries 2"
    )
    counted = "2 entries 1 needs attention 0 failing 0 hung 1 overdue 0 late 1 paused 0 can't run"
    assert parts["strip"] == counted
    assert names(page, look="overdue") == names(page, look="attention") == ["a"]
    assert names(page, look="hung") == []


@pytest.mark.parametrize(
    ("windows", "more", "said"),
    [
        ([past(), past(START - timedelta(hours=1))], {}, "Everything ran as planned: 2 of 2 since midnight"),
        ([past(), past(START - timedelta(hours=3), outcome="failed")], {}, "Everything ran as planned: 1 of 1 since"),
        ([past(outcome="skipped"), past(outcome="cancelled")], {}, "No window has ended since midnight"),
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


def test_how_long_windows_ran_is_drawn_where_it_helps() -> None:
    """A bar for what took a column or more, or runs still; now is a line within the last column."""
    hour = make_axis(ZOOMS["hour"], START + timedelta(minutes=31), BERLIN)  # columns of two minutes, from 01:02 on
    ran = past(begun=by(0), closed=by(600))
    assert bars_of([ran, past()], hour) == [("done", 14.0, 5.0)]
    assert bars_of([running()], hour) == [("running", 14.0, 16.0)]
    assert bars_of([ran], make_axis(ZOOMS["day"], START, BERLIN)) == []
    early = past(START - timedelta(hours=2), begun=START - timedelta(hours=2), closed=by(60))
    assert bars_of([early], hour) == [("done", 0.0, 14.5)]
    axis = show(page_of(), Choice()).rows["axis"]
    assert 'class="now0"' in axis, "three minutes after the hour"


# -- the axis -------------------------------------------------------------------------------------------------------


def test_a_column_shows_its_most_urgent_window() -> None:
    """And how many stand how; its link leads to the list of them."""
    stories = [past(START + timedelta(minutes=n), outcome="failed" if n == 20 else "done") for n in (40, 20, 0)]
    page = page_of(*stories)
    (line,) = page.lines.values()
    (cell,) = cells_of(line.windows, make_axis(ZOOMS["day"], page.moment, BERLIN))
    assert (cell.state, cell.counts) == ("failed", [("failed", 1), ("done", 2)])
    row = show(page, Choice()).rows[f"e{line.id}"]
    assert "<small>1</small>" in row, "so many failed"
    assert 'aria-label="nightly-report, 21 November 02:00 to 03:00, 3 windows: 1 failed, 2 done"' in row
    assert f"entry/{line.id}?since=2026-11-21T01:00:00.000000Z&amp;until=2026-11-21T02:00:00.000000Z" in row


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


def test_what_hasnt_changed_isnt_told() -> None:
    """A quiet second is a few bytes, however many entries there are."""
    stories = {f"e{n}": [past()] for n in range(500)}
    grid = new_grid()
    page = make_page(sight(*(entry(name) for name in stories), stories=stories), BERLIN, Page())
    again = make_page(sight(*(entry(name) for name in stories), stories=stories), BERLIN, page)
    news = news_between(grid.show(page, Choice()), grid.show(again, Choice()))
    assert (news["rows"], news["parts"]) == ({}, {})
    assert "order" not in news


def test_workers_are_named() -> None:
    """By name, with what they run and consume, or when heard of; of very many only how many more there are."""
    seen = sight(entry(), stories={})
    workers = [
        WorkerStatus("b", 61.0, 2),
        WorkerStatus("a\u202e", None, 1),
        WorkerStatus("c", 7200.0, 0),
        WorkerStatus("d", 7.0, 2, ("by\nnight", "x")),
    ]
    told = tuple(words.workers(replace(seen.report, workers=tuple(workers)), BERLIN))
    began = [seen.report.now - timedelta(seconds=seconds) for seconds in (61, 7200)]
    minutes = [words.day_and_time(at.replace(second=0, microsecond=0), BERLIN, seen.report.now) for at in began]
    assert told == (
        (r"'a\u202e'", "1 running"),
        ("b", f"2 running, heard of at {minutes[0]}"),
        ("c", f"heard of at {minutes[1]}"),
        ("d", r"2 running, consumes 'by\nnight, x'"),
    )
    many = tuple(WorkerStatus(f"w{number:03}", 1.0, 0) for number in range(200))
    told = tuple(words.workers(replace(seen.report, workers=many), BERLIN))
    assert (len(told), told[-1]) == (13, ("188 more", ""))


def test_an_instant_at_the_calendars_ends() -> None:
    """A foreign record may say any year: it is shown, if not in local time."""
    for year in (1, 9999):
        start = datetime(year, 1 if year == 1 else 12, 1 if year == 1 else 31, tzinfo=timezone.utc)
        for zone in (ZoneInfo("Pacific/Auckland"), ZoneInfo("America/Los_Angeles")):
            page = page_of(past(start, begun=None, claimed=START, closed=START), zone=zone)
            (line,) = page.lines.values()
            assert words.label(line.name, WindowStatus.of(line.windows[0]), zone)
            assert show(page, Choice())


@given(st.dictionaries(st.sampled_from(["only", "q", "state", "group", "sort", "zoom", "page", "zone"]), st.text()))
def test_any_address_is_a_view(asked: dict[str, str]) -> None:
    """What isn't known is left out; nothing fails."""
    assert show(Page(), Choice.of(asked)).rows


def test_moments_are_forgotten() -> None:
    """Each holds a list of all entries: a board that is watched for hours doesn't grow."""
    grid = new_grid()
    page = make_page(sight(entry(), stories={"nightly-report": [past()]}), BERLIN, Page())
    shown = [grid.show(replace(page, stale=str(second)), Choice()).position for second in range(300)]
    assert sum(grid.at(position) is not None for position in shown) <= 60
    assert grid.at(shown[-1]) is not None
