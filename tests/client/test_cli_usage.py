"""What `ckpt` says of itself, what it refuses, and how it ends: without any cluster."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ckpt
from ckpt.base.errors import Refused
from ckpt_client.cli.commands import VERBS
from ckpt_client.cli.exits import MEANINGS, ExitCode
from ckpt_client.cli.given import given_seconds
from ckpt_client.cli.main import main
from ckpt_client.cli.output import Output
from tests.aio.coordinatorkit import dead_address
from tests.client.clikit import environment, run, run_installed, start

DOCUMENTED = {
    "ok": "0", "failed": "1", "usage": "2", "degraded": "3", "lost": "4", "not_found": "10",
    "busy": "11", "unauthorized": "12", "no_space": "13", "unavailable": "75",
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_has_an_example_and_the_exit_codes(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    _, _, example = text.partition("\nexample:\n")
    assert f"  ckpt {verb}" in example
    for code, meaning in MEANINGS:
        assert f"  {code:<6} {meaning}" in text
    assert "--json" in text


def test_the_table_of_exit_codes_is_that_of_the_errors() -> None:
    from ckpt.base.errors import ERRORS

    listed = {code for code, _ in MEANINGS}
    assert {str(error.exit_code) for error in ERRORS.values()} <= listed
    assert set(DOCUMENTED.values()) <= listed
    for name, error in ERRORS.items():
        if name in DOCUMENTED:
            assert str(error.exit_code) in (DOCUMENTED[name], "1")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("lss",), "ls"),
        (("SHOW",), "show"),
        (("delete", "r@1"), "ckpt rm"),
        (("stop",), "ckpt local stop DIR"),
        (("ls", "--stroe", "ckpt://h:1"), "--store"),
        (("ls", "--stroe=ckpt://h:1"), "--store"),
        (("completion", "bsh"), "bash"),
        (("export", "r@1", "d", "--format", "zar"), "zarr"),
    ],
)
def test_a_word_that_is_nearly_right_is_named(words: tuple[str, ...], meant: str) -> None:
    ended = run(*words)
    assert ended.code == 2
    assert f"did you mean {meant}?" in ended.err


def test_the_top_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for verb, (_, meaning) in VERBS.items():
        assert f"  {verb:<12} {meaning}" in text


def test_help_is_a_command_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    for words, as_option in ((["help"], ["--help"]), (["help", "ls"], ["ls", "--help"])):
        assert main(words) == main(as_option) == 0
        text = capsys.readouterr().out
        assert text[: len(text) // 2] * 2 == text
    assert run("help", "lss").code == 2


def test_help_loads_no_command_and_no_third_party_module_but_msgspec() -> None:
    script = (
        "import sys\nfrom ckpt_client.cli.main import main\nmain(['--help'])\n"
        "unwanted = {'numpy', 'rich', 'asyncio', 'socket', 'ckpt_client.cli.verbs.status'}\n"
        "sys.exit(' '.join(unwanted & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("0.5", 0.5), ("90s", 90), ("2min", 120), ("7d", 604_800)]
)
def test_a_time_may_have_a_unit(text: str, seconds: float) -> None:
    assert given_seconds(text) == seconds


def test_nothing_said_is_wrong_usage() -> None:
    ended = run_installed()
    assert (ended.code, ended.out) == (2, "")
    assert "commands:" in ended.err
    told = json.loads(run("--json").err)
    assert (told["code"], told["message"]) == (2, "no command is named")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lst"], "there is no command 'lst'"),
        (["ls", "--nope"], "unrecognized arguments: --nope"),
        (["verify"], "the following arguments are required: RUN[@STEP]"),
        (["rm", "run"], "'run' is not of the form RUN@STEP"),
        (["show", "run@-1"], "name '-1' would be read as a step"),
        (["ls", "--timeout", "soon"], "argument --timeout: 'soon' is not a number of seconds"),
        (
            ["ls", "--timeout", "0"],
            "argument --timeout: '0' is not a number of seconds to wait for",
        ),
        (["gc", "--older-than=-1"], "argument --older-than: '-1' is not a number of seconds"),
        (["gc", "--older-than", "nan"], "argument --older-than: 'nan' is not a number of seconds"),
        (["diff", "a@1", "a@2", "--top=-5"], "--top -5: 0 or more rows are possible"),
        (["ls"], "no store is named"),
        (["ls", "a@b"], "run name 'a@b' has an '@', which separates RUN@STEP"),
        (["ls", "--store", "disk"], "store 'disk' is not of the form"),
        (["local", "stop", "--store", "ckpt://127.0.0.1:1"], "is not a cluster of this machine"),
        (["demo", "--code", "9"], "code"),
    ],
)
def test_what_is_wrongly_typed_is_told_with_a_next_step(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    first, *hints = captured.err.splitlines()
    assert first.startswith("ckpt: ")
    assert message in first
    assert hints or "form" in first or "code" in first or "run name" in first

    assert main([*arguments, "--json"]) == 2
    told = json.loads(capsys.readouterr().err)
    assert told["message_type"] == "exit_error"
    assert told["code"] == 2
    assert message in told["message"]


def test_a_directory_without_a_cluster_is_not_made_into_one(tmp_path: Path) -> None:
    for verb in (["ls"], ["status"], ["local", "stop"], ["target", "hold", "t0"]):
        ended = run(*verb, "--store", f"ckpt+local://{tmp_path}/typo")
        assert ended.code == 10
        assert "there is no cluster in" in ended.err
    assert not (tmp_path / "typo").exists()


def test_a_file_in_the_place_of_a_clusters_directory_is_told_as_such(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below"):
        done = run("status", "--store", f"ckpt+local://{place}")
        assert done.code == 10
        assert f"there is no cluster in {place}" in done.err
        with pytest.raises(Refused, match=f"directory {place} cannot be made"):
            ckpt.open(f"ckpt+local://{place}?targets=1&code=1+0")


def test_nothing_is_exported_to_standard_output() -> None:
    done = run("export", "run@1", "--format", "npz", "-")
    assert done.code == 2
    assert "./-" in done.err


def test_a_coordinator_that_is_not_there_is_a_reason_to_try_later(secret: Path) -> None:
    environ = environment(CKPT_SECRET_FILE=str(secret))
    address = dead_address()
    store = f"ckpt://{address}"
    ended = run("ls", "--store", store, "--timeout", "0.5", "--json", environ=environ)
    assert ended.code == 75
    assert ended.error()["code"] == 75
    assert address in str(ended.error()["message"])


def test_a_missing_secret_is_not_authorized(tmp_path: Path) -> None:
    environ = environment(CKPT_SECRET_FILE=str(tmp_path / "none"))
    ended = run_installed("ls", "--store", "ckpt://127.0.0.1:9", environ=environ)
    assert ended.code == 12
    assert "CKPT_SECRET_FILE" in ended.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_waiting_command_with_its_code(
    number: signal.Signals, silent_address: str, secret: Path
) -> None:
    environ = environment(CKPT_SECRET_FILE=str(secret))
    process = start("ls", "--store", f"ckpt://{silent_address}", environ=environ)
    assert process.stderr is not None
    # A line of progress, since this takes more than two seconds: now it surely waits.
    assert process.stderr.readline() == f"ckpt: asking {silent_address} …\n"
    process.send_signal(number)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (128 + number, "", "ckpt: interrupted\n")


@pytest.mark.parametrize(
    ("flags", "told"),
    [((), "ckpt: interrupted"), (("--json",), '{"message_type":"exit_error","code":130,')],
)
def test_ctrl_c_shows_no_traceback_while_it_still_imports(
    flags: tuple[str, ...], told: str, silent_address: str, secret: Path
) -> None:
    """Where it comes later than meant, the command waits for an answer."""
    entry = (sys.executable, "-X", "importtime", "-m", "ckpt_client.cli.entry")
    command = (*entry, "ls", "--store", f"ckpt://{silent_address}", *flags)
    environ = environment(CKPT_SECRET_FILE=str(secret))
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if line.endswith(" argparse\n"):
                child.send_signal(signal.SIGINT)
                break
        rest = child.stderr.read()
    assert "Traceback" not in rest
    assert rest.splitlines()[-1].startswith(told)
    assert child.returncode == 130


def test_a_mistake_of_ours_shows_its_traceback_only_with_debug(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise ZeroDivisionError("half of nothing")

    monkeypatch.setattr("ckpt_client.cli.verbs.ls.run", fail)
    assert main(["ls"]) == 1
    quiet = capsys.readouterr().err
    assert "ZeroDivisionError: half of nothing" in quiet
    assert "--debug" in quiet
    assert "Traceback" not in quiet
    assert main(["ls", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("before", [(), ("--store", "ls"), ("--timeout=1", "--debug")])
def test_a_name_that_begins_as_an_option_goes_after_two_dashes(
    before: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training may call its run so; `ckpt rm` has to be able to name it."""
    asked: list[tuple[object, object]] = []

    def note(arguments: argparse.Namespace, _output: Output) -> int:
        asked.append((arguments.run_name, arguments.store))
        return 0

    monkeypatch.setattr("ckpt_client.cli.verbs.ls.run", note)
    for name in ("--json", "--help", "-r", "--"):
        assert main([*before, "ls", "--", name]) == 0, capsys.readouterr()
    store = "ls" if before[:1] == ("--store",) else None
    assert asked == [(name, store) for name in ("--json", "--help", "-r", "--")]
    assert main(["ls", "--store", "x", "--json"]) == 0
    assert main(["ls", "-r"]) == 2
    assert main([*before, "--", "ls", "a"]) == 0
    assert asked[-2:] == [(None, "x"), ("a", store)]


@pytest.mark.parametrize("line", [
    ["init", "", "target"], ["export", "run@1", "", "--format", "zarr"], ["import", "", "run@1"],
    ["demo", "--directory", ""], ["local", "stop", ""], ["catalog", "backup", ""],
    ["catalog", "backup", "--to="],
], ids=" ".join)  # fmt: skip
def test_an_empty_word_names_no_directory(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A script's variable that is not set must not mean where the script happens to run."""
    monkeypatch.chdir(tmp_path)
    assert main(line) == 2
    assert "it is empty: is a variable of the shell not set?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_system_names_the_file_and_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = "x" * 5000
    assert main(["import", path, "run@1", "--store", "ckpt+local:///nowhere"]) == 1
    assert capsys.readouterr().err.startswith(f"ckpt: {path}: File name too long\n")


@pytest.mark.parametrize("program", ["ckpt", "ckptd"])
def test_a_version_names_who_built_the_library(program: str) -> None:
    command = Path(sys.executable).with_name(program)
    out = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(rf"{program} [\d.]+ \((gcc|clang) [^,]+, \w+\)\n", out)


@pytest.mark.parametrize("module", ["ckpt_client.cli.main", "ckptd.cli"])
def test_a_reader_that_has_enough_is_no_error(module: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(("line", "unbuffered"), [
    ("ckpt_client.cli.entry --version", ""), ("ckpt_client.cli.entry ls --help", ""),
    ("ckpt_client.cli.entry completion bash", ""), ("ckpt_client.cli.entry completion bash", "1"),
    ("ckptd.cli --help", ""),
])  # fmt: skip
def test_an_answer_that_a_full_disk_does_not_take_is_an_error(line: str, unbuffered: str) -> None:
    """Images of containers set PYTHONUNBUFFERED."""
    command = [sys.executable, "-m", *line.split()]
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environ)
    assert done.returncode == 1
    assert re.fullmatch("ckptd?: cannot write the answer: No space left on device\n", done.stderr)


def test_the_locale_c_leaves_files_as_they_are_and_says_which_names_it_cannot_take(
    tmp_path: Path,
) -> None:
    environ = environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    secret, options = tmp_path / "secret", tmp_path / "drain.toml"
    secret.write_text("ab" * 32)
    secret.chmod(0o600)
    options.write_text('to = "file:///é"\ncoordinator = "h:1"\n', "utf-8")
    line = [
        sys.executable, "-m", "ckptd.cli", "drain", "--config", str(options),
        "--secret-file", str(secret), "--print-config",
    ]  # fmt: skip
    done = subprocess.run(line, env=environ, capture_output=True, check=True)
    assert json.loads(done.stdout)["to"] == "file:///é"
    ended = run_installed("ls", "é", "--store", "ckpt://h:1", environ=environ)
    assert (ended.code, "set LC_ALL=C.UTF-8" in ended.err) == (2, True)
    script = f"import ckpt; ckpt.open('ckpt+local://{tmp_path}/%C3%A9')"
    failed = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True)
    assert b"Refused" in failed.stderr.splitlines()[-1]
    assert b"is no text in ascii; say it in UTF-8" in failed.stderr


@pytest.mark.parametrize(("line", "code"), [
    ("ckpt_client.cli.entry lss", 2), ("ckptd.cli target --no-such", 2), ("ckptbench.cli gpu --x", 2),
])  # fmt: skip
def test_errors_that_a_full_disk_does_not_take_leave_their_exit_code(line: str, code: int) -> None:
    command = [sys.executable, "-m", *line.split()]
    with open("/dev/full", "w") as full:
        assert subprocess.run(command, stderr=full, env=environment()).returncode == code


@pytest.mark.parametrize("word", ["--force", "--dry-run"])
def test_an_upgrades_status_takes_no_word_that_would_do_nothing(word: str) -> None:
    ended = run("upgrade", word, "--store", "ckpt://127.0.0.1:9")
    assert (ended.code, "takes neither" in ended.err) == (2, True)


@pytest.mark.parametrize("program", ["ckpt_client.cli.entry", "ckptd.cli"])
def test_who_has_no_standard_output_is_served_as_everybody(program: str) -> None:
    line = ["sh", "-c", 'exec "$@" >&- <&-', "sh", sys.executable, "-m", program, "--version"]
    done = subprocess.run(line, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


FROZEN = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 0))"


@pytest.mark.parametrize("program", ["ckpt_client.cli.entry", "ckptd.cli", "ckptbench.cli"])
def test_at_its_end_a_program_does_not_look_through_all_that_it_has_imported(program: str) -> None:
    """That took a seventh of what a command costs. What is registered first comes last."""
    script = f"{FROZEN}; from {program} import main; main()"
    done = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines()[-1] == b"True"


def test_what_a_program_of_ckptd_ends_with_is_heard_also_where_sigchld_is_ignored() -> None:
    deaf = "signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    words = ["-m", "ckpt_client.cli.entry", "catalog", "copy", "/nowhere/a", "/nowhere/b"]
    line = [sys.executable, "-c", f"import os, signal, sys; {deaf}", sys.executable, *words]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == ExitCode.USAGE, ended.stderr
    assert "one of both begins with etcd://" in ended.stderr
