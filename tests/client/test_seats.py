"""A process that opens a store for each step has one stager, whose memory stays readable."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.ids import Rank
from ckpt.base.units import MiB
from ckpt_client.stager.memory import memory_source
from tests.client.clikit import run
from tests.client.test_stager_process import runs
from tests.waiting import wait_until
from tests.warm_child import answer_of_script

WAIT_S = 60.0
ROUNDS = 12
LOADER = """
import sys, ckpt
with ckpt.open(sys.argv[1]) as store, store.resolve("loop", int(sys.argv[2])) as found:
    state = found.load()
    print(found.source, float(state["a"][0]))
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("seats")
    made = f"ckpt+local://{directory}?targets=3&code=2+1"
    ckpt.open(made).close()
    yield made
    assert run("local", "stop", str(directory)).code == 0
    # Stagers with saves that nobody finishes learn that nobody ever will.
    shutil.rmtree(directory)


def save(url: str, step: int, run: str = "loop", **options: object) -> int:
    """One open, save, close; the stager's number."""
    with ckpt.open(url, **options) as store:  # type: ignore[arg-type]
        store.save(run, step, {"a": np.full(MiB // 8, float(step))}).wait(WAIT_S)
        (link,) = store._stagers.links.values()
        return link.pid


def loaded_elsewhere(url: str, step: int, folder: Path) -> list[str]:
    """Where another process found the step, and what."""
    script = folder / "loader.py"
    script.write_text(LOADER)
    return answer_of_script(script, url, str(step), environment=os.environ).split()


def test_a_store_for_each_step_leaves_one_stager_and_every_step_is_there(url: str) -> None:
    stagers = [save(url, step) for step in range(1, ROUNDS + 1)]
    assert len({pid for pid in stagers if runs(pid)}) <= 2
    with ckpt.open(url) as store:
        for step in (1, ROUNDS // 2, ROUNDS):
            state = store.load("loop", step)
            assert isinstance(state, dict)
            assert (state["a"] == float(step)).all()


def test_a_loop_that_has_two_stores_open_at_once_leaves_two_stagers(url: str) -> None:
    stagers = set()
    for step in range(1, 4):
        with ckpt.open(url) as first, ckpt.open(url) as second:
            for name, store in (("first", first), ("second", second)):
                store.save(name, step, {"a": step}).wait(WAIT_S)
                (link,) = store._stagers.links.values()
                stagers.add(link.pid)
    assert len({pid for pid in stagers if runs(pid)}) == 2


def test_another_process_reads_the_newest_step_from_the_memory_of_the_closed_store(
    url: str, tmp_path: Path
) -> None:
    for step in (101, 102, 103):
        save(url, step)
        assert loaded_elsewhere(url, step, tmp_path) == ["stager", f"{step}.0"]


def test_memory_that_a_reader_has_is_not_written_by_the_next_store(url: str) -> None:
    """Once verified its reader copies from it for as long as the load lasts."""
    save(url, 201)
    with ckpt.open(url) as store, store.resolve("loop", 201) as found:
        found.load()
        pinned, checkpoint = found._pinned, found.info.checkpoint
    digest = pinned.index.payload(Rank(0)).manifest_digest
    held = memory_source(pinned.record.cluster, checkpoint.run, Rank(0), checkpoint, digest)
    assert held is not None
    before = bytes(held.payload)
    for step in (202, 203, 204):
        save(url, step)
    assert bytes(held.payload) == before


def test_a_store_opened_otherwise_has_a_stager_of_its_own(url: str) -> None:
    first = save(url, 301)
    assert save(url, 302, arena_bytes_max=64 * MiB) != first
    assert save(url, 303) == first


def test_a_stager_that_went_is_replaced(url: str) -> None:
    first = save(url, 401, stager_idle_s=0.0)
    wait_until(lambda: not runs(first), "it goes when idle")
    assert save(url, 402, stager_idle_s=0.0) != first


def test_the_next_store_does_not_wait_for_halves_that_a_closed_one_has_left_full(url: str) -> None:
    store = ckpt.open(url)
    for step in (1, 2):  # Rank 1 never comes.
        store.save("alone", step, {"a": 1}, rank=0, world_size=2)
    (first,) = store._stagers.links.values()
    with pytest.raises(ckpt.CkptError):
        store.close(timeout_s=0.0)
    with ckpt.open(url, when_full="error") as other:
        other.save("other", 1, {"a": 1}, rank=0, world_size=1).wait(WAIT_S)
        (second,) = other._stagers.links.values()
        assert second.pid != first.pid


def test_a_forked_child_has_a_stager_of_its_own(url: str, tmp_path: Path) -> None:
    parent = save(url, 501, run="forks")
    note = tmp_path / "pid"
    child = os.fork()
    if not child:
        try:
            note.write_text(str(save(url, 502, run="forks")))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert int(note.read_text()) != parent
    assert save(url, 503, run="forks") == parent
