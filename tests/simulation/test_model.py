"""The protocol as a model: what must hold does, in each state; and every rule of it is needed."""

from __future__ import annotations

import pytest
from simulation.explore import BrokenError, Explorer
from simulation.model import PROPERTIES, RULES


@pytest.mark.long
def test_one_window_in_every_state():
    """Two beats and two workers do to one window what they can, and nothing goes wrong."""
    found = Explorer(1, 2, 2, tell_apart=True).explore()
    print(found)
    assert found.states > 5_000
    assert found.left_alone > 1_000


@pytest.mark.long
def test_what_makes_no_difference():
    """To take states for one that only differ by a rule, as two windows need it, hides nothing that is wrong."""
    assert Explorer(1, 2, 2).explore().states < Explorer(1, 2, 2, tell_apart=True).explore().states / 10
    for rule in ("begin gives a deadline", "begin refuses what runs", "begin raises the fence"):
        explorer = Explorer(1, 2, 2, [rule])
        explorer.tell_apart = False
        with pytest.raises(BrokenError):
            explorer.explore()


@pytest.mark.long
def test_two_windows_in_every_state():
    """Two beats and two workers do to two windows what they can, and nothing goes wrong."""
    found = Explorer(2, 2, 2).explore()
    print(found)
    assert found.states > 50_000
    assert found.left_alone > 10_000


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_taken_out(rule):
    """Without any one rule of the protocol the property that it is for doesn't hold."""
    one = RULES[rule] == "nothing is lost"
    with pytest.raises(BrokenError) as broken:
        Explorer(1, 1 if one else 2, 1 if one else 2, [rule], [RULES[rule]]).explore()
    print(broken.value)
    assert broken.value.what == RULES[rule]
    assert broken.value.steps


def test_each_property_can_fail():
    """Some rule is there for each property."""
    assert set(RULES.values()) == set(PROPERTIES)
