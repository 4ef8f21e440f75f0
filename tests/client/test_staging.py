"""A copy may end in a save, or in nothing: then its memory serves the next one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import ckpt
from ckpt_client.save.copying import NumpyCopier
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


def test_a_dropped_copy_gives_its_memory_back_and_nobody_hears_of_it(url: str) -> None:
    with ckpt.open(url) as store:
        for step in range(DROPS):
            store.copy_packed("dropped", step, store.pack(state(-1.0))).drop()
        assert store.steps("dropped") == []
        check_saves(store, "dropped")


def test_a_copy_waits_for_no_other_one_of_its_store(url: str) -> None:
    """Both halves are written before either is handed over, in the other order."""
    with ckpt.open(url) as store:
        copies = [store.copy_packed("two", n, store.pack(state(n))) for n in (1, 2)]
        saves = [copied.hand_over(time.monotonic()) for copied in reversed(copies)]
        for save in saves:
            save.wait(WAIT_S)
        for step in (1, 2):
            found = store.load("two", step)
            assert isinstance(found, dict)
            assert float(found["a"].min()) == float(found["a"].max()) == step


def test_a_copy_that_failed_refuses_the_step_when_it_is_handed_over(url: str) -> None:
    with ckpt.open(url) as store:
        other = store.save("failed", 1, state(1.0), rank=0, world_size=2)
        packing = store.pack(state(1.0), rank=1, world_size=2)
        copied = store.copy_packed("failed", 1, packing, copier=Failing(ValueError("torn")))
        assert repr(copied.failure) == "ValueError('torn')"
        with pytest.raises(ValueError, match="torn"):
            copied.hand_over(time.monotonic())
        with pytest.raises(ckpt.Aborted, match=r"rank 1.*ValueError\('torn'\)"):
            other.wait(WAIT_S)
        check_saves(store, "failed-alone")


def test_an_interrupted_copy_is_told_by_drop_and_a_failed_one_is_not(url: str) -> None:
    with ckpt.open(url) as store:
        packing = store.pack(state(1.0))
        store.copy_packed("drop", 1, packing, copier=Failing(ValueError("torn"))).drop()
        copied = store.copy_packed("drop", 1, packing, copier=Failing(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            copied.drop()
        check_saves(store, "drop")
