"""Real gloo ranks for tests: processes that stay, forked warm for each module of tests.

`Ranks.run(function, ...)` runs a module's function on the first N of them, in a process group of
their own, and returns what each returned.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.frameworks.warm import Warm

RANK = "tests.frameworks.rank"
END_TIMEOUT_S = 60.0
RUN_TIMEOUT_S = 600.0


class RankFailed(AssertionError):
    """A rank raised; the text is its traceback."""


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

    def __init__(self, warm: Warm, count: int, directory: Path) -> None:
        self._directory = directory
        self._runs = 0
        self._seats: list[tuple[int, socket.socket, Connection]] = []
        """Each rank's pid, what keeps it alive, and its jobs."""
        script = Path(__file__).with_name(RANK.rpartition(".")[2] + ".py")
        for number in range(count):
            ours, theirs = multiprocessing.Pipe()
            pid, life = warm.start(number, script, theirs.fileno())
            theirs.close()
            ours.send_bytes(multiprocessing.current_process().authkey)
            self._seats.append((pid, life, ours))

    def run(
        self,
        world_size: int,
        function: Callable[..., Any],
        *arguments: Any,
        environ: dict[str, str] | None = None,
    ) -> list[Any]:
        """The results by rank. Raises RankFailed with the first rank's traceback."""
        self._runs += 1
        rendezvous = f"file://{self._directory}/rendezvous-{self._runs}"
        seats = self._seats[:world_size]
        assert len(seats) == world_size
        for rank, (_, _, pipe) in enumerate(seats):
            pipe.send(
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
        answers = []
        for rank, (pid, _, pipe) in enumerate(seats):
            if not pipe.poll(RUN_TIMEOUT_S):
                raise RankFailed(f"rank {rank} (pid {pid}) did not answer")
            answers.append(pipe.recv())
        for rank, (good, answer) in enumerate(answers):
            if not good:
                raise RankFailed(f"rank {rank}: {answer}")
        return [answer for _, answer in answers]

    def close(self) -> None:
        for _, _, pipe in self._seats:
            pipe.close()
        for _, life, _ in self._seats:
            life.settimeout(END_TIMEOUT_S)
            with life, suppress(TimeoutError):  # Its end kills a rank that has not ended.
                life.recv(64)


def serve(pipe: Connection) -> None:
    """A rank's life: jobs until the other side closes."""
    import torch

    torch.set_num_threads(1)
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
        with warnings.catch_warnings():
            return target(*job.arguments)
    finally:
        dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(before)
