"""A job of ranks that is started again whenever one of them dies, as a scheduler does it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tests.soak.rank import Plan

SIGKILLED: Final = -9
END_TIMEOUT_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class Said:
    """One line of one rank."""

    launch: int
    rank: int
    words: dict[str, object]

    @property
    def event(self) -> str:
        return str(self.words["event"])


class Job:
    """I own the rank processes. Call `tend` now and then, and `end` or `kill` at last."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self._plan = plan
        self._directory = directory
        self._ranks: list[subprocess.Popen[bytes]] = []
        self.launch = 0

    @property
    def pids(self) -> list[int]:
        return [rank.pid for rank in self._ranks]

    def tend(self) -> None:
        """Start the first launch, or the next one when a rank is gone.

        A rank that failed by itself fails here.
        """
        if self._ranks and all(rank.poll() is None for rank in self._ranks):
            return
        self._check_ends((None, SIGKILLED))
        self.kill()
        self.launch += 1
        for number in range(self._plan.world_size):
            self._ranks.append(self._start(number))

    def end(self) -> None:
        """Let all finish what they have and leave. All must succeed."""
        for rank in self._ranks:
            assert rank.stdin is not None
            with suppress(BrokenPipeError):
                rank.stdin.close()
        for rank in self._ranks:
            rank.wait(END_TIMEOUT_S)
        self._check_ends((0,))
        self._ranks.clear()

    def kill(self) -> None:
        """All ranks are gone on return."""
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            rank.wait()
            assert rank.stdin is not None
            with suppress(BrokenPipeError):
                rank.stdin.close()
        self._ranks.clear()

    def said(self) -> Iterator[Said]:
        """Every whole line so far, by launch and rank."""
        for launch in range(1, self.launch + 1):
            for rank in range(self._plan.world_size):
                for line in self._log(launch, rank, "out").read_bytes().split(b"\n")[:-1]:
                    yield Said(launch, rank, json.loads(line))

    # ----------------------------------------------------------------------- inside

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        plan = msgspec.structs.replace(self._plan, rank=rank, launch=self.launch)
        argument = msgspec.json.encode(plan).decode()
        with (
            self._log(self.launch, rank, "out").open("ab") as out,
            self._log(self.launch, rank, "err").open("ab") as err,
        ):
            return subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "tests.soak.rank", argument],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
            )

    def _check_ends(self, allowed: tuple[int | None, ...]) -> None:
        for number, rank in enumerate(self._ranks):
            status = rank.poll()
            words = self._log(self.launch, number, "err").read_text(errors="replace")[-3000:]
            place = f"launch {self.launch} rank {number}"
            assert status in allowed, f"{place} ended with status {status}: {words}"

    def _log(self, launch: int, rank: int, kind: str) -> Path:
        return self._directory / f"launch-{launch:03}-rank-{rank}.{kind}"
