"""A device that fills: told before it is full, with who holds it and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt.base.ids import TargetId
from ckpt.base.units import MiB
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.targets import Reserve
from ckpt.protocol.coordinator.cluster.devices import device_spaces
from ckpt.protocol.coordinator.policy import FillMarks
from tests.protocol.coordinating import Bench, RankFake
from tests.protocol.test_coordinator_draining import WorkerFake
from tests.protocol.test_coordinator_evicting import drain_all
from tests.protocol.test_coordinator_labeling import label

USABLE: int = 1000 * MiB


def fill(bench: Bench, *targets: str, taken: float, reserved: int = 0, columns: int = 0) -> None:
    """So much of what each may use is taken, by columns and by other files; they say so at once."""
    for name in targets:
        target = bench.targets[TargetId(name)]
        target.bytes_free = round(USABLE * (1 - taken)) - reserved
        target.bytes_used = columns
        target.counters = {
            "usable_bytes": USABLE, "reserved_bytes": reserved,
            "device_used_bytes": USABLE - target.bytes_free,
        }  # fmt: skip
    bench.tick()


def checks(bench: Bench) -> dict[str, Any]:
    view = bench.ask("status")
    assert isinstance(view, dict)
    return {check["name"]: check for check in view["checks"]}


def test_a_device_is_nearly_full_then_full_with_who_holds_it() -> None:
    bench = Bench(4)
    fill(bench, "t1", taken=0.84)
    assert checks(bench) == {}
    fill(bench, "t1", taken=0.86, reserved=60 * MiB)
    found = checks(bench)
    assert set(found) == {"TARGET_NEARFULL"}
    near = found["TARGET_NEARFULL"]
    assert near["severity"] == "warning"
    assert near["message"] == (
        "t1 (p/r/h1/d1): 86% taken; ckpt's columns 0 B, other files 860 MiB, "
        "reserved for saves 60 MiB, 80 MiB free"
    )
    fill(bench, "t1", taken=0.95)
    found = checks(bench)
    assert {name: check["severity"] for name, check in found.items()} == {"TARGET_FULL": "error"}
    fill(bench, "t1", taken=0.1)
    assert checks(bench) == {}


def test_what_goes_by_itself_is_room() -> None:
    """Beside a store a tier is always as full as its watermarks allow."""
    bench = Bench(3)
    worker = WorkerFake(bench)
    for step in range(1, 6):
        bench.save(step)
    targets = [str(id) for id in bench.targets]
    freed = 5 * 10_000 / 2
    share = freed / USABLE
    fill(bench, *targets, taken=0.95 + share / 2)
    assert set(checks(bench)) == {"TARGET_FULL"}, "nothing is drained yet"
    drain_all(worker)
    assert set(checks(bench)) == {"TARGET_NEARFULL"}


def test_a_device_full_of_other_files_wants_them_removed() -> None:
    bench = Bench(4)
    bench.save(1)
    bench.save(2)
    fill(bench, "t1", taken=0.99)
    full = checks(bench)["TARGET_FULL"]
    assert "other files hold most of it: remove them" in full["remedy"]


def test_a_device_full_of_columns_wants_the_oldest_step_that_is_not_the_newest_removed() -> None:
    bench = Bench(3)
    for step in (1, 2):
        bench.save(step)
    fill(bench, "t0", taken=0.99, columns=600 * MiB)
    assert checks(bench)["TARGET_FULL"]["command"] == "ckpt rm run@1"


def test_the_oldest_step_is_named_for_removal_whatever_clocks_say() -> None:
    bench = Bench(3)
    bench.wall_s += 3600
    bench.save(1)
    bench.wall_s -= 3600
    for step in (2, 3):
        bench.save(step)
    fill(bench, "t0", taken=0.99, columns=600 * MiB)
    assert checks(bench)["TARGET_FULL"]["command"] == "ckpt rm run@1"


def test_what_has_a_name_is_not_named_for_removal_and_a_refused_save_says_that_it_stays() -> None:
    bench = Bench(3)
    for step in (1, 2, 3):
        bench.save(step)
    label(bench, 1, add=("best",))
    fill(bench, "t0", "t1", "t2", taken=0.99, columns=600 * MiB)
    assert checks(bench)["TARGET_FULL"]["command"] == "ckpt rm run@2"
    rank = RankFake(bench)
    rank.payload_bytes = 400 * MiB
    rank.open(4)
    kept = "1 of 3 checkpoints stay, since they have a name or are pinned"
    assert kept in rank.aborts()[-1].message


def test_a_device_full_of_the_newest_step_of_each_run_wants_more_targets() -> None:
    bench = Bench(3)
    bench.save(1)
    fill(bench, "t0", taken=0.99, columns=600 * MiB)
    full = checks(bench)["TARGET_FULL"]
    assert full["command"].startswith("ckptd target --id NEW_ID --directory NEW_DIR --coordinator ")
    assert full["command"].endswith(" --listen HOST:PORT"), "nobody reaches the loopback's"


def test_targets_of_one_device_are_told_as_one() -> None:
    bench = Bench(4, hosts=1, max_per_domain=4)
    for name in ("t1", "t2"):
        target = bench.targets[TargetId(name)]
        bench.stop(name)
        target.domain = "p/r/h0/d9"
        bench.start(name)
    fill(bench, "t1", "t2", taken=0.9)
    assert checks(bench)["TARGET_NEARFULL"]["message"].startswith("t1, t2 (p/r/h0/d9): 90% taken")


@pytest.mark.parametrize(
    ("level", "why", "remedy"),
    [("inodes_out", "it has no inodes left for more files", "remove small files there (df -i"),
     ("room_refused", "it refuses space that it says is free", "raise the quota")],
)  # fmt: skip
def test_a_device_that_takes_no_more_although_bytes_are_free_is_full_and_says_why(
    level: str, why: str, remedy: str
) -> None:
    bench = Bench(4)
    bench.save(1)
    bench.save(2)
    fill(bench, "t1", taken=0.1, columns=90 * MiB)
    bench.targets[TargetId("t1")].counters[level] = 1
    bench.tick()
    full = checks(bench)["TARGET_FULL"]
    assert full["message"].startswith("t1 (p/r/h1/d1): 10% taken; ckpt's columns 90 MiB")
    assert f"900 MiB free; {why}" in full["message"]
    assert full["remedy"].startswith(remedy)
    assert full["command"] == "", "no step that is deleted mends it"
    bench.targets[TargetId("t1")].counters[level] = 0
    bench.tick()
    assert checks(bench) == {}


def test_what_is_reserved_for_the_saves_to_come_fills_nothing() -> None:
    bench = Bench(3)
    fill(bench, "t0", taken=0.8, reserved=200 * MiB)
    assert checks(bench) == {}


def test_the_marks_are_the_cluster_s() -> None:
    bench = Bench(3, fill=FillMarks(near=0.5, full=0.6))
    fill(bench, "t0", taken=0.55)
    fill(bench, "t1", taken=0.65)
    assert set(checks(bench)) == {"TARGET_NEARFULL", "TARGET_FULL"}


def test_a_save_without_space_hears_who_holds_the_devices_and_what_to_do_next() -> None:
    bench = Bench(3)
    bench.save(1)
    rank = RankFake(bench)
    rank.payload_bytes = 400 * MiB
    fill(bench, "t0", "t1", "t2", taken=0.85, columns=50 * MiB, reserved=50 * MiB)
    rank.open(2)
    (abort,) = rank.aborts()
    assert abort.code == "no_space"
    assert "t0 (p/r/h0/d0): 85% taken; ckpt's columns 50 MiB, other files 800 MiB" in abort.message
    assert "reserved for saves 50 MiB, 100 MiB free" in abort.message
    assert abort.hint == "other files hold most of it: remove them, or add targets"
    fill(bench, "t0", "t1", "t2", taken=0.9, columns=900 * MiB)
    rank.open(3)
    assert rank.aborts()[-1].hint == "delete steps (ckpt rm RUN@STEP) or add targets"


def test_figures_that_do_not_explain_a_refusal_are_left_out() -> None:
    """A device that is filled within a second refuses before its targets have said so: the error
    spoke of 148 MiB free.
    """
    bench = Bench(3)
    rank = RankFake(bench)
    fill(bench, "t0", "t1", "t2", taken=0.1)
    for target in bench.targets.values():
        target.refuses[Reserve] = Failed("no_space", "the device is full")
    rank.open(2)
    (abort,) = rank.aborts()
    assert abort.code == "no_space"
    assert "no space for columns" in abort.message
    assert "free" not in abort.message


def test_of_a_shared_device_who_has_spoken_last_knows_best() -> None:
    bench = Bench(2)
    early, late = bench.machine.members.targets.values()
    late.domain = early.domain
    early.device_bytes_free, late.device_bytes_free = 900 * MiB, 10 * MiB
    late.lease_ends_us = early.lease_ends_us + 1
    for target, used in ((early, 100), (late, 990)):
        target.counters = {"usable_bytes": USABLE, "device_used_bytes": used * MiB}
    (device,) = device_spaces([early, late])
    assert (device.free_bytes, device.usable_bytes, device.taken) == (10 * MiB, USABLE, 0.99)
