"""Ctrl-C wherever somebody waits: the process ends with its documented code, what was handed over
commits, and neither a process nor half a file is left.
"""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.errors import NotFound
from ckpt.base.ids import RunName
from ckpt.objects.reader import open_stored
from ckpt.objects.sinks.stores import open_sink
from tests.client.clikit import run
from tests.e2e.cluster import Cluster
from tests.e2e.states import form_of
from tests.landing import in_turn
from tests.waiting import wait_until

CLUSTER_OPTIONS = "targets=3&code=2+1&restart=never"
WAIT_S = 60.0
LOOKS = 60
STATE = {"a": np.arange(1 << 18)}
TRAINER = """
import sys
import numpy as np
import ckpt

def say(word):
    print(word, flush=True)

store = ckpt.open(sys.argv[1])
state = {"a": np.arange(1 << 18)}
"""

LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""
ON_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@contextmanager
def still(cluster: Cluster, *, targets: bool, but: str = "") -> Iterator[None]:
    """The coordinator, or the targets, answer nobody."""
    ids = {"t0", "t1", "t2"} - {but}
    pids = [cluster.pid_of(id) for id in sorted(ids)] if targets else []
    with ExitStack() as stack:
        for pid in pids or [cluster.coordinator_pid]:
            stack.enter_context(cluster.stopped(pid))
        yield


class Script:
    """A Python process that says what it does, and goes on when it is told to."""

    def __init__(self, cluster: Cluster, text: str) -> None:
        line = [sys.executable, "-W", "error", "-c", TRAINER + text, cluster.url]
        self.process = _started(line)

    def says(self, word: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == f"{word}\n", self.process.communicate()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def interrupt(self) -> str:
        """Ctrl-C while it waits; its last words."""
        _, err = _interrupted(self.process)
        assert self.process.returncode == -signal.SIGINT, "Python's own end by Ctrl-C: 130"
        return err


def _started(line: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def _interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    _wait_until_it_waits(process)
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=WAIT_S)


def _wait_until_it_waits(process: subprocess.Popen[str]) -> None:
    """Until its main thread is asleep and has computed nothing for LOOKS looks: it may wake up to
    look around, but has nothing to do."""
    looks: list[tuple[str, ...]] = []

    def sleeps() -> bool:
        task = Path(f"/proc/{process.pid}/task/{process.pid}/stat")
        state, *fields = task.read_text().rpartition(") ")[2].split()
        looks.append(tuple(fields[10:12]))  # Clock ticks in user and kernel mode.
        return state == "S" and looks[-LOOKS:] == [looks[-1]] * LOOKS

    # Looks that lie further apart would meet each of its looks around.
    wait_until(sleeps, "it waits for somebody", poll_s=0.0025)


# --------------------------------------------------------------------------- a trainer


def test_an_interrupted_wait_ends_the_trainer_and_the_save_commits(
    cluster: Cluster, store: ckpt.Store
) -> None:
    script = Script(cluster, """
store.prepare(state).result()  # Targets that stand still while a stager starts lose their lease.
say("ready")
input()
save = store.save("waits", 1, state)
say("staged")
save.wait()
""")  # fmt: skip
    script.says("ready")
    with still(cluster, targets=True):
        script.go()
        script.says("staged")
        assert "KeyboardInterrupt" in script.interrupt()
    wait_until(lambda: store.latest("waits") == 1, "what was handed over commits")
    assert form_of(store.load("waits")) == form_of(STATE)


def test_an_interrupted_save_was_never_made_and_those_before_it_commit(
    cluster: Cluster, store: ckpt.Store
) -> None:
    script = Script(cluster, """
store.save("saves", 1, state).wait()
say("first")
input()
for step in (2, 3):
    store.save("saves", step, state)
say("both halves are held")
store.save("saves", 4, state)
""")  # fmt: skip
    script.says("first")
    with still(cluster, targets=False):
        script.go()
        script.says("both halves are held")
        assert "KeyboardInterrupt" in script.interrupt()
    wait_until(
        lambda: [commit.step for commit in store.steps("saves")] == [1, 2, 3],
        "what was handed over commits, and nothing else",
    )
    assert form_of(store.load("saves", 3)) == form_of(STATE)


@pytest.mark.parametrize("targets", [False, True])
def test_an_interrupted_load_holds_nothing(
    cluster: Cluster, store: ckpt.Store, targets: bool
) -> None:
    run = f"loads {targets}"
    store.save(run, 1, STATE).wait(WAIT_S)
    script = Script(cluster, f'say("ready"); input(); store.load("{run}", rank=0, world_size=1)')
    script.says("ready")
    with still(cluster, targets=targets):
        script.go()
        assert "KeyboardInterrupt" in script.interrupt()
    store.delete(run, 1)
    wait_until(lambda: not any(cluster.columns_of(run).values()), "no pin keeps its columns")


# --------------------------------------------------------------------------- commands


@pytest.fixture(scope="module")
def saved(cluster: Cluster) -> str:
    """A step to work on."""
    with ckpt.open(cluster.url) as store:
        store.save("tools", 1, {"w": np.arange(1 << 20)}).wait(WAIT_S)
    return cluster.url


@pytest.mark.parametrize(
    "line",
    in_turn(
        [
            "status", "export tools@1 OUT/out.npz --format npz",
            "ls tools", "verify tools@1", "drill tools@1 --lose t1", "show tools@1",
            "export tools@1 OUT/out --format safetensors", "import OUT/given.npz tools@7",
        ],
        every=2,
    ),
)  # fmt: skip
def test_an_interrupted_command_says_so_and_leaves_nothing(
    cluster: Cluster, saved: str, tmp_path: Path, line: str
) -> None:
    given = tmp_path / "given.npz"
    np.savez(given, w=np.arange(1 << 20))
    words = [word.replace("OUT", str(tmp_path)) for word in line.split()]
    with still(cluster, targets=words[0] in ("verify", "drill", "export", "import")):
        process = _started(
            [sys.executable, "-W", "error", "-m", "ckpt_client.cli.main", *words, "--store", saved]
        )
        out, err = _interrupted(process)
    assert process.returncode == 130, (out, err)
    assert err.splitlines()[-1] == "ckpt: interrupted"
    assert "Traceback" not in err
    assert sorted(os.listdir(tmp_path)) == ["given.npz"], "no half a file"
    with ckpt.open(cluster.url) as store:
        wait_until(lambda: store.latest("tools") in (1, 7), "the cluster answers")
        # A target that stood still for longer than its lease has to come back first.
        wait_until(lambda: store.verify("tools", 1).state == "healthy", "all of it is there")


def _command(
    cluster: Cluster, words: Sequence[str], file_bytes_max: int | None = None, **more: str
) -> subprocess.Popen[str]:
    line = [sys.executable, "-W", "error", "-m", "ckpt_client.cli.main", *words]
    if file_bytes_max is not None:
        line = [sys.executable, "-c", LIMITED, str(file_bytes_max), *line]
    environ, pipe = {**os.environ, "CKPT_STORE": cluster.url, **more}, subprocess.PIPE
    return subprocess.Popen(
        line, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environ, start_new_session=True
    )


def _interrupt(cluster: Cluster, *words: str, targets: bool, but: str = "", **more: str) -> None:
    """Ctrl-C as a terminal sends it, to all of its processes: it says so, and none is left."""
    with still(cluster, targets=targets, but=but):
        process = _command(cluster, words, **more)
        _wait_until_it_waits(process)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, (out, err)
    assert err.splitlines()[-1] == "ckpt: interrupted"
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def _run(cluster: Cluster, *words: str, **more: str) -> dict[str, object]:
    """The same command again, which nobody interrupts: in this process."""
    ended = run(*words, "--json", environ={**os.environ, "CKPT_STORE": cluster.url, **more})
    assert ended.code == 0, ended.err
    return ended.document()


class Terminal:
    """A command on a terminal of its own, with a person before it."""

    def __init__(self, cluster: Cluster, *words: str) -> None:
        line = [sys.executable, "-W", "error", "-m", "ckpt_client.cli.main", *words]
        self._screen, keys = pty.openpty()
        environ = {**os.environ, "CKPT_STORE": cluster.url}
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *line],
            stdin=keys, stdout=keys, stderr=keys, env=environ, text=True,
        )  # fmt: skip
        os.close(keys)
        self.shown = ""

    def wait_for(self, text: str) -> None:
        while text not in self.shown:
            self.shown += os.read(self._screen, 4096).decode()

    def press(self, keys: bytes) -> None:
        os.write(self._screen, keys)

    def end(self) -> int:
        """Its exit code, with all that it has shown."""
        with suppress(OSError):  # A terminal that nobody holds any more.
            while more := os.read(self._screen, 4096):
                self.shown += more.decode()
        os.close(self._screen)
        return self.process.wait(WAIT_S)


def test_an_interrupted_wait_for_a_target_to_be_empty_says_that_it_stays_so(
    cluster: Cluster, saved: str
) -> None:
    """Whoever gives up waiting for a drain has taken nothing back."""
    _run(cluster, "repair", "pause")
    try:
        process = _command(cluster, ["target", "drain", "t2", "--force", "--wait"])
        wait_until(lambda: cluster.targets()["t2"].standing == "draining", "it is draining")
        _, err = _interrupted(process)
        assert process.returncode == 130, err
        assert err.splitlines()[-2:] == [
            "ckpt: interrupted", "      t2 stays draining; ckpt target undrain t2 takes that back",
        ]  # fmt: skip
    finally:
        _run(cluster, "target", "undrain", "t2")
        _run(cluster, "repair", "resume")


def test_a_deletion_that_is_interrupted_at_its_question_deletes_nothing(
    cluster: Cluster, store: ckpt.Store
) -> None:
    for step in (1, 2):
        store.save("asked", step, STATE).wait(WAIT_S)
    terminal = Terminal(cluster, "rm", "asked@1")
    terminal.wait_for("delete asked@1")
    _wait_until_it_waits(terminal.process)
    terminal.press(b"\x03")
    assert terminal.end() == 130, terminal.shown
    assert "Traceback" not in terminal.shown
    assert [commit.step for commit in store.steps("asked")] == [1, 2]


def test_a_deletion_that_is_interrupted_behind_its_question_is_whole(
    cluster: Cluster, store: ckpt.Store
) -> None:
    for step in (1, 2):
        store.save("doomed", step, STATE).wait(WAIT_S)
    terminal = Terminal(cluster, "rm", "doomed@1")
    terminal.wait_for("delete doomed@1")
    with still(cluster, targets=False):
        terminal.press(b"y\n")
        _wait_until_it_waits(terminal.process)
        terminal.press(b"\x03")
        assert terminal.end() == 130, terminal.shown
    assert "Traceback" not in terminal.shown
    wait_until(lambda: store.latest("doomed") == 2, "the coordinator answers")
    again = run("rm", "doomed@1", "--yes", "--store", cluster.url)
    assert again.code in (0, NotFound.exit_code), again.err
    assert [commit.step for commit in store.steps("doomed")] == [2]
    assert form_of(store.load("doomed", 2)) == form_of(STATE)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_an_interrupted_export_to_an_object_store_goes_on_with_the_next_one(
    cluster: Cluster, store: ckpt.Store, tmp_path: Path
) -> None:
    state = {"w": np.frombuffer(random.Random(1).randbytes(4 << 20), "u1")}
    store.save("exported", 1, state).wait(WAIT_S)
    line = ("export", "exported@1", str(tmp_path / "out"), "--format", "zarr")
    full = _command(cluster, line, file_bytes_max=64 << 10)
    _, err = full.communicate(timeout=WAIT_S)
    assert full.returncode != 0, err
    begun = files_in(tmp_path)
    assert "plan.json" in begun, "it has a plan, and its large shard is not written"
    indexed = min(cluster.indexes_of("exported", 1))
    _interrupt(cluster, *line, targets=True, but=indexed)  # One answers: it comes to the columns.
    assert files_in(tmp_path) == begun, "no half a file, and no marker"
    _run(cluster, *line)
    stored = open_stored(open_sink(f"file://{tmp_path}/out"), RunName("exported"))
    try:
        assert stored.verify() > 4 << 20
    finally:
        stored.close()


def test_an_interrupted_fetch_brings_the_whole_step_or_nothing(
    cluster: Cluster, store: ckpt.Store, tmp_path: Path
) -> None:
    store.save("fetched", 1, STATE).wait(WAIT_S)
    _run(cluster, "export", "fetched@1", str(tmp_path), "--format", "zarr")
    store.delete("fetched", 1)
    line = ("fetch", f"file://{tmp_path}/fetched@1")
    _interrupt(cluster, *line, targets=True)
    wait_until(lambda: not cluster.status().attempts, "what was handed over has its end")
    _run(cluster, *line)
    assert form_of(store.load("fetched", 1)) == form_of(STATE)


def test_an_interrupted_rebuild_leaves_no_catalog(
    cluster: Cluster, saved: str, tmp_path: Path
) -> None:
    addresses = " ".join(str(one.address) for one in cluster.targets().values())
    line = ("catalog", "rebuild", str(tmp_path), "--targets", addresses)
    secret = str(cluster.directory / "secret")
    _interrupt(cluster, *line, targets=True, CKPT_SECRET_FILE=secret)
    assert not list(tmp_path.glob("catalog*"))
    document = _run(cluster, *line, CKPT_SECRET_FILE=secret)
    (found,) = document["catalogs"]  # type: ignore[misc]
    assert [one for one in found["committed"] if one.startswith("tools@1")]
