"""What `.ci/run` makes of its parts; a script stands in the place of make."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
TARGETS = re.findall(r"^(test-[a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
MAKE = """#!/usr/bin/env bash
# As make does. By itself bash goes on when the grep that it waits for has ended as ever.
trap 'exit 130' INT
echo "begin $1" >>order
grep SigIgn /proc/self/status >>ignored
echo "first word of $1"
# Of either lane one ends when both have begun.
case $1 in test | test-frameworks)
    until [ "$FAILS" ] || [ "$(grep -cE '^begin test(-frameworks)?$' order)" = 2 ]; do :; done
;;
# Histories run while packages come.
packages | test-sim)
    until [ "$(grep -cE '^begin (packages|test-sim)$' order)" = 2 ]; do :; done
;;
# All but the part that needs it goes on meanwhile.
store-servers)
    until [ "$FAILS$STAYS" ] || [ "$(grep -cE '^end test(-wheel)?$' order)" = 2 ]; do :; done
esac
[ "$STAYS" != "$1" ] || { echo "$$" >>stays; bash -c 'echo $$ >>stays; exec tail -f /dev/null'; }
echo "last word of $1"
echo "==== 3 passed, 1 skipped in 0.20s ===="
[ "$1" != test-sim ] || echo "UNSTEADY, passed by itself: tests/sim/test_one.py"
echo "end $1" >>order
[ "$1" != "$FAILS" ]
"""


def lay_out(directory: Path, **says: str) -> dict[str, str]:
    """The script beside a make of ours; returns the environment to run it in."""
    (directory / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", directory / ".ci")
    shutil.copy(ROOT / "Makefile", directory)
    make = directory / "bin" / "make"
    make.parent.mkdir()
    make.write_text(MAKE)
    make.chmod(0o755)
    path = f"{make.parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "FAILS": "", "STAYS": "", **says}


def run(directory: Path, fails: str = "") -> tuple[int, str, list[str]]:
    """Its status, its output, and who began and ended in which order."""
    environment = lay_out(directory, FAILS=fails)
    done = subprocess.run(
        [".ci/run"], cwd=directory, env=environment, capture_output=True, text=True
    )
    assert done.stderr == ""
    return done.returncode, done.stdout, (directory / "order").read_text().splitlines()


def test_each_part_runs_once_and_the_crowd_has_the_machine_to_itself(tmp_path: Path) -> None:
    """That it ends shows that two run side by side: they wait for each other."""
    code, output, order = run(tmp_path)
    begun = [line.removeprefix("begin ") for line in order if line.startswith("begin ")]
    assert code == 0
    assert order[:2] == ["begin environment", "end environment"], "nothing runs without"
    others = [name for name in begun if name not in ("environment", "packages", "test-sim")]
    came = order.index("end packages")
    assert all(order.index(f"begin {name}") > came for name in others), "what is imported is there"
    installed = ["environment", "packages", "store-servers"]
    assert sorted(begun) == sorted([*installed, "check", "docs", "test", *TARGETS])
    assert order.index("end store-servers") < order.index("begin test-stores")
    at = order.index("begin test-crowd")
    assert order[at + 1] == "end test-crowd"
    assert sum(one.startswith("begin") - one.startswith("end") for one in order[:at]) == 0
    for name in begun:
        assert f"== {name}\nfirst word of {name}\nlast word of {name}\n" in output
        assert (
            len(
                re.findall(
                    rf"^{name}, \d+ s \(CPU \d+ s, idle \d+ s\): 3 passed, 1 skipped in 0.20s$",
                    output,
                    re.M,
                )
            )
            == 1
        )
    assert output.count("\nUNSTEADY, passed by itself: tests/sim/test_one.py\n") == 2
    # Ctrl-C and its like are ignored by no part: tests send them to what they start.
    masks = (tmp_path / "ignored").read_text().split()[1::2]
    assert {int(mask, 16) & 0b110 for mask in masks} == {0}


def test_a_part_that_fails_is_shown_and_nothing_else_begins(tmp_path: Path) -> None:
    code, output, order = run(tmp_path, fails="check")
    assert code == 1
    assert "== check\nfirst word of check\nlast word of check\n" in output
    assert "\ncheck FAILED with 1\n" in output
    assert "begin test-crowd" not in order
    begun = [line.removeprefix("begin ") for line in order if line.startswith("begin ")]
    ended = [line.removeprefix("end ") for line in order if line.startswith("end ")]
    assert sorted(begun) == sorted(ended), "what runs beside it is awaited"


def test_without_what_parts_share_none_begins(tmp_path: Path) -> None:
    code, _, order = run(tmp_path, fails="environment")
    assert (code, order) == (1, ["begin environment", "end environment"])


def test_without_packages_nothing_begins_that_imports_them(tmp_path: Path) -> None:
    code, _, order = run(tmp_path, fails="packages")
    assert code == 1
    assert {line.split()[1] for line in order} == {"environment", "packages", "test-sim"}


@pytest.mark.parametrize("stays", ["environment", "packages", "check", "test-crowd"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_interrupts_it_ends_all_that_it_runs(
    tmp_path: Path, number: signal.Signals, stays: str
) -> None:
    environment = lay_out(tmp_path, STAYS=stays)
    pids = tmp_path / "stays"
    with subprocess.Popen(
        [".ci/run"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as script:
        try:
            wait_until(
                lambda: pids.exists() and pids.read_text().count("\n") == 2, "a part at work"
            )
            # As a terminal does: to its foreground group, where what a lane runs is not.
            os.killpg(script.pid, number)
            output, _ = script.communicate(timeout=60)
            running = [pid for pid in pids.read_text().split() if Path(f"/proc/{pid}").exists()]
        finally:
            for pid in pids.read_text().split() if pids.exists() else ():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
    assert running == []
    assert script.returncode == 128 + number
    assert f"== {stays}\nfirst word of {stays}\n" in output
    assert f"end {stays}" not in (tmp_path / "order").read_text()
