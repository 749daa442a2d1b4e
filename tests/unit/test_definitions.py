"""Definitions that are made at run time: what is stored, what beats say of them, and that hostile JSON is one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from itertools import product
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_once_beat.beat.entries import Entries
from celery_once_beat.errors import NewerVersionError, SettingError, StoreDataError
from celery_once_beat.rules import next_start
from celery_once_beat.schedules import (
    Definition,
    LoadedDefinition,
    OneOff,
    RRule,
    check_name,
    check_words,
    codecs,
    cron,
    describe,
    excluding,
    naming,
    read_schedule,
    register_schedule_codec,
    write_schedule,
)
from celery_once_beat.settings import Settings

NOW = datetime(2026, 11, 22, 17, 30, tzinfo=timezone.utc)
BERLIN = ZoneInfo("Europe/Berlin")


class Tide(BaseSchedule):
    """A user's own type."""

    def __init__(self, harbour: str) -> None:
        super().__init__()
        self.harbour = harbour

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        return timedelta(hours=12)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (30, {"type": "interval", "seconds": 30}),
        (timedelta(seconds=0.25), {"type": "interval", "seconds": 0.25}),
        (timedelta(days=1), {"type": "interval", "seconds": 86400, "tz": "Europe/Berlin"}),
        (schedule(5, relative=True), {"type": "interval", "seconds": 5, "relative": True}),
        (crontab(hour=6), {"type": "crontab", "hour": 6, "tz": "Europe/Berlin"}),
        (solar("sunrise", 52.5, 13), {"type": "solar", "event": "sunrise", "lat": 52.5, "lon": 13}),
        (RRule("DAILY", NOW), {"type": "rrule", "freq": "DAILY", "dtstart": "2026-11-22T17:30:00+00:00"}),
        (NOW, {"type": "one-off", "at": "2026-11-22T17:30:00.000000Z"}),
    ],
)
def test_a_schedule_is_written_as_its_user_wrote_it(given: Any, written: dict[str, Any]) -> None:
    """Also its time zone, where it has one; and what is read starts when what was written does."""
    assert write_schedule(given, BERLIN) == written
    read = read_schedule(written)
    assert write_schedule(read) == written
    if isinstance(given, BaseSchedule):
        given.tz = BERLIN  # type: ignore[misc]
        assert next_start(read, NOW) == next_start(given, NOW)


@pytest.mark.parametrize(("field", "most"), [("lat", 90), ("lon", 180)])
def test_places_on_the_earth(field: str, most: int) -> None:
    """Up to the poles, and once around; what lies beyond is named."""
    for number in (-most, most):
        place = {"type": "solar", "event": "sunset", "lat": 0, "lon": 0, field: number}
        assert write_schedule(read_schedule(place)) == place
        with pytest.raises(ValueError, match=f"{field}: found .*, expected a number from -{most} to {most}"):
            read_schedule({**place, field: number + number / 1000})
    with pytest.raises(ValueError, match=r"event: found .\\n., expected one like 'sunrise'"):
        read_schedule({**place, "event": "\n"})


def test_what_a_field_is_is_said() -> None:
    """Which one, what was found and what was expected."""
    for fields, expected in (
        ({"type": "interval", "seconds": 5, "relative": 1}, "relative: found 1, expected true or false"),
        ({"type": "crontab", "minute": 1.5, "tz": "UTC"}, "minute: found 1.5, expected a crontab field like"),
        ({"type": "every", "seconds": 86400}, "tz: found none, expected the time zone of whole days"),
        ({"type": "rrule", "dtstart": _AT}, "freq: found None, expected one of YEARLY"),
        ({"type": "rrule", "freq": "DAILY"}, "dtstart: found None, expected a datetime"),
    ):
        with pytest.raises(ValueError, match=expected):
            read_schedule(fields)


def test_django_celery_beats_one_off_is_written_as_ours() -> None:
    """Its own type is known by its name: Django needn't be there."""
    clocked = type("clocked", (OneOff,), {"__module__": "django_celery_beat.clockedschedule"})
    assert write_schedule(clocked(NOW)) == write_schedule(OneOff(NOW))


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What was registered for Tide is not for other tests."""
    yield
    del codecs._BY_NAME["tide"], codecs._BY_TYPE[Tide]


@pytest.mark.usefixtures("forgotten")
def test_a_type_of_ones_own_is_stored_once_it_is_registered() -> None:
    """Before that the error says how; one of this package's names can't be taken."""
    with pytest.raises(SettingError, match="register_schedule_codec"):
        write_schedule(Tide("Hamburg"))
    register_schedule_codec("tide", Tide, lambda tide: {"harbour": tide.harbour}, lambda f: Tide(f["harbour"]))
    text = Definition.of("t", Tide("Hamburg")).text()
    again = Definition.read("x", text)
    assert isinstance(again.schedule, Tide)
    assert again.schedule.harbour == "Hamburg"
    assert again.text() == text
    with pytest.raises(StoreDataError, match="KeyError"):
        Definition.read("x", text.replace("harbour", "port"))
    with pytest.raises(SettingError, match="this package"):
        register_schedule_codec("crontab", Tide, lambda _: {}, lambda _: Tide(""))


@pytest.mark.parametrize("wrong", [{"name": ["tide"]}, {"cls": crontab}, {"cls": dict}, {"write": None}, {"read": "f"}])
def test_a_codec_is_checked_when_it_is_registered(wrong: dict[str, Any]) -> None:
    """It takes no type's place that this package stores itself."""
    given = {"name": "tide", "cls": Tide, "write": lambda _: {}, "read": lambda _: Tide(""), **wrong}
    with pytest.raises(SettingError, match=f"{next(iter(wrong))}: found|BaseSchedule"):
        register_schedule_codec(**given)
    assert write_schedule(crontab(minute=5), timezone.utc)["type"] == "crontab"


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("write", "read", "words"),
    [
        (lambda _: {}, lambda _: 5, "its codec made 5"),
        (lambda _: {"type": "interval", "seconds": 5}, lambda _: Tide(""), "writes a field 'type'"),
        (lambda _: 5, lambda _: Tide(""), "can't be stored"),
    ],
)
def test_what_a_codec_answers_is_checked(write: Any, read: Any, words: str) -> None:
    """Nothing but a schedule comes of it, and none of another type."""
    register_schedule_codec("tide", Tide, write, read)
    with pytest.raises(SettingError, match=words):
        Definition.of("t", Tide("Hamburg"))


#: What of a message isn't a schedule's to say.
_FOR_THE_APP = (
    "exchange", "exchange_type", "producer", "connection", "link", "link_error", "chain", "task_id", "args",
)  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"task": ""}, "task"),
        ({"schedule": 0}, "interval of 0"),
        ({"schedule": "* * * * *"}, "register_schedule_codec"),
        ({"schedule": NOW.replace(tzinfo=None)}, "time zone"),
        ({"schedule": crontab(nowfun=lambda: NOW)}, "nowfun"),
        ({"zone": timezone(timedelta(hours=1)), "schedule": crontab()}, "time zone with a name"),
        ({"args": [object()]}, "can't be written as JSON"),
        ({"args": ["\ud800"]}, "surrogate"),
        ({"args": ["x" * 70_000]}, "bytes"),
        ({"args": json.loads("[" * 64 + "]" * 64)}, "nested too deeply"),
        ({"options": {"once": {}}}, "beside options"),
        *(({"options": {name: "x"}}, f"options: found '{name}', expected compression, ") for name in _FOR_THE_APP),
        ({"options": {"queue": {"exchange": "x"}}}, r"options\['queue'\]: found {'exchange': 'x'}, expected a text"),
        ({"options": {"time_limit": -1}}, r"options\['time_limit'\]: found -1, expected a number of seconds"),
        ({"options": {"retry_policy": [3]}}, r"options\['retry_policy'\]: found \[3\], expected a dict"),
        ({"options": {"delivery_mode": 3}}, r"options\['delivery_mode'\]: found 3, expected one of 1, 2"),
        ({"once": 5}, "once"),
    ],
)
def test_what_cant_be_stored_is_refused(wrong: dict[str, Any], words: str) -> None:
    """In one line, before anything is written."""
    with pytest.raises(SettingError, match=words) as found:
        Definition.of(**{"task": "t", "schedule": 5, **wrong})
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"once": {"catchup": "all"}},
        {"once": {"grace": -1}},
        *({"options": {name: "unknown"}} for name in ("expires", "serializer", "compression")),
    ],
)
def test_an_entrys_settings_are_checked_as_a_beat_does(wrong: dict[str, Any]) -> None:
    """An unknown key of ``once``, or an option that isn't one, is the caller's error."""
    with pytest.raises(SettingError, match="'report'"):
        Definition.of("t", 5, **wrong).check("report", Settings())


def test_a_runtime_task_and_who_is_told_are_allowed_alike() -> None:
    """Else a definition would send any task where another one fails."""
    one = Definition.of("proj.a", 5, once={"on_failure": "proj.b"})
    one.check("report", Settings(runtime_tasks=("proj.a", "proj.b")))
    for allowed, word in (("proj.a", "on_failure"), ("proj.b", "task: found 'proj.a'")):
        with pytest.raises(SettingError, match=word):
            one.check("report", Settings(runtime_tasks=(allowed,)))


def test_an_error_names_its_schedule_once() -> None:
    """Some name it already."""
    named = "schedule 'report': x", "beat entry 'report', once: x"
    assert [str(naming("report", SettingError(text))) for text in ("x", *named)] == ["schedule 'report': x", *named]


def stored(**fields: Any) -> str:
    return json.dumps({"v": 1, "task": "t", "schedule": {"type": "interval", "seconds": 5}, **fields})


def read(**fields: Any) -> Definition:
    return Definition.read("report", stored(**fields))


@pytest.mark.parametrize("fields", [{"v": 2}, {"new": 1}])
def test_what_a_newer_version_wrote_is_not_guessed_at(fields: dict[str, Any]) -> None:
    """A field that this version doesn't know could change what the others mean."""
    with pytest.raises(NewerVersionError, match=r"'report'.*(definition: unknown field 'new'|version 2)"):
        read(**fields)


_HOSTILE = (
    '{"v":1}',
    "[]",
    "",
    "{",
    "[" * 100_000,
    '"' + "x" * 1_000_000 + '"',
    '{"v":1,"task":"t","schedule":{"type":"interval","seconds":NaN}}',
    '{"v":1,"task":"t","schedule":{"type":"interval","seconds":' + "9" * 5000 + "}}",
    '{"v":1,"task":"t","schedule":' + '{"a":' * 9000 + "1" + "}" * 9000 + "}",
    '{"v":1,"task":"\\ud800","schedule":{"type":"interval","seconds":1}}',
    '{"v":1,"task":"t","schedule":{"type":"interval","seconds":1},"args":' + "[" * 64 + "]" * 64 + "}",
    '{"v":1,"task":"t","schedule":{"type":"interval","seconds":1},"kwargs":' + '{"a":' * 64 + "1" + "}" * 65,
)


def check_refused(text: str, unlike: str = "Traceback") -> None:
    with pytest.raises(StoreDataError, match="'report'") as found:
        Definition.read("report", text)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 400
    assert not re.search(unlike, str(found.value)), "it is checked by itself, and not only caught"


@pytest.mark.parametrize("text", _HOSTILE, ids=range(len(_HOSTILE)))
def test_hostile_json_is_one_line(text: str) -> None:
    """It names the schedule, and what to do."""
    check_refused(text)


def test_lists_within_lists_are_read_up_to_64_levels() -> None:
    """The definition and its args are two of them."""
    lists: list[Any] = []
    for _ in range(61):
        lists = [lists]
    definition = read(args=[lists, [], []])
    assert definition.args == (lists, [], [])
    with pytest.raises(StoreDataError, match="nested too deeply, expected up to 64 levels"):
        read(args=[[lists], [], []])


def test_wrong_values_are_one_line() -> None:
    """Whatever stands in a field, it is that schedule's trouble."""
    for fields in (
        {"task": 5},
        {"task": "x" * 2000},
        {"kwargs": None},
        {"args": [{"__type__": "datetime", "__value__": 3}]},
        {"schedule": {"type": []}},
        {"schedule": {"type": "interval", "seconds": 86400}},
        {"schedule": {"type": "crontab", "tz": "UTC", "day_of_month": 30, "month_of_year": 2}},
    ):
        check_refused(stored(**fields))


_NIGHTLY = {"type": "cron", "line": "0 2 * * *", "tz": "UTC"}
_AT = "2026-11-22T17:30:00.000000Z"
_PERIOD = {"start": "2026-12-25", "end": "2026-12-26", "name": "Christmas", "rule": "FREQ=YEARLY",
           "without": ["2027-12-25T00:00:00"], "tz": "UTC"}  # fmt: skip
#: Of each type a schedule with all of its fields.
_RIGHT: dict[str, dict[str, Any]] = {
    "interval": {"seconds": 86400, "relative": True, "tz": "UTC"},
    "crontab": {"minute": 0, "hour": "*/5", "day_of_week": "mon", "day_of_month": [1, 2], "month_of_year": 3,
                "tz": "UTC"},
    "solar": {"event": "sunrise", "lat": 52.5, "lon": 13.4},
    "one-off": {"at": _AT},
    "rrule": {"freq": "MONTHLY", "dtstart": "2026-11-22T09:00:00+01:00", "interval": 2, "wkst": "SU",
              "until": "2030-01-01T00:00:00+01:00", "bysetpos": [-1], "bymonth": [1, 11], "bymonthday": [1, 2],
              "byyearday": [1], "byeaster": [0], "byweekno": [1], "byhour": [9], "byminute": [0, 30], "bysecond": [0],
              "byweekday": ["-1FR", "MO"]},
    "cron": {"line": "0 2 * * *", "tz": "UTC"},
    "every": {"seconds": 86400, "anchor": _AT, "tz": "UTC"},
    "between": {"when": _NIGHTLY, "start": "2026-12-24", "end": "2026-12-25", "tz": "UTC"},
    "excluding": {"when": _NIGHTLY, "periods": [_PERIOD], "schedules": [_NIGHTLY], "tz": "UTC"},
    "union": {"of": [_NIGHTLY], "tz": "UTC"},
}  # fmt: skip
#: What isn't right in any field, but for a few.
_ODD = (None, True, -1.5, 10**20, 1e300, "", "soon", "\n", "x" * 2000, "../../etc/passwd", "Europe", [None], [[1]],
        [{}], {}, {"a": 1}, {"type": "acme"})  # fmt: skip


#: Those few, by the type and its field.
_TAKEN: dict[str, tuple[Any, ...]] = {
    "interval relative": (True,), "solar lat": (-1.5,), "solar lon": (-1.5,), "rrule": (None,),
    "rrule freq": (), "rrule dtstart": (),
}  # fmt: skip


@pytest.mark.parametrize("kind", _RIGHT)
def test_no_field_of_a_schedule_is_trusted(kind: str) -> None:
    """Whatever stands in it is read, and written the same, or is one line; one of a newer version isn't passed over."""
    right = {"type": kind, **_RIGHT[kind]}
    assert json.loads(read(schedule=right).text())["schedule"] == right
    with pytest.raises(NewerVersionError, match="moon"):
        read(schedule={**right, "moon": 1})
    for field, value in product(_RIGHT[kind], _ODD):
        if any(value is each for each in _TAKEN.get(f"{kind} {field}", _TAKEN.get(kind, ()))):
            one = read(schedule={**right, field: value})
            assert Definition.read("x", one.text()).text() == one.text()
        else:
            check_refused(stored(schedule={**right, field: value}), unlike="(Type|Attribute|Key|Index|Overflow)Error")


@pytest.mark.parametrize("field", _PERIOD)
def test_no_field_of_a_period_is_trusted(field: str) -> None:
    """As those of a schedule."""
    right = {"type": "excluding", "when": _NIGHTLY}
    with pytest.raises(NewerVersionError, match="moon"):
        read(schedule={**right, "periods": [{**_PERIOD, "moon": 1}]})
    for value in (5, {"a": 1}, "x" * 2000):
        check_refused(
            stored(schedule={**right, "periods": [{**_PERIOD, field: value}]}), unlike="(Type|Attribute)Error"
        )
    check_refused(stored(schedule={**right, "periods": ["2026-12-25"]}), unlike="TypeError")


@pytest.mark.parametrize("name", ["", "x" * 2000, "a\nb", "\ud800", None, 5, "\x1b[2J"])
def test_names_are_printable(name: Any) -> None:
    """They stand in keys, logs and terminals."""
    with pytest.raises(SettingError):
        check_name(name)
    assert check_name("x" * 1024) == "x" * 1024


def test_who_and_why_are_short() -> None:
    """Both stand in the change log."""
    assert json.loads(check_words("anna", "their trial\nends")) == {"by": "anna", "note": "their trial\nends"}
    assert check_words("x" * 200, "x" * 1000)
    for by, note in (("x" * 201, ""), ("", "x" * 1001), (None, ""), ("", 5)):
        with pytest.raises(SettingError):
            check_words(by, note)


def test_a_definition_sets_its_time_zone() -> None:
    """By ``once``: it is stored by name, and the schedule is written in it."""
    definition = Definition.of("t", crontab(minute=0, hour=2), BERLIN, once={"tz": ZoneInfo("Asia/Tokyo")})
    assert definition.as_json()["once"] == {"tz": "Asia/Tokyo"}
    assert definition.as_json()["schedule"]["tz"] == "Asia/Tokyo"
    assert Definition.from_json(definition.as_json()) == definition
    with pytest.raises(SettingError, match=r"once\['tz'\]: found 'Mars', expected the name of a time zone"):
        Definition.of("t", crontab(), BERLIN, once={"tz": "Mars"})


def test_celerys_own_headers_are_refused() -> None:
    """They say what a message is: by them a schedule would start another task than its own, allowed or not."""
    with Celery("tests", set_as_current=False) as app:
        own = app.amqp.as_task_v2("an id", "proj.a").headers
    for name in [*own, "compression"]:
        with pytest.raises(SettingError, match=rf"options\['headers'\]: found '{name}', expected none of Celery's"):
            Definition.of("proj.a", 60, options={"headers": {"mine": 1, name: "proj.b"}})
    kept = Definition.of("proj.a", 60, options={"headers": {"mine": 1}})
    assert kept.options["headers"] == {"mine": 1}


def test_args_come_back_as_a_task_gets_them() -> None:
    """What Celery's JSON serializer can write is stored, and comes back as the same types."""
    args = [1, NOW, Decimal("1.5"), UUID(int=7), b"x", None, "\u00e4"]
    one = Definition.of("t", 5, args=args, kwargs={"a": [1]}, options={"queue": "q"}, once={"anchor": NOW})
    again = Definition.read("x", one.text())
    assert list(again.args) == args
    assert (again.kwargs, again.options) == ({"a": [1]}, {"queue": "q"})
    assert again.once == {"anchor": NOW.isoformat()}
    assert again == one
    assert Definition.from_json(json.loads(json.dumps(one.as_json()))) == one


# -- what a beat says of an entry that it has loaded

T0 = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def in_zone(when: BaseSchedule, zone: str) -> BaseSchedule:
    when.tz = ZoneInfo(zone)
    return when


@pytest.mark.parametrize(
    "when",
    [
        schedule(timedelta(seconds=90)),
        schedule(timedelta(seconds=90), nowfun=lambda: T0),
        in_zone(schedule(timedelta(days=2)), "Asia/Kathmandu"),
        in_zone(crontab(minute=30, hour="2,14", day_of_week="mon-fri"), "Europe/Berlin"),
        solar("sunset", 48.1, 11.6),
        OneOff(datetime(2027, 1, 1, tzinfo=timezone.utc)),
        RRule("MONTHLY", "2026-01-31T09:30:00+02:00", byweekday=["-1FR"]),
        RRule("SECONDLY", "2020-01-01T00:00:00+00:00", interval=7),
    ],
    ids=describe,
)
def test_a_reader_knows_the_same_starts(when: BaseSchedule) -> None:
    """Whatever the type: the starts, and the schedule in words, are those of the beat."""
    said = LoadedDefinition(task="proj.task", schedule=when, lease=30.0, spread=5.0, anchor=T0)
    read = LoadedDefinition.read(said.text())
    assert read.schedule is not None
    assert describe(read.schedule) == describe(when)
    entries = Entries("", Settings(redis_url="redis://"), {})
    shown = entries.make_loaded("entry", read, "a-mark")
    assert shown.after(T0) == entries.make_loaded("entry", said, "a-mark").after(T0)
    assert shown.after(T0) is not None
    assert (shown.fingerprint, read.anchor) == ("a-mark", T0)


def test_a_schedule_that_cant_be_read_is_words() -> None:
    """It is too long, or of a type of its user's. The words are the same in each process: no address is in them."""
    days = [(NOW + timedelta(days=day)).date() for day in range(4000)]
    long = excluding(cron("0 2 * * *", tz="Europe/Berlin"), days)
    for when, words in ((long, describe(long)), (Tide("Hamburg"), f"{__name__}.Tide")):
        text = LoadedDefinition(task="proj.task", schedule=when, description=describe(when), lease=30.0).text()
        read = LoadedDefinition.read(text)
        assert (read.schedule, read.description) == (None, words)
    newer = LoadedDefinition.read('{"task": "proj.task", "schedule": {"type": "of a newer version"}}')
    assert (newer.schedule, newer.description) == (None, "a schedule that this process can't read")
