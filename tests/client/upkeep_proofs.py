"""Proofs of the checks of scrub, repair and drain, for test_health_checks.py."""

from __future__ import annotations

import shlex
import sqlite3
from pathlib import Path

from ckpt.base.ids import TargetId
from ckpt.base.limits import LEASE_US
from ckpt.base.units import US_PER_S
from ckpt.format.messages.drains import ForgetStore
from ckpt.format.messages.hello import Role
from ckpt.protocol.coordinator.cluster.claims import CLAIM_US, REMOVED_RETRY_S
from ckpt.protocol.coordinator.reading.checks import WORKER_HEARD_S
from tests.client.checkkit import RUN_NAME, made
from tests.client.clikit import flip, run
from tests.protocol.coordinating import Bench
from tests.protocol.test_coordinator_draining import WorkerFake
from tests.protocol.test_coordinator_repairing import Worker as RepairWorkerFake
from tests.protocol.test_coordinator_repairing import holders
from tests.protocol.test_coordinator_standings import change, done
from tests.waiting import wait_until


def a_last_header_that_rots(folder: Path) -> None:
    with made(folder, repairs=False) as case:
        path = case.columns(1)[0]
        flip(path, -1)
        holder = path.parents[1].name
        assert run("scrub", holder, environ=case.environ).code == 3
        case.prove("ROT", f"^ckpt rm {RUN_NAME}@1$", f"1 part .*: {holder}: header 2 of column ")


def a_repair_that_is_paused(folder: Path) -> None:
    """With 2+1 the loss of one target leaves nothing to lose: its columns are due at once."""
    with made(folder) as case:
        assert run("repair", "pause", environ=case.environ).code == 0
        assert "nothing is to be made again" in (case.check("REPAIR_PAUSED") or {})["message"]
        case.kill("t1")
        case.prove("REPAIR_PAUSED", "^ckpt repair resume$", f"columns? .* made again: {RUN_NAME}@")


def a_store_that_nobody_serves(_folder: Path) -> None:
    """It stands after a minute only, so its proof is of the machine, in its own time."""
    bench = Bench()
    bench.save(1)
    worker = WorkerFake(bench)
    bench.close(worker.session)
    bench.tick(70)
    view = bench.ask("status")
    assert isinstance(view, dict)
    (found,) = view["checks"]
    assert (found["name"], found["severity"]) == ("DRAIN_STOPPED", "warning")
    words = shlex.split(found["command"])
    assert words[:3] == ["ckptd", "drain", "--to"]
    assert words[4] == "--coordinator"
    *_, forget = found["remedy"].rpartition("for good: ")
    assert shlex.split(forget) == ["ckpt", "drain", "forget", words[3]]
    bench.tell(bench.session(Role.ADMIN), ForgetStore(words[3]))
    view = bench.ask("status")
    assert isinstance(view, dict)
    assert view["checks"] == []


def moves_that_nobody_makes(_folder: Path) -> None:
    """In the machine's own time; its command is that of a worker, which one asks for work."""
    bench = Bench(5)
    id = bench.save(1)
    leaving = holders(bench, id)[0]
    done(change(bench, leaving.id, "draining"))
    bench.tick(7)
    view = bench.ask("status")
    assert isinstance(view, dict)
    (found,) = view["checks"]
    assert (found["name"], found["severity"]) == ("MOVES_STOPPED", "warning")
    assert found["message"] == f"no repair worker is heard: {leaving.id} is draining"
    assert shlex.split(found["command"])[:3] == ["ckptd", "repair", "--coordinator"]
    RepairWorkerFake(bench).lease()
    view = bench.ask("status")
    assert isinstance(view, dict)
    assert view["checks"] == []
    bench.tick(WORKER_HEARD_S)
    view = bench.ask("status")
    assert isinstance(view, dict)
    assert [each["name"] for each in view["checks"]] == ["MOVES_STOPPED"], "it has left"
    done(change(bench, leaving.id, "in"))
    bench.tick(7)
    view = bench.ask("status")
    assert isinstance(view, dict)
    assert view["checks"] == []


def a_removed_target_that_runs(_folder: Path) -> None:
    """In the machine's own time: its process knocks once a minute, and is of another host."""
    bench = Bench(5)
    gone = bench.targets[TargetId("t4")]
    bench.stop(gone.id)
    bench.tick(LEASE_US / US_PER_S)
    done(change(bench, gone.id, "removed"))

    def named() -> list[dict[str, str]]:
        view = bench.ask("status")
        assert isinstance(view, dict)
        return list(view["checks"])

    assert named() == []
    for _ in range(2):
        bench.start(gone)
        bench.tick(REMOVED_RETRY_S)
        (found,) = named()
        assert (found["name"], found["severity"]) == ("TARGET_REMOVED", "warning")
        assert found["message"].startswith("target t4 was removed from this cluster, for good: ")
        assert found["command"] == "ssh t4 kill 1"
    # It has ended.
    bench.tick(CLAIM_US / US_PER_S)
    assert named() == []


def an_upgrade_that_is_not_finished(folder: Path) -> None:
    """Catalog and targets as an earlier version leaves them."""
    with made(folder) as case:

        def before() -> None:
            for note in case.directory.glob("targets/*/protocol"):
                note.unlink()
            connection = sqlite3.connect(case.directory / "catalog.sqlite")
            connection.execute("DELETE FROM meta WHERE key = 'protocol'")
            connection.execute("PRAGMA user_version = 2")
            connection.commit()
            connection.close()

        case.rested(before)
        assert run("target", "drain", "t1", environ=case.environ).code == 2
        case.prove("UPGRADE_UNFINISHED", "^ckpt upgrade finish$", "no column moves")
        kept = lambda: len(list(case.directory.glob("targets/*/protocol"))) == 4  # noqa: E731
        wait_until(kept, "each target has kept it")
