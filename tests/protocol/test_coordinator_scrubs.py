"""What targets say of the bytes that they keep: shown, and a health check while it is so."""

from __future__ import annotations

from ckpt.base.ids import CheckpointId, Generation, RunName, Step, TargetId
from ckpt.format.messages.reading import Damage
from ckpt.format.messages.targets import ROT_NAMED_MAX, RenewLease, Rot, ScrubReport
from tests.protocol.coordinating import RUN, Bench

ID = CheckpointId(RunName("a run"), Step(7), Generation(1, 4))
CELLS = Rot(ID, Damage("column", "cells", 4096, 8192, "checksum"), rank=3, column=1)
RECORD = Rot(ID, Damage("record", "copy 2", 8192, 8300, "EIO"))
TOMBSTONE = Rot(ID, Damage("tombstone", "copy 1", 4096, 4100, "digest"))


def tell(bench: Bench, id: str, *rot: Rot, count: int | None = None) -> None:
    """The target's next renewal has found so much."""
    report = ScrubReport(604_800.0, 10, 20, 15, 0, len(rot) if count is None else count, rot)
    target = bench.targets[TargetId(id)]
    assert target.session is not None
    renewal = RenewLease(target.id, target.boot, *target.space, scrub=report)
    bench.tell(target.session, renewal)


def status(bench: Bench) -> dict[str, list[dict[str, object]]]:
    view = bench.ask("status")
    assert isinstance(view, dict)
    return view


def test_rot_is_named_until_its_target_has_none_any_more() -> None:
    bench = Bench(4)
    tell(bench, "t2", CELLS, RECORD)
    (found,) = status(bench)["checks"]
    assert (found["name"], found["severity"]) == ("ROT", "warning")
    assert found["message"] == (
        "2 parts of files at rest are damaged: "
        "t2: cells of column 1 of rank 3 of a run@7#1.4 (checksum); "
        "t2: copy 2 of record of a run@7#1.4 (EIO)"
    )
    tell(bench, "t2", RECORD, count=40)
    (found,) = status(bench)["checks"]
    assert str(found["message"]).startswith("40 parts of files")
    tell(bench, "t2")
    assert status(bench)["checks"] == []


def test_a_damaged_tombstone_is_shown_and_wants_nothing() -> None:
    bench = Bench(4)
    tell(bench, "t1", TOMBSTONE)
    assert status(bench)["checks"] == []
    (view,) = (each for each in status(bench)["targets"] if each["id"] == "t1")
    assert view["scrub"] == {
        "period_s": 604_800.0, "pass_began_s": 10, "pass_ended_s": 20, "oldest_s": 15, "late_s": 0,
        "rot_count": 1, "whole_since_s": 0, "rot": [
            {
                "run": "a run", "step": 7, "generation": "1.4", "kind": "tombstone", "rank": None,
                "column": None, "region": "copy 1", "start": 4096, "end": 4100, "why": "digest",
            }
        ],
    }  # fmt: skip
    tell(bench, "t1", TOMBSTONE, CELLS)
    (found,) = status(bench)["checks"]
    assert str(found["message"]).startswith("1 part of files at rest is damaged: t1: cells ")


def test_a_renewal_that_says_nothing_of_it_changes_nothing() -> None:
    bench = Bench(4)
    tell(bench, "t0", CELLS)
    target = bench.targets[TargetId("t0")]
    assert target.session is not None
    bench.tell(target.session, RenewLease(target.id, target.boot, *target.space))
    assert [each["name"] for each in status(bench)["checks"]] == ["ROT"]


def test_no_more_than_its_bound_is_shown_of_one_target() -> None:
    bench = Bench(4)
    tell(bench, "t0", *[CELLS] * (ROT_NAMED_MAX + 5))
    (view,) = (each for each in status(bench)["targets"] if each["id"] == "t0")
    scrub = view["scrub"]
    assert isinstance(scrub, dict)
    assert (scrub["rot_count"], len(scrub["rot"])) == (ROT_NAMED_MAX + 5, ROT_NAMED_MAX)


def read_since(bench: Bench, **seconds: int) -> None:
    """The passes that are over on these targets began then."""
    for id, at_s in seconds.items():
        target = bench.targets[TargetId(id)]
        assert target.session is not None
        report = ScrubReport(whole_since_s=at_s)
        bench.tell(target.session, RenewLease(target.id, target.boot, *target.space, scrub=report))


def reading(bench: Bench, step: int = 1) -> dict[str, object]:
    view = bench.ask("show", RUN, step)
    assert isinstance(view, dict)
    found = view["reading"]
    assert isinstance(found, dict)
    return found


def test_a_checkpoint_was_read_since_its_targets_oldest_pass_that_is_over() -> None:
    bench = Bench(3)
    bench.save(1)
    nobody = {"since_s": 0, "target": "", "read": [], "unread": ["t0", "t1", "t2"], "away": []}
    assert reading(bench) == nobody
    read_since(bench, t0=90, t1=70, t2=80)
    assert reading(bench) == {
        "since_s": 70, "target": "t1", "read": ["t0", "t1", "t2"], "unread": [], "away": [],
    }  # fmt: skip


def test_a_pass_that_began_before_the_commit_reads_nothing_of_it() -> None:
    """It was committed at 1.5 s: what was sealed after its begin is not read by it."""
    bench = Bench(3)
    bench.save(1)
    read_since(bench, t0=90, t1=1, t2=80)
    found = reading(bench)
    assert (found["since_s"], found["target"], found["unread"]) == (80, "t2", ["t1"])


def test_what_is_away_was_not_read_as_far_as_can_be_told() -> None:
    bench = Bench(3)
    bench.save(1)
    read_since(bench, t0=90, t1=70, t2=80)
    bench.stop("t1")
    found = reading(bench)
    assert (found["since_s"], found["read"], found["away"]) == (80, ["t0", "t2"], ["t1"])


def test_a_target_without_a_column_of_it_has_no_say() -> None:
    bench = Bench(4)
    bench.save(1)
    read_since(bench, t0=90, t1=91, t2=92, t3=93)
    view = bench.ask("show", RUN, 1)
    assert isinstance(view, dict)
    holders = {id for each in (*view["columns"], *view["documents"]) for id in each["targets"]}
    assert set(view["reading"]["read"]) == holders
