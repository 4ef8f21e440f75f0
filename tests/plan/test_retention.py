"""Retention: the newest stay, and what is superseded goes with its last reader."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.ids import Generation, Step
from ckpt.plan.retention import expired


def at(step: int, counter: int) -> tuple[Step, Generation]:
    return Step(step), Generation(1, counter)


COMMITTED = st.lists(
    st.builds(at, st.integers(0, 5), st.integers(1, 12)), max_size=12, unique_by=lambda e: e[1]
)


def test_the_newest_steps_stay() -> None:
    committed = [at(300, 3), at(100, 1), at(200, 2), at(400, 4)]
    assert expired(committed, 2) == [at(100, 1), at(200, 2)]
    assert expired(committed, 9) == []
    assert expired([], 1) == []


def test_without_a_limit_only_superseded_generations_go() -> None:
    assert expired([at(100, 1), at(100, 3), at(200, 2)], None) == [at(100, 1)]


def test_a_superseded_generation_goes_when_its_last_reader_does() -> None:
    committed = [at(100, 1), at(100, 2)]
    assert expired(committed, 1, [at(100, 1)]) == []
    assert expired(committed, 1) == [at(100, 1)]


def test_a_pinned_old_step_stays() -> None:
    assert expired([at(100, 1), at(200, 2)], 1, {at(100, 1)}) == []


def test_a_run_that_was_set_back_keeps_what_it_committed_last() -> None:
    assert expired([at(100, 1), at(200, 2), at(300, 3), at(150, 4)], 1) == [at(100, 1), at(200, 2)]


@given(COMMITTED, st.one_of(st.none(), st.integers(1, 4)), st.data())
def test_what_stays_is_enough_to_resume(
    committed: list[tuple[Step, Generation]], keep: int | None, data: st.DataObject
) -> None:
    pinned = data.draw(st.lists(st.sampled_from(committed), max_size=3)) if committed else []
    gone = expired(committed, keep, pinned)

    assert gone == sorted(set(gone))
    stays = set(committed) - set(gone)
    assert stays >= set(pinned)
    if committed:
        newest = {
            max(c for c in committed if c[0] == s)
            for s in sorted({c[0] for c in committed})[-(keep or 99) :]
        }
        assert newest <= stays
        assert max(committed, key=lambda c: c[1]) in stays
        assert len(stays - set(pinned)) <= len(newest) + 1
    assert expired(sorted(stays), keep, pinned) == []
