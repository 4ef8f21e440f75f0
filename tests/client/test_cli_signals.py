"""Python drops what is raised while it finalizes an object: a signal that comes just then still
ends a command, with its code and without a traceback.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ckpt_client
from tests.client.clikit import environment

DEAF_PLACE = """
import os, sys, weakref

kind, name, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
del sys.argv[1:4]


class Held:
    pass


def signal_myself(_):
    os.kill(os.getpid(), number)
    sum(range(9))


def look(event, arguments):
    if event == kind and str(arguments[0]) == name:
        held = Held()
        dropped = weakref.ref(held, signal_myself)
        del held


sys.addaudithook(look)
from ckpt_client.cli.entry import main

sys.exit(main())
"""
"""It signals itself from such a place, at each event of that kind and name."""


NEW_MODULES = """
import sys

before = set(sys.modules)
import ckpt_client.cli.entry

print(*sorted(set(sys.modules) - before))
"""


def test_a_command_imports_nothing_before_it_holds_ctrl_c_back() -> None:
    """Python's own `signal` took most of the time in which Ctrl-C was a traceback."""
    place = str(Path(ckpt_client.__file__).parents[1])
    found = subprocess.check_output(
        [sys.executable, "-S", "-c", NEW_MODULES], env=environment(PYTHONPATH=place), text=True
    )
    assert found.split() == [
        "__future__",
        "ckpt_client",
        "ckpt_client.cli",
        "ckpt_client.cli.entry",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("kind", ["import", "open"])
def test_a_signal_ends_a_command_where_its_exception_is_dropped(
    kind: str, number: signal.Signals, silent_address: str, secret: Path
) -> None:
    """Beside an import, and later. It went on, until nobody had answered."""
    name = "ckpt_client.cli.cluster" if kind == "import" else str(secret)
    place = (sys.executable, "-c", DEAF_PLACE, kind, name, str(int(number)))
    done = subprocess.run(
        [*place, "ls", "--store", f"ckpt://{silent_address}", "--timeout", "10"],
        env=environment(CKPT_SECRET_FILE=str(secret)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (128 + number, "ckpt: interrupted\n")
