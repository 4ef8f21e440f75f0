"""`ckpt demo` as a user runs it: real daemons, trainers, stagers and signals."""

from __future__ import annotations

import json
import re
import secrets
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from tests.client.clikit import COMMAND, environment, on_terminal, run_installed
from tests.harm import harmed
from tests.landing import at_turn
from tests.pages import README
from tests.waiting import wait_until

BIRTHMARK = "CKPT_TEST_BIRTHMARK"
WIDE = {"PYTHONUTF8": "1", "COLUMNS": "100"}
TRAINER = "ckpt_client.demo.trainer"
PHASES = [
    "control run, without ckpt",
    "starting the cluster",
    "disturbed run",
    "resumed run",
    "stopping the cluster",
]
SHORT = (
    "--ranks", "2", "--steps", "4", "--save-every", "1", "--width", "8", "--targets", "4",
    "--code", "1+2",
)  # fmt: skip
ALONE = (*SHORT, "--ranks", "1")
"""For what a demo shows and how it ends, where nobody counts its processes."""
SMALL = ("--steps", "12", "--save-every", "2", "--width", "128")
"""Six saves by each of its runs; all else is as users have it."""
ASTRAY = f"""
import json, sys

if {TRAINER!r} in sys.orig_argv:
    plan = json.loads(sys.argv[-1])
    plan["seed"] += bool(plan["url"])
    sys.argv[-1] = json.dumps(plan)
"""
"""Ranks that save train another model than those of the control run."""


@pytest.fixture
def birthmark() -> str:
    return secrets.token_hex(16)


@pytest.fixture
def astray(tmp_path_factory: pytest.TempPathFactory, birthmark: str) -> dict[str, str]:
    """What to change in the environment for a demo that cannot hold."""
    paths = harmed(tmp_path_factory.mktemp("site"), ASTRAY)["PYTHONPATH"]
    return {"PYTHONPATH": paths, BIRTHMARK: birthmark, **WIDE}


def start(directory: Path, birthmark: str, *flags: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [COMMAND, "demo", "--directory", str(directory), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**{BIRTHMARK: birthmark}, **WIDE),
        start_new_session=True,
    )


def born_with(birthmark: str) -> list[int]:
    """Processes that descend from the demo, however they were started."""
    wanted = f"{BIRTHMARK}={birthmark}".encode()
    return [pid for pid, environ in environments().items() if wanted in environ]


def environments() -> dict[int, list[bytes]]:
    """Of all processes that may be looked at, by id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
    return found


def lines_of(process: subprocess.Popen[bytes]) -> Iterator[dict[str, object]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


# --------------------------------------------------------------------------- from end to end


@dataclass(frozen=True, slots=True)
class Shown:
    """A whole demo, its standard output a pipe."""

    code: int
    text: str
    errors: str
    threads: list[int]
    """Of each rank of the control run, while it trained."""
    left: list[int]
    """Processes that were there when it had ended."""
    files: list[Path]

    def row(self, name: str) -> str:
        """The table's value of that name."""
        (value,) = re.findall(rf"^│ {name} +│ (.*?) +│$", self.text, re.MULTILINE)
        return str(value)

    def numbers(self, name: str) -> list[float]:
        """All numbers of a row."""
        return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", self.row(name))]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """What several tests look at is one run."""
    directory = tmp_path_factory.mktemp("demo")
    birthmark = secrets.token_hex(16)
    lines: list[str] = []
    threads: list[int] = []
    with start(directory, birthmark, *SMALL) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            lines.append(line.decode())
            if len(lines) == 2:
                threads = [thread_count(pid) for pid in born_with(birthmark) if trains(pid)]
        errors = process.stderr.read().decode()
        code = process.wait()
    return Shown(
        code, "".join(lines), errors, threads, born_with(birthmark), [*directory.iterdir()]
    )


def trains(pid: int) -> bool:
    return TRAINER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def thread_count(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.timeout(240)
def test_a_run_that_loses_targets_trainers_and_stagers_ends_with_the_control_runs_bits(
    shown: Shown,
) -> None:
    assert shown.code == 0, (shown.errors, shown.text)
    checks = re.findall(r"^(.) (.*)$", shown.text.partition("whole demo")[2], re.MULTILINE)
    held = {text.partition(":")[0] for mark, text in checks if mark == "✓"}
    assert held == {
        "two targets were killed inside a burst",
        "all trainers and their stagers were killed",
        "all ranks resumed from the newest committed step",
        "lost columns were rebuilt from parity",
        "parameters are bit-identical to the control run's",
        "optimizer state is bit-identical, rank by rank",
        "every loss is bit-identical, rank by rank",
        "saves went on with the targets that were left",
        "nothing was left over",
    }
    assert "  7 targets, code 4+2, restart=never\n" in shown.text
    assert "  then 4 trainers and 4 stagers, at step " in shown.text
    assert shown.left == []
    assert shown.files == []


@pytest.mark.timeout(240)
def test_it_ends_with_a_table_of_what_was_measured(shown: Shown) -> None:
    for name in ("stall of the training", "time to commit"):
        assert re.fullmatch(r"p50 \S+ m?s, max \S+ m?s", shown.row(name)), shown.row(name)
        assert min(shown.numbers(name)) > 0
    saves, _size, gb_per_s = shown.numbers("committed")
    assert saves >= 6
    assert gb_per_s > 0
    assert shown.row("committed").endswith(" GB/s")
    assert re.fullmatch(r"survives 2 targets, \d devices?", shown.row("redundancy reached"))
    assert shown.row("with two targets lost").startswith("survives 1 target, ")
    rebuilt, read = shown.numbers("rebuilt from parity")
    assert rebuilt > 0
    assert read > 0
    assert re.match(r"\d+\.\d+ s \(loading \S+ m?s\)", shown.row("time to resume"))
    assert shown.numbers("time to resume")[0] > 0


@pytest.mark.timeout(240)
def test_without_a_terminal_it_prints_plain_lines(shown: Shown) -> None:
    assert not set("\x1b\r\b") & set(shown.text)
    lines = shown.text.splitlines()
    assert [line for line in lines if line in PHASES] == PHASES
    steps = [line for line in lines if re.fullmatch(r"  step \d+, loss \d\.\d{3}", line)]
    assert len(steps) > len(PHASES), "each of three runs tells how far it is"


@pytest.mark.timeout(240)
def test_the_readme_shows_what_it_prints(shown: Shown) -> None:
    (block,) = re.findall(r"<!-- demo output -->\n```\n(.*?)```", README.read_text(), re.DOTALL)
    printed = iter(forms_of(shown.text))
    assert [form for form in forms_of(block) if form not in printed] == [], "in this order"


def forms_of(text: str) -> list[str]:
    """The lines without what differs from run to run; of equal neighbours one."""
    lines = [
        re.sub(r"\d+(\.\d+)?( [KM]iB| m?s)?|sha256 \w+", "#", line) for line in text.splitlines()
    ]
    plain = [re.sub(r"[ ─]{2,}", " ", line).strip() for line in lines]
    return [line for line, _ in groupby(plain)]


@pytest.mark.timeout(240)
def test_every_rank_computes_in_one_thread(shown: Shown) -> None:
    assert shown.threads == [1] * 4


# --------------------------------------------------------------------------- when it fails
# A whole demo each, which ends with 1 on one of its screens: they take turns. What is judged and
# what its code is then, each landing asks of the director alone, in test_demo_strike.py.


@at_turn(0, every=2)
def test_a_check_that_does_not_hold_is_shown_and_is_the_exit_code(
    tmp_path: Path, birthmark: str, astray: dict[str, str]
) -> None:
    environ = environment(**astray)
    ended = run_installed("demo", "--json", *ALONE, "--directory", str(tmp_path), environ=environ)
    *documents, summary = [json.loads(line) for line in ended.out.splitlines()]
    assert (ended.code, summary["message_type"], summary["ok"]) == (1, "summary", False)
    assert not all(check["held"] for check in summary["checks"])
    assert {each["message_type"] for each in documents} == {"phase", "progress", "event"}
    assert born_with(birthmark) == []


@at_turn(1, every=2)
def test_on_a_terminal_its_progress_is_drawn_anew_in_place(
    tmp_path: Path, birthmark: str, astray: dict[str, str]
) -> None:
    code, text = on_terminal("demo", *ALONE, "--directory", str(tmp_path), **astray)
    assert code == 1
    assert "\x1b[1;31m✗ " in text, "a check that failed, in red"
    frames = text.split("\r\x1b[2K")  # The beginning of the line, which is erased.
    drawn = [frame for frame in frames if PHASES[0] in frame]
    assert len(drawn) > 2, "the line of one phase"
    assert any("━" in frame for frame in drawn), "a bar"
    assert any("step 4, loss " in frame for frame in drawn)
    assert born_with(birthmark) == []


# --------------------------------------------------------------------------- interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_and_no_file(
    tmp_path: Path, birthmark: str, number: signal.Signals
) -> None:
    flags = ("--json", *SHORT, "--steps", "2000", "--save-every", "500")
    with start(tmp_path, birthmark, *flags) as process:
        for document in lines_of(process):
            if document["message_type"] == "progress":
                break
        assert len(born_with(birthmark)) >= 3, "the director and two ranks"
        process.send_signal(number)
        process.communicate()
        assert process.returncode == 128 + number
    wait_until(lambda: not born_with(birthmark), "the end of what the demo started")
    assert list(tmp_path.iterdir()) == []


def test_a_demo_interrupted_beside_its_cluster_ends_the_cluster(
    tmp_path: Path, birthmark: str
) -> None:
    flags = ("--json", *SHORT, "--steps", "16")
    with start(tmp_path, birthmark, *flags) as process:
        for document in lines_of(process):
            if document["phase"] == "disturbed run" and document["message_type"] == "progress":
                break
        assert len(born_with(birthmark)) >= 9, "director, ranks, supervisor, coordinator, targets"
        process.send_signal(signal.SIGINT)
        process.communicate()
        assert process.returncode == 128 + signal.SIGINT
    wait_until(lambda: not born_with(birthmark), "the end of what the demo started")
    assert list(tmp_path.iterdir()) == []
