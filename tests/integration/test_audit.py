"""The conservation law over the versions of a schedule that is set at run time, as ``audit`` recounts it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from processes import wait_until
from system import System

from celery_once_beat import Schedules
from celery_once_beat.windows import parse_instant

pytestmark = pytest.mark.long

WORK = "apps.once_app.work"
NAME = "users/42"


@pytest.fixture
def client(system: System) -> Iterator[Schedules]:
    system.entries = {}
    made = Schedules(url=system.store_url)
    yield made
    made.close()


def set_every(client: Schedules, seconds: float) -> Any:
    return client.set(NAME, task=WORK, schedule=seconds, once={"catch_up": "all"})


def wait_claimed(system: System, beyond: Any) -> None:
    def claimed() -> bool:
        account = system.store.account(NAME)
        return account is not None and account.cursor > beyond

    wait_until(claimed, "windows after that are claimed", 60)


def audit(system: System) -> dict[str, Any]:
    """What the command says of the schedule; it has to balance."""
    (account,) = json.loads(system.once("audit", "--json"))["entries"]
    assert account["verdict"] == "balances", account
    return account


def test_an_account_balances_over_all_its_versions(system: System, client: Schedules) -> None:
    """Windows of earlier versions that are claimed under the last one count by the version of their time."""
    system.settings = {"once_beat_claim_lease": 5.0}
    system.worker().wait_ready()
    beats = [system.beat(f"beat{number}").wait_ready() for number in (1, 2)]
    one = set_every(client, 0.5)
    wait_claimed(system, one.changed_at)
    with system.procs_paused(*beats):
        cursor = system.account(NAME).cursor
        changed = cursor
        for seconds in (0.3, 0.7, 0.4, 1, 0.3, 0.9):
            wait_until(
                lambda since=changed: client._store.snapshot().now > since + timedelta(seconds=1.5), "windows pass", 60
            )
            changed = set_every(client, seconds).changed_at
        assert system.account(NAME).cursor == cursor, "all of that is owed"
    wait_claimed(system, changed)
    account = audit(system)
    owed = sum(account["outcomes"].values()) + account["open"]
    assert parse_instant(account["since"]) <= client.changes(NAME)[-2].at, "it counts from before the second version"
    # Those of 0.5, 0.3, 0.7, 0.4, 1 and 0.3 seconds, in one and a half each.
    assert owed >= 3 + 5 + 2 + 3 + 1 + 5
    client.pause(NAME)
    wait_until(lambda: not system.account(NAME).open, "every window has its outcome", 60)
    assert audit(system)["open"] == 0


def test_an_account_balances_after_a_deletion(system: System, client: Schedules) -> None:
    """What was open then, and ends after it was set again, is no window of the new version's."""
    beat = system.beat().wait_ready()
    one = set_every(client, 0.5)
    wait_claimed(system, one.changed_at + timedelta(seconds=1))
    assert audit(system)["open"] >= 2, "no worker has come so far"
    client.pause(NAME)
    client.resume(NAME)
    assert client.delete(NAME)
    assert json.loads(system.once("audit", "--json")) == {"balances": True, "entries": []}
    two = set_every(client, 0.3)
    before = set(system.account(NAME).open)
    wait_claimed(system, two.changed_at + timedelta(seconds=1))
    assert audit(system)["open"] >= 3
    system.worker().wait_ready()
    client.pause(NAME)
    wait_until(lambda: not system.account(NAME).open, "every window has its outcome", 60)
    account = audit(system)
    assert account["outcomes"] == {"done": account["defined"]}
    assert system.account(NAME).apart == {"done": len(before)}, "what was open at the deletion counts apart"
    assert min(before) < two.changed_at
    beat.stop()
