"""Places of a limit: who has one, who is called, and what becomes of the places of the dead. Verb by verb."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from proxy import Proxy

from celery_once_beat.settings import Settings
from celery_once_beat.store.model import Entered, Full
from celery_once_beat.store.verbs import Store
from celery_once_beat.windows import WindowKey, format_instant

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Places:
    """The limit "reports", and windows of two entries that share it."""

    def __init__(self, url: str, most: int = 2) -> None:
        self.store = Store(Settings(redis_url=url))
        self.raw = redis.Redis.from_url(url, decode_responses=True)
        self.most = most
        self.keys = self.store.keys.of_limit("reports")

    def window(self, number: int) -> WindowKey:
        return WindowKey(f"entry {number % 2} @ night", START + number * timedelta(minutes=1))

    def windows(self, *numbers: int) -> tuple[WindowKey, ...]:
        return tuple(map(self.window, numbers))

    def enter(
        self, number: int, owner: str | None = None, length: float = 30.0, most: int | None = None, **more: Any
    ) -> Any:
        most = self.most if most is None else most
        return self.store.enter_limit("reports", most, self.window(number), owner or f"w{number}:d:e", length, **more)

    def stay(self, number: int, owner: str | None = None) -> bool:
        return self.store.stay_in_limit("reports", self.window(number), owner or f"w{number}:d:e", 30.0)

    def begun(self, number: int, owner: str) -> bool:
        """It has begun, in another execution's place."""
        return self.store.stay_in_limit("reports", self.window(number), owner, 30.0, takes_over=True)

    def leave(self, number: int, owner: str | None = None, *, forget: bool = False) -> Any:
        window = self.window(number)
        return self.store.leave_limit("reports", self.most, window, owner or f"w{number}:d:e", forget=forget)

    def look(self, most: int | None = None) -> Any:
        """A beat looks."""
        limits = {"reports": self.most if most is None else most}
        return self.store.overdue("beat", datetime.now(timezone.utc), 10, limits=limits).called[0]

    def held(self) -> int:
        return self.raw.zcard(self.keys["places"])

    def pass_time(self, seconds: float) -> None:
        """As if so many seconds had passed."""
        for key in (self.keys["places"], self.keys["called"]):
            for member, score in self.raw.zrange(key, 0, -1, withscores=True):
                self.raw.zadd(key, {member: score - seconds * 1000})
        for name, text in self.raw.hgetall(self.keys["calls"]).items():
            word, _, at = text.rpartition(" ")
            self.raw.hset(self.keys["calls"], name, f"{word} {max(int(at) - int(seconds * 1000), 0)}")


@pytest.fixture
def places(redis_url: str) -> Iterator[Places]:
    places = Places(redis_url)
    yield places
    places.store.close()
    places.raw.close()


def test_there_are_so_many(places: Places) -> None:
    """The others wait; who has waited longest is called, and a place is kept for it."""
    assert places.enter(1) == Entered()
    assert places.enter(2) == Entered()
    for number in (4, 3, 5):
        assert places.enter(number) == Full()
        assert places.enter(number) == Full(), "sent again"
    assert places.leave(1) == places.windows(4)
    assert places.leave(1) == (), "sent again: its place is kept already"
    assert places.enter(6) == Full(), "the place is kept"
    assert places.enter(4) == Entered()
    assert places.enter(4) == Entered(), "sent again"
    assert places.held() == 2
    assert places.leave(2) == places.windows(3)
    assert places.leave(4) == places.windows(5)
    assert places.held() == 0
    for key in places.keys.values():
        assert places.raw.ttl(key) != -1


def test_they_are_called_in_the_order_in_which_they_came(places: Places) -> None:
    """Two hundred that ask within a second, and no two at once."""
    places.most = 1
    places.enter(0)
    numbers = [*range(1, 201)]
    for number in numbers:
        assert isinstance(places.enter(number), Full)
    waiting = places.raw.zrange(places.keys["waiting"], 0, -1, withscores=True)
    assert [name for name, _ in waiting] == [f"{w.entry}@{format_instant(w.start)}" for w in places.windows(*numbers)]
    seconds, _ = places.raw.time()
    assert all(abs(score / 1e6 - seconds) < 60 for _, score in waiting)


def test_who_was_called_before_its_message_was_parked(places: Places) -> None:
    """Whoever called it had no message to publish: it is called once more, by the worker that has parked it."""
    places.most = 1
    places.enter(0)
    assert places.enter(1) == Full()
    assert places.enter(2) == Full()
    assert places.enter(1, parked=True) == Full(), "nobody has called it yet"
    assert places.leave(0) == places.windows(1)
    assert places.enter(2, parked=True) == Full(), "it isn't the turn of this one"
    assert places.enter(1, parked=True) == Full(places.windows(1))
    assert places.held() == 0, "it takes no place, since it may die before it begins"
    assert places.enter(1) == Entered()


def test_who_was_taken_for_one_that_does_not_wait(places: Places) -> None:
    """Between its enter and its begin it was called, and forgotten since it didn't wait: it waits again."""
    places.most = 1
    places.enter(0)
    assert places.enter(1) == Full()
    assert places.leave(0) == places.windows(1)
    assert places.leave(1, forget=True) == ()
    assert places.enter(1, parked=True) == Full(places.windows(1))


def test_the_dead_give_their_places_back(places: Places) -> None:
    """Their leases run out. Whoever looks, enters or leaves next calls those who wait."""
    for number in (1, 2):
        places.enter(number)
    for number in (3, 4, 5):
        places.enter(number)
    places.pass_time(20)
    assert places.stay(2)
    assert places.look() == ()
    places.pass_time(15)
    assert places.look() == places.windows(3)
    assert places.look() == ()
    assert places.enter(3) == Entered()
    assert places.held() == 2
    places.pass_time(40)
    assert places.enter(9) == Full(places.windows(4, 5))


def test_who_is_called_and_never_comes_keeps_no_place(places: Places) -> None:
    """After a few seconds the place is for whoever comes, after some more it is called again. No place is lost."""
    for number in (1, 2, 3, 4):
        places.enter(number)
    assert places.leave(1) == places.windows(3)
    assert places.leave(2) == places.windows(4)
    assert places.enter(5) == Full()
    places.pass_time(6)
    assert places.enter(6) == Entered(places.windows(5)), "three and four don't come"
    assert places.enter(3) == Entered(), "called and late, it takes what is kept for another"
    assert places.held() == 2
    assert places.enter(5) == Full()
    assert places.enter(4) == Full()
    places.leave(3)
    assert places.held() == 1


def test_who_comes_late_and_finds_none_is_called_again(places: Places) -> None:
    """It hasn't lost its place in line."""
    for number in (1, 2, 3, 4):
        places.enter(number)
    places.leave(1)
    places.pass_time(6)
    assert places.leave(2) == places.windows(4)
    assert places.enter(4) == Entered()
    assert places.enter(7, "x:d:e", most=3).called == ()
    assert places.enter(3) == Entered() if places.held() < 2 else Full()
    places.leave(4)
    places.leave(7, "x:d:e")
    assert places.enter(3) == Entered()


def test_who_enters_again_keeps_its_place_for_longer(places: Places) -> None:
    """By the longer of both: another execution of the window that asks doesn't shorten it."""
    places.enter(1)
    (first,) = places.raw.zrange(places.keys["places"], 0, -1, withscores=True)
    places.enter(1, length=60.0)
    (longer,) = places.raw.zrange(places.keys["places"], 0, -1, withscores=True)
    assert longer[1] >= first[1] + 30_000
    places.enter(1, "B:d:e", length=5.0)
    assert places.raw.zrange(places.keys["places"], 0, -1, withscores=True) == [longer]


def test_another_execution_of_the_same_window(places: Places) -> None:
    """A copy takes no second place, and gives none back; the one that has begun makes the place its own."""
    places.enter(1, "A:d:e")
    assert places.enter(1, "B:d:e") == Entered(shared=True)
    assert places.held() == 1
    places.leave(1, "B:d:e")
    assert places.held() == 1, "it was refused"
    assert places.begun(1, "B:d:e"), "the other is dead"
    assert places.raw.pttl(places.keys["places"]) > 0
    assert not places.stay(1, "A:d:e"), "or only slow: it is stale, and takes nothing back"
    places.leave(1, "A:d:e")
    assert places.held() == 1
    places.leave(1, "B:d:e")
    assert places.held() == 0
    assert not places.stay(1, "B:d:e"), "a renewal that comes behind the end makes no place anew"


def test_a_workers_main_process_knows_the_delivery(places: Places) -> None:
    """It gives back what its child held; not what another delivery holds whose name begins alike."""
    places.enter(1, "worker:abc:e1")
    places.leave(1, "worker:ab")
    assert places.held() == 1
    places.leave(1, "worker:abc")
    assert places.held() == 0


def test_others_are_late(places: Places) -> None:
    """Nobody consumes the queue of those that are called, perhaps: no place is kept for the next ones of them."""
    for number in (1, 2, *range(3, 9)):
        places.enter(number)
    assert places.leave(1) == places.windows(3)
    assert places.enter(11) == Full(), "it may still come"
    places.pass_time(6)
    assert places.leave(2) == places.windows(4, 5)
    assert places.enter(12) == Entered(places.windows(6, 7)), "they are called, and keep nobody from running"
    assert places.enter(3) == Entered()
    assert places.held() == 2


@pytest.mark.parametrize("verb", ["leave", "enter"])
def test_a_lost_reply_is_answered_again(redis_url: str, verb: str) -> None:
    """Who is called is said to the same call once more: its message goes out at once, and to no other call."""
    places = Places(redis_url)
    for number in (1, 2, 3):
        places.enter(number)
    with Proxy(places.raw.connection_pool.connection_kwargs["port"]) as proxy:
        mine = Places(proxy.url(places.raw.connection_pool.connection_kwargs["db"]))
        assert mine.leave(9) == (), "its script is known"
        if verb == "enter":
            places.raw.zrem(places.keys["places"], *places.raw.zrange(places.keys["places"], 0, -1))
        proxy.lose_reply()
        reply = mine.leave(1) if verb == "leave" else mine.enter(4).called
        assert proxy.lost == 1
        assert reply == places.windows(3)
        assert (mine.leave(1) if verb == "leave" else mine.enter(4).called) == (), "another call"
        mine.store.close()
        mine.raw.close()
    places.store.close()
    places.raw.close()


def test_who_was_told_died(places: Places) -> None:
    """A window that was called doesn't come: a beat is told, once, and nobody before."""
    for number in (1, 2, 3):
        places.enter(number)
    assert places.leave(1) == places.windows(3)
    assert places.look() == ()
    places.pass_time(2.1)
    assert places.leave(7) == ()
    assert places.look() == places.windows(3)
    assert places.look() == ()
    assert places.store.leave_limit("reports", 2, places.window(3), forget=True, only_late=True) == ()
    assert places.enter(5) == Full(), "the place is kept for it still"
    assert places.enter(3) == Entered()
    places.pass_time(2.1)
    assert places.look() == ()


def test_a_beat_with_more_places_than_workers(places: Places) -> None:
    """What it calls a worker lets wait again: it goes by that worker's number for a while."""
    for number in (1, 2, 3, 4):
        places.enter(number)
    for _ in range(5):
        assert places.look(most=5) == ()
    places.pass_time(20)
    places.leave(1)
    assert places.held() == 1
    places.raw.delete(places.keys["calls"], places.keys["called"])
    assert places.look(most=5) == places.windows(3, 4), "no worker has said anything: it is its own number"
    assert places.enter(4) == Entered()
    assert places.enter(3) == Full()
    assert places.look(most=5) == ()
    places.pass_time(61)
    assert places.look(most=5) == places.windows(3)


def test_another_number_of_places(places: Places) -> None:
    """Each worker goes by its own settings: while a deploy lowers the number, nobody new enters above it."""
    for number in (1, 2):
        places.enter(number)
    assert places.enter(3, most=3) == Entered()
    assert places.enter(4) == Full()
    places.leave(1)
    assert places.enter(4) == Full()
    assert places.leave(2) == places.windows(4)
    assert places.held() == 1


def test_an_ended_window_waits_no_longer(places: Places) -> None:
    """Its place in line is the next one's."""
    for number in (1, 2, 3, 4):
        places.enter(number)
    assert places.leave(1) == places.windows(3)
    assert places.leave(3, "-", forget=True) == places.windows(4)
    assert places.raw.zcard(places.keys["waiting"]) == 1
