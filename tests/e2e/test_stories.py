"""Every command of docs/stories.md is run, in its order, on one cluster, and prints what is shown.

What a command prints is compared line by line: those that the page shows are among it, in their
order, but for sizes, times and which target it was.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import ckpt
from tests.client.clikit import run
from tests.client.test_operations import Shell
from tests.e2e.cluster import Cluster
from tests.pages import ROOT, sessions
from tests.waiting import WAIT_S, wait_until

PAGE = ROOT / "docs" / "stories.md"
OPTIONS = "targets=7&code=4+2&capacity=4GiB"
STORE = "s3://bucket/runs"
SHAPE = (4096, 1024)
RANKS = 2
PATIENCE_S = 90.0
"""What a busy machine delays may have a second turn, half a minute later."""
_PYTHON = re.compile(r"<!-- run: (\w+) -->\n```python\n(.*?)```\n\n```\n(.*?)```\n", re.DOTALL)
_VARIES = (
    (re.compile(r"\d[\d.]* (us|ms|s|min|h|B|KiB|MiB|GiB)\b"), "#"),
    (re.compile(r"\bjust now\b"), "# ago"),
    (re.compile(r"\b\d+\.\d+\b"), "#"),
    (re.compile(r"\bt\d\b"), "t#"),
    (re.compile(r"\b\d+( +t# +damaged)"), r"#\1"),
    (re.compile(r"\bslowest +rank \d"), "slowest rank #"),
    (re.compile(r"( #)+"), " #"),
    (re.compile(r"\s+"), " "),
)
"""What differs from run to run, and what stands for it. The columns of a table are as wide as what
they hold."""
WARMING = "import ckpt; ckpt.load('llama', 200, whole=True); print('warm', flush=True); input()\n"
LOOKS = ("ckpt ls", "ckpt status", "ckpt show")
"""What only looks may be asked again, until what the page shows has come about."""


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.*)\n", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def form(line: str) -> str:
    for pattern, instead in _VARIES:
        line = pattern.sub(instead, line)
    return line.strip()


def is_shown(printed: str, expected: str) -> bool:
    """All expected lines are printed, in that order; one that ends with … at least so far."""
    lines = iter([form(line) for line in printed.splitlines()])
    return all(
        any(_is_like(line, form(wanted)) for line in lines) for wanted in expected.splitlines()
    )


def _is_like(line: str, wanted: str) -> bool:
    return line.startswith(wanted[:-1]) if wanted.endswith("…") else line == wanted


def state_of(rank: int, step: int) -> dict[str, object]:
    """Half of a matrix, filled with the step's number and the rank's."""
    rows = np.full((SHAPE[0] // RANKS, SHAPE[1]), step + rank, np.float32)
    offset = (rank * len(rows), 0)
    return {"model": {"w": ckpt.Shard(rows, SHAPE, offset)}, "seed": rank}


class Scene(Shell):
    """I run the page's lines where they say, and give the places the page's names again."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.cluster = Cluster(root / "scratch" / "burst", OPTIONS)
        self.store = ckpt.open(self.cluster.url)
        for step in (100, 200):
            for save in [self._save(rank, step) for rank in range(RANKS)]:
                save.wait(WAIT_S)
        self._late = self._save(0, 300)
        self.run("export CKPT_STORE=ckpt+local:///scratch/burst")
        self.run("export CKPT_SECRET_FILE=/scratch/burst/secret")
        self._ports["10.0.0.1:7070"] = str(self.cluster.ready()["address"])

    def _save(self, rank: int, step: int) -> ckpt.Save:
        return self.store.save("llama", step, state_of(rank, step), rank=rank, world_size=RANKS)

    def _here(self, line: str) -> str:
        return super()._here(line.replace(STORE, f"file://{self._root}/bucket"))

    def run(self, line: str) -> str:
        """`ckpt` is run in this process: a dozen interpreters less."""
        if not line.startswith("ckpt "):
            return super().run(line)
        command, _, code = self._here(line).partition("   # exit ")
        ended = run(*shlex.split(command)[1:], environ=self._environ)
        assert ended.code == int(code or 0), f"$ {command}\n{ended.out}{ended.err}"
        return ended.out

    def printed(self, line: str) -> str:
        """Places are called as the page calls them."""
        text = self.run(line).replace(f"file://{self._root}/bucket", STORE)
        return text.replace(f"{self._root}/scratch", "/scratch")

    def prove(self, line: str, expected: str) -> None:
        """The line prints that; one that only looks, sooner or later."""
        told = first = self.printed(line)

        def comes() -> bool:
            nonlocal told
            if not is_shown(told, expected):
                told = self.printed(line)
            return is_shown(told, expected)

        if line.startswith(LOOKS):
            # What it printed last is shown below, where it never comes.
            with suppress(AssertionError):
                wait_until(comes, line, PATIENCE_S, 1.0)
        assert is_shown(told, expected), f"{line} showed first\n{first}\nand last\n{told}"

    def as_ranks(self, code: str) -> str:
        """What rank 0 of two prints that begin at once, on a host that no stager of this run is
        on. Nobody comes late because of a first load's imports, when the other has read and gone.
        """
        elsewhere = Path(os.environ["XDG_RUNTIME_DIR"]) / "elsewhere"
        elsewhere.mkdir(mode=0o700, exist_ok=True)
        words = [sys.executable, "-W", "error", "-c", f"{WARMING}{code}"]
        seats = [{"RANK": str(rank), "WORLD_SIZE": str(RANKS)} for rank in range(RANKS)]
        both = [
            subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env={**self._environ, **seat, "XDG_RUNTIME_DIR": str(elsewhere)}, text=True,
            )
            for seat in seats
        ]  # fmt: skip
        try:
            for one in both:
                assert one.stdout is not None
                assert one.stdout.readline() == "warm\n"
            for one in both:
                assert one.stdin is not None
                one.stdin.write("go\n")
                one.stdin.flush()
            told = [one.communicate(timeout=WAIT_S)[0] for one in both]
        finally:
            for one in both:
                one.kill()
        assert [one.returncode for one in both] == [0] * RANKS, told
        return told[0]

    # ----------------------------------------------------------------------- what happens

    def let_rank_1_come(self) -> None:
        if not self._late.ended:
            self._save(1, 300).wait(WAIT_S)
            self._late.wait(WAIT_S)

    def flip_a_bit(self) -> None:
        columns = [file for files in self.cluster.columns_of("llama").values() for file in files]
        (first, *_) = [file for file in columns if "-100-" in file.name]
        self.cluster.flip(first, 0)

    def lose_a_disk(self) -> None:
        self.let_rank_1_come()
        # Its one step would be named among those that are at risk.
        self.store.delete("fine-tune", self.store.latest("fine-tune") or 0)
        pid = self.cluster.pid_of("t3")
        shutil.rmtree(self.cluster.directory / "targets" / "t3")
        # By itself it ends within a second.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


HAPPENS: dict[str, Callable[[Scene], None]] = {
    "How many GPU-seconds did it cost?": Scene.let_rank_1_come,
    "Is the checkpoint right, bit for bit?": Scene.flip_a_bit,
    "A storage node died. What is at risk, and how is it replaced?": Scene.lose_a_disk,
}
"""Before the story is told."""


@pytest.fixture(scope="module")
def scene(mark: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("stories"))
    yield made
    made.let_rank_1_come()
    made.store.close()
    made.close()
    made.cluster.stop()


@pytest.mark.parametrize("title", sections())
def test_the_answer_is_what_the_page_shows(scene: Scene, title: str) -> None:
    text = sections()[title]
    HAPPENS.get(title, lambda _: None)(scene)
    for line, expected in sessions(text):
        scene.prove(line, expected)
    for kind, code, expected in _PYTHON.findall(text):
        told = scene.as_ranks(code) if kind == "ranks" else scene.python(code)
        assert is_shown(told, expected), told


def test_every_story_has_an_answer_and_a_page_that_explains_it() -> None:
    assert set(HAPPENS) <= set(sections())
    for title, text in sections().items():
        assert sessions(text) or _PYTHON.findall(text), title
        assert re.search(r"\]\([\w/]+\.md(#[\w-]+)?\)", text), title
    assert PAGE.read_text().count("```python") == len(_PYTHON.findall(PAGE.read_text()))
