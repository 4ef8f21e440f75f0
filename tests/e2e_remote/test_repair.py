"""Targets whose disks are gone: `ckptd repair` makes again what they held, and nothing is lost."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest

import ckpt
from ckpt.base.errors import NotFound
from ckpt.base.ids import RunName, Step, TargetId
from ckpt.format.messages.asking import Ask, ReplaceTarget
from ckpt.protocol.coordinator.reading.answers import ShowView
from ckpt.transfer.column_rebuilder import WINDOW_BYTES
from tests.client.bits import bits_of
from tests.e2e_remote.cluster import Daemon, RemoteCluster
from tests.e2e_remote.conftest import started
from tests.waiting import ASKED_S, wait_until

RUN = "run"
AGAIN_S = 60.0
"""On a busy machine."""


@pytest.fixture
def mending(tmp_path: Path) -> Iterator[RemoteCluster]:
    with started(RemoteCluster(tmp_path, ("--rebuild-after-s", "1"))) as made:
        yield made


def repair_worker(cluster: RemoteCluster) -> Daemon:
    worker = Daemon(
        "repair", "--coordinator", cluster.coordinators, "--poll-s", "0.1",
        "--secret-file", str(cluster.secret_file), log=cluster.directory / "repair.log",
    )  # fmt: skip
    assert worker.ready["ready"] == "repair"
    return worker


def state(step: int) -> dict[str, object]:
    """More than two windows, the last of them not whole; beside it what is small and what is
    empty."""
    seed = np.random.default_rng(step)
    large = seed.integers(0, 255, 2 * WINDOW_BYTES + 1_234_567, np.uint8)
    return {"large": large, "small": np.arange(step), "none": np.zeros(0), "step": step}


def shown(cluster: RemoteCluster, step: int) -> ShowView:
    with cluster.client() as client:
        _, bulk = client.call(Ask("show", RunName(RUN), Step(step)), timeout_s=30.0)
    return msgspec.json.decode(bytes(bulk), type=ShowView)


def is_whole(cluster: RemoteCluster, step: int) -> bool:
    """All of its columns, and all copies of its index and record."""
    view = shown(cluster, step)
    (generation,) = view.generations
    return not generation.documents_missing and all(all(each.live) for each in view.columns)


def lose(cluster: RemoteCluster, id: str) -> None:
    """The process and its disk."""
    cluster.targets.pop(id).end()
    shutil.rmtree(cluster.directory / id)


def check(store: ckpt.Store, step: int) -> None:
    check_tree(store.load(RUN, step), step)


def check_tree(found: object, step: int) -> None:
    assert isinstance(found, dict)
    for name, value in state(step).items():
        assert bits_of(found[name]) == bits_of(value), name


def test_one_target_after_the_other_is_lost_and_all_columns_are_there_again(
    mending: RemoteCluster,
) -> None:
    """Each time any two targets may be lost again: at the end none of the first ones is left."""
    worker = repair_worker(mending)
    try:
        with ckpt.open(mending.url) as store:
            for step in (1, 2):
                store.save(RUN, step, state(step)).wait(AGAIN_S)
            for id in sorted(mending.targets):
                lose(mending, id)
                mending.wait_live()
                replace_target(mending, id)
                for step in (1, 2):
                    wait_until(
                        lambda step=step: is_whole(mending, step),  # type: ignore[misc]
                        f"step {step} is whole after {id}", timeout_s=AGAIN_S, poll_s=ASKED_S,
                    )  # fmt: skip
            for step in (1, 2):
                check(store, step)
    finally:
        worker.end(signal.SIGTERM)
    assert worker.process.returncode == 0
    assert "Traceback" not in (mending.directory / "repair.log").read_text()


def replace_target(cluster: RemoteCluster, id: str) -> None:
    """A new disk in its place, as an operator says."""
    cluster.start_target(id)
    with cluster.client() as client:

        def is_replaced() -> bool:
            with suppress(NotFound):
                client.call(ReplaceTarget(TargetId(id)), timeout_s=30.0)
                return True
            return False

        wait_until(is_replaced, f"{id} has knocked", poll_s=ASKED_S)
    cluster.wait_live()


def test_the_files_are_those_that_were_lost_byte_by_byte(mending: RemoteCluster) -> None:
    with ckpt.open(mending.url) as store:
        store.save(RUN, 1, state(1)).wait(AGAIN_S)
        before = columns_of(mending)
        lost = [sorted(mending.targets)[0], sorted(mending.targets)[3]]
        for id in lost:
            lose(mending, id)
        mending.wait_live()
        worker = repair_worker(mending)
        try:
            wait_until(
                lambda: is_whole(mending, 1), "it is whole", timeout_s=AGAIN_S, poll_s=ASKED_S
            )
        finally:
            worker.end(signal.SIGTERM)
        assert columns_of(mending) == before
        check(store, 1)


def columns_of(cluster: RemoteCluster) -> dict[str, bytes]:
    """Of all targets, by name."""
    return {
        file.name: file.read_bytes()
        for id in sorted(cluster.targets)
        for file in (cluster.directory / id / "columns").iterdir()
    }


def test_what_a_deleted_step_holds_for_a_later_one_is_made_again(mending: RemoteCluster) -> None:
    frozen = np.random.default_rng(7).integers(0, 255, WINDOW_BYTES, np.uint8)
    with ckpt.open(mending.url) as store:
        for step in (1, 2):
            store.save(RUN, step, {"frozen": frozen, "step": np.arange(step)}).wait(AGAIN_S)
        (generation,) = shown(mending, 2).generations
        assert generation.homes == (1,)
        store.delete(RUN, 1)
        worker = repair_worker(mending)
        try:
            for id in sorted(mending.targets)[:4]:
                lose(mending, id)
                mending.wait_live()
                replace_target(mending, id)
                wait_until(
                    lambda: shown(mending, 2).generations[0].columns_missing == 0,
                    f"nothing lacks after {id}", timeout_s=AGAIN_S, poll_s=ASKED_S,
                )  # fmt: skip
        finally:
            worker.end(signal.SIGTERM)
        found = store.load(RUN, 2)
        assert isinstance(found, dict)
        assert bits_of(found["frozen"]) == bits_of(frozen)
    assert "Traceback" not in (mending.directory / "repair.log").read_text()


def test_a_column_that_has_rotted_is_made_again_elsewhere(mending: RemoteCluster) -> None:
    """A scrub finds it, before any reader does."""
    with ckpt.open(mending.url) as store:
        store.save(RUN, 1, state(1)).wait(AGAIN_S)
        before = columns_of(mending)
        (harmed,) = shown(mending, 1).columns
        holder = str(harmed.targets[2])
        flip(next((mending.directory / holder / "columns").iterdir()))
        # Its code says what is damaged when it ends: a worker may have made that again by then.
        assert ckpt_command(mending, "scrub", holder) == 3
        worker = repair_worker(mending)
        try:
            wait_until(
                lambda: shown(mending, 1).columns[0].targets[2] not in (holder, None),
                "another target has it", timeout_s=AGAIN_S, poll_s=ASKED_S,
            )  # fmt: skip
            columns = mending.directory / holder / "columns"
            wait_until(lambda: not any(columns.iterdir()), "the damaged one is gone")
            assert columns_of(mending) == before
        finally:
            worker.end(signal.SIGTERM)
        assert ckpt_command(mending, "verify", f"{RUN}@1") == 0
        check(store, 1)


def test_who_holds_a_step_reads_it_where_it_has_gone(mending: RemoteCluster) -> None:
    """Its reader knows where all columns were; none of these targets is left as it reads."""
    worker = repair_worker(mending)
    try:
        with ckpt.open(mending.url) as store:
            store.save(RUN, 1, state(1)).wait(AGAIN_S)
            (was,) = shown(mending, 1).columns
            with store.resolve(RUN, 1) as held:
                check_tree(held.load(), 1)
                for id in filter(None, was.targets):
                    lose(mending, str(id))
                    mending.wait_live()
                    wait_until(
                        lambda: is_whole(mending, 1), f"whole without {id}",
                        timeout_s=AGAIN_S, poll_s=ASKED_S,
                    )  # fmt: skip
                    replace_target(mending, str(id))
                check_tree(held.load(), 1)
    finally:
        worker.end(signal.SIGTERM)


def flip(column: Path) -> None:
    """One bit of its cells, at rest."""
    with column.open("r+b") as file:
        file.seek(1 << 20)
        (byte,) = file.read(1)
        file.seek(1 << 20)
        file.write(bytes([byte ^ 16]))


def ckpt_command(cluster: RemoteCluster, *words: str) -> int:
    """Its exit code."""
    command = [sys.executable, "-m", "ckpt_client.cli.main", *words, "--store", cluster.url]
    return subprocess.run(command, capture_output=True, timeout=AGAIN_S, check=False).returncode
