"""Command lines become jobs, texts and exit codes; what cannot be is refused before it starts."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt.aio.inherited import UNREAD
from ckpt.base.errors import Refused
from ckpt.base.units import MiB
from ckptbench.cli import COMMANDS, main
from ckptbench.commands.goals import goal_jobs
from ckptbench.faults.words import FaultKind


def test_without_flags_a_burst_is_the_one_that_the_goals_are_stated_for() -> None:
    null, disk = goal_jobs("burst", []).jobs
    for job, sink, group in ((null, "null", 0), (disk, "disk", 1)):
        options = job.options
        assert (options.rw, options.sink, options.numjobs, options.size) == (
            "save", sink, 4, 256 * MiB,
        )  # fmt: skip
        assert (options.code, options.targets, options.loops, options.warmups) == ("4+2", 6, 9, 2)
        assert options.roofline
        assert options.baseline
        assert job.group == group
    (restore,) = goal_jobs("restore", []).jobs
    assert (restore.options.rw, restore.options.loops) == ("degraded", 9)


def test_every_flag_of_a_job_stands_above_the_presets() -> None:
    flags = ["--numjobs=2", "--size=8Mi", "--code=8+2", "--targets=10", "--loops=1", "--tcp=0"]
    for job in (*goal_jobs("burst", flags).jobs, *goal_jobs("restore", flags).jobs):
        options = job.options
        assert (options.numjobs, options.size, options.code, options.targets, options.loops) == (
            2, 8 * MiB, "8+2", 10, 1,
        )  # fmt: skip
        assert not options.tcp
    (disk,) = goal_jobs("burst", ["--section=disk"]).jobs
    assert disk.name == "disk"
    with pytest.raises(Refused, match="flags only"):
        goal_jobs("burst", ["x.fio"])


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["restore", "--targets=5"], "needs 6 targets"),
        (["save"], "no size"),
        (["none.fio"], "cannot read the job file"),
        (["save", "--size=1m", "--output=/nowhere/a"], "--output=/nowhere/a: there is no such"),
        (["save", "--size=1m", "--output=/"], "--output=/: that is a directory"),
        (["save", "--size=1m", "--write_bw_log=/nowhere/a"], "[save]: write_bw_log=/nowhere/a:"),
        (["sav", "--size=1m"], "did you mean save?"),
        (["brust"], "did you mean burst?"),
        (["save", "--size=1m", "--output-format=xml"], "not one of normal"),
        (["save", "--size=1m", "--ioengine=posix", "--plot=x.gif"], "none of .svg, .html and .png"),
        (["save", "--size=1m", "--directory=/dev/null/place"], "cannot be made"),
        (["plan", "--gpus=8", "--mtbf=1h", "--target-rate=1GB"], "give --model="),
        (["compare", "no.json", "no.json"], "cannot read no.json"),
        (["reshard", "--size=1m", "--ioengine=torch_save"], "torch"),
        (["rebuild", "--size=1m"], "rw=rebuild: lost columns are not rebuilt yet"),
        (["drain", "--size=1m", "--durable=somewhere"], "not of the form SCHEME://PLACE"),
    ],
)
def test_what_is_refused_is_an_exit_code_and_a_sentence(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert told in capsys.readouterr().err


def test_no_job_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """A script whose variable is empty must not take it for a run."""
    assert main([]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert "usage: ckptbench JOB.fio" in found.err


@pytest.mark.parametrize("program", ["burst", "restore"])
def test_the_goals_runs_are_shown_and_checked_without_being_run(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--loops=1", "--numjobs=1", "--size=1Mi"]
    assert main([program, *small, "--showcmd"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("ckptbench --loops=1 --numjobs=1 --size=1Mi --name=")
    assert main([*shlex.split(shown)[1:], "--showcmd"]) == 0
    assert capsys.readouterr().out == shown
    assert main([program, *small, "--parse-only"]) == 0
    assert capsys.readouterr().out == ""
    assert main([program, *small, "--version"]) == 0
    assert re.fullmatch(r"ckptbench \S+ \(.*\)\n", capsys.readouterr().out)


def test_help_and_the_checks_of_a_file_run_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.fio"
    path.write_text("[save]\nrw=write\nsize=1m\n")
    for word in ("--help", "-h"):
        assert main([word]) == 0
        assert "exit codes" in capsys.readouterr().out
    for word in ("--version", "-v"):
        assert main([word]) == 0
        assert re.fullmatch(r"ckptbench \S+ \(.*\)\n", capsys.readouterr().out)
    assert main(["--cmdhelp=rw"]) == 0
    assert "valid values" in capsys.readouterr().out
    assert main(["--cmdhelp=fault"]) == 0
    kinds = "|".join(kind.value for kind in FaultKind)
    assert f"{kinds}:target=N" in capsys.readouterr().out
    assert main(["--parse-only", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["--showcmd", str(path)]) == 0
    assert capsys.readouterr().out == "ckptbench --name=save --rw=write --size=1m\n"
    path.write_text("[save]\nrw=write\nsize=1q\n")
    assert main(["--parse-only", str(path)]) == 2
    assert f"{path}:3: size=1q" in capsys.readouterr().err


def test_the_job_file_of_a_fio_user_runs_and_names_what_it_did_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, data = tmp_path / "a.fio", tmp_path / "not" / "yet"
    path.write_text(
        f"[global]\nioengine=libaio\niodepth=32\ndirect=0\nrandrepeat=0\ngroup_reporting\n"
        f"directory={data}\n[write]\nrw=write\nbs=1m\nsize=1m\nthread\nfallocate=none\n"
    )
    assert main([str(path), "--output-format=json"]) == 0
    found = capsys.readouterr()
    passed_over = ["iodepth", "randrepeat", "thread", "fallocate"]
    assert json.loads(found.out)["checkpoint"]["passed_over"] == passed_over
    (line,) = found.err.splitlines()
    assert ", ".join(passed_over) in line
    assert data.is_dir()


def test_a_save_beside_a_training_says_what_the_loop_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["save", "--size=64k", "--ioengine=posix", "--think=matmul:50ms", "--loops=2"]
    flags = [f"--directory={tmp_path}", "--output-format=normal,json+", "--verify=0"]
    assert main([*line, *flags]) == 0
    text, _, document = capsys.readouterr().out.partition("\n{\n")
    assert "| slower   : " in text
    found = json.loads("{" + document)["jobs"][0]["checkpoint"]
    assert len(found["checkpoints"]) == 2
    for one in found["checkpoints"]:
        (rank,) = one["ranks"]
        stall_s = (rank["staged_ns"] - rank["begun_ns"]) / 1e9
        assert one["pace"] > 0
        assert one["slower_s"] == pytest.approx(stall_s + 0.05 * (1 - one["pace"]))
    (phase,) = found["phases"]
    assert phase["slower_s"] == statistics.median(one["slower_s"] for one in found["checkpoints"])


def test_a_plan_is_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model=405b", "--gpus=16384", "--mtbf=3h", "--target-rate=3GB"]
    assert main(words) == 0
    assert "5682508791808 bytes" in capsys.readouterr().out
    assert main([*words, "--json", "--targets=600"]) == 0
    assert json.loads(capsys.readouterr().out)["targets"] == 600


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "benchmarks/jobs").glob("*.fio")), ids=str
)
def test_every_job_file_is_sound_and_opens_with_why_it_is_worth_running(path: Path) -> None:
    assert path.read_text().startswith("; ")
    assert len(path.read_text().splitlines()[0]) > 40
    assert main(["--parse-only", str(path)]) == 0


def test_a_plan_says_what_is_wrong_with_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--model=405b", "--gpus=8", "--mtbf=3h", "--target-rate=0"])
    said = capsys.readouterr().err
    assert "argument --target-rate: '0': 0 " in said
    assert "read value" not in said


def test_a_reader_that_has_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "ckptbench.cli", "--help"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (UNREAD, "")


def test_a_report_that_cannot_be_written_is_on_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["save", "--ioengine=posix", "--size=64k", f"--directory={tmp_path}", "--verify=0"]
    assert main([*words, "--output=/dev/full"]) == 1
    found = capsys.readouterr()
    assert "Run status group 0" in found.out
    said = "ckptbench: cannot write /dev/full: No space left on device; the report is on stdout"
    assert found.err.startswith(said)
    (tmp_path / "log_bw.1.log").mkdir()
    assert main([*words, f"--write_bw_log={tmp_path}/log"]) == 1
    found = capsys.readouterr()
    assert "Run status group 0" in found.out
    assert found.err == f"ckptbench: {tmp_path}/log_bw.1.log: Is a directory\n"


def test_a_locale_that_lacks_a_letter_gets_the_text_all_the_same() -> None:
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "ckptbench.cli", "--help"]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "--hosts=HOST[:PORT],\\u2026" in ended.stdout


def test_a_report_that_a_full_disk_does_not_take_is_an_error() -> None:
    command = [sys.executable, "-m", "ckptbench.cli", "--help"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = "ckptbench: cannot write the answer: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, said)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_still_imports_is_one_line(by: signal.Signals) -> None:
    command = [sys.executable, "-v", "-m", "ckptbench.cli", "--help"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if b"ckptbench/commands/" in line:
                child.send_signal(by)
                break
        rest = child.stderr.read().decode()
    assert "Traceback" not in rest
    assert "ckptbench: interrupted; everything that it started is gone\n" in rest
    assert child.returncode == 128 + by


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    usage, _, _ = capsys.readouterr().out.partition("\n\n")
    assert [name for name in COMMANDS if not re.search(rf"\b{name}\b", usage)] == []


def test_a_switch_takes_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    """`--strict=0` was taken for `--strict`."""
    assert main(["save", "--size=1Mi", "--strict=0", "--parse-only"]) == 2
    assert "--strict takes no value" in capsys.readouterr().err
