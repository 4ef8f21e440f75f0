"""A script that starts warm ends, and speaks, as one that starts cold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from tests.frameworks.warm import Warm, method_name
from tests.landing import in_turn

WAIT_S = 120
SCRIPTS = {
    "to its end": "print('said', end='')",
    "by a number": "import sys; print('said', end=''); sys.exit(3)",
    "by nothing": "import sys; sys.exit()",
    "by a text": "import sys; sys.exit('why')",
    "by an error": "print('said', end=''); raise ValueError('why')",
    "by Ctrl-C": "raise KeyboardInterrupt",
    "by a signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "at once": "import os; print('said', flush=True); os._exit(4)",
    "by what atexit has": "import atexit; atexit.register(print, 'last')",
    "after a thread": """
import atexit, threading

def speak():
    threading.main_thread().join()
    print("a thread")

atexit.register(print, "last")
threading.Thread(target=speak).start()
""",
    "with a knot": """
class Knot:
    def __init__(self):
        self.own = self

    def __del__(self):
        print("untied")

knot = Knot()
""",
    "after what it spawned": """
import multiprocessing, os, sys

started = len(sys.argv)

def speak(pipe, code):
    pipe.send((__name__, started, multiprocessing.parent_process().pid))
    sys.exit(code)

def fail(pipe, code):
    pipe.send("fails")
    raise ValueError("why")

def last(pipe, code):
    pipe.send("waits")
    try:
        pipe.recv()
    except EOFError:
        print("alone", flush=True)

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")

    def start(target, code=0):
        ours, theirs = spawn.Pipe()
        child = spawn.Process(target=target, args=(theirs, code))
        child.start()
        theirs.close()
        return ours, child

    for target, code in ((speak, 0), (speak, 3), (fail, 0)):
        pipe, child = start(target, code)
        said = pipe.recv()
        child.join()
        own = said[2:] == (os.getpid(),)
        print(said[:2], own, child.exitcode, child.is_alive(), flush=True)
    for end in ("terminate", "kill", "close"):
        pipe, child = start(last)
        print(pipe.recv(), flush=True)
        getattr(pipe if end == "close" else child, end)()
        child.join()
        print(child.exitcode, flush=True)
""",
}
WHAT_IS_THERE = """
import multiprocessing, sys

def speak():
    print("tests.warm_start" in sys.modules)

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=speak)
    child.start()
    child.join()
"""
NAMES = f"""
import {dynamic_rendezvous.__name__} as rendezvous

print(rendezvous.get_method_name.__module__)
"""


def ended(command: list[str]) -> tuple[int, str, str]:
    """Its status, what it said, and the last line of what it complained of."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_S, env={**os.environ}
    )
    return done.returncode, done.stdout, done.stderr.rpartition("\n")[0].rpartition("\n")[2]


@pytest.mark.parametrize("name", in_turn([*SCRIPTS], every=3))
def test_it_ends_and_says_what_a_cold_one_does(warm: Warm, tmp_path: Path, name: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPTS[name])
    assert ended(warm.command(script)) == ended([sys.executable, str(script)])


def test_what_it_spawns_starts_warm(warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WHAT_IS_THERE)
    assert ended(warm.command(script))[:2] == (0, "True\n")
    assert ended([sys.executable, str(script)])[:2] == (0, "False\n")


def test_an_agents_events_have_the_names_that_torch_gives_them() -> None:
    def noted(name: Callable[[], str]) -> str:
        return name()

    def a_method(name: Callable[[], str]) -> str:
        return noted(name)

    theirs = dynamic_rendezvous.get_method_name
    assert a_method(method_name) == a_method(theirs) == "a_method"


def test_an_agent_that_starts_warm_names_its_events_without_a_walk(
    warm: Warm, tmp_path: Path
) -> None:
    script = tmp_path / "agent.py"
    script.write_text(NAMES)
    # The server is what runs warm.py.
    assert ended(warm.command(script))[:2] == (0, "__main__\n")
