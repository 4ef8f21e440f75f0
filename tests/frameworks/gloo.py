"""Real gloo ranks for tests: processes that stay, forked warm for each module of tests.

`Ranks.run(function, ...)` runs a module's function on the first N of them, in a process group of
their own, and returns what each returned.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import signal
import socket
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tests.frameworks.warm import Warm

RANK = "tests.frameworks.rank"
END_TIMEOUT_S = 60.0
RUN_TIMEOUT_S = 240.0
SHOW_STACKS = signal.SIGUSR1
STACKS_S = 2.0
"""For a rank that hangs to write them."""


class RankFailed(AssertionError):
    """A rank raised; the text is its traceback."""


@dataclass(frozen=True)
class Seat:
    """A rank's process, what keeps it alive, and its jobs."""

    pid: int
    life: socket.socket
    pipe: Connection

    def answer(self) -> tuple[bool, Any]:
        """Whether it is good, and what it is."""
        try:
            good, answer = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return False, f"process {self.pid} has ended"
        return good, answer

    def end(self) -> None:
        self.pipe.close()
        self.life.settimeout(END_TIMEOUT_S)
        with self.life, suppress(TimeoutError):  # Its end kills a rank that has not ended.
            self.life.recv(64)


@dataclass(frozen=True)
class Job:
    """What a rank is told to do."""

    module: str
    function: str
    arguments: tuple[Any, ...]
    rank: int
    world_size: int
    rendezvous: str
    environ: dict[str, str]


class Ranks:
    """I own the processes. Close me."""

    def __init__(self, warm: Warm, count: int, directory: Path, jobs: Sequence[Path] = ()) -> None:
        """`jobs`: the modules that have them, whose packages are then imported once for all."""
        self._warm = warm
        self._jobs = jobs
        self._directory = directory
        self._runs = 0
        self._seats = [self._seat(number) for number in range(count)]

    def _seat(self, number: int) -> Seat:
        script = Path(__file__).with_name(RANK.rpartition(".")[2] + ".py")
        ours, theirs = multiprocessing.Pipe()
        pid, life = self._warm.start(number, script, theirs.fileno(), self._jobs)
        theirs.close()
        ours.send_bytes(multiprocessing.current_process().authkey)
        return Seat(pid, life, ours)

    def run(
        self,
        world_size: int,
        function: Callable[..., Any],
        *arguments: Any,
        environ: dict[str, str] | None = None,
    ) -> list[Any]:
        """The results by rank. Raises RankFailed with the first rank's traceback.

        Ranks that do not answer show their stacks and are replaced, as are those that have ended.
        """
        self._replace_ended()
        self._runs += 1
        rendezvous = f"file://{self._directory}/rendezvous-{self._runs}"
        seats = self._seats[:world_size]
        assert len(seats) == world_size
        for rank, seat in enumerate(seats):
            seat.pipe.send(
                Job(
                    function.__module__,
                    function.__qualname__,
                    arguments,
                    rank,
                    world_size,
                    rendezvous,
                    environ or {},
                )
            )
        deadline = monotonic() + RUN_TIMEOUT_S
        late = [seat for seat in seats if not seat.pipe.poll(max(0.0, deadline - monotonic()))]
        answers = [seat.answer() for seat in seats if seat not in late]
        if late:
            self._replace(late)
            pids = [seat.pid for seat in late]
            raise RankFailed(f"no answer from {pids}, only {answers}; their stacks are on stderr")
        for rank, (good, answer) in enumerate(answers):
            if not good:
                raise RankFailed(f"rank {rank}: {answer}")
        return [answer for _, answer in answers]

    def _replace_ended(self) -> None:
        """Who waits for a job has nothing to say: what can be read is its end."""
        self._start_again([seat for seat in self._seats if seat.pipe.poll()])

    def _replace(self, late: list[Seat]) -> None:
        for seat in late:
            os.kill(seat.pid, SHOW_STACKS)
        sleep(STACKS_S)
        for seat in late:
            os.kill(seat.pid, signal.SIGKILL)
        self._start_again(late)

    def _start_again(self, seats: list[Seat]) -> None:
        for seat in seats:
            number = self._seats.index(seat)
            seat.end()
            self._seats[number] = self._seat(number)

    def close(self) -> None:
        for seat in self._seats:
            seat.pipe.close()
        for seat in self._seats:
            seat.end()


def serve(pipe: Connection) -> None:
    """A rank's life: jobs until the other side closes."""
    import torch

    torch.set_num_threads(1)
    faulthandler.register(SHOW_STACKS)
    # Tensors in an answer go by shared memory, and its owner asks for this.
    multiprocessing.current_process().authkey = pipe.recv_bytes()
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            answer = (True, perform(job))
        except BaseException:
            answer = (False, traceback.format_exc())
        pipe.send(answer)


def perform(job: Job) -> Any:
    import torch.distributed as dist

    target: Any = importlib.import_module(job.module)
    for part in job.function.split("."):
        target = getattr(target, part)
    before = dict(os.environ)
    os.environ.update({"MASTER_ADDR": "127.0.0.1", **job.environ})
    dist.init_process_group(
        "gloo", init_method=job.rendezvous, rank=job.rank, world_size=job.world_size
    )
    try:
        # A rank that has nothing to do would leave while its peer still connects to it.
        dist.barrier()
        with warnings.catch_warnings():
            return target(*job.arguments)
    finally:
        dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(before)
