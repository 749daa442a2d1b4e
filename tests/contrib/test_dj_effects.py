"""``self.window.record()`` in a Django project: the row is part of ``transaction.atomic()``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ledger import Ledger
from processes import wait_until
from servers import databases
from shops import Shop, block_of_docs

APPS = ["django_celery_beat", "celery_once_beat.contrib.django.effects"]
#: ``write(entry, text)``: a body, each call an execution of its own. What bodies write is a row of an interval.
BODY = """
from django.core.management import CommandError, call_command
from celery_once_beat.contrib.django.effects.models import RecordedWindow
from celery_once_beat.errors import RecordError, WindowRecorded
from celery_once_beat.testing import window

def execution(entry="nightly"):
    return window(entry, "2026-11-21T02:00Z", fence=7)

def write(text, of=None, using="default", **options):
    with transaction.atomic(using=using):
        (of or execution()).record(using=using, **options)
        IntervalSchedule.objects.using(using).create(every=text, period="days")

def refused(error, call, *args, **options):
    try:
        call(*args, **options)
    except error as exc:
        return str(exc)
    raise AssertionError(f"{error} expected")

def written(using="default"):
    return sorted(IntervalSchedule.objects.using(using).filter(period="days").values_list("every", flat=True))
"""
CLEAR = "RecordedWindow.objects.all().delete(); IntervalSchedule.objects.filter(period='days').delete()"


def prepare(shop: Shop) -> Shop:
    shop.orm(BODY + "call_command('migrate', verbosity=0)")
    return shop


@pytest.fixture
def new_project(new_shop: Callable[..., Shop]) -> Callable[..., Shop]:
    return lambda kind="sqlite", **settings: prepare(new_shop(kind, INSTALLED_APPS=APPS, **settings))


@pytest.fixture(scope="module", params=databases("sqlite", "postgres", "mariadb"))
def only_project(request, new_database, tmp_path_factory) -> Iterator[Shop]:
    """One of each kind for all tests: to migrate takes seconds. It starts no processes."""
    folder = tmp_path_factory.mktemp("project")
    shop = Shop(None, Ledger(folder / "ledger.jsonl"), "redis://127.0.0.1:1/0", folder)
    shop.use(new_database(request.param, folder), INSTALLED_APPS=APPS)
    yield prepare(shop)
    shop.orm.close()
    shop.store.close()


@pytest.fixture
def project(only_project: Shop) -> Shop:
    """A project without rows, once of each kind."""
    only_project.orm(CLEAR)
    return only_project


def of(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("only_project", databases(*kinds), indirect=True)


def test_what_is_rolled_back_was_not_recorded(project: Shop) -> None:
    """A transaction takes its row with it; a savepoint of one has none that it could take."""
    assert project.orm("""
try:
    with transaction.atomic():
        execution().record()
        raise ZeroDivisionError
except ZeroDivisionError:
    pass
write(1)
mine = execution("other")
with transaction.atomic():
    with transaction.atomic():
        said = refused(RecordError, mine.record)
    with transaction.atomic(savepoint=False):
        mine.record()
    with transaction.atomic():
        mine.record(result="at the end")
result = [said[:25], written(), list(RecordedWindow.objects.order_by("entry").values_list("entry", "result"))]
""") == ["record: found a savepoint", [1], [["nightly", None], ["other", '"at the end"']]]


def test_a_second_transaction_needs_a_step(project: Shop) -> None:
    """Also where one function with atomic() is called twice: its transactions are two."""
    assert project.orm("""
mine = execution()
@transaction.atomic
def body(**options):
    return mine.record(**options)
body()
refused(RecordError, body)
result = [body(step="load"), RecordedWindow.objects.count()]
""") == [True, 2]


def test_outside_of_a_transaction(project: Shop) -> None:
    """The row would commit by itself: nothing is written."""
    assert project.orm.value("refused(RecordError, execution().record)") == (
        "record(using='default'): found no transaction, so that the row would commit by itself, expected one; use "
        "'with transaction.atomic():'"
    )
    assert project.orm.value("RecordedWindow.objects.count()") == 0


def test_without_the_table(new_shop: Callable[..., Shop]) -> None:
    """One line says what makes it."""
    shop = new_shop(INSTALLED_APPS=["django_celery_beat"])
    shop.orm(BODY.replace("from celery_once_beat.contrib.django.effects.models import RecordedWindow\n", ""))
    assert shop.orm.value("refused(RecordError, write, 1)") == (
        "found no table once_effects in the database; add 'celery_once_beat.contrib.django.effects' to INSTALLED_APPS, "
        "and migrate"
    )
    said = shop.orm.value("refused(RecordError, execution().record, using='other')")
    assert "found no database of Django (The connection 'other'" in said


@pytest.mark.long
def test_another_database(new_project: Callable[..., Shop], tmp_path: Any) -> None:
    """``using`` names it, as everywhere in Django."""
    other = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "other.db")}
    shop = new_project()
    shop.orm.close()
    shop.use(shop.database, INSTALLED_APPS=APPS, DATABASES={"default": shop.database, "other": other})
    shop.orm(BODY)
    assert shop.orm.value("refused(RecordError, write, 1, using='other')").endswith("and migrate with --database other")
    assert shop.orm("""
call_command("migrate", database="other", verbosity=0)
write(1, using="other")
said = refused(WindowRecorded, write, 2, using="other")
result = [said[:6], written("other"), written(), RecordedWindow.objects.count()]
""") == ["window", [1], [], 0]


@of("sqlite")
def test_in_a_test_of_djangos(project: Shop) -> None:
    """A TestCase is one transaction around all: each execution is told from the others, and a lacking atomic() seen."""
    assert project.orm("""
from django.test import TestCase
class Case(TestCase):
    def runTest(self):
        first = execution()
        write(1, first)
        write(2, first)  # as far as a test can tell, one transaction
        with self.assertRaises(WindowRecorded):
            write(3)
        with transaction.atomic(), transaction.atomic(), self.assertRaises(RecordError):
            execution("other").record()  # as outside of a test
        with self.assertRaisesRegex(RecordError, "found no transaction"):
            execution("other").record()
import unittest
outcome = unittest.TestResult()
unittest.TestSuite([Case()]).run(outcome)
result = [outcome.testsRun, [text for _, text in outcome.errors + outcome.failures], written()]
""") == [1, [], []]


def test_migrations(new_project: Callable[..., Shop]) -> None:
    """They make what the model says, nobody has to write one, and they can be taken back."""
    left = new_project().orm("""
call_command("makemigrations", check=True, dry_run=True, verbosity=0)
call_command("migrate", "celery_once_beat_effects", "zero", verbosity=0)
result = "once_effects" in connection.introspection.table_names()
""")
    assert left is False


def test_who_does_not_want_the_table_has_none(new_shop: Callable[..., Shop]) -> None:
    """The admin's app, the scheduler and the tasks bring no migration."""
    apps = ["django.contrib.contenttypes", "django_celery_beat", "celery_once_beat.contrib.django"]
    shop = new_shop(INSTALLED_APPS=apps)
    assert shop.orm("""
from django.apps import apps
from django.core.management import call_command
call_command("makemigrations", check=True, dry_run=True, verbosity=0)
tables = connection.introspection.table_names()
result = [list(apps.get_app_config("celery_once_beat").get_models()), "once_effects" in tables]
""") == [[], False]


@of("sqlite")
def test_both_tables_are_one(project: Shop) -> None:
    """Django's and SQLAlchemy's have the same columns, of the same lengths: a project may use either."""
    from celery_once_beat.contrib.sqlalchemy import effects

    columns = project.orm.value("[[f.column, f.max_length, f.null] for f in RecordedWindow._meta.fields]")
    assert columns == [[c.name, getattr(c.type, "length", None), bool(c.nullable)] for c in effects.columns]


# -- old rows


@pytest.mark.long
def test_prune(project: Shop) -> None:
    """What is older goes, in batches; what is younger stays, and so does what else there is. What is wrong is said."""
    project.orm("""
from celery_once_beat.windows import format_instant
def old(number, days):
    return RecordedWindow(id=f"{days}-{number}", entry="old", start="", step="", attempt=1, execution="",
                          recorded_at=format_instant(now(-86400 * days - number)))
RecordedWindow.objects.bulk_create(old(number, days) for days in (89, 91) for number in range(1500))
write(1)
from io import StringIO
def prune(age):
    said, warned = StringIO(), StringIO()
    call_command("once_prune", older_than=age, stdout=said, stderr=warned)
    return [said.getvalue(), warned.getvalue()]
""")
    assert project.orm.value("prune('90d')") == ["deleted: 1500\n", ""]
    assert project.orm.value("prune('90d')") == ["deleted: 0\n", ""]
    assert project.orm.value("RecordedWindow.objects.filter(id__startswith='89').count()") == 1500
    said, warned = project.orm.value("prune('1h')")
    assert said == "deleted: 1500\n"
    assert warned.startswith("once: rows younger than once_beat_retention (1 d 0 h) are deleted: a window of that age")
    assert project.orm.value("[written(), RecordedWindow.objects.count()]") == [[1], 1]
    refused = project.orm.value("refused(CommandError, prune, 'soon')")
    assert "--older-than: found 'soon', expected a text like '30 s'" in refused


# -- the page


def test_the_page(new_shop: Callable[..., Shop]) -> None:
    """What docs/effects.md shows for Django runs as it stands: "django app", "django task"."""
    settings: dict[str, Any] = {"INSTALLED_APPS": ["django_celery_beat"]}
    exec(block_of_docs("effects.md", "django app"), settings)
    shop = new_shop(INSTALLED_APPS=settings["INSTALLED_APPS"])
    assert shop.orm(f"""
from django.core.management import call_command
from celery_once_beat.testing import executing, window
call_command("migrate", verbosity=0)
class Invoice:
    class objects:
        create = staticmethod(lambda day: IntervalSchedule.objects.create(every=day.day, period="days"))
{block_of_docs("effects.md", "django task")}
for attempt in (1, 2):
    with executing(invoice, window("invoices", "2026-11-21T02:00Z", attempt=attempt)):
        invoice()
result = list(IntervalSchedule.objects.values_list("every", flat=True))
""") == [21]


# -- a worker


@pytest.mark.long
def test_a_worker_that_is_killed_behind_its_commit(new_project: Callable[..., Shop]) -> None:
    """Its window runs again, is refused by the row, and is done."""
    shop = new_project("postgres")
    shop.orm("row('bills', interval=every(1), task='apps.dj_shop.celery.bill')")
    shop.worker(env={"KILL_POINT": "worker.committed:KILL"}).wait_ready()
    beats = shop.beats()
    shop.wait_fired()
    killed = shop.ledger.read("start", entry="bills")[-1]["start"]
    shop.worker("second").wait_ready()
    wait_until(lambda: killed in shop.ran("bills"), "the killed window is done", 60)
    for beat in beats:
        assert beat.stop() == 0
    wait_until(lambda: not shop.account("bills").open, "every window has its outcome", 60)
    keys = shop.orm.value("list(IntervalSchedule.objects.filter(period='days').values_list('every', flat=True))")
    assert len(keys) == len(set(keys)) == shop.outcomes("bills")["done"]
