"""Tiny jobs through real clusters and files: everything adds up, nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ckpt.base.errors import Refused
from ckpt.erasure.code import Code
from ckpt_client.local.processes import Marked, find_marked
from ckptbench.checks import find_goals
from ckptbench.cli import main
from ckptbench.cluster import BenchCluster, ClusterPlan
from ckptbench.commands.goals import goal_jobs
from ckptbench.commands.run import local_ranks
from ckptbench.job.flags import parse_flags
from ckptbench.job.grammar import Words, parse_file
from ckptbench.job.jobs import JobList, build_jobs
from ckptbench.rank import RankPlan
from ckptbench.ranks import RankGroup
from ckptbench.report.drawing import draw
from ckptbench.report.text import run_text
from ckptbench.results import CheckpointFigures, JobResult, RunResult
from ckptbench.run.session import check_all, run_jobs
from ckptbench.run.shelf import Context
from tests.landing import in_turn
from tests.waiting import wait_until

WORDS = Words({}, {})


def run(text: str, *flags: str) -> RunResult:
    """A job file, as the command runs it, without a network namespace."""
    files = [parse_file("job", lambda path: text, WORDS)]
    jobs = build_jobs(files, parse_flags(flags, WORDS).everywhere)
    check_all(jobs, isolated=False)
    return run_jobs(jobs, Context(False, local_ranks, 1, lambda name, one: None))


def sound(job: JobResult, *kinds: str) -> None:
    """It ran, and what it did is of these kinds."""
    assert job.errors == ()
    assert job.exit_code == 0
    assert [one.kind for one in job.checkpoints if one.counts] == list(kinds)
    assert job.verified


def test_the_tier_is_saved_to_struck_loaded_resharded_and_degraded(tmp_path: Path) -> None:
    found = run(
        f"""
        [global]
        directory={tmp_path}
        numjobs=2
        size=4Mi
        tensor_size=64k-1Mi
        dtype=bfloat16
        code=2+1
        targets=4
        [save]
        rw=write
        verify=0
        fault=kill:target=1@before
        [mixed]
        stonewall
        rw=mixed
        [reshard]
        stonewall
        rw=reshard
        readers=3
        [degraded]
        stonewall
        reader=rotate
        rw=degraded
        """
    )
    save, mixed, reshard, degraded = found.jobs
    assert (save.errors, save.verified) == ((), None)
    assert save.checkpoints[-1].faults == ("kill t1 before it",)
    assert {seal.target for seal in save.checkpoints[-1].seals} <= {"t0", "t2", "t3"}
    sound(mixed, "save", "load")
    assert mixed.checkpoints[1].step == mixed.checkpoints[0].step - 1
    sound(reshard, "reshard")
    assert len(reshard.checkpoints[0].ranks) == 3
    sound(degraded, "load", "degraded")
    assert degraded.checkpoints[1].rebuilt_bytes > 0
    assert degraded.checkpoints[0].step == mixed.checkpoints[0].step
    assert {one.source for one in degraded.checkpoints} == {"tier"}
    assert "from parity" in run_text(found)
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_is_killed_in_a_save_is_marked_at_its_moment(tmp_path: Path) -> None:
    flags = ["--numjobs=2", "--size=32Mi", "--code=2+1", "--targets=4", f"--directory={tmp_path}"]
    (job,) = run("[save]\nrw=save\nverify=0\nfault=kill:target=1@1ms", *flags).jobs
    (one,) = job.checkpoints
    (strike,) = one.strikes
    assert (strike.target, strike.kind) == ("t1", "kill")
    assert 0 < strike.at_ns < one.last_ns
    (drawing,) = draw(job)
    assert [lane.strikes for lane in drawing.lanes if lane.name == "t1"] == [
        ((strike.at_ns / 1e6, "kill"),)
    ]


def test_a_step_is_drained_and_fetched_back_with_the_report_of_any_job(tmp_path: Path) -> None:
    store = tmp_path / "store"
    found = run(
        f"""
        [global]
        directory={tmp_path}
        numjobs=2
        size=4Mi
        tensor_size=1Mi
        code=2+1
        targets=4
        [drain]
        rw=drain
        durable=file://{store}
        loops=2
        fault=kill:targets=1@before
        [fetch]
        stonewall
        rw=fetch
        loops=2
        """
    )
    drain, fetch = found.jobs
    sound(drain, "save", "drain", "save", "drain")
    sound(fetch, "fetch", "fetch")
    for one in drain.checkpoints[1::2]:
        assert (one.bytes, one.direction, one.source) == (8 << 20, "read", "tier")
        assert one.spent.cpu_s["drain"] > 0
        assert one.spent.device_written is not None
        assert one.spent.device_written >= one.bytes, "the store is on a device"
        assert len(one.faults) == 1, "it struck the drain"
    assert not any(one.faults for one in drain.checkpoints[0::2])
    for one in fetch.checkpoints:
        assert (one.step, one.bytes, one.source) == (2, 8 << 20, "object store")
        assert one.spent.device_written is not None
        assert one.spent.device_written >= 3 / 2 * one.bytes, "all columns were written again"
    told = run_text(found)
    assert told.count("| drained  :") == 1
    assert told.count("drain: measured") == 1
    assert told.count("READ:") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert list(store.iterdir()) == []


def test_files_are_saved_loaded_and_resharded_with_their_durability_beside(tmp_path: Path) -> None:
    found = run(
        f"""
        [global]
        ioengine=posix
        directory={tmp_path}
        model=llama3-405b
        scale=1/100000
        numjobs=3
        [save]
        loops=4
        refill_buffers
        buffer_compress_percentage=50
        [reshard]
        stonewall
        refill_buffers
        buffer_compress_percentage=50
        rw=reshard
        readers=2
        [cached]
        end_fsync=0
        run=other
        stonewall
        """
    )
    save, reshard, cached = found.jobs
    sound(save, *["save"] * 4)
    sound(reshard, "reshard")
    assert (save.durability, cached.durability) == (
        "fsynced, one copy on one device", "page cache only",
    )  # fmt: skip
    assert len(set(save.rank_bytes)) > 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sink", in_turn(["null", "disk"], every=2))
def test_a_burst_measures_its_bounds_and_says_which_goals_it_can_judge(
    tmp_path: Path, sink: str
) -> None:
    flags = ["--numjobs=2", "--size=4Mi", "--code=2+1", "--targets=3", "--loops=1", "--quick"]
    where = [f"--directory={tmp_path}", f"--section={sink}", f"--roofline={int(sink == 'null')}"]
    jobs = goal_jobs("burst", [*flags, *where])
    (job,) = run_jobs(jobs, Context(False, local_ranks, 1, lambda name, one: None)).jobs
    sound(job, "save")
    assert (job.bounds is not None) == (sink == "null")
    one = job.checkpoints[-1]
    assert one.copy_s is not None
    assert (one.raw_gb_per_s is None) == (sink == "null")
    assert one.spent.cpu_s["stager"] > 0
    assert one.spent.cpu_s["targets"] > 0
    assert sum(seal.columns for seal in one.seals) == 6
    judged = "eta_cpu" if sink == "null" else "eta_disk"
    assert [goal.name for goal in find_goals(job)][:2] == [judged, "stall / warm copy"]
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_its_reports_and_a_failed_job_is_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, plot, log = tmp_path / "a.json", tmp_path / "a.html", tmp_path / "log"
    words = ["save", "--ioengine=posix", "--size=64k", f"--directory={tmp_path}"]
    outputs = ["--output-format=json+", f"--output={report}", f"--plot={plot}"]
    assert main([*words, *outputs, "--numjobs=2", f"--write_bw_log={log}"]) == 0
    assert json.loads(report.read_text())["jobs"][0]["write"]["total_ios"] == 2
    assert plot.read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.glob("log*")) == ["log_bw.1.log", "log_bw.2.log"]
    # O_DIRECT takes no block of 520 bytes: every save fails, and both are tried.
    assert main([*words, "--bs=520", "--direct", "--loops=2", "--continue_on_error"]) == 2
    told = capsys.readouterr().out
    assert told.count("ERROR  save: save of step") == 2
    assert "O_DIRECT takes no blocks of 520 bytes here" in told
    assert "2 checkpoints failed" in told


def test_an_interrupted_benchmark_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    plan = ClusterPlan(Code(1, 1), targets=2, discard=False, tcp=True, directory=tmp_path)
    cluster = BenchCluster(plan)
    started: list[Marked] = []

    def interrupt() -> None:
        with cluster:
            started.extend(find_marked(cluster.mark))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert len(started) == 3
    assert find_marked(cluster.mark) == []
    assert list(tmp_path.iterdir()) == []


ENDLESS = ["--ioengine=posix", "--size=64k", "--numjobs=2", "--loops=1000000", "--verify=0"]
ENOUGH = 3
"""Checkpoints that are measured before the run is cut off."""


def endless(directory: Path) -> JobList:
    line = parse_flags(["save", *ENDLESS, f"--directory={directory}"], WORDS)
    return build_jobs([line.sections], line.everywhere)


def test_ctrl_c_prints_what_was_measured_until_then(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ckptbench.cli", "save", *ENDLESS, f"--directory={tmp_path}"]
    words = ["--output-format=json", "--status-interval=0.1"]
    with subprocess.Popen(
        [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if json.loads(line)["checkpoints"] >= ENOUGH:
                child.send_signal(signal.SIGINT)
                break
        out, err = child.communicate()
    (job,) = json.loads(out[out.index("{\n") :])["jobs"]
    assert job["write"]["total_ios"] >= ENOUGH
    assert job["error"] == child.returncode == 130
    assert err == "ckptbench: interrupted; everything that it started is gone\n"


def test_progress_is_of_jobs_that_have_begun(tmp_path: Path) -> None:
    """`ckptbench rules` had a line for each of its jobs from the start."""
    job = tmp_path / "two.fio"
    job.write_text(
        f"[global]\n{chr(10).join(ENDLESS).replace('--', '')}\ndirectory={tmp_path}\n"
        "[one]\nrw=write\n[two]\nstonewall\nrw=write\n"
    )
    command = [sys.executable, "-m", "ckptbench.cli", str(job), "--output-format=json"]
    names: list[str] = []
    with subprocess.Popen(
        [*command, "--status-interval=0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            names.append(json.loads(line)["jobname"])
            if json.loads(line)["checkpoints"] >= ENOUGH:
                child.send_signal(signal.SIGINT)
                break
        child.communicate()
    assert set(names) == {"one"}


def test_ctrl_c_while_ranks_start_ends_them(tmp_path: Path) -> None:
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def is_ending() -> bool:
        frames = traceback.walk_stack(sys._current_frames()[main_thread])
        return any(frame.f_code.co_name == "shutdown" for frame, _ in frames)

    def start(
        plans: Sequence[RankPlan], environment: Mapping[str, str], log_directory: Path
    ) -> RankGroup:
        found = local_ranks(plans, environment, log_directory)
        signal.pthread_kill(main_thread, signal.SIGINT)
        wait_until(is_ending, "the run has heard of it")
        return found

    jobs = endless(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, Context(False, start, 1, lambda name, one: None))


def test_a_job_that_cannot_go_on_keeps_what_it_has_measured(tmp_path: Path) -> None:
    started: list[int] = []
    seen: list[CheckpointFigures] = []

    def start(
        plans: Sequence[RankPlan], environment: Mapping[str, str], log_directory: Path
    ) -> RankGroup:
        found = local_ranks(plans, environment, log_directory)
        started.extend(found.pids)
        return found

    def note(_name: str, one: CheckpointFigures) -> None:
        seen.append(one)
        if len(seen) == ENOUGH:
            os.kill(started[0], signal.SIGKILL)

    jobs = endless(tmp_path)
    (job,) = run_jobs(jobs, Context(False, start, 1, note)).jobs
    assert list(job.checkpoints) == seen
    assert len(seen) >= ENOUGH
    assert (job.exit_code, len(job.errors)) == (1, 1)


def test_a_directory_may_lie_deeper_than_a_socket_can(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    plan = ClusterPlan(Code(1, 1), targets=2, discard=False, tcp=False, directory=deep)
    with BenchCluster(plan) as cluster:
        sockets = Path(cluster.environment["XDG_RUNTIME_DIR"])
        assert len(list(sockets.rglob("*"))) >= 2
    assert not sockets.exists()
    assert list(deep.iterdir()) == []


def test_interleaved_jobs_take_turns_and_stand_side_by_side(tmp_path: Path) -> None:
    text = f"""
        [global]
        directory={tmp_path}
        numjobs=2
        size=2Mi
        loops=3
        warmups=1
        interleave
        [tier]
        code=2+1
        targets=3
        [fails]
        ioengine=posix
        direct
        bs=520
        [file]
        ioengine=posix
        run=other
        loops=2
        """
    order: list[str] = []
    jobs = build_jobs([parse_file("job", lambda path: text, WORDS)], [])
    context = Context(False, local_ranks, 1, lambda name, one: order.append(name))
    found = run_jobs(jobs, context)
    tier, fails, file = found.jobs
    # The one that failed is not waited for, nor is the one that is done first.
    assert order == ["tier", "fails", "file", "tier", "file", "tier", "file", "tier"]
    sound(tier, *["save"] * 3)
    sound(file, *["save"] * 2)
    assert fails.exit_code == 2
    told = run_text(found).partition("Side by side, save (msec, medians; of [tier]")[2].splitlines()
    assert told[1].startswith("  tier                : committed ")
    assert "= 1.00 x [1.00 - 1.00, 3]; stall " in told[1]
    assert told[2].startswith("  file                : committed ")
    assert told[2].count(", 2]") == 2, "of the rounds that both have"
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_is_gone_before_jobs_that_do_not_use_it(tmp_path: Path) -> None:
    """What idles wakes up, and its disk is that of the job that is measured."""
    text = f"""
        [global]
        directory={tmp_path}
        size=4Mi
        stonewall
        code=1+1
        targets=2
        verify=0
        [first]
        [other]
        ioengine=posix
        [second]
        rw=load
        [last]
        ioengine=posix
        """
    beside: dict[str, int] = {}

    def note(name: str, _one: CheckpointFigures) -> None:
        beside[name] = len(list(tmp_path.iterdir()))

    jobs = build_jobs([parse_file("job", lambda path: text, WORDS)], [])
    found = run_jobs(jobs, Context(False, local_ranks, 1, note))
    assert found.errors == []
    assert beside == {"first": 1, "other": 2, "second": 2, "last": 1}


def test_a_job_beside_others_that_take_turns_is_refused(tmp_path: Path) -> None:
    text = f"[global]\nioengine=posix\ndirectory={tmp_path}\nsize=1m\n"
    jobs = build_jobs(
        [parse_file("job", lambda path: f"{text}[a]\ninterleave\n[b]\nrun=b\n", WORDS)], []
    )
    with pytest.raises(Refused, match=r"^\[b\] would run beside jobs that take turns; say "):
        check_all(jobs, isolated=False)
