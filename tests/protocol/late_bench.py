"""A coordinator that has much else to do: its long work waits until the test says so."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt.format.messages.reading import DocumentKind
from ckpt.protocol.coordinator.desk import Action, Worked, WorkLeft
from tests.protocol.coordinating import Bench, RankFake


class LateBench(Bench):
    """It goes on when `work` says so."""

    work_left = 0

    def _perform(self, action: Action) -> None:
        if isinstance(action, WorkLeft):
            self.work_left += 1
        else:
            super()._perform(action)

    def work(self) -> None:
        """One slice."""
        self.work_left -= 1
        self.feed(Worked(self.now_us))

    def work_off(self) -> Iterator[int]:
        """Slice after slice; how many there were."""
        count = 0
        while self.work_left:
            self.work()
            count += 1
            yield count


def index_of(bench: Bench, rank: RankFake) -> bytes:
    """Of the step that it has committed; all copies are the same."""
    wanted = DocumentKind.INDEX, rank.commits()[-1].info.checkpoint
    (document,) = {
        bytes(target.documents[wanted])
        for target in bench.targets.values()
        if wanted in target.documents
    }
    return document
