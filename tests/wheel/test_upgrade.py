"""A cluster of the version before columns moved is upgraded, one process after the other, in both
orders, under saves, loads and a loss: nothing is lost, nothing moves too soon, and once it is
finished nothing older is heard.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt.format.messages.hello import PROTOCOL_VERSION
from tests.landing import in_turn
from tests.wheel.earlier import earlier_wheel, is_here, without
from tests.wheel.environments import Environment, Environments
from tests.wheel.mixed_cluster import TARGETS, MixedCluster, Trainer

OLDER = f"speaks protocol {PROTOCOL_VERSION - 1}, not {PROTOCOL_VERSION}"
FOUND_DAMAGE = 3
"""Exit code of `ckpt scrub`."""
LOST = "t4"
"""It dies in the middle of the upgrade."""
ORDERS = in_turn([(("coordinator", *TARGETS),), ((*TARGETS, "coordinator"),)], every=2)


@pytest.fixture(scope="module")
def older(meeting: Path) -> Environment:
    if not is_here():
        pytest.skip(without())
    folder = meeting / "earlier"
    wheel = earlier_wheel(folder / "build")
    return Environments(folder / "environments", wheel=wheel).of(Path(sys.executable), "server")


@pytest.fixture
def cluster(
    older: Environment, environments: Environments, tmp_path: Path
) -> Iterator[MixedCluster]:
    made = MixedCluster(tmp_path, older, environments.of(Path(sys.executable), "server"))
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("order", ORDERS)
def test_an_upgrade_under_saves_loads_and_a_loss(
    cluster: MixedCluster, order: tuple[str, ...]
) -> None:
    older, newer = cluster.trainer(cluster.older, "older"), cluster.trainer(cluster.newer, "newer")
    work(older, newer)
    upgrade(cluster, order, older, newer)
    finish(cluster, older, returns=order[0] == "coordinator")
    nobody_older_is_heard(cluster)
    columns_move(cluster, newer, older)
    no_older_coordinator_is_obeyed(cluster)
    newer.load(older)
    newer.save()
    newer.load(newer)


def test_rot_that_is_found_under_an_older_coordinator_is_mended_after_the_upgrade(
    cluster: MixedCluster,
) -> None:
    """The older one knows no word for it. Readers do without the column, and nobody moves it
    before the upgrade is finished."""
    trainer = cluster.trainer(cluster.newer, "newer")
    trainer.save()
    for id in TARGETS:
        cluster.start_target(id, cluster.newer)
    cluster.wait_live(len(TARGETS))
    id, column = flip_a_column(cluster)
    found = cluster.newer_command("scrub", id)
    assert found.code == FOUND_DAMAGE, found.out + found.err
    assert f"column {column.rpartition('-')[2]}" in found.out
    trainer.load(trainer)
    trainer.save()
    cluster.start_coordinator(cluster.newer)
    cluster.start_worker()
    cluster.wait_live(len(TARGETS))
    trainer.load(trainer)
    assert cluster.columns()[column] == {id}, "nothing moves yet"
    finished = cluster.newer_command("upgrade", "finish")
    assert finished.code == 0, finished.err
    cluster.wait(lambda: cluster.columns()[column] not in ({id}, set()), "it is made elsewhere")
    cluster.wait(lambda: id not in cluster.columns()[column], "the damaged one goes")
    verified = cluster.newer_command("verify", "newer@1")
    assert verified.code == 0, verified.out + verified.err
    trainer.load(trainer)


def flip_a_column(cluster: MixedCluster) -> tuple[str, str]:
    """One bit of one column's cells, at rest; its target and its name."""
    path = min(cluster.folder.glob("t?/columns/*"))
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 16]))
    return path.parts[-3], path.name


def work(*trainers: Trainer) -> None:
    """Each saves, and loads what all have saved last."""
    for trainer in trainers:
        trainer.save()
    for trainer in trainers:
        for other in trainers:
            trainer.load(other, last=1)


def upgrade(cluster: MixedCluster, order: tuple[str, ...], older: Trainer, newer: Trainer) -> None:
    """All but the one that is lost. It is not made again elsewhere, though a worker waits."""
    for number, name in enumerate(order):
        if number == len(order) // 2:
            cluster.processes.pop(LOST).kill()
        if name == "coordinator":
            cluster.start_coordinator(cluster.newer)
            cluster.start_worker()
        elif name != LOST:
            cluster.start_target(name, cluster.newer)
        is_lost = LOST not in cluster.processes
        cluster.wait_live(len(TARGETS) - is_lost)
        work(older, newer)
        refusal = cluster.newer_command("upgrade", "finish")
        assert refusal.code != 0
        if "coordinator" not in order[: number + 1]:
            assert "the coordinator speaks protocol 2" in refusal.err
        elif name != order[-1]:
            assert OLDER in refusal.err, refusal.err
    assert all(len(holders) == 1 for holders in cluster.columns().values()), "nothing was copied"
    assert "UPGRADE_UNFINISHED" in cluster.newer_command("status").out
    refused = cluster.newer_command("target", "remove", LOST, "--force")
    assert "the upgrade of this cluster is not finished" in refused.err


def finish(cluster: MixedCluster, older: Trainer, *, returns: bool) -> None:
    """The trainer of before stands against it, then the target that is away."""
    cluster.copy_catalog("copy")
    refusal = cluster.newer_command("upgrade", "finish").err
    (stager,) = re.findall(rf"stager \S+:(\d+) {OLDER}", refusal)
    older.kill()
    # It outlives its trainer, to finish what that has handed over.
    os.kill(int(stager), signal.SIGTERM)
    cluster.wait(
        lambda: not any("stager" in text for text in cluster.upgrade()["against"]),
        "its sessions end",
    )
    refusal = cluster.newer_command("upgrade", "finish").err
    assert f"target {LOST} is away" in refusal
    assert OLDER not in refusal
    if returns:
        cluster.start_target(LOST, cluster.newer)
        cluster.wait_live(len(TARGETS))
        done = cluster.newer_command("upgrade", "finish")
    else:
        done = cluster.newer_command("upgrade", "finish", "--force")
    assert done.code == 0, done.err
    assert "UPGRADE_UNFINISHED" not in cluster.newer_command("status").out


def nobody_older_is_heard(cluster: MixedCluster) -> None:
    """A command, a trainer, a target: by name, with what to do."""
    ended = cluster.command(cluster.older, "ls")
    assert ended.code != 0
    for part in ("needs protocol 3", "speaks 2", "upgrade it: install the cluster's version"):
        assert part in ended.err, ended.err
    target = cluster.start_target(LOST, cluster.older, ready=False)
    assert target.ended() != 0
    assert f"needs protocol 3; target {LOST} speaks 2" in target.log
    cluster.start_target(LOST, cluster.newer)
    cluster.wait_live(len(TARGETS))


def columns_move(cluster: MixedCluster, newer: Trainer, older: Trainer) -> None:
    """A target is gone for good: what it held is made again on others, and can be read there."""
    before = cluster.columns()
    cluster.processes.pop("t0").kill()
    shutil.rmtree(cluster.folder / "t0")
    held = {name for name, holders in before.items() if holders == {"t0"}}
    assert held
    cluster.wait(lambda: held <= cluster.columns().keys(), "all of them are elsewhere")
    removed = cluster.newer_command("target", "remove", "t0")
    assert removed.code == 0, removed.err
    newer.load(older)
    newer.load(newer)


def no_older_coordinator_is_obeyed(cluster: MixedCluster) -> None:
    """Neither on the catalog, nor on a copy from before, whatever its term."""
    moved = cluster.columns()
    coordinator = cluster.processes["coordinator"]
    cluster.end("coordinator")
    ended = cluster.start_coordinator(cluster.older, ready=False)
    assert ended.ended() != 0
    assert "has schema 3; this is 2" in coordinator.log
    connection = sqlite3.connect(cluster.folder / "copy" / "catalog.sqlite")
    connection.execute("UPDATE meta SET value = 100000 WHERE key = 'term'")
    connection.commit()
    connection.close()
    cluster.start_coordinator(cluster.older, "copy")
    for id in TARGETS[1:]:
        cluster.wait(
            lambda id=id: "older coordinator" in cluster.processes[id].log,  # type: ignore[misc]
            f"{id} does not obey",
        )
    assert '"state": "live"' not in cluster.command(cluster.older, "status", "--json").out
    cluster.start_coordinator(cluster.newer)
    cluster.wait_live(len(TARGETS) - 1)
    assert cluster.columns() == moved, "nothing was dropped"
