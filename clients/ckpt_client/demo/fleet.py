"""The ranks of one launch: started together, heard together, ended together."""

from __future__ import annotations

import selectors
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self

import msgspec

from ckpt.base.errors import CkptError
from ckpt_client.demo.mesh import PeerGone, socket_mesh
from ckpt_client.demo.words import TrainerPlan, Word, decode_word
from ckpt_client.local.children import Child, end_children, start_child
from ckpt_client.local.detach import child_environment

READ_BYTES: Final = 1 << 16
END_TIMEOUT_S: Final = 10.0
OTHERS_TIMEOUT_S: Final = 1.0
ONE_THREAD: Final = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    ),
    "1",
)
"""Sums over several threads come out in an order of their own."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What all ranks have in common."""

    ranks: int
    seed: int
    steps: int
    save_every: int
    width: int
    url: str
    launch: str
    directory: Path
    """Receives what ranks say on stderr, one log for each."""
    hold_from: int = 0
    """As TrainerPlan says."""

    def log(self, rank: int) -> Path:
        return self.directory / f"{self.launch}-{rank}.log"


@dataclass(frozen=True, slots=True)
class RankSaid:
    """A rank said something."""

    rank: int
    word: Word


class Fleet:
    """I own the processes and their pipes; leaving me ends what still runs."""

    def __init__(self, plan: FleetPlan) -> None:
        self._plan = plan
        self._selector = selectors.DefaultSelector()
        self._processes: list[Child] = []
        #: rank -> the beginning of a line that has not ended yet, while its pipe is open.
        self._rests: dict[int, bytes] = {}
        self._killed = False
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in self._processes]

    @property
    def silent(self) -> bool:
        """All ranks have closed their pipes: there is nothing more to hear."""
        return not self._rests

    def hear(self, timeout_s: float) -> list[RankSaid]:
        """What ranks said, waiting at most so long for the first word. Raises CkptError."""
        heard: list[RankSaid] = []
        for key, _ in self._selector.select(timeout_s):
            rank: int = key.data
            pipe = self._pipe(rank)
            data = pipe.read1(READ_BYTES)  # type: ignore[attr-defined]
            *lines, self._rests[rank] = (self._rests[rank] + data).split(b"\n")
            try:
                heard.extend(RankSaid(rank, decode_word(line)) for line in lines)
            except msgspec.MsgspecError:
                raise CkptError(f"rank {rank} said {lines[0]!r:.200}") from None
            if not data:
                self._ended(rank)
        return heard

    def let_go(self) -> None:
        """Let ranks that wait before a save go on; a rank that has ended is heard of as ever."""
        for each in self._processes:
            assert each.stdin is not None
            with suppress(BrokenPipeError):
                each.stdin.write(b"\n")
                each.stdin.flush()

    def kill(self) -> None:
        """SIGKILL to every rank that still runs; wait until all are gone. That is no failure."""
        self._killed = True
        for each in self._processes:
            each.kill()
        for each in self._processes:
            each.wait()

    def close(self) -> None:
        """End what still runs. Idempotent."""
        end_children(self._processes, signal.SIGKILL)
        self._selector.close()

    # ----------------------------------------------------------------------- inside

    def _start(self) -> None:
        plan = self._plan
        mesh = socket_mesh(plan.ranks)
        try:
            for rank, sockets in enumerate(mesh):
                peers = {peer: each.fileno() for peer, each in sockets.items()}
                with plan.log(rank).open("ab") as log:
                    self._processes.append(self._start_rank(rank, peers, log))
                self._selector.register(self._pipe(rank), selectors.EVENT_READ, rank)
                self._rests[rank] = b""
        finally:
            for sockets in mesh:
                for each in sockets.values():
                    each.close()

    def _start_rank(self, rank: int, peers: Mapping[int, int], log: IO[bytes]) -> Child:
        plan = self._plan
        words = TrainerPlan(
            rank=rank,
            world_size=plan.ranks,
            peers=dict(peers),
            seed=plan.seed,
            steps=plan.steps,
            save_every=plan.save_every,
            width=plan.width,
            url=plan.url,
            launch=plan.launch,
            hold_from=plan.hold_from,
        )
        argument = msgspec.json.encode(words).decode()
        return start_child(
            ["-m", "ckpt_client.demo.trainer", argument],
            environment={**child_environment(), **ONE_THREAD},
            stderr=log,
            pass_fds=tuple(peers.values()),
            hears=plan.hold_from > 0,
        )

    def _pipe(self, rank: int) -> IO[bytes]:
        pipe = self._processes[rank].stdout
        assert pipe is not None
        return pipe

    def _ended(self, rank: int) -> None:
        self._selector.unregister(self._pipe(rank))
        del self._rests[rank]
        if self._killed:
            return
        status = self._processes[rank].wait(END_TIMEOUT_S)
        if status:
            raise CkptError(f"rank {rank} ended with status {status}: {self._cause()}")

    def _cause(self) -> str:
        """The last words of the rank that failed first: the others end because it is gone."""
        with suppress(subprocess.TimeoutExpired):
            for each in self._processes:
                each.wait(OTHERS_TIMEOUT_S)
        words = [_last_line(self._plan.log(rank)) for rank in range(self._plan.ranks)]
        causes = [one for one in words if one and PeerGone.__name__ not in one]
        return next(iter(causes or filter(None, words)), "it said nothing")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
