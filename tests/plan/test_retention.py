"""Retention: rules are a union, what is held stays, what is superseded goes, and why is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import Generation, Step
from ckpt.base.units import format_age, parse_age
from ckpt.format.messages.keeping import (
    ALL_STAYS,
    Best,
    Better,
    Retention,
    check_retention,
    decode_retention,
    encode_retention,
)
from ckpt.plan.keeping.retention import Expirable, expired, judged, retention_text

NOW_S = 1000.0


def at(step: int, counter: int) -> tuple[Step, Generation]:
    return Step(step), Generation(1, counter)


def one(step: int, loss: float | None = None, *, held: str = "", age_s: float = 0.0) -> Expirable:
    metrics = {} if loss is None else {"loss": loss}
    return Expirable(Step(step), Generation(1, step), NOW_S - age_s, metrics, held)


def why(expirable: list[Expirable], retention: Retention) -> dict[int, str]:
    """Reason of each; of what goes with a `-` before it."""
    found = judged(expirable, retention, NOW_S)
    return {each.step: each.reason if each.stays else f"-{each.reason}" for each in found}


def stay(expirable: list[Expirable], retention: Retention) -> set[int]:
    return {each.step for each in judged(expirable, retention, NOW_S) if each.stays}


COMMITTED = st.lists(
    st.builds(
        Expirable,
        st.integers(0, 5).map(Step),
        st.integers(1, 12).map(lambda counter: Generation(1, counter)),
        st.floats(0, NOW_S),
        st.dictionaries(st.just("loss"), st.floats(-1, 1)),
        st.sampled_from(["", "", "", "pinned"]),
        st.sampled_from([False, False, False, True]),
    ),
    max_size=12,
    unique_by=lambda each: each.generation,
)
COUNTS = st.none() | st.integers(1, 4)
RULES = st.builds(
    Retention,
    COUNTS,
    COUNTS,
    st.none() | st.builds(Best, st.just("loss"), st.sampled_from(Better), st.integers(1, 4)),
    st.none() | st.integers(1, 2000),
)


def test_the_newest_steps_stay() -> None:
    committed = [at(300, 3), at(100, 1), at(200, 2), at(400, 4)]
    assert expired(committed, 2) == [at(100, 1), at(200, 2)]
    assert expired(committed, 9) == []
    assert expired([], 1) == []


def test_without_a_limit_only_superseded_generations_go() -> None:
    assert expired([at(100, 1), at(100, 3), at(200, 2)], None) == [at(100, 1)]


def test_a_superseded_generation_goes_when_nobody_holds_it() -> None:
    old, new = Expirable(*at(100, 1), held="pinned"), Expirable(*at(100, 2))
    assert [each.stays for each in judged([old, new], Retention(last=1))] == [True, True]
    gone, stays = judged([replace(old, held=""), new], Retention(last=1))
    assert (gone.stays, gone.reason, stays.stays) == (False, "replaced by 1.2", True)


def test_an_older_generation_that_is_held_never_comes_to_light_again() -> None:
    """A load of the step would get it, and its metric would count for the step."""
    old = Expirable(*at(2, 1), metrics={"loss": 0.0}, held="pinned")
    again, best, newest = Expirable(*at(2, 3)), one(1, 0.5), one(9)
    best = replace(best, generation=Generation(1, 2))
    rules = Retention(last=1, best=Best("loss", Better.MIN, 1))
    verdicts = judged([old, again, best, newest], rules, NOW_S)
    assert all(verdict.stays for verdict in verdicts)
    assert verdicts[2].reason == "replaced 1.1 (pinned)"
    left = judged([replace(old, held=""), again, best, newest], rules, NOW_S)
    assert [verdict.stays for verdict in left] == [True, False, False, True]


def test_a_run_that_was_set_back_keeps_what_it_committed_last() -> None:
    assert expired([at(100, 1), at(200, 2), at(300, 3), at(150, 4)], 1) == [at(100, 1), at(200, 2)]


def test_what_one_rule_keeps_stays_and_each_reason_is_said() -> None:
    steps = [one(10, held="called 'a'"), *(one(step) for step in (15, 20, 30, 35, 40))]
    assert why(steps, Retention(last=2, every=20)) == {
        10: "called 'a'",
        15: "-not among the last 2; every 20",
        20: "every 20",
        30: "-not among the last 2; every 20",
        35: "the last 2",
        40: "the newest step; the last 2; every 20",
    }


def test_the_best_by_a_metric_stay_and_of_equals_the_later() -> None:
    steps = [one(1, 0.5), one(2, 0.1), one(3, 0.5), one(4, 0.9), one(5)]
    low = Best("loss", Better.MIN, 2)
    assert stay(steps, Retention(last=1, best=low)) == {2, 3, 5}
    assert stay(steps, Retention(last=1, best=Best("loss", Better.MAX, 1))) == {4, 5}
    assert why(steps, Retention(last=1, best=low))[2] == "the best 2 by loss (min)"


def test_the_best_alone_takes_away_no_step_that_it_cannot_judge() -> None:
    steps = [one(1), one(2, 0.1), one(3, 0.5), one(4, 0.2), one(5, 0.9)]
    only = Retention(best=Best("loss", Better.MIN, 1))
    assert stay(steps, only) == {1, 2, 5}
    assert why(steps, only)[1] == "its save gave no loss"
    assert stay(steps, replace_last(only, 1)) == {2, 5}


def replace_last(retention: Retention, last: int) -> Retention:
    return Retention(last, retention.every, retention.best, retention.age_s)


def test_what_is_young_stays_and_a_clock_that_was_set_back_takes_nothing() -> None:
    steps = [one(1, age_s=61), one(2, age_s=60), one(3, age_s=-500), one(4, age_s=900)]
    assert stay(steps, Retention(age_s=60)) == {2, 3, 4}
    assert why(steps, Retention(age_s=60))[1] == "-not among younger than 1min"


def test_what_was_begun_later_was_not_committed_earlier() -> None:
    """The clock was a day late then."""
    steps = [one(1, age_s=50), one(2, age_s=86_400), one(3, age_s=40), one(4, age_s=10)]
    assert stay(steps, Retention(age_s=60)) == {1, 2, 3, 4}
    assert stay(steps, Retention(age_s=45)) == {3, 4}


def test_without_rules_all_stays() -> None:
    assert why([one(1), one(2)], ALL_STAYS) == {
        1: "no rule takes it away", 2: "the newest step; no rule takes it away",
    }  # fmt: skip


@given(COMMITTED, RULES)
@example(
    # The clock was set back between two saves of step 0: the first of them dated the second.
    [
        Expirable(Step(0), Generation(1, 2), 736.0),
        Expirable(Step(0), Generation(1, 3), 0.0),
        Expirable(Step(1), Generation(1, 4), 0.0),
    ],
    Retention(age_s=264),
)
def test_what_stays_is_enough_to_resume_and_stays_again(
    committed: list[Expirable], rules: Retention
) -> None:
    verdicts = judged(committed, rules, NOW_S)
    assert [(v.step, v.generation) for v in verdicts] == sorted(
        (each.step, each.generation) for each in committed
    )
    assert all(verdict.reason for verdict in verdicts)
    kept = {v.generation for v in verdicts if v.stays}
    left = [each for each in committed if each.generation in kept]
    assert {each.generation for each in committed if each.held or each.aside} <= kept
    line = [each for each in committed if not each.aside]
    if line:
        assert max(each.generation for each in line) in kept
        assert max((each.step, each.generation) for each in line)[1] in kept
    assert all(verdict.stays for verdict in judged(left, rules, NOW_S))


def test_what_is_aside_takes_no_place_of_the_newest_the_last_or_the_best() -> None:
    steps = [one(1, 0.5), one(2, 0.9), one(3, 0.8), replace(one(4, 0.1), aside=True)]
    low = Best("loss", Better.MIN, 1)
    assert why(steps, Retention(last=1, best=low)) == {
        1: "the best 1 by loss (min)",
        2: "-not among the last 1; the best 1 by loss (min)",
        3: "the newest step; the last 1",
        4: "aside",
    }
    every = judged([replace(each, aside=True) for each in steps], Retention(last=1))
    assert all(verdict.stays for verdict in every)


def test_a_save_of_a_step_that_is_aside_stays_as_long_as_that_does() -> None:
    aside, again, newest = replace(one(4), aside=True), Expirable(*at(4, 9)), Expirable(*at(5, 10))
    assert all(verdict.stays for verdict in judged([aside, again, newest], Retention(last=1)))
    assert judged([again, newest], Retention(last=1))[0].stays is False


@given(COMMITTED)
def test_what_is_aside_decides_of_nothing_but_its_own_step(committed: list[Expirable]) -> None:
    rules = Retention(last=2, best=Best("loss", Better.MAX, 1))
    line = [each for each in committed if not each.aside]
    alone = {v.generation: v.stays for v in judged(line, rules, NOW_S)}
    beside = {v.generation: v.stays for v in judged(committed, rules, NOW_S)}
    of_aside = {each.step for each in committed if each.aside}
    for each in line:
        assert beside[each.generation] or not alone[each.generation]
        if each.step not in of_aside:
            assert beside[each.generation] == alone[each.generation]


@given(COMMITTED, RULES, RULES)
def test_a_rule_more_never_takes_more_away(
    committed: list[Expirable], rules: Retention, more: Retention
) -> None:
    """But for `best` as the only rule, which keeps what it cannot judge."""
    if rules in (ALL_STAYS, Retention(best=rules.best)):
        return
    union = Retention(
        rules.last if rules.last is not None else more.last,
        rules.every if rules.every is not None else more.every,
        rules.best if rules.best is not None else more.best,
        rules.age_s if rules.age_s is not None else more.age_s,
    )
    before = {v.generation for v in judged(committed, rules, NOW_S) if v.stays}
    assert before <= {v.generation for v in judged(committed, union, NOW_S) if v.stays}


def test_rules_are_read_as_they_were_written() -> None:
    rules = Retention(5, 1000, Best("größe", Better.MAX, 3), 7 * 86_400)
    assert decode_retention(encode_retention(rules)) == rules
    assert retention_text(rules) == (
        "the last 5; every 1000; the best 3 by größe (max); younger than 7d"
    )
    assert retention_text(ALL_STAYS) == "all"


def test_a_rule_of_a_later_version_is_not_passed_over() -> None:
    with pytest.raises(Corrupt):
        decode_retention(b'{"last":1,"of a later version":2}')


@pytest.mark.parametrize(
    "bad",
    [
        ALL_STAYS,
        Retention(last=0),
        Retention(every=-1),
        Retention(age_s=0),
        Retention(last=1 << 63),
        Retention(best=Best("", Better.MIN, 1)),
        Retention(best=Best("x" * 129, Better.MIN, 1)),
        Retention(best=Best("loss", Better.MIN, 0)),
    ],
)
def test_what_is_no_rule_is_refused(bad: Retention) -> None:
    with pytest.raises(Refused):
        check_retention(bad)


def test_an_age_is_read_as_people_write_it() -> None:
    texts = {"7d": 604_800, "12h": 43_200, "30min": 1800, "30m": 1800, "90s": 90, "45": 45}
    assert {text: parse_age(text) for text in texts} == texts
    assert [format_age(seconds) for seconds in (604_800, 129_600, 90)] == ["7d", "36h", "90s"]
    for bad in ("", "d", "1.5d", "7 weeks", "-1d"):
        with pytest.raises(Refused, match="age"):
            parse_age(bad)
