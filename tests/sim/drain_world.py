"""A world with object stores and drain workers, and what must be true of them (P9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Self, TypeVar

import numpy as np
import pytest

from ckpt.base.errors import CkptError
from ckpt.base.ids import (
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    PayloadId,
    Rank,
    RunName,
    Step,
)
from ckpt.erasure.code import Code
from ckpt.format.index.pages import IndexBox, IndexTensor
from ckpt.format.table import Meaning
from ckpt.format.tree import DictNode, LeafNode, Node
from ckpt.objects import names, planning
from ckpt.objects.documents import Header
from ckpt.objects.reader import open_stored
from ckpt.objects.sinks.sink import at_once
from ckpt.objects.source import Source, Wish
from ckpt.objects.stored_steps import steps_in, stored_steps, unfinished
from ckpt.plan.drains import Committed, StoredSteps, StorePolicy, due
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import (
    CatalogEntry,
)
from ckpt.protocol.coordinator.stores import CheckpointDrained, StoreHolds, StoreOpened
from ckpt.protocol.target.core import column_name
from tests.sim.coordinator_node import CLUSTER
from tests.sim.drain_node import DrainNode, Trouble
from tests.sim.drain_reader import Tally, TierReader
from tests.sim.drain_store import Bucket, FakeSink, calm
from tests.sim.oracles import Oracles, Violation
from tests.sim.payloads import content
from tests.sim.world import RANK_COUNT, RUN, World

ITEM_BYTES = 4096
TIDY_WAITS_MAX = 5


def small_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank's payload is an array of its own, and each array an item."""
    monkeypatch.setattr(planning, "ITEM_BYTES", ITEM_BYTES)
    monkeypatch.setattr(planning, "PACK_BELOW_BYTES", 16)
    monkeypatch.setattr("ckpt.objects.writer.ThreadPoolExecutor", OneAfterAnother)


Item = TypeVar("Item")
Done = TypeVar("Done")


class OneAfterAnother:
    """A pool without threads: the order of operations follows from the seed, also where one
    fails.
    """

    def __init__(self, workers: int, thread_name_prefix: str) -> None:
        """As the real one; there are no workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left to wait for."""

    def map(self, work: Callable[[Item], Done], items: Iterable[Item]) -> Iterable[Done]:
        return map(work, items)


def unfinished_in(
    bucket: Bucket, tier: set[CheckpointId]
) -> list[tuple[RunName, Step, Generation]]:
    """What is half drained there, and still in the tier."""
    sink = FakeSink(bucket, calm)
    found = [CheckpointId(RUN, *key) for key in unfinished(sink, RUN, steps_in(sink, RUN))]
    return [(RUN, id.step, id.generation) for id in found if id in tier]


def _column_in(file: str) -> str:
    """The name of a column, also of one that was set aside."""
    return file.partition("~")[0].removeprefix("aside/columns.").removeprefix("columns/")


def _key(id: CheckpointId) -> tuple[Step, Generation]:
    return id.step, id.generation


def _names_of(id: CheckpointId, code: Code) -> Iterator[str]:
    """The columns of a checkpoint that every rank has saved."""
    for rank, number in product(range(RANK_COUNT), range(code.n)):
        yield column_name(ColumnId(PayloadId(id, Rank(rank)), ColumnNumber(number)))


class PayloadSource:
    """A checkpoint of the world as a Source: each rank's payload is one array."""

    def __init__(self, header: Header, payload_bytes: int, payloads: Mapping[int, bytes]) -> None:
        self.header = header
        self.metrics: Mapping[str, float] = {"loss": float(header.step)}
        self._payload_bytes, self._payloads = payload_bytes, payloads

    def tensors(self) -> Sequence[IndexTensor]:
        shape = (self._payload_bytes,)
        box = IndexBox(Rank(0), (0,), shape, ())
        return [
            IndexTensor(f"rank{rank}", Meaning.REPLICATED, "|u1", shape, (box,))
            for rank in range(self.header.world_size)
        ]

    def trees(self) -> Mapping[Rank, Node]:
        leaves = tuple((t.name, LeafNode(t.name)) for t in self.tensors())
        return {Rank(rank): DictNode(leaves) for rank in range(self.header.world_size)}

    def read(self, wishes: Sequence[Wish], go_on: Callable[[], None] = at_once) -> None:
        """What the worker has read from targets."""
        for wish in wishes:
            go_on()
            whole = self._payloads[int(wish.tensor.name.removeprefix("rank"))]
            start = wish.offset[0]
            part = np.frombuffer(whole, np.uint8)[start : start + wish.memory.size]
            wish.memory.reshape(-1)[:] = part

    def close(self) -> None:
        """Nothing is held."""


def header_of(id: CheckpointId, launch: int, world_size: int) -> Header:
    return Header(
        run=id.run, step=id.step, generation=str(id.generation), cluster=CLUSTER,
        launch=launch, world_size=world_size, committed_at_s=0.0, source="tier",
    )  # fmt: skip


class DrainOracles(Oracles):
    """What goes from the tier is in the stores; what a store has is whole."""

    world: DrainWorld

    def catalog_wrote(self, entries: tuple[CatalogEntry, ...]) -> None:
        for entry in entries:
            match entry:
                case StoreOpened(policy):
                    self.world.policies[policy.url] = policy
                case CheckpointDrained(url, id):
                    self.world.check_stored(url, id)
                case StoreHolds(url, run, stored):
                    for step, generation in stored:
                        self.world.check_stored(url, CheckpointId(run, step, generation))
                case catalog.RowCommitted(id) if id.run == RUN:
                    self.world.committed.add(id)
                case catalog.CheckpointTombstoned(id, reason) if id.run == RUN:
                    self.world.check_tombstone(id, reason)
                    self.world.committed.discard(id)
        super().catalog_wrote(entries)


@dataclass
class DrainWorld(World):
    """A world whose checkpoints are drained. One of several coordinators is of this kind too, and
    Python puts two classes with slots together into none.
    """

    oracles_type = DrainOracles

    buckets: dict[str, Bucket] = field(default_factory=dict)
    workers: list[DrainNode] = field(default_factory=list)
    policies: dict[str, StorePolicy] = field(default_factory=dict)
    """What the catalog durably knows."""
    committed: set[CheckpointId] = field(default_factory=set)
    """In the tier."""
    markers: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """(store, key) -> the marker that was written there."""
    trouble: Trouble = field(default_factory=Trouble)
    tally: Tally = field(default_factory=Tally)
    evicted: set[CheckpointId] = field(default_factory=set)
    """Tombstoned durably, since they are in a store."""
    on_evict: Callable[[CheckpointId], None] = lambda _id: None
    """Told of each, when its tombstone is durable in the catalog and nowhere else."""
    evicted_names: set[str] = field(default_factory=set)
    """Of their columns, all that any of them may have had."""
    #: Store -> its changes when it was last looked through, and what it has committed.
    _held: dict[str, tuple[int, frozenset[tuple[Step, Generation]]]] = field(default_factory=dict)
    names_given: int = 0
    worker_kinds: tuple[type[DrainNode], ...] = (DrainNode,)
    """Each process is of the next of these."""

    def add_store(self, policy: StorePolicy, *, conditional: bool) -> None:
        bucket = self.buckets[policy.url] = Bucket(policy.url, conditional)
        bucket.created = lambda key: self._created(bucket, key)

    def start_worker(self, policy: StorePolicy) -> DrainNode:
        """A new process for the store."""
        self.names_given += 1
        kind = self.worker_kinds[self.names_given % len(self.worker_kinds)]
        node = kind(
            self.clock, self.network, self.coordinator, self.buckets[policy.url], policy,
            f"drain{self.names_given}", self._tier_reader, self._source, lambda: self.trouble,
            self._turn,
        )  # fmt: skip
        self.workers.append(node)
        node.start()
        return node

    def restart_workers(self) -> None:
        """As the supervisor would: for each that was killed another process."""
        for node in list(self.workers):
            if not node.up:
                self.workers.remove(node)
                self.start_worker(node.policy)

    def is_idle(self) -> bool:
        """Every worker is here, no store waits for anything, and what was evicted is gone."""
        here = sum(not target.lost for target in self.targets.values())
        if not self.coordinator.up or self.live_targets < here:
            return False
        queue = self.coordinator.machine.drains
        if len(queue.stores) < len(self.buckets) or self.attempts:
            return False
        # Asked at each step: what says no most often, and costs least, comes first.
        if any(store.jobs for store in queue.stores.values()) or self.left_of_evicted():
            return False
        return not any(map(queue.waiting, queue.stores.values()))

    def _tier_reader(self, node: DrainNode, id: CheckpointId) -> TierReader:
        return TierReader(
            self.clock, self.network, self.oracles, self.coordinator, self.targets.__getitem__,
            node, id, self.tally,
        )  # fmt: skip

    def _source(self, reader: TierReader) -> Source:
        header = header_of(reader.id, self.oracles.opened[reader.id].launch, RANK_COUNT)
        return PayloadSource(header, len(self.bytes_of(reader.id, 0)), reader.payloads)

    def _turn(self) -> None:
        """In the middle of one worker's work others go on."""
        self.clock.pass_time(self.clock.between(1_000, 60_000))

    # ----------------------------------------------------------------------- what is there

    def bytes_of(self, id: CheckpointId, rank: int) -> bytes:
        job = self.job_of_launch(self.oracles.opened[id].launch)
        return content(job, id.step, rank, self.seed)

    def held(self, url: str) -> frozenset[tuple[Step, Generation]]:
        """What a store has committed, seen directly; looked up again when keys have changed."""
        bucket = self.buckets[url]
        changes, held = self._held.get(url, (-1, frozenset()))
        if changes != bucket.changes:
            held = frozenset(stored_steps(FakeSink(bucket, calm), RUN))
            self._held[url] = bucket.changes, held
        return held

    # ----------------------------------------------------------------------- oracles

    def _created(self, bucket: Bucket, key: str) -> None:
        """An object is there. A marker is the last of its checkpoint, and stays what it is."""
        if not key.endswith(names.COMMITTED):
            return
        marker = bucket.objects[key]
        known = self.markers.setdefault((bucket.url, key), marker)
        if known != marker:
            raise Violation(f"P9: {bucket.url}/{key} was written again, and differs")
        self.check_whole(bucket, key.removesuffix(names.COMMITTED))

    def check_whole(self, bucket: Bucket, prefix: str) -> None:
        found = [
            (step, generation)
            for step, generation in self.held(bucket.url)
            if names.generation_prefix(RUN, step, generation) == prefix
        ]
        if not found:
            raise Violation(f"P9: {bucket.url}/{prefix} has a marker that no reader finds")
        step, generation = found[0]
        id = CheckpointId(RUN, step, generation)
        stored = open_stored(FakeSink(bucket, calm), RUN, step)
        try:
            if stored.header.generation != str(generation):
                return  # A newer one is there as well; this one was checked when it came.
            stored.verify()
            for number, tensor in enumerate(stored.tensors()):
                memory = np.empty(tensor.global_shape, np.uint8)
                stored.read([Wish(tensor, None, (0,), memory)])
                if memory.tobytes() != self.bytes_of(id, number):
                    raise Violation(f"P9: {id} in {bucket.url} has other bytes than were saved")
        except CkptError as error:
            raise Violation(f"P9: {id} is committed in {bucket.url}: {error}") from None
        finally:
            stored.close()

    def check_stored(self, url: str, id: CheckpointId) -> None:
        """The catalog says that a store holds it; a newer one of its step may have replaced it."""
        held = dict(self.held(url)).get(id.step)
        if held is None or held < id.generation:
            raise Violation(f"P9: {id} counts as drained to {url}, where it is not")

    def check_tombstone(self, id: CheckpointId, reason: str) -> None:
        """It goes from the tier: is that to be so? What people delete goes unasked."""
        if reason == "deleted on request":
            return
        newest = {one.step: one.generation for one in sorted(self.committed)}
        if newest.get(id.step) != id.generation:
            return  # A newer generation of its step is there.
        for url in self.policies:
            if any((one.step, one.generation) == (id.step, id.generation) for one in self.due(url)):
                raise Violation(f"P9: {id} goes ({reason}), and {url} needs it")
        if reason.startswith("evicted"):
            holders = [url for url in self.policies if (id.step, id.generation) in self.held(url)]
            if not holders:
                raise Violation(f"P9: {id} is evicted, and no store has it")
            for url in holders:
                self.check_whole(self.buckets[url], names.generation_prefix(RUN, *_key(id)))
            self.evicted.add(id)
            self.evicted_names.update(_names_of(id, self.coordinator.machine_policy.code))
            self.on_evict(id)

    def left_of_evicted(self) -> list[str]:
        """Columns on disks that are here, of checkpoints that went from the tier; also what was set
        aside.
        """
        if not self.evicted:
            return []
        here = [target for target in self.targets.values() if not target.lost]
        files = [(target.id, file) for target in here for file in target.disk.files()]
        return [f"{id}/{file}" for id, file in files if _column_in(file) in self.evicted_names]

    def lacking(self) -> list[str]:
        """What some store needs and has not."""
        return [f"{url} lacks {one.step}" for url in self.policies for one in self.due(url)]

    def due(self, url: str) -> list[Committed]:
        """What a store needs, and has not. Steps that the tier has dropped and some store has count
        among each Nth.
        """
        newest = {one.step: one.generation for one in sorted(self.committed)}
        rows = [Committed(RUN, s, g, 1, float(s)) for s, g in newest.items()]
        gone = {step for other in self.policies for step, _ in self.held(other)} - newest.keys()
        return due(self.policies[url], rows, StoredSteps(set(self.held(url))), gone)

    def pass_until_tidy(self, quiet_us: int) -> None:
        """What the tier deletes half drained goes once nobody has written to it for so long; the
        tier may delete some meanwhile.
        """
        for _ in range(TIDY_WAITS_MAX):
            self.clock.pass_time(2 * quiet_us)
            if not any(map(self._left_over, self.buckets)):
                return

    def _left_over(self, url: str) -> list[str]:
        """Keys of a store that belong to no checkpoint there. What its own `keep` wants no more
        stays half drained while the tier has it.
        """
        bucket = self.buckets[url]
        prefixes = [names.generation_prefix(RUN, *one) for one in self.held(url)]
        begun = [names.generation_prefix(*key) for key in unfinished_in(bucket, self.committed)]
        return [
            key
            for key in (*bucket.objects, *bucket.uploads.values())
            if not key.startswith((*prefixes, *begun))
            or (key.startswith(tuple(prefixes)) and f"/{names.DRAIN}" in key)
        ]

    def check_stores(self) -> None:
        """Healed: every store has what its policy needs, whole, and nothing else lies there."""
        left = self.left_of_evicted()
        if left:
            raise Violation(f"P9: evicted, and never gone: {left[:5]}")
        lost = {target.id for target in self.targets.values() if target.lost}
        for id in sorted(self.evicted):
            row = self.coordinator.machine.checkpoints.get(id)
            if row is None:
                continue
            # Without its index, which went first, anybody may have a part of it.
            named = row.targets if row.placement is not None else self.targets
            if not lost.intersection(named):
                raise Violation(f"P9: {id} is evicted, and its targets are asked for ever")
        lacking = self.lacking()
        if lacking:
            raise Violation(f"P9: never drained: {lacking}")
        for url, bucket in self.buckets.items():
            held = self.held(url)
            prefixes = [names.generation_prefix(RUN, *one) for one in held]
            for prefix in prefixes:
                self.check_whole(bucket, prefix)
            left = self._left_over(url)
            if left:
                raise Violation(f"P9: left over in {url}: {left[:5]}")
