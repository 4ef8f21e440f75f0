"""One dataclass gives the TOML keys, the variables and the flags; the later source wins."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ckpt.aio.secret import make_secret
from ckpt.base.errors import Refused
from ckpt.base.units import SECONDS_MAX, US_PER_S, MiB
from ckpt.erasure.code import Code
from ckpt.protocol.coordinator.machine import CoordinatorPolicy
from ckpt.protocol.reader.events import ReadLimits
from ckptd.cli import PROGRAMS
from ckptd.config import Loaded, load
from ckptd.coordinator.config import CoordinatorConfig
from ckptd.log import JsonLines
from ckptd.repair.daemon import RepairConfig
from ckptd.target.daemon import TargetConfig
from tests.warm_child import run_daemon


def _load(*argv: str, environ: dict[str, str] | None = None) -> Loaded[TargetConfig]:
    return load(
        TargetConfig,
        program="target",
        description="d",
        example="e",
        argv=argv,
        environ=environ or {},
    )


@pytest.mark.parametrize(
    ("coordinator", "options", "is_alone"),
    [
        ("10.0.0.1:7070", [], True),
        ("node1:7070,node2:7070", ["--listen", "localhost:7071"], True),
        ("10.0.0.1:7070", ["--listen", "10.0.0.2:7071"], False),
        ("10.0.0.1:7070", ["--listen", "0.0.0.0:7071"], False),
        ("10.0.0.1:7070", ["--advertise", "node3"], False),
        ("127.0.0.1:7070", [], False),
        ("unix:/run/ckpt/socket", [], False),
    ],
)
def test_a_target_knows_that_its_coordinator_is_reached_and_it_is_not(
    coordinator: str, options: list[str], is_alone: bool
) -> None:
    loaded = _load("--directory", "/d", "--coordinator", coordinator, *options)
    assert loaded.config.is_alone is is_alone


def test_a_target_that_others_do_not_reach_says_so_first(tmp_path: Path) -> None:
    make_secret(tmp_path / "secret")
    flags = ("--directory", str(tmp_path / "t"), "--coordinator", "192.0.2.1:7070")
    with subprocess.Popen(
        [sys.executable, "-m", "ckptd.cli", "target", *flags, "--secret-file",
         str(tmp_path / "secret")],
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        lines = [json.loads(process.stderr.readline()) for _ in range(2)]
        process.kill()
    assert [line["msg"] for line in lines] == ["starting", "other hosts do not reach this target"]
    assert lines[1]["option"] == "--listen HOST:PORT"


def test_a_target_takes_a_list_of_coordinators_and_names_the_one_that_is_wrong() -> None:
    listed = "a:1,10.0.0.2:7070,[::1]:7070"
    assert _load("--directory", "/d", "--coordinator", listed).config.coordinator == listed
    with pytest.raises(Refused, match="'b'"):
        _load("--directory", "/d", "--coordinator", "a:1,b")


NEEDED = ("--directory", "/d", "--coordinator", "c:1")


def test_a_target_scrubs_each_week_unless_it_is_asked_otherwise() -> None:
    def limits(*given: str) -> tuple[int | None, int]:
        found = _load(*NEEDED, *given).config.limits
        return found.scrub_period_us, found.scrub_percent

    assert limits() == (7 * 86_400 * US_PER_S, 5)
    assert limits("--scrub-period-s", "0.5", "--scrub-percent", "20") == (US_PER_S // 2, 20)
    assert limits("--no-scrub") == (None, 5)
    for wrong in (("--scrub-period-s", "0"), ("--scrub-percent", "0"), ("--scrub-percent", "101")):
        with pytest.raises(Refused, match=r"scrub_period_s is more than 0, scrub_percent 1 to 100"):
            _load(*NEEDED, *wrong)


def test_a_time_without_an_end_is_the_longest_that_there_is_and_no_number_none() -> None:
    """A daemon that took it ended at its start, or when it first waited, with a Python error."""
    for endless in ("inf", "1e300"):
        found = _load(*NEEDED, "--scrub-period-s", endless).config
        assert found.limits.scrub_period_us == SECONDS_MAX * US_PER_S
    for text in ("nan", "often"):
        with pytest.raises(Refused, match=f"scrub_period_s = '{text}' is not a number"):
            _load(*NEEDED, "--scrub-period-s", text)
    worker = load(
        RepairConfig, program="repair", description="d", example="e",
        argv=("--coordinator", "c:1", "--poll-s", "inf"), environ={},
    ).config  # fmt: skip
    assert worker.poll_s <= threading.TIMEOUT_MAX


def test_flags_win_over_the_environment_and_that_over_toml(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text('id = "toml"\ndomain = "a/b/c/d"\npool_bytes = "48MiB"\ndirect = false\n')
    loaded = _load(
        *NEEDED, "--config", str(file), "--id", "flag", "--unix",
        environ={"CKPT_TARGET__ID": "env", "CKPT_TARGET__LOG_LEVEL": "error", "CKPT_TARGET__UNIX": "0"},
    )  # fmt: skip
    config = loaded.config
    assert (config.id, config.log_level, config.domain) == ("flag", "error", "a/b/c/d")
    assert (config.pool_bytes, config.direct, config.unix) == (48 * MiB, False, True)


def test_the_environment_sets_options_of_a_program_with_a_dash_in_its_name() -> None:
    loaded = load(
        TargetConfig,
        program="rebuild-catalog",
        description="d",
        example="e",
        argv=NEEDED,
        environ={"CKPT_REBUILD_CATALOG__ID": "env"},
    )
    assert loaded.config.id == "env"


def test_sizes_are_read_with_suffixes() -> None:
    assert _load(*NEEDED, "--capacity-bytes", "1.5GiB").config.capacity_bytes == 1536 * MiB


@pytest.mark.parametrize(
    "argv",
    [
        ("--directory", "/d"),
        (*NEEDED, "--unix", "other"),
        (*NEEDED, "--listen", "nowhere"),
        (*NEEDED, "--domain", "only/three/parts"),
        (*NEEDED, "--pool-bytes", "1k"),
        (*NEEDED, "--pool-bytes", "many"),
        (*NEEDED, "--read-pool-bytes", "1MiB"),
    ],
)
def test_a_wrong_option_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(Refused):
        _load(*argv)


def test_a_small_pool_is_read_in_pieces_that_fit() -> None:
    limits = _load(*NEEDED, "--read-pool-bytes", "2MiB").config.limits
    assert limits.read_piece_bytes == limits.read_window_bytes == 2 * MiB
    assert _load(*NEEDED).config.limits.read_piece_bytes == ReadLimits().ask_bytes


def test_an_unknown_toml_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text("poolbytes = 1\n")
    with pytest.raises(Refused, match=r"poolbytes; did you mean pool_bytes\?"):
        _load(*NEEDED, "--config", str(file))


def test_an_unknown_variable_of_the_program_is_refused() -> None:
    with pytest.raises(Refused, match=r"CKPT_TARGET__.*nobody knows: lisen; did you mean listen\?"):
        _load(*NEEDED, environ={"CKPT_TARGET__LISEN": "h:1"})
    other = {"CKPT_COORDINATOR__LISEN": "h:1", "CKPT_TARGET__LISTEN": "h:1"}
    assert _load(*NEEDED, environ=other).config.listen == "h:1"


def test_a_flag_that_is_nearly_right_is_named() -> None:
    with pytest.raises(Refused, match=r"did you mean --pool-bytes\?"):
        _load(*NEEDED, "--pol-bytes=1MiB")


def test_a_program_that_is_nearly_right_is_named() -> None:
    done = run_daemon("targt")
    assert done.returncode == 2
    assert done.stderr.endswith("did you mean target?\n")


def test_the_help_names_each_program_once() -> None:
    text = run_daemon("--help").stdout
    assert [text.count(name) for name in PROGRAMS if "-" in name] == [1, 1, 1]


def test_what_must_be_said_is_named_once() -> None:
    with pytest.raises(Refused, match=r"^needs --directory; see ckptd target --help"):
        _load("--coordinator", "c:1")


def test_the_secret_is_found_in_the_variable_then_the_flag_then_the_home() -> None:
    both = {"CKPT_SECRET_FILE": "/env", "XDG_CONFIG_HOME": "/config"}
    assert _load(*NEEDED, "--secret-file", "/f", environ=both).secret_file == Path("/env")
    assert _load(*NEEDED, "--secret-file", "/f").secret_file == Path("/f")
    home = _load(*NEEDED, environ={"XDG_CONFIG_HOME": "/config"}).secret_file
    assert home == Path("/config/ckpt/secret")


def test_every_option_has_a_help_text_and_is_printed() -> None:
    text = run_daemon("target", "--help").stdout
    values = json.loads(run_daemon("target", *NEEDED, "--print-config").stdout)
    for name in TargetConfig.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in text
        assert name in values
    assert "What it serves" in text


def test_a_coordinator_spreads_and_keeps_as_promised_unless_it_is_told_otherwise() -> None:
    def policy(*argv: str) -> CoordinatorPolicy:
        loaded = load(
            CoordinatorConfig, program="coordinator", description="d", example="e",
            argv=("--directory", "/d", *argv), environ={},
        )  # fmt: skip
        return loaded.config.policy("c1")

    assert (policy().code, policy().max_per_domain, policy().keep) == (Code(4, 2), 1, None)
    told = policy("--code", "8+2", "--max-per-domain", "2", "--keep", "3")
    assert (told.code, told.max_per_domain, told.keep) == (Code(8, 2), 2, 3)


@pytest.mark.parametrize(
    "argv", [["nothing"], [], ["target", "--nothing", "1"], ["local", "a", "b"]]
)
def test_what_nobody_knows_is_a_usage_error_also_in_json(argv: list[str]) -> None:
    assert run_daemon(*argv).returncode == 2
    done = run_daemon(*argv, "--json")
    assert json.loads(done.stderr)["code"] == done.returncode == 2


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["local", "{file}"], 2, "cannot make {file}: a file is there"),
        (["local", ""], 2, "directory is empty; is a variable of the shell not set?"),
        (["local", "{file}/below"], 2, "cannot make {file}/below: Not a directory"),
        (["local", "{folder}"], 2, "cannot make {folder}/supervisor.lock: Is a directory"),
        (["coordinator", "--directory", "{file}"], 2, "cannot make {file}: a file is there"),
        (["coordinator", "--directory", "{file}/below"], 2, "{file}/below: Not a directory"),
        (["rebuild-catalog", "--directory", "{absent}"], 10, "there is no cluster in {absent}"),
        (["rebuild-catalog", "--directory", "{file}"], 10, "there is no cluster in {file}"),
        (["rebuild-catalog", "--directory", "{folder}"], 2, "cannot read {folder}/cluster.toml"),
        (["rebuild-catalog", "--targets", "a:1"], 2, "name one of both"),
        (
            ["rebuild-catalog", "--directory", "{folder}", "--catalog", "etcd://a:1/b"],
            2,
            "name one",
        ),
        (["rebuild-catalog", "--catalog", "etcd://127.0.0.1:1/b"], 2, "running targets"),
        (
            ["coordinator", "--directory", "{absent}", "--log-level", "loud"],
            2,
            "log level 'loud': info, warning, error",
        ),
    ],
)
def test_a_place_that_cannot_be_used_is_refused_by_name(
    argv: list[str], code: int, text: str, tmp_path: Path
) -> None:
    places = {name: tmp_path / name for name in ("file", "folder", "absent")}
    places["file"].touch()
    (places["folder"] / "supervisor.lock").mkdir(parents=True)
    (places["folder"] / "cluster.toml").mkdir()
    make_secret(tmp_path / "secret")
    environ = {**os.environ, "CKPT_SECRET_FILE": str(tmp_path / "secret")}
    done = run_daemon(*(each.format(**places) for each in argv), environment=environ)
    assert done.stderr.splitlines()[-1].startswith(f"ckptd {argv[0]}: "), done.stderr
    assert text.format(**places) in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == code


def test_what_an_event_says_does_not_stand_in_the_place_of_its_level() -> None:
    record = logging.LogRecord("who", logging.INFO, "", 0, "starting", None, None)
    record.fields = {"level": "host", "code": "4+2"}
    line = json.loads(JsonLines().format(record))
    assert (line["level"], line["level_"], line["code"]) == ("info", "host", "4+2")


@pytest.mark.parametrize("program", ["target", "coordinator", "local", "drain"])
def test_why_a_daemon_does_not_start_is_one_line_of_json_if_asked(
    program: str, tmp_path: Path
) -> None:
    wrong = ["--config", str(tmp_path / "absent.toml"), "--json"]
    place = [str(tmp_path / "cluster")] if program == "local" else []
    done = run_daemon(program, *place, *wrong)
    told = json.loads(done.stderr)
    assert told["message_type"] == "exit_error"
    assert told["code"] == done.returncode == 2
    assert "absent.toml" in told["message"]


@pytest.mark.parametrize("module", ["ckpt/base/errors", "servers/ckptd/target/"])
def test_ctrl_c_while_a_daemon_still_imports_is_one_line(module: str) -> None:
    """Some C modules crash when it cuts their import."""
    command = [sys.executable, "-v", "-m", "ckptd.cli", "target", *NEEDED]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if module.encode() in line:
                child.send_signal(signal.SIGINT)
                break
        rest = child.stderr.read().decode()
    assert "Traceback" not in rest
    assert "import 'ckptd.target.daemon'" in rest, "it has gone on until all is imported"
    assert "ckptd target: interrupted\n" in rest
    assert child.returncode == 130
