"""A copy may end in a save, or in nothing: then its memory serves the next one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import pytest

import ckpt
from ckpt_client.save.copying import NUMPY, NumpyCopier
from ckpt_client.save.turn import SaveTurn
from tests.client.clikit import run as command

WAIT_S = 60.0
DROPS = 3
"""More than there are halves."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("staging") / "burst"
    yield f"ckpt+local://{directory}?targets=3&code=2+1"
    command("local", "stop", str(directory))


class Failing(NumpyCopier):
    """Fails half way through."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def copy(self, places: Sequence[object], arrays: Sequence[object]) -> None:
        super().copy(places[:1], arrays[:1])
        raise self._error


def state(value: float) -> dict[str, object]:
    return {"a": np.full(5_000, value), "b": np.full(300, value), "step": value}


def check_saves(store: ckpt.Store, run: str) -> None:
    """As many as use both halves again."""
    for step in (1, 2, 3):
        store.save(run, step, state(step)).wait(WAIT_S)
        found = store.load(run, step)
        assert isinstance(found, dict)
        assert [float(found[key].min()) for key in ("a", "b")] == [step, step]
        assert found["step"] == step


def copied(
    store: ckpt.Store, run: str, step: int, copier: NumpyCopier = NUMPY, **seat: int
) -> SaveTurn:
    turn = store.turn(run, step, **seat)
    turn.pack(state(step))
    turn.copy(copier)
    return turn


def test_a_dropped_copy_gives_its_memory_back_and_nobody_hears_of_it(url: str) -> None:
    with ckpt.open(url) as store:
        for step in range(DROPS):
            copied(store, "dropped", step).drop()
        assert store.steps("dropped") == []
        check_saves(store, "dropped")


def test_a_copy_waits_for_no_other_one_of_its_store(url: str) -> None:
    """Both halves are written before either is handed over, in the other order."""
    with ckpt.open(url) as store:
        turns = [copied(store, "two", step) for step in (1, 2)]
        saves = [turn.hand_over() for turn in reversed(turns)]
        for save in saves:
            save.wait(WAIT_S)
        for step in (1, 2):
            found = store.load("two", step)
            assert isinstance(found, dict)
            assert float(found["a"].min()) == float(found["a"].max()) == step


def test_a_copy_that_failed_refuses_the_step_when_it_is_handed_over(url: str) -> None:
    with ckpt.open(url) as store:
        other = store.save("failed", 1, state(1.0), rank=0, world_size=2)
        turn = copied(store, "failed", 1, Failing(ValueError("torn")), rank=1, world_size=2)
        assert turn.copy_failed
        with pytest.raises(ValueError, match="torn"):
            turn.hand_over()
        with pytest.raises(ckpt.Aborted, match=r"rank 1.*ValueError\('torn'\)"):
            other.wait(WAIT_S)
        check_saves(store, "failed-alone")


def test_an_interrupted_copy_is_raised_by_drop_and_a_failed_one_is_not(url: str) -> None:
    with ckpt.open(url) as store:
        copied(store, "drop", 1, Failing(ValueError("torn"))).drop()
        turn = copied(store, "drop", 1, Failing(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            turn.drop()
        check_saves(store, "drop")


def test_a_close_that_was_interrupted_goes_on_when_it_is_called_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    store = ckpt.open(url)
    store.save("closed", 1, state(1.0)).wait(WAIT_S)
    monkeypatch.setattr(store._stagers, "park", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    assert not store.closed
    store.close()
    assert store.closed
    assert not store._stagers.links, "its stager waits for the next store"


def test_a_turn_that_is_dropped_begins_again(url: str) -> None:
    with ckpt.open(url) as store:
        turn = copied(store, "again", 1)
        turn.drop()
        turn.pack(state(7.0))
        turn.stage().wait(WAIT_S)
        found = store.load("again", 1)
        assert isinstance(found, dict)
        assert found["step"] == 7.0


def test_a_turn_has_one_order(url: str) -> None:
    with ckpt.open(url) as store:
        turn = store.turn("order", 1)
        for early in (turn.copy, turn.hand_over, turn.drop, turn.stage):
            with pytest.raises(AssertionError, match="begun"):
                early()
        turn.pack(state(1.0))
        with pytest.raises(AssertionError, match="packed"):
            turn.pack(state(2.0))
        turn.stage().wait(WAIT_S)
        for late in (turn.copy, turn.hand_over, turn.drop, lambda: turn.refuse(ValueError())):
            with pytest.raises(AssertionError, match="over"):
                late()


def test_what_is_raised_inside_a_turn_refuses_the_step_once(url: str) -> None:
    """A turn that has refused by itself, or has staged, refuses nothing more."""
    with ckpt.open(url) as store:
        other = store.save("inside", 1, state(1.0), rank=0, world_size=2)
        turn = store.turn("inside", 1, rank=1, world_size=2)
        with suppress(KeyError), turn:
            turn.refuse(ValueError("said already"))
            raise KeyError
        with pytest.raises(ckpt.Aborted, match="said already"):
            other.wait(WAIT_S)
        saves = [store.save("inside", 2, state(1.0), rank=0, world_size=2)]
        turn = store.turn("inside", 2, rank=1, world_size=2)
        with suppress(KeyError), turn:
            turn.pack(state(1.0))
            saves.append(turn.stage())
            raise KeyError
        for save in saves:
            save.wait(WAIT_S)


def test_a_turn_of_a_closed_store_is_refused(url: str) -> None:
    with ckpt.open(url) as store:
        turn = store.turn("closed", 1)
        turn.pack(state(1.0))
    with pytest.raises(ckpt.Refused, match="closed"):
        turn.stage()
    with pytest.raises(ckpt.Refused, match="closed"):
        store.turn("closed", 2)
