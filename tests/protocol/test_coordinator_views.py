"""What people and tools are told: the JSON is the interface, so its fields stand here once more."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt.base.ids import CheckpointId, PayloadId, Rank, RunName, Step, TargetId
from ckpt.format.messages.asking import Ask, DeleteStep, LabelStep, RollBack
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import ReportDamage, Resolve
from ckpt.format.messages.reading import ByteRange, DocumentKind
from ckpt.protocol.coordinator.reading.launch_round import RANKS_NAMED_MAX
from tests.protocol.coordinating import RUN, Bench, RankFake


def asked(bench: Bench, what: str, run: str | None = None, step: int | None = None) -> object:
    return bench.ask(what, run, step)


def status(bench: Bench) -> dict[str, object]:
    view = bench.ask("status")
    assert isinstance(view, dict)
    return view


def checks(bench: Bench) -> dict[str, str]:
    """Name to severity."""
    view = status(bench)["checks"]
    assert isinstance(view, list)
    return {check["name"]: check["severity"] for check in view}


def test_a_healthy_cluster_says_so() -> None:
    bench = Bench(3)
    bench.save(1)
    bench.save(2)
    view = status(bench)
    assert (view["health"], view["checks"], view["attempts"]) == ("HEALTH_OK", [], [])
    assert (view["cluster"], view["code"], view["term"]) == ("c1", "2+1", 1)
    assert view["runs"] == [
        {
            "run": "run",
            "steps": 2,
            "latest": 2,
            "bytes": 20_000,
            "committed_at_s": 1.5,
            "is_open": False,
        }
    ]
    targets = view["targets"]
    assert isinstance(targets, list)
    assert targets[0] == {
        "id": "t0", "state": "live", "domain": "p/r/h0/d0", "address": "t0:1", "pid": 1,
        "directory": "d/t0", "bytes_total": 1 << 40, "bytes_used": 0, "bytes_free": 1 << 40,
        "columns": 2, "boot": f"{1:016x}", "counters": {},
        "device_failing": False, "device_error": "", "device_errors": {}, "wire": "",
        "scrub": None,
        "standing": "in",
    }  # fmt: skip


def test_a_step_is_shown_with_what_may_be_lost_now_and_where_its_columns_are() -> None:
    bench = Bench(3)
    bench.save(1)
    bench.stop("t2")
    view = asked(bench, "show", RUN, 1)
    assert isinstance(view, dict)
    (generation,) = view["generations"]
    assert generation == {
        "run": "run", "step": 1, "generation": "1.1", "state": "committed", "newest": True,
        "bytes": 10_000, "world_size": 1, "code": "2+1", "targets_survivable": 0,
        "domains_survivable": 0, "domain_level": "host", "columns_missing": 1, "readable": True,
        "stall_s": 5e-06, "gpu_s": 5e-06, "commit_s": 0.0, "fault_in_s": 0.0, "committed_at_s": 1.5,
        "slowest_rank": 0, "slowest_target": "t0", "readers": 0, "reason": "",
        "targets_survivable_at_commit": 1, "domains_survivable_at_commit": 1, "warnings": [],
        "referenced_bytes": 0, "homes": [], "documents_missing": 0,
        "names": [], "pinned": False, "metrics": {}, "aside": False,
        "stored": [],
    }  # fmt: skip
    (columns,) = view["columns"]
    where = dict(zip(columns["targets"], columns["live"], strict=True))
    assert (columns["rank"], where) == (0, {"t0": True, "t1": True, "t2": False})


def test_health_names_what_is_down_degraded_out_of_reach_and_lost() -> None:
    bench = Bench(3)
    id = bench.save(1)
    bench.stop("t0")
    assert checks(bench) == {
        "TARGET_DOWN": "warning", "TOO_FEW_TARGETS": "error", "REDUNDANCY_LOW": "warning",
    }  # fmt: skip
    bench.stop("t1")
    assert checks(bench)["CHECKPOINT_UNREACHABLE"] == "error"
    for name in ("t0", "t1"):
        bench.start(name)
        for column in bench.targets[TargetId(name)].columns:
            bench.targets[TargetId(name)].damaged[column] = (ByteRange(0, 1),)
    bench.tell(bench.session(), ReportDamage(PayloadId(id, Rank(0)), "rotten"))
    assert checks(bench) == {"CHECKPOINT_LOST": "error"}
    assert status(bench)["health"] == "HEALTH_ERR"
    bench.stop("t0", "t1")
    assert checks(bench)["CHECKPOINT_LOST"] == "error"
    assert "CHECKPOINT_UNREACHABLE" not in checks(bench), "it is lost wherever they are"


def test_lost_copies_of_index_and_record_are_told_with_what_to_do() -> None:
    bench = Bench(5)
    id = bench.save(1)
    holder = lose_documents(bench, id, (DocumentKind.INDEX, DocumentKind.RECORD))
    (check,) = named(bench, "REDUNDANCY_LOW")
    assert (
        "1 checkpoint has less redundancy (2 copies of index or record missing): run@1"
        in (check["message"])
    )
    assert check["command"] == "ckpt repair", "the coordinator copies them"
    view = asked(bench, "show", RUN, 1)
    assert isinstance(view, dict)
    (generation,) = view["generations"]
    missing = (generation["columns_missing"], generation["documents_missing"])
    assert (missing, generation["targets_survivable"]) == ((0, 2), 0)
    index, record = view["documents"]
    assert dict(zip(index["targets"], index["live"], strict=True))[holder] is False
    assert (index["kind"], sum(index["live"]), index["copies"]) == ("index", 1, 2)
    assert (record["kind"], record["live"], record["copies"]) == ("record", [True], 2)


def test_a_lost_copy_of_the_record_alone_is_told_and_costs_no_promise() -> None:
    bench = Bench(4)
    lose_documents(bench, bench.save(1), (DocumentKind.RECORD,))
    (check,) = named(bench, "REDUNDANCY_LOW")
    assert "(1 copy of index or record missing)" in check["message"]
    (step,) = asked(bench, "steps", RUN)  # type: ignore[misc]
    # The catalog names the checkpoint: what is lost is a way to make the catalog again.
    assert (step["targets_survivable"], step["documents_missing"]) == (1, 1)


def test_targets_that_are_down_may_hold_the_copies_that_are_missing() -> None:
    bench = Bench(5)
    id = bench.save(1)
    record = bench.machine.checkpoints.get(id)
    assert record is not None
    (*_, holder) = record.index_targets
    bench.stop(holder)
    (check,) = named(bench, "REDUNDANCY_LOW")
    assert "2 copies of index or record missing" in check["message"]
    text, _, then = check["message"].rpartition("; ")
    assert text.endswith(f"on {holder}, which is down")
    later = "repair makes them again on others once that lasts for 5 min"
    assert then == f"{later}, at once where no more may be lost"
    assert check["targets"] == [holder]


def lose_documents(bench: Bench, id: CheckpointId, kinds: tuple[DocumentKind, ...]) -> TargetId:
    """One of their holders, which comes back without them."""
    checkpoint = bench.machine.checkpoints.get(id)
    assert checkpoint is not None
    holder = checkpoint.index_targets[0]
    for kind in kinds:
        del bench.targets[holder].documents[kind, id]
    bench.stop(holder)
    bench.start(holder)
    return holder


def named(bench: Bench, name: str) -> list[dict[str, Any]]:
    view = status(bench)["checks"]
    assert isinstance(view, list)
    return [check for check in view if check["name"] == name]


def test_a_target_without_room_for_connections_is_named_with_its_limit() -> None:
    bench = Bench(3)
    bench.machine.members.targets[TargetId("t1")].counters = {
        "connections_full": 1, "descriptor_limit": 1024,
    }  # fmt: skip
    (check,) = status(bench)["checks"]
    assert (check["name"], check["severity"]) == ("CONNECTIONS_FULL", "error")
    assert "target t1 has no room" in check["message"]
    assert "descriptor limit 1024" in check["message"]
    assert "LimitNOFILE" in check["remedy"]


def test_open_attempts_are_counted_rank_by_rank() -> None:
    bench = Bench()
    rank = RankFake(bench, 0, 2)
    rank.open(7)
    rank.seal_all()
    rank.certify()
    assert status(bench)["attempts"] == [
        {
            "run": "run", "step": 7, "generation": "1.1", "state": "open", "ranks_handed_over": 1,
            "ranks_certified": 1, "world_size": 2, "bytes": 10_000, "ranks_awaited": [1],
        }
    ]  # fmt: skip


def test_of_many_ranks_that_an_attempt_waits_for_the_first_are_named() -> None:
    bench = Bench()
    RankFake(bench, 2, 100).open(7)
    attempts = status(bench)["attempts"]
    assert isinstance(attempts, list)
    assert [attempt["ranks_awaited"] for attempt in attempts] == [list(range(RANKS_NAMED_MAX))]


def test_the_cost_of_a_step_is_the_longest_stall_once_for_each_rank() -> None:
    bench = Bench()
    bench.save(1, world_size=3)
    views = asked(bench, "steps", RUN)
    assert isinstance(views, list)
    assert [(view["stall_s"], view["gpu_s"]) for view in views] == [(7e-06, 2.1e-05)]


def test_a_pinned_step_says_so() -> None:
    bench = Bench()
    bench.save(1)
    bench.tell(bench.session(), Resolve(RUN, Step(1)))
    views = asked(bench, "steps", RUN)
    assert isinstance(views, list)
    assert [view["readers"] for view in views] == [1]


def test_unknown_questions_are_refused_and_unknown_steps_not_found() -> None:
    bench = Bench()
    assert asked(bench, "steps", "never was") == []
    assert asked(bench, "runs") == []
    for what, run, step, code in (
        ("secrets", None, None, "refused"),
        ("steps", None, None, "refused"),
        ("show", RUN, 3, "not_found"),
    ):
        failed = asked(bench, what, run, step)
        assert isinstance(failed, Failed)
        assert failed.code == code


@pytest.mark.parametrize(
    ("run", "step", "hint"),
    [
        ("run", 40, "its steps: 10, 20, 30"),
        ("runs", 10, "did you mean run?"),
        ("other", 10, "see ckpt ls"),
    ],
)
def test_whoever_names_a_checkpoint_that_is_not_there_hears_what_is(
    run: str, step: int, hint: str
) -> None:
    bench = Bench(3)
    for number in (10, 20, 30):
        bench.save(number)
    asked_for = RunName(run), Step(step)
    messages = (
        Ask("show", *asked_for), Resolve(*asked_for, timeout_us=0),
        LabelStep(*asked_for, add=("best",)), DeleteStep(*asked_for), RollBack(*asked_for),
    )  # fmt: skip
    for message in messages:
        (answer,) = bench.tell(bench.session(), message)
        assert isinstance(answer, Failed)
        assert (answer.code, answer.hint) == ("not_found", hint), message


def test_of_many_steps_the_newest_are_named() -> None:
    bench = Bench(3)
    for number in range(1, 11):
        bench.save(number)
    (answer,) = bench.tell(bench.session(), Ask("show", RUN, Step(40)))
    assert isinstance(answer, Failed)
    assert answer.hint == "its newest steps: 3, 4, 5, 6, 7, 8, 9, 10"
