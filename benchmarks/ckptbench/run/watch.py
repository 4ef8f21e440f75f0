"""What happens during one checkpoint? Counters, samples and faults, from beginning to end."""

from __future__ import annotations

from collections.abc import Sequence

from ckptbench.cluster import BenchCluster
from ckptbench.faults.inject import Injector
from ckptbench.faults.words import Fault
from ckptbench.ranks import RankGroup
from ckptbench.results import Sample, Spent
from ckptbench.run.counters import Counters
from ckptbench.run.sampler import Sampler
from ckptbench.run.shelf import Shelf


class Watch:
    """I let the ranks begin, and tell what was seen once they are done.

    Faults that are due before the checkpoint strike when I am made, and all are healed by `stop`,
    which must be called.
    """

    def __init__(
        self, shelf: Shelf, ranks: RankGroup, direction: str, faults: Sequence[Fault], number: int
    ) -> None:
        self._shelf, self._ranks, self._direction = shelf, ranks, direction
        self.spent = Spent()
        self.notes: tuple[str, ...] = ()
        self.samples: tuple[Sample, ...] = ()
        cluster = shelf.cluster
        self._injector = Injector(cluster, faults, number) if cluster and faults else None
        if self._injector is not None:
            self._injector.strike_before()

    def begin(self, payload_bytes: int, *lines: Sequence[str]) -> int:
        """Tell the ranks; returns the common beginning, from which I watch."""
        movers = self._movers()
        self._counters = Counters(self._shelf.storage.stages(), list(movers.values()))
        begun = self._ranks.begin(*lines)
        self._sampler = Sampler(movers, self._direction, begun)
        injector, expected = self._injector, self._expected(payload_bytes)
        if injector is None:
            self._sampler.start()
        else:
            self._sampler.start(lambda moved: injector.moved(moved / expected))
            injector.start(begun)
        return begun

    def stop(self, trainer_cpu_s: float, *, counts_wire: bool) -> None:
        """The checkpoint is over, or failed."""
        self.samples = self._sampler.stop()
        self.spent = self._counters.since(
            self._shelf.storage.stages(), trainer_cpu_s, counts_wire=counts_wire
        )
        if self._injector is not None:
            self.notes = self._injector.end()

    def _movers(self) -> dict[str, int]:
        """Processes whose reads and writes are the storage's: targets, else the ranks."""
        cluster: BenchCluster | None = self._shelf.cluster
        if cluster is not None:
            return cluster.living_targets()
        return {f"rank {rank}": pid for rank, pid in enumerate(self._ranks.pids)}

    def _expected(self, payload_bytes: int) -> float:
        cluster = self._shelf.cluster
        if cluster is None or self._direction == "read":
            return payload_bytes
        return payload_bytes * cluster.plan.code.n / cluster.plan.code.k
