"""When the demo kills, whom, and how it judges what it saw."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ckpt.base.errors import Refused
from ckpt.protocol.coordinator.reading.answers import StepView
from ckpt_client.demo import director
from ckpt_client.demo.course import Course, CourseOutcome, Said, StrikeRecord
from ckpt_client.demo.judge import judge
from ckpt_client.demo.options import DemoOptions
from ckpt_client.demo.strike import (
    AttemptNow,
    ColumnsNow,
    Glimpse,
    StatusNow,
    StrikeWatch,
    TargetNow,
    choose_victims,
)
from ckpt_client.demo.words import Finished, Resumed
from ckpt_client.local.processes import (
    MARK_NAME,
    end_marked,
    find_marked,
    frozen,
    kill_processes,
    marked_environment,
)
from tests.waiting import wait_until

RANKS = 2


def status(*fragments: int, attempt: int | None = None, certified: int = 0) -> StatusNow:
    targets = tuple(
        TargetNow(f"t{number}", "up", 100 + number, {"fragments": count})
        for number, count in enumerate(fragments)
    )
    attempts = () if attempt is None else (AttemptNow("demo", attempt, certified),)
    return StatusNow(targets, attempts)


def test_a_burst_can_be_struck_between_its_first_and_its_last_fragment() -> None:
    watch = StrikeWatch(8, 120, 120)
    assert watch.look(status(60, 60)) is None
    assert watch.look(status(60, 60, attempt=8)) is None
    assert watch.look(status(61, 60, attempt=8)) == Glimpse(8, 1, 120)
    assert watch.look(status(120, 119, attempt=8)) == Glimpse(8, 119, 120)
    assert watch.look(status(120, 120, attempt=8)) is None
    assert watch.look(status(61, 60, attempt=4)) is None


def test_a_burst_that_got_away_is_waited_for_no_longer() -> None:
    watch = StrikeWatch(8, 120, 120)
    assert not watch.is_over(status(60, 60))
    assert not watch.is_over(status(60, 60, attempt=8))
    assert not watch.is_over(status(90, 90, attempt=8))
    certified = status(90, 90, attempt=8, certified=1)
    assert watch.is_over(certified)
    assert watch.look(certified) is None
    assert watch.is_over(status(120, 120))


def test_the_victims_hold_data_columns_of_every_rank() -> None:
    columns = [
        ColumnsNow(0, ("t0", "t1", "t2", "t3", "t4", "t5")),
        ColumnsNow(1, ("t6", "t2", "t3", "t4", "t0", "t1")),
        ColumnsNow(2, ("t5", "t6", "t1", "t0", "t2", "t3")),
    ]
    victims = choose_victims(columns, 4, 2)
    assert len(victims) == 2
    for each in columns:
        assert any(name in each.targets[:4] for name in victims)
    assert choose_victims(columns, 4, 2) == victims


def test_a_lost_column_has_no_target_to_kill() -> None:
    assert choose_victims([ColumnsNow(0, ("t0", None, "t1"))], 2, 2) == ("t0", "t1")


# --------------------------------------------------------------------------- judging


def finished(loss: str = "0x1.8p+1", parameters: str = "p", moments: str = "m") -> Finished:
    return Finished(parameters, moments, [loss] * 8, [loss] * 8)


def view(step: int, survivable: int) -> StepView:
    return StepView(
        "demo", step, f"1.{step}", "committed", False, 1 << 20, RANKS, "4+2", survivable, 0,
        "device", 0, True, 0.01, 0.5, 0.0, 0.0, 0, "t0", "", survivable, 0,
    )  # fmt: skip


def good_outcome() -> CourseOutcome:
    strike = StrikeRecord(
        Glimpse(6, 10, 120), ("t1", "t2"), AttemptNow("demo", 6, 0), RANKS, RANKS, 1.0, 6, 4
    )
    resumed = {rank: Resumed(4, 1000, 500, 0.1, "tier", "") for rank in range(RANKS)}
    ends = {rank: finished(moments=f"m{rank}") for rank in range(RANKS)}
    after = Said(resumed=resumed, finished=dict(ends), first_step_s=2.5)
    return CourseOutcome(
        RANKS, 8, ends, strike, Said(), after, [view(2, 2), view(4, 2)],
        [view(2, 0), view(4, 0), view(6, 1), view(8, 1)], stopped=True,
    )  # fmt: skip


def failed(outcome: CourseOutcome) -> list[str]:
    return [check.name for check in judge(outcome, 9.0)[0] if not check.held]


def test_a_run_as_it_should_be_passes_every_check() -> None:
    checks, figures = judge(good_outcome(), 9.0)
    assert all(check.held for check in checks), checks
    assert figures is not None
    assert (figures.rebuilt_bytes, figures.steps_repeated, figures.resume_s) == (1000, 2, 1.5)
    assert figures.saves_committed == 4
    assert figures.redundancy_before.startswith("survives 2 targets")
    assert figures.redundancy_after.startswith("survives 1 target")


def test_each_claim_that_does_not_hold_fails_its_own_check() -> None:
    assert failed(replace(good_outcome(), strike=None)) == [
        "two targets were killed inside a burst"
    ]
    outcome = good_outcome()
    assert outcome.strike is not None
    late = replace(outcome.strike, attempt_after=None)
    assert failed(replace(outcome, strike=late)) == ["two targets were killed inside a burst"]
    few = replace(outcome.strike, stager_count=1)
    assert failed(replace(outcome, strike=few)) == ["all trainers and their stagers were killed"]
    old = replace(outcome.strike, newest_committed=6)
    assert failed(replace(outcome, strike=old)) == [
        "all ranks resumed from the newest committed step"
    ]

    outcome = good_outcome()
    for rank in range(RANKS):
        outcome.after.resumed[rank] = Resumed(4, 1000, 0, 0.1, "tier", "")
    assert failed(outcome) == ["lost columns were rebuilt from parity"]

    outcome = good_outcome()
    outcome.after.finished[1] = finished(parameters="q", moments="m1")
    assert failed(outcome) == ["parameters are bit-identical to the control run's"]
    outcome.after.finished[1] = finished(moments="other")
    assert failed(outcome) == ["optimizer state is bit-identical, rank by rank"]
    outcome.after.finished[1] = finished("0x1.80001p+1", moments="m1")
    assert failed(outcome) == ["every loss is bit-identical, rank by rank"]
    del outcome.after.finished[1]
    assert len(failed(outcome)) == 3
    short = replace(good_outcome(), committed=[view(2, 1), view(4, 1)])
    assert failed(short) == ["saves went on with the targets that were left"]


def ended_with(
    outcome: CourseOutcome, monkeypatch: pytest.MonkeyPatch, *, as_json: bool = False
) -> int:
    """The exit code of a demo that saw this."""

    class Seen(Course):
        """The course is over."""

        def run(self) -> CourseOutcome:
            return outcome

    monkeypatch.setattr(director, "Course", Seen)
    return director.run(DemoOptions(json=as_json))


def test_the_exit_code_is_0_only_if_every_check_held_and_bytes_were_rebuilt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ended_with(good_outcome(), monkeypatch) == 0
    nothing_rebuilt = good_outcome()
    for rank in range(RANKS):
        nothing_rebuilt.after.resumed[rank] = Resumed(4, 1000, 0, 0.1, "tier", "")
    assert ended_with(nothing_rebuilt, monkeypatch) == 1
    assert ended_with(replace(good_outcome(), strike=None), monkeypatch) == 1
    assert ended_with(replace(good_outcome(), stopped=False), monkeypatch) == 1


def test_the_last_line_of_json_is_the_whole_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended_with(good_outcome(), monkeypatch, as_json=True) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["message_type"], summary["ok"], len(summary["checks"])) == ("summary", True, 9)
    _, figures = judge(good_outcome(), 9.0)
    assert figures is not None
    told = summary["figures"]
    before = {"bytes_read": figures.read_bytes, "bytes_rebuilt": figures.rebuilt_bytes}
    assert told == {**asdict(figures), **before, "total_s": told["total_s"]}, "0.1.0's names too"


def test_options_that_do_not_fit_are_refused() -> None:
    for wrong in (
        {"code": "4+1"},
        {"targets": 6},
        {"steps": 10},
        {"ranks": 0},
        {"width": 10},
    ):
        with pytest.raises(Refused):
            DemoOptions(**wrong)  # type: ignore[arg-type]


# --------------------------------------------------------------------------- processes


def test_what_carries_the_mark_is_found_and_ended_and_nothing_else(tmp_path: Path) -> None:
    before = dict(os.environ)
    command = [sys.executable, "-c", "import signal; signal.pause()", "ckpt_client.stager"]
    with marked_environment("one", tmp_path):
        assert os.environ[MARK_NAME] == "one"
        ours = subprocess.Popen(command)
    assert dict(os.environ) == before
    with marked_environment("other", tmp_path):
        others = subprocess.Popen(command)
    try:
        wait_until(
            lambda: [one.pid for one in find_marked("one") if one.is_stager] == [ours.pid],
            "the marked process",
        )
        assert kill_processes([ours.pid], signal.SIGKILL, 10.0) == set()
        assert ours.wait() == -signal.SIGKILL
        assert end_marked("one", 10.0) == set()
        assert others.poll() is None
    finally:
        others.kill()
        others.wait()


def test_a_process_that_is_gone_needs_no_signal() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert kill_processes([done.pid], signal.SIGKILL, 1.0) == set()
    with frozen([done.pid]):
        assert kill_processes([done.pid], signal.SIGKILL, 1.0) == set()


def test_a_frozen_process_stands_still_goes_on_and_can_be_killed_meanwhile() -> None:
    code = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with frozen([child.pid]):
            wait_until(lambda: state_of(child.pid) == "T", "the child that stands still")
        child.stdin.write("after\n")
        child.stdin.flush()
        assert child.stdout.readline() == "after\n"
        with frozen([child.pid]):
            assert kill_processes([child.pid], signal.SIGKILL, 10.0) == set()
        assert child.wait() == -signal.SIGKILL


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def test_a_process_that_ignores_the_signal_is_named() -> None:
    code = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print(1, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        assert kill_processes([stubborn.pid], signal.SIGTERM, 0.1) == {stubborn.pid}
        stubborn.kill()
