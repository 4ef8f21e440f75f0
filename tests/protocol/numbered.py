"""Ranks of a launch that load a step by its number, as their coordinator hears them."""

from __future__ import annotations

from ckpt.base.ids import CheckpointId, Step
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import ConfirmLoad, LoadBegan, Resolve, Resolved
from ckpt.protocol.events import Session
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake, team
from tests.protocol.test_coordinator_rounds import CONFIRMED

STEP = Step(5)


class ByNumber:
    """One rank's load of step 5, its n-th, over a session of its own; `found` is what it was
    told."""

    def __init__(self, rank: RankFake, step: int = STEP, n: int = 1) -> None:
        self.rank = rank
        self.bench = rank.bench
        self.session: Session = self.bench.session()
        self.question = Resolve(
            rank.run, Step(step), rank.launch, rank.rank, rank.world_size, 30 * SECOND_US, turn=n
        )
        self.found: CheckpointId

    def resolve(self) -> list[Message]:
        answers = self.bench.tell(self.session, self.question)
        self.hear()
        return answers

    def hear(self) -> None:
        """What came meanwhile."""
        for answer in self.bench.to(self.session):
            if isinstance(answer, Resolved):
                self.found = answer.info.checkpoint

    def failed(self) -> Failed:
        (answer,) = self.resolve()
        assert isinstance(answer, Failed)
        return answer

    def begin(self) -> None:
        (answer,) = self.resolve()
        assert isinstance(answer, Resolved), answer
        asked = self.question
        assert asked.launch is not None
        assert asked.rank is not None
        self.bench.tell(
            self.session, LoadBegan(RUN, asked.launch, asked.rank, asked.turn, asked.step)
        )

    def confirm(self) -> ConfirmLoad:
        asked = self.question
        assert asked.launch is not None
        assert asked.rank is not None
        return ConfirmLoad(
            RUN, asked.launch, asked.rank, asked.turn, self.found, 30 * SECOND_US, asked.step
        )

    def finish(self) -> list[Message]:
        return self.bench.tell(self.session, self.confirm())

    def load(self) -> CheckpointId:
        self.begin()
        assert self.finish() == [CONFIRMED]
        return self.found

    def again(self) -> ByNumber:
        """The next load of the same rank."""
        return ByNumber(self.rank, self.question.step or STEP, self.question.turn + 1)

    def reconnect(self) -> None:
        self.session = self.bench.session()


def together(loads: list[ByNumber]) -> list[CheckpointId]:
    """All ask, and hear at once."""
    for one in loads:
        one.resolve()
    for one in loads:
        one.hear()
        assert one.finish() == [CONFIRMED]
    return [one.found for one in loads]


def readers(bench: Bench, world_size: int = 2) -> list[ByNumber]:
    return [ByNumber(rank) for rank in team(bench, world_size, key="readers")]


def names_both(failed: Failed, *ids: CheckpointId) -> bool:
    return all(str(id) in failed.message for id in ids)
