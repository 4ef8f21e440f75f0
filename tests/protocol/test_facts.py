"""Facts among the coordinator's parts: each is told and heard, in the order of one table."""

from __future__ import annotations

from typing import get_args

import pytest

from ckpt.base.errors import Refused
from ckpt.base.ids import RunName, TargetId
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.facts import Fact, RunDrained, TargetLeft
from tests.protocol.coordinating import Bench
from tests.reference.facts import facts_blocks


def test_each_fact_is_heard_and_told_by_some_part() -> None:
    facts = set(get_args(Fact))
    assert set(Bench().machine._desk.hearers) == facts
    rows = [row.split(" | ") for row in facts_blocks()["facts"].splitlines() if "`" in row]
    assert {row[0].strip("|` ") for row in rows} == {fact.__name__ for fact in facts}
    assert all(len(row) == 4 and all(row) for row in rows)


def test_hearers_act_in_order_before_the_teller_goes_on_and_hear_of_nothing_else() -> None:
    desk, heard = Desk(), list[str]()
    desk.hear(TargetLeft, lambda _: heard.append("elsewhere"))
    desk.hear(
        RunDrained,
        lambda fact: heard.append(f"first {fact.run}"),
        lambda fact: heard.append(f"second {fact.run}"),
    )
    desk.tell(RunDrained(RunName("a")))
    assert heard == ["first a", "second a"]
    desk.tell(TargetLeft(TargetId("t")))
    assert heard[2:] == ["elsewhere"]


def test_what_a_hearer_raises_reaches_the_teller() -> None:
    desk = Desk()

    def refuse(_fact: RunDrained) -> None:
        raise Refused("not now")

    desk.hear(RunDrained, refuse)
    with pytest.raises(Refused, match="not now"):
        desk.tell(RunDrained(RunName("a")))


def test_a_fact_has_one_line_in_the_table() -> None:
    desk = Desk()
    desk.hear(RunDrained)
    with pytest.raises(AssertionError, match="RunDrained"):
        desk.hear(RunDrained)
