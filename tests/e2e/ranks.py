"""Rank processes as a test starts and commands them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tests.e2e.cluster import runs
from tests.waiting import wait_until
from tests.warm_start import WARM

LAUNCHER_NAMES = ("RANK", "WORLD_SIZE", "CKPT_STORE", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank said: a value, or an error's code and text."""

    rank: int
    value: object = None
    error: str = ""
    text: str = ""
    warnings: list[str] = field(default_factory=list)

    def __getitem__(self, key: str) -> object:
        assert not self.error, f"rank {self.rank}: {self.error}: {self.text}"
        assert isinstance(self.value, dict)
        return self.value[key]


class RankProcess:
    """One training process. I expect `end` (or the context) whatever happened to it."""

    def __init__(self, url: str, rank: int, world_size: int) -> None:
        environ = {name: v for name, v in os.environ.items() if name not in LAUNCHER_NAMES}
        environ.update(CKPT_STORE=url, RANK=str(rank), WORLD_SIZE=str(world_size))
        self.rank = rank
        self.process = WARM.rank("tests.e2e.rank_agent", environ)

    def tell(self, name: str, **arguments: object) -> None:
        """Say what to do; the answer is read later."""
        self.process.stdin.write(json.dumps({"name": name, "arguments": arguments}) + "\n")
        self.process.stdin.flush()

    def heard(self) -> Answer:
        """The answer to the oldest command."""
        line = self.process.stdout.readline()
        assert line, f"rank {self.rank} ended without an answer"
        return Answer(self.rank, **json.loads(line))

    def ask(self, name: str, **arguments: object) -> Answer:
        self.tell(name, **arguments)
        return self.heard()

    def do(self, name: str, **arguments: object) -> object:
        """The value; an error fails the test."""
        answer = self.ask(name, **arguments)
        assert not answer.error, f"rank {self.rank}: {answer.error}: {answer.text}"
        return answer.value

    def kill(self) -> None:
        """SIGKILL, and gone on return."""
        self.process.kill()

    def end(self) -> None:
        """Whatever state it is in, it is gone on return."""
        self.process.kill()
        self.process.close()


@contextmanager
def launched(
    url: str, world_size: int, launch: str | None = None, **options: object
) -> Iterator[list[RankProcess]]:
    """All ranks of one start of a run, each with its store open; ended behind the block."""
    with ExitStack() as stack:
        team = []
        for rank in range(world_size):
            team.append(RankProcess(url, rank, world_size))
            stack.callback(team[-1].end)
        done(every(team, "open", launch=launch, **options))
        yield team


def every(team: Sequence[RankProcess], name: str, **arguments: object) -> list[Answer]:
    """All ranks do it at once."""
    for rank in team:
        rank.tell(name, **arguments)
    return [rank.heard() for rank in team]


def done(answers: Sequence[Answer]) -> list[Answer]:
    """The same answers; none may be an error."""
    for answer in answers:
        assert not answer.error, f"rank {answer.rank}: {answer.error}: {answer.text}"
    return list(answers)


def save_and_wait(
    team: Sequence[RankProcess], run: str, step: int, **state: object
) -> list[Answer]:
    """All ranks save a step; their commits."""
    done(every(team, "save", run=run, step=step, **state))
    return done(every(team, "wait", run=run, step=step))


def end_with_stagers(team: Sequence[RankProcess]) -> None:
    """SIGKILL to all ranks and to the stagers beside them: no memory of theirs is left."""
    stagers = [rank.do("stager") for rank in team]
    for rank in team:
        rank.kill()
    for stager in stagers:
        assert isinstance(stager, int)
        os.kill(stager, signal.SIGKILL)
    wait_until(lambda: not any(runs(pid) for pid in stagers if isinstance(pid, int)), "their end")
