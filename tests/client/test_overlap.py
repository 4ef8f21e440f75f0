"""A save that is copied beside the training: whole, or nothing, and nobody waits for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckpt
from ckpt_client.save.beside import Beside
from ckpt_client.save.handle import Save
from ckpt_client.save.overlap import SampledCopier, sample
from tests.client.clikit import run as command
from tests.waiting import wait_until

WAIT_S = 60.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found = tmp_path_factory.mktemp("overlap") / "burst"
    yield found
    command("local", "stop", str(found))


@pytest.fixture
def store(directory: Path) -> Iterator[ckpt.Store]:
    with ckpt.open(f"ckpt+local://{directory}?targets=3&code=2+1") as found:
        yield found


class Held(SampledCopier):
    """Copies once it may."""

    def __init__(self, arrays: Sequence[object], *, fails: str = "") -> None:
        super().__init__(arrays)
        self.may_copy = threading.Event()
        self.copies = threading.Event()
        self._fails = fails

    def copy(self, prepared: object, arrays: Sequence[object]) -> None:
        self.copies.set()
        assert self.may_copy.wait(WAIT_S)
        if self._fails:
            raise RuntimeError(self._fails)
        super().copy(prepared, arrays)


def state(value: float) -> dict[str, object]:
    return {"a": np.full(5_000, value), "b": np.full((30, 40), value)[:, ::2], "step": value}


def held(
    store: ckpt.Store, run: str, step: int, what: dict[str, object], fails: str = "", **seat: int
) -> tuple[Save, Held]:
    turn = store.turn(run, step, **seat)
    copier = Held(turn.pack(what).arrays, fails=fails)
    return turn.overlap(copier), copier


def check_loads(store: ckpt.Store, run: str, step: int, value: float) -> None:
    found = store.load(run, step)
    assert isinstance(found, dict)
    assert found["step"] == value
    for key in ("a", "b"):
        assert float(found[key].min()) == float(found[key].max()) == value


def fill(what: dict[str, object], value: float) -> None:
    """As an optimizer's step does."""
    for array in what.values():
        if isinstance(array, np.ndarray):
            array[...] = value


class Parked(Held):
    """Ends once it may."""

    def __init__(self, arrays: Sequence[object]) -> None:
        super().__init__(arrays)
        self.has_copied, self.may_end = threading.Event(), threading.Event()

    def finish(self) -> None:
        super().finish()
        self.has_copied.set()
        assert self.may_end.wait(WAIT_S)


def swap_beside(copier: Parked, what: dict[str, object]) -> None:
    """As averages of weights are for an evaluation: they are gone again when all is copied."""
    fill(what, 2.0)
    copier.may_copy.set()
    assert copier.has_copied.wait(WAIT_S)
    fill(what, 1.0)
    copier.may_end.set()


def test_what_was_swapped_in_while_it_was_copied_is_not_committed(store: ckpt.Store) -> None:
    what = state(1.0)
    turn = store.turn("swapped", 1)
    copier = Parked(turn.pack(what).arrays)
    save = turn.overlap(copier)
    swap_beside(copier, what)
    with pytest.raises(ckpt.Aborted, match="changed while rank 0 staged it"):
        save.wait(WAIT_S)


@pytest.mark.parametrize("layout", ["dense", "apart"])
def test_an_array_of_which_ranks_store_parts_is_compared_with_them(
    store: ckpt.Store, layout: str
) -> None:
    """A large array that all ranks hold is stored once: each copies it in parts."""
    array = np.ones((600, 1000))
    what: dict[str, object] = {"small": np.ones(3), "w": array if layout == "dense" else array.T}
    for step, swaps in enumerate((True, False, True)):
        other = store.turn(f"parts-{layout}", step, rank=0, world_size=2)
        other.pack(what, replicated=True)
        first = other.stage()
        turn = store.turn(f"parts-{layout}", step, rank=1, world_size=2)
        packing = turn.pack(what, replicated=True)
        assert packing.layout.parts
        copier = Parked(packing.arrays)
        save = turn.overlap(copier)
        if swaps:
            swap_beside(copier, {"w": what["w"]})
            with pytest.raises(ckpt.Aborted, match=r"^w changed while rank 1 staged it"):
                save.wait(WAIT_S)
            with pytest.raises(ckpt.Aborted, match="w changed while rank 1 staged it"):
                first.wait(WAIT_S)
        else:
            copier.may_copy.set()
            copier.may_end.set()
            assert {save.wait(WAIT_S).step, first.wait(WAIT_S).step} == {step}


def test_the_call_returns_first_and_what_waits_may_change_the_state(store: ckpt.Store) -> None:
    mine = state(1.0)
    save, copier = held(store, "first", 1, mine)
    assert not save.staged.done
    assert not save.staged.wait(0)
    with pytest.raises(ckpt.Unavailable, match="not committed"):
        save.wait(0)
    copier.may_copy.set()
    assert save.staged.wait(WAIT_S)
    fill(mine, 2.0)
    assert save.wait(WAIT_S).step == 1
    check_loads(store, "first", 1, 1.0)


def test_after_follow_a_change_is_no_tear(store: ckpt.Store) -> None:
    mine = state(1.0)
    save, copier = held(store, "follow", 1, mine)
    threading.Timer(0.05, copier.may_copy.set).start()
    save.staged.follow()
    fill(mine, 2.0)
    save.wait(WAIT_S)
    check_loads(store, "follow", 1, 1.0)


def test_a_state_that_changes_too_early_is_saved_by_no_rank(store: ckpt.Store) -> None:
    mine = state(1.0)
    other = store.save("torn", 1, state(1.0), rank=0, world_size=2)
    save, copier = held(store, "torn", 1, mine, rank=1, world_size=2)
    assert copier.copies.wait(WAIT_S)
    fill(mine, 2.0)
    copier.may_copy.set()
    with pytest.raises(ckpt.Aborted, match=r"^a and 1 more changed while rank 1 staged it; let"):
        save.wait(WAIT_S)
    with pytest.raises(ckpt.Aborted, match=r"rank 1.*a and 1 more changed while rank 1 staged it"):
        other.wait(WAIT_S)
    assert store.steps("torn") == []
    saves = [
        store.save("torn", 1, state(3.0), rank=rank, world_size=2, staging="overlap")
        for rank in (0, 1)
    ]
    assert {save.wait(WAIT_S).step for save in saves} == {1}


def test_a_copy_that_fails_ends_the_save_on_all_ranks_and_the_next_save_raises_it(
    store: ckpt.Store,
) -> None:
    other = store.save("failed", 1, state(1.0), rank=0, world_size=2)
    save, copier = held(store, "failed", 1, state(1.0), "the link fell off", rank=1, world_size=2)
    copier.may_copy.set()
    assert save.staged.wait(WAIT_S)
    # Seldom the coordinator takes rank 1 for gone before it hears the reason.
    with pytest.raises(ckpt.Aborted, match=r"rank 1.*(the link fell off|before it handed over)"):
        other.wait(WAIT_S)
    with pytest.raises(ckpt.Aborted, match=r"failed@1.*the link fell off"):
        store.save("failed", 2, state(1.0))
    with pytest.raises(ckpt.Aborted, match="the link fell off"):
        save.wait(WAIT_S)
    store.save("failed", 2, state(2.0)).wait(WAIT_S)


def test_what_is_saved_next_comes_after_it(store: ckpt.Store) -> None:
    save, copier = held(store, "order", 1, state(1.0))
    beside, other = held(store, "order", 2, state(2.0))
    assert copier.copies.wait(WAIT_S)
    assert not other.copies.is_set()
    other.may_copy.set()
    threading.Timer(0.05, copier.may_copy.set).start()
    last = store.save("order", 3, state(3.0))
    assert save.staged.done
    assert beside.staged.done
    for one in (save, beside, last):
        one.wait(WAIT_S)
    for step in (1, 2, 3):
        check_loads(store, "order", step, float(step))


@pytest.mark.parametrize("raises", [False, True])
def test_a_store_that_is_left_hands_over_first(directory: Path, raises: bool) -> None:
    run = f"left-{raises}"

    def leave() -> None:
        with ckpt.open(f"ckpt+local://{directory}") as store:
            _, copier = held(store, run, 1, state(1.0))
            threading.Timer(0.05, copier.may_copy.set).start()
            if raises:
                raise KeyError

    if raises:
        with pytest.raises(KeyError):
            leave()
    else:
        leave()
    with ckpt.open(f"ckpt+local://{directory}") as store:
        store.save(run, 2, state(2.0)).wait(WAIT_S)  # Its stager has sent all before.
        check_loads(store, run, 1, 1.0)


def test_a_store_is_left_though_a_copy_cannot_get_its_memory(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt_client.save.links.stagers.LEAVE_S", 0.2)
    store = ckpt.open(f"ckpt+local://{directory}")
    store.save("stuck", 1, state(1.0)).wait(WAIT_S)
    (link,) = store._stagers.links.values()
    os.kill(link.pid, signal.SIGSTOP)
    try:
        save = store.save("stuck", 2, state(2.0), staging="overlap")
        with pytest.raises(ckpt.Unavailable, match="1 save was not committed"):
            store.close(timeout_s=0.2)
        assert save.staged.wait(WAIT_S)
        with pytest.raises(ckpt.Aborted, match="the store was closed"):
            save.wait(WAIT_S)
    finally:
        os.kill(link.pid, signal.SIGCONT)


SCRIPT = """
import sys, numpy as np, ckpt
store = ckpt.open(sys.argv[1])
store.save("ends", 1, {"a": np.ones(4_000_000)}, staging="overlap")
"""


def test_a_script_that_ends_without_closing_has_saved(store: ckpt.Store, directory: Path) -> None:
    url = f"ckpt+local://{directory}"
    subprocess.run([sys.executable, "-c", SCRIPT, url], check=True, timeout=WAIT_S)
    wait_until(lambda: store.latest("ends") == 1, "the stager's commit", WAIT_S)
    found = store.load("ends", 1)
    assert isinstance(found, dict)
    assert float(found["a"].sum()) == 4_000_000


def test_a_save_keeps_nothing_of_its_state_alive(store: ckpt.Store) -> None:
    array = np.ones(1000)
    save = store.save("alive", 1, {"a": array}, staging="overlap")
    save.wait(WAIT_S)
    alive = weakref.ref(array)
    del array
    assert alive() is None
    assert save.staged.done


def test_another_word_is_refused_before_anything_is_staged(store: ckpt.Store) -> None:
    with pytest.raises(ckpt.Refused, match="staging='later'; one of copy, overlap"):
        store.save("word", 1, state(1.0), staging="later")
    assert store.steps("word") == []


@given(
    shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    stride=st.integers(1, 3),
    start=st.floats(0, 1, exclude_max=True),
)
def test_a_sample_of_any_array_sees_that_all_of_it_changed(
    shape: tuple[int, ...], stride: int, start: float
) -> None:
    array = np.zeros(tuple(extent * stride for extent in shape))[
        tuple(slice(None, None, stride) for _ in shape)
    ]
    before = sample(array, start)
    assert len(before) <= array.nbytes
    array += 1
    assert (sample(array, start) != before) == bool(array.size)


def test_what_no_thread_may_begin_any_more_is_copied_by_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a thread that outlives the main thread, or at the interpreter's end."""
    done: list[str] = []
    beside = Beside()
    beside.run(lambda: done.append("by the pool"))
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)
    beside.run(lambda: done.append("here"))
    assert done == ["by the pool", "here"]
    assert beside.drain(0.0)
    beside.close()
