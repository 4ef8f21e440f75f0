"""What happens during one checkpoint? Counters, samples and faults, from beginning to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckptbench.cluster import BenchCluster
from ckptbench.faults.inject import Injector
from ckptbench.faults.words import Fault
from ckptbench.ranks import RankGroup
from ckptbench.results import Sample, Spent, Strike
from ckptbench.run.counters import CounterReader, add_hosts
from ckptbench.run.sampler import Sampler
from ckptbench.run.shelf import StepShelf


class RunWatch:
    """I let a checkpoint begin, and report what was seen once its ranks are done.

    Faults that are due before the checkpoint strike when I am made, and all are healed by `stop`,
    which must be called.
    """

    def __init__(
        self,
        shelf: StepShelf,
        ranks: RankGroup | None,
        direction: str,
        faults: Sequence[Fault],
        number: int,
        drain: int | None = None,
    ) -> None:
        """ranks: those of the checkpoint; drain: the pid of what moves the bytes in their place."""
        self._shelf, self._ranks, self._direction, self._drain = shelf, ranks, direction, drain
        self.spent = Spent()
        self.notes: tuple[str, ...] = ()
        self.strikes: tuple[Strike, ...] = ()
        self.samples: tuple[Sample, ...] = ()
        cluster = shelf.cluster
        self._injector = Injector(cluster, faults, number) if cluster and faults else None
        if self._injector is not None:
            self._injector.strike_before()

    def begin(self, payload_bytes: int, start: Callable[[], int]) -> int:
        """`start` tells the ranks; returns what it does, the beginning, from which I watch."""
        movers = self._movers()
        self._counters = CounterReader(self._stages(), list(movers.values()))
        begun = start()
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
        spent = self._counters.since(self._stages(), trainer_cpu_s, counts_wire=counts_wire)
        self.spent = add_hosts(spent, () if self._ranks is None else self._ranks.hosts_spent)
        if self._injector is not None:
            self.notes = self._injector.end()
            self.strikes = self._injector.strikes

    def _stages(self) -> dict[str, list[int]]:
        drains = {} if self._drain is None else {"drain": [self._drain]}
        return {**drains, **self._shelf.storage.stages()}

    def _movers(self) -> dict[str, int]:
        """Processes whose reads and writes are counted: the drain; else targets, and the ranks
        where these read columns of their host by themselves; else the ranks.
        """
        if self._drain is not None:
            return {"drain": self._drain}
        pids = () if self._ranks is None else self._ranks.pids
        ranks = {f"rank {rank}": pid for rank, pid in enumerate(pids)}
        cluster: BenchCluster | None = self._shelf.cluster
        if cluster is None:
            return ranks
        return cluster.living_targets() | (ranks if self._direction == "read" else {})

    def _expected(self, payload_bytes: int) -> float:
        cluster = self._shelf.cluster
        if cluster is None or self._direction == "read" or self._drain is not None:
            return payload_bytes
        return payload_bytes * cluster.plan.code.n / cluster.plan.code.k
