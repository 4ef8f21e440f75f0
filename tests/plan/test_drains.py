"""What a store lacks, in which order it comes, and what may go from it."""

from __future__ import annotations

import random

import pytest

from ckpt.base.errors import Refused
from ckpt.base.ids import Generation, RunName, Step
from ckpt.plan.drains import Committed, StoredSteps, StorePolicy, due, parse_policies, surplus

RUN = RunName("run")


def committed(*steps: int, counter: int = 1) -> list[Committed]:
    """Each committed a second after the one before."""
    return [
        Committed(RUN, Step(step), Generation(1, counter + at), 100, 1000.0 + at)
        for at, step in enumerate(steps)
    ]


def stored(all_: list[Committed], *steps: int) -> StoredSteps:
    return StoredSteps({(one.step, one.generation) for one in all_ if one.step in steps})


def steps_of(found: list[Committed]) -> list[int]:
    return [one.step for one in found]


def test_everything_is_due_oldest_commit_first() -> None:
    all_ = committed(300, 100, 200)
    assert steps_of(due(StorePolicy("s3://b"), all_, StoredSteps())) == [300, 100, 200]
    assert steps_of(due(StorePolicy("s3://b"), all_, stored(all_, 100))) == [300, 200]
    assert due(StorePolicy("s3://b"), all_, stored(all_, 100, 200, 300)) == []


def test_a_step_that_was_saved_again_is_due_again() -> None:
    old, new = committed(100, counter=1), committed(100, counter=9)
    assert due(StorePolicy("s3://b", every=5), new, stored(old, 100)) == new


def test_every_nth_counts_from_the_last_one_there() -> None:
    policy = StorePolicy("s3://b", every=3)
    all_ = committed(10, 20, 30, 40, 50, 60, 70, 80)
    assert steps_of(due(policy, all_, StoredSteps())) == [10, 40, 70]
    assert steps_of(due(policy, all_, stored(all_, 20))) == [50, 80]
    assert steps_of(due(policy, all_[:4], stored(all_, 20))) == []


def test_what_retention_would_delete_at_once_is_not_drained() -> None:
    all_ = committed(1, 2, 3, 4, 5)
    assert steps_of(due(StorePolicy("s3://b", keep=2), all_, StoredSteps())) == [4, 5]
    assert steps_of(due(StorePolicy("s3://b", keep=2), all_, stored(all_, 4))) == [5]


def test_the_newest_stays_in_the_store() -> None:
    all_ = sorted(stored(committed(1, 2, 3), 1, 2, 3).generations)
    assert [step for step, _ in surplus(StorePolicy("s3://b", keep=1), all_)] == [1, 2]
    assert surplus(StorePolicy("s3://b"), all_) == []
    replaced = [(Step(1), Generation(1, 1)), (Step(1), Generation(2, 1))]
    assert surplus(StorePolicy("s3://b"), replaced) == replaced[:1]


def test_policies_are_read_from_their_urls() -> None:
    first, second = parse_policies("s3://b/p?every=10&keep=5&runs=llama*,eval file:///x/")
    assert first == StorePolicy("s3://b/p", 10, 5, ("llama*", "eval"))
    assert second == StorePolicy("file:///x")
    assert parse_policies("s3://b?checksum=md5")[0].checksum == "md5"
    assert first.wants(RunName("llama-7b"))
    assert not first.wants(RunName("other"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bucket",
        "s3://b?every=0",
        "s3://b?kep=1",
        "s3://b?keep",
        "s3://b s3://b/",
        "s3://b?checksum=crc",
    ],
)
def test_a_policy_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        parse_policies(text)


def test_steps_that_are_gone_count_among_each_nth_and_are_not_wanted() -> None:
    policy, all_ = StorePolicy("s3://b", every=3), committed(10, 20, 30, 40, 50, 60, 70)
    gone = [Step(step) for step in (10, 20, 30, 40, 50)]
    assert steps_of(due(policy, all_[5:], stored(all_, 10), gone)) == [60]
    assert steps_of(due(policy, all_[5:], stored(all_, 10, 40), gone)) == [70]
    assert steps_of(due(policy, all_[6:], StoredSteps(), gone)) == [70], (
        "the first went before it was drained"
    )


@pytest.mark.parametrize("seed", range(200))
def test_what_is_due_follows_from_the_steps_one_after_the_other(seed: int) -> None:
    """The rule as it reads, for every step that was ever committed."""
    chance = random.Random(seed)
    policy = StorePolicy(
        "s3://b", chance.choice((1, 1, 2, 3, 7)), chance.choice((None, None, 1, 3))
    )
    steps = chance.sample(range(40), chance.randint(1, 30))
    all_ = committed(*steps)
    here = [one for one in all_ if chance.random() < 0.6]
    there = {(one.step, one.generation) for one in all_ if chance.random() < chance.random()}
    there |= {(one.step, Generation(1, 0)) for one in all_ if chance.random() < 0.1}
    held = StoredSteps()
    for one in chance.sample(sorted(there), len(there)):
        held.add(one)
    gone = {Step(step) for step in steps}
    assert due(policy, here, held, gone) == due(policy, here, StoredSteps(there), gone)
    assert due(policy, here, held, gone) == _as_it_reads(policy, here, there, sorted(gone))


def _as_it_reads(
    policy: StorePolicy,
    here: list[Committed],
    there: set[tuple[Step, Generation]],
    ever: list[Step],
) -> list[Committed]:
    by_step, newest_there = {one.step: one for one in here}, max(there, default=None)
    wanted, passed = [], policy.every - 1
    for step in ever:
        one, is_there = by_step.get(step), any(each == step for each, _ in there)
        was_passed_over = newest_there is not None and step < newest_there[0] and policy.every > 1
        if is_there:
            passed = 0
            if one is not None and (step, one.generation) not in there:
                wanted.append(one)
        elif not was_passed_over:
            passed += 1
            if passed >= policy.every and one is not None:
                wanted.append(one)
                passed = 0
    if policy.keep is not None:
        stay = sorted({step for step, _ in there} | {one.step for one in wanted})[-policy.keep :]
        wanted = [one for one in wanted if one.step in stay]
    return sorted(wanted, key=lambda one: (one.committed_at_s, one.step))


@pytest.mark.parametrize("option", ["every", "keep"])
def test_a_count_that_no_catalog_has_room_for_is_refused(option: str) -> None:
    assert parse_policies(f"s3://b?{option}={(1 << 63) - 1}")
    with pytest.raises(Refused, match="9223372036854775808"):
        parse_policies(f"s3://b?{option}={1 << 63}")
