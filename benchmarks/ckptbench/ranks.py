"""The ranks of one launch, as processes that do the same thing at the same moment."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Protocol, Self

import msgspec

from ckpt.base.errors import CkptError
from ckpt_client.local.children import Child, end_children, start_child
from ckptbench import proc
from ckptbench.rank import RankAnswer, RankPlan
from ckptbench.results import HostSpent

LEAD_NS: Final = 300_000_000
"""Between the word and the common beginning: enough for every rank to have heard, and to be
ready.
"""
ANSWER_TIMEOUT_S: Final = 180.0
END_TIMEOUT_S: Final = 30.0
READ_BYTES: Final = 65536
PROGRAM: Final = ("-m", "ckptbench.rank")
"""What `python -P` runs for each; the rank's plan follows."""
NOW: Final = "NS"
"""Stands in a line for the common beginning."""

_answers = msgspec.json.Decoder(RankAnswer)


class RankGroup(Protocol):
    """Ranks of one launch, wherever they run."""

    @property
    def pids(self) -> list[int]:
        """Of those that run on this host."""

    @property
    def hosts_spent(self) -> tuple[HostSpent, ...]:
        """What other hosts counted of the lines of the last `begin`, once they are answered."""

    def tell(self, lines: Sequence[str]) -> list[RankAnswer]:
        """One line for each rank, where NS becomes the common beginning; their answers by rank.

        Raises CkptError when one ended or hangs; a failure of its engine is an answer.
        """

    def begin(self, lines: Sequence[str], *more: Sequence[str]) -> int:
        """Tell without waiting; returns the common beginning, monotonic nanoseconds.

        Each rank goes on to its line in `more` as soon as it has done the one before.
        """

    def answers(self) -> list[RankAnswer]:
        """What the first lines of `begin` led to that were not asked for yet, by rank."""

    def drop_caches(self, paths: Sequence[Path]) -> None:
        """Have the kernels of all hosts that run ranks forget these files."""

    def abandon(self) -> None:
        """Kill the ranks, from any thread: whoever waits for them gets an error."""

    def finish(self) -> None:
        """Have every rank end by itself. Raises CkptError when one does not."""

    def close(self) -> None:
        """End what still runs. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Ranks:
    """I start them on this host, speak with all at once, and end them."""

    def __init__(
        self,
        plans: Sequence[RankPlan],
        environment: Mapping[str, str],
        log_directory: Path,
        *,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._program = program
        self._environment = dict(environment)
        self._log = log_directory / "ranks.log"
        self._processes: list[Child] = []
        #: By process id: bytes that came from it and that no answer has taken yet.
        self._read: defaultdict[int, bytearray] = defaultdict(bytearray)
        try:
            self._processes += [self._start(plan) for plan in plans]
            self.answers()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    @property
    def hosts_spent(self) -> tuple[HostSpent, ...]:
        """None: this host is counted by whoever measures."""
        return ()

    def tell(self, lines: Sequence[str]) -> list[RankAnswer]:
        """See RankGroup."""
        self.begin(lines)
        return self.answers()

    def begin(self, lines: Sequence[str], *more: Sequence[str]) -> int:
        """See RankGroup."""
        when = time.monotonic_ns() + LEAD_NS
        for process, *texts in zip(self._processes, lines, *more, strict=True):
            words = " \n ".join(texts).split(" ")
            line = " ".join(str(when) if word == NOW else word for word in words)
            self._write(process, line.encode() + b"\n")
        return when

    def answers(self) -> list[RankAnswer]:
        """See RankGroup."""
        return [self._answer(process) for process in self._processes]

    def drop_caches(self, paths: Sequence[Path]) -> None:
        """See RankGroup."""
        proc.drop_cached(paths)

    def abandon(self) -> None:
        """See RankGroup."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()

    def finish(self) -> None:
        """See RankGroup."""
        for process in self._processes:
            self._write(process, b"close\n")
        for rank, process in enumerate(self._processes):
            status = process.wait(END_TIMEOUT_S)
            if status:
                raise CkptError(f"rank {rank} ended with {status}: {self._last_line()}")
        self.close()

    def close(self) -> None:
        """See RankGroup."""
        end_children(self._processes, signal.SIGKILL)

    # ----------------------------------------------------------------------- inside

    def _start(self, plan: RankPlan) -> Child:
        with Path(self._log).open("ab") as log:
            return start_child(
                [*self._program, msgspec.json.encode(plan).decode()],
                environment=self._environment,
                stderr=log,
                hears=True,
            )

    def _write(self, process: Child, line: bytes) -> None:
        try:
            _stream(process.stdin).write(line)
            _stream(process.stdin).flush()
        except BrokenPipeError:
            raise CkptError(f"a rank has ended: {self._last_line()}") from None

    def _answer(self, process: Child) -> RankAnswer:
        line = self._read_line(process)
        if not line:
            raise CkptError(f"a rank gave no answer: {self._last_line()}")
        return _answers.decode(line)

    def _read_line(self, process: Child) -> bytes:
        """Empty when it ended or the time is over. A rank may have answered twice by now: what
        follows the first line is kept.
        """
        pipe, have = _stream(process.stdout), self._read[process.pid]
        while b"\n" not in have:
            with selectors.DefaultSelector() as selector:
                selector.register(pipe, selectors.EVENT_READ)
                if not selector.select(ANSWER_TIMEOUT_S):
                    return b""
            more = os.read(pipe.fileno(), READ_BYTES)
            if not more:
                return b""
            have += more
        line, _, rest = bytes(have).partition(b"\n")
        self._read[process.pid] = bytearray(rest)
        return line

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _stream(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
