"""What a forked daemon has of its supervisor: what was imported, and nothing that acts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

PARENT = """
import json, os, signal, sys
from pathlib import Path
from ckptd.local.forked import fork

log, kept, shut = Path(sys.argv[1]), os.open("/dev/null", os.O_RDONLY), os.open("/dev/null", 0)
signal.set_wakeup_fd(os.pipe2(os.O_NONBLOCK)[1])
signal.signal(signal.SIGTERM, lambda *_: os._exit(77))
sys.stdout.write("written before the fork\\n")  # It is still in a buffer then.

def what_it_has(argv):
    print(json.dumps({
        "argv": sys.argv,
        "command": Path("/proc/self/cmdline").read_text().rstrip("\\0"),
        "marked": b"MARK=of the parent" in Path("/proc/self/environ").read_bytes().split(b"\\0"),
        "open": sorted(n for n in map(int, os.listdir("/proc/self/fd")) if os.path.exists(
            f"/proc/self/fd/{n}")),
        "names": [kept, shut],
        "group": [os.getpgid(0), os.getpid()],
        "stdin": os.read(0, 1).decode(),
        "handlers": [signal.getsignal(n) == signal.SIG_DFL for n in (15, 1)],
        "wakeup": signal.set_wakeup_fd(-1),
        "blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    }))
    print("told", file=sys.stderr)
    return 3

def raises(argv):
    raise ValueError(argv[1])

def leaves(argv):
    sys.exit(5)

def waits(argv):
    signal.pause()

program = {"has": what_it_has, "raises": raises, "leaves": leaves, "waits": waits}[sys.argv[2]]
child = fork(program, ["target", "an argument"], log, [kept])
if program is waits:  # At once: it may not have come to itself yet.
    child.signal(signal.SIGTERM)
assert child.ends_within(30)
os.set_blocking(child.stdout, True)
said = os.read(child.stdout, 1 << 16).decode()
print(json.dumps([child.reap(), said, child.pid, os.getpid()]))
"""


def _forked(log: Path, program: str) -> tuple[int, str]:
    """(exit code of the child, what it wrote to its stdout)"""
    ran = subprocess.run(
        [sys.executable, "-c", PARENT, str(log), program],
        capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "MARK": "of the parent"},
    )  # fmt: skip
    before, answer = ran.stdout.splitlines()
    assert before == "written before the fork"
    code, said, *_ = json.loads(answer)
    return code, said


def test_a_child_has_its_own_signals_group_streams_and_name(tmp_path: Path) -> None:
    code, said = _forked(tmp_path / "log", "has")
    assert code == 3
    has = json.loads(said)
    assert has["argv"] == ["ckptd", "target", "an argument"]
    assert has["command"] == "ckptd target 'an argument'"
    assert has["marked"]
    kept, shut = has["names"]
    assert kept in has["open"]
    assert shut not in has["open"]
    assert [n for n in has["open"] if n > 2] == [kept]
    assert has["group"][0] == has["group"][1]
    assert has["stdin"] == ""
    assert has["handlers"] == [True, True]
    assert has["wakeup"] == -1
    assert has["blocked"] == []
    assert (tmp_path / "log").read_text() == "told\n"


def test_a_child_that_raises_says_so_in_its_log_and_fails(tmp_path: Path) -> None:
    code, said = _forked(tmp_path / "log", "raises")
    assert (code, said) == (1, "")
    assert "ValueError: an argument" in (tmp_path / "log").read_text()
    assert _forked(tmp_path / "log", "leaves") == (5, "")


def test_a_signal_right_behind_the_fork_ends_the_child_not_the_parents_handler(
    tmp_path: Path,
) -> None:
    for _ in range(5):
        assert _forked(tmp_path / "log", "waits") == (-signal.SIGTERM, "")
