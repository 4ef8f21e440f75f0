"""The ranks of one launch, as processes that do the same thing at the same moment."""

from __future__ import annotations

import secrets
import selectors
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import msgspec

from ckpt.base.errors import CkptError
from ckptbench.cluster import BenchCluster
from ckptbench.rank import Answer, RankPlan

LEAD_NS: Final = 300_000_000
"""Between the word and the common beginning: enough for every rank to have heard, and to be
ready.
"""
ANSWER_TIMEOUT_S: Final = 180.0
END_TIMEOUT_S: Final = 30.0

_answers = msgspec.json.Decoder(Answer)


class Ranks:
    """I start them, speak with all at once, and end them."""

    def __init__(
        self, cluster: BenchCluster, count: int, state_bytes: int, *, holds_state: bool
    ) -> None:
        self._cluster = cluster
        self._log = cluster.directory / "ranks.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        launch = secrets.token_hex(4)
        try:
            for rank in range(count):
                plan = RankPlan(rank, count, state_bytes, cluster.url, launch, holds_state)
                self._processes.append(self._start(plan))
            for process in self._processes:
                self._answer(process)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def together(self, *words: object) -> list[Answer]:
        """The same line for all, with a common moment at its end; their answers by rank."""
        return self.tell(*words, time.monotonic_ns() + LEAD_NS)

    def tell(self, *words: object) -> list[Answer]:
        """The same line for all; their answers by rank. Raises CkptError when one ended or
        hangs.
        """
        line = " ".join(str(word) for word in words).encode() + b"\n"
        for process in self._processes:
            _stream(process.stdin).write(line)
            _stream(process.stdin).flush()
        return [self._answer(process) for process in self._processes]

    def finish(self) -> None:
        """Have every rank close its store and end by itself. Raises CkptError when one does not."""
        for process in self._processes:
            _stream(process.stdin).write(b"close\n")
            _stream(process.stdin).flush()
        for rank, process in enumerate(self._processes):
            status = process.wait(END_TIMEOUT_S)
            if status:
                raise CkptError(f"rank {rank} ended with {status}: {self._last_line()}")
        self.close()

    def close(self) -> None:
        """End what still runs. Idempotent."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None and not stream.closed:
                    try:
                        stream.close()
                    except BrokenPipeError:
                        continue  # It was killed with a word on its way.

    # ----------------------------------------------------------------------- inside

    def _start(self, plan: RankPlan) -> subprocess.Popen[bytes]:
        with Path(self._log).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "ckptbench.rank", msgspec.json.encode(plan).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=self._cluster.environment,
            )

    def _answer(self, process: subprocess.Popen[bytes]) -> Answer:
        pipe = _stream(process.stdout)
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            line = pipe.readline() if selector.select(ANSWER_TIMEOUT_S) else b""
        if not line:
            raise CkptError(f"a rank gave no answer: {self._last_line()}")
        return _answers.decode(line)

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _stream(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
