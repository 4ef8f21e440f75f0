"""Which command a health check names: never one that loses what still comes back by itself."""

from __future__ import annotations

import dataclasses

import pytest

from ckpt.base.shell_words import at_host, quoted
from ckpt.format.messages.hello import Role
from ckpt.format.messages.repairs import SetRepair
from ckpt.protocol.coordinator.reading.checks import WORKER_HEARD_S
from tests.protocol.coordinating import SECOND_US, Bench
from tests.protocol.test_coordinator_repairing import Worker, holders, wipe
from tests.protocol.test_coordinator_scrubs import CELLS, RECORD, tell


def advice(bench: Bench, name: str) -> tuple[str, str]:
    """Remedy and command of that check."""
    view = bench.ask("status")
    assert isinstance(view, dict)
    (found,) = [each for each in view["checks"] if each["name"] == name]
    return found["remedy"], found["command"]


def repair_command(bench: Bench) -> str:
    view = bench.ask("status")
    assert isinstance(view, dict)
    return f"ckptd repair --coordinator {quoted(view['coordinator']['address'])}"


def test_a_target_is_started_by_its_name_and_at_its_address() -> None:
    """Without its name a mount point without its disk would join as another target, and without
    its address it would listen where other hosts do not come.
    """
    bench = Bench(4)
    target = next(iter(bench.targets.values()))
    address = bench.machine.members.targets[target.id].address
    bench.stop(target.id)
    _, command = advice(bench, "TARGET_DOWN")
    assert command.startswith(f"ckptd target --id {target.id} --directory ")
    assert f" --listen {address} " in command
    bench.restart(*(id for id in bench.targets if id != target.id))
    _, command = advice(bench, "TARGET_DOWN")
    assert " --listen HOST:PORT " in command, "a coordinator that never saw it cannot say where"


def test_no_checkpoint_is_dropped_while_repair_makes_again_what_it_lacks() -> None:
    bench = Bench(5)
    id = bench.save(1)
    wipe(bench, holders(bench, id)[1])
    assert advice(bench, "REDUNDANCY_LOW")[1] == repair_command(bench)
    worker = Worker(bench)
    worker.lease()
    assert advice(bench, "REDUNDANCY_LOW")[1] == "ckpt repair --wait"
    bench.close(worker.session)
    bench.now_us += round(WORKER_HEARD_S * SECOND_US)
    assert advice(bench, "REDUNDANCY_LOW")[1] == repair_command(bench)
    bench.tell(bench.session(Role.ADMIN), SetRepair(paused=True))
    assert advice(bench, "REDUNDANCY_LOW")[1] == "ckpt repair resume"


def test_rot_of_columns_is_for_a_worker_and_rot_of_documents_for_the_coordinator() -> None:
    bench = Bench(4)
    tell(bench, "t2", RECORD)
    assert advice(bench, "ROT")[1] == "ckpt repair"
    tell(bench, "t2", RECORD, CELLS)
    assert advice(bench, "ROT")[1] == repair_command(bench)
    Worker(bench).lease()
    remedy, command = advice(bench, "ROT")
    assert command == "ckpt repair --wait"
    assert remedy.endswith("a worker makes it again: wait for that")


def test_where_nothing_is_made_again_the_next_save_takes_the_place_of_what_rots() -> None:
    bench = Bench(4)
    bench.policy = dataclasses.replace(bench.policy, rebuild_after_us=None)
    bench.restart(*bench.targets)
    tell(bench, "t2", CELLS)
    remedy, command = advice(bench, "ROT")
    assert remedy.endswith("the next save has all of its own, then drop this one")
    assert command == "ckpt rm 'a run@7'"


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("10.0.0.2:7071", "ssh 10.0.0.2 kill 7"),
        ("node2:7071", "ssh node2 kill 7"),
        ("[fd00::2]:7071", "ssh fd00::2 kill 7"),
        ("127.0.0.1:7071", "kill 7"),
        ("[::1]:7071", "kill 7"),
        ("localhost:7071", "kill 7"),
        ("", "kill 7"),
    ],
)
def test_a_process_of_another_host_is_ended_there(address: str, line: str) -> None:
    """Its number may be that of any process where the advice is read."""
    assert at_host(address, "kill 7") == line
