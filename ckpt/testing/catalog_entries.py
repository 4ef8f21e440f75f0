"""Entries of a catalog for tests, and the image that a list of them leads to."""

from __future__ import annotations

import random
from collections.abc import Iterable

from ckpt.base.ids import (
    CatalogPosition,
    CheckpointId,
    Generation,
    LaunchNumber,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.format.messages.hello import PROTOCOL_VERSION
from ckpt.format.messages.keeping import ALL_STAYS, Best, Better, Retention
from ckpt.format.messages.repairs import RepairRules
from ckpt.plan.drains import StorePolicy
from ckpt.protocol.coordinator.catalog import (
    AttemptDecided,
    AttemptOpened,
    CatalogEntry,
    CatalogOutdated,
    CatalogReached,
    CheckpointDamaged,
    CheckpointDeleted,
    CheckpointFound,
    CheckpointLabeled,
    CheckpointTombstoned,
    ColumnsMoved,
    LabelsSent,
    LaunchEntered,
    LaunchForgotten,
    LaunchNumbered,
    LaunchResolved,
    RowAborted,
    RowCommitted,
    RowForgotten,
    StepForgotten,
    TargetSeen,
    TargetStanding,
)
from ckpt.protocol.coordinator.image import TURNS_KEPT, CatalogImage
from ckpt.protocol.coordinator.said import (
    RepairSaid,
    RetentionSaid,
    TargetsGrouped,
    UpgradeFinished,
)
from ckpt.protocol.coordinator.stores import (
    CheckpointDrained,
    StoreForgotten,
    StoreHolds,
    StoreOpened,
)

RUN = RunName("run/ä b")


def apply_all(image: CatalogImage, entries: Iterable[CatalogEntry]) -> CatalogImage:
    """The image after all entries, in order."""
    for entry in entries:
        image.apply(entry)
    return image


def checkpoint(step: int, counter: int = 1) -> CheckpointId:
    """Of the one run."""
    return CheckpointId(RUN, Step(step), Generation(1, counter))


def attempt(step: int, counter: int = 1) -> AttemptOpened:
    """An entry that fits any catalog."""
    return AttemptOpened(checkpoint(step, counter), LaunchNumber((1 << 32) | 7), "key", 4)


def every_entry() -> list[CatalogEntry]:
    """Of each kind at least one, in an order in which they may come."""
    return [
        TargetSeen(TargetId("t0"), "p/r/h/d", "/data/t0", b"i" * 16, "machine/fs/7"),
        TargetSeen(TargetId("t1"), "p/r/h/d", "/data/t1"),
        TargetSeen(TargetId("t1"), "p/r/h/d", "/data/other", b"j" * 16, "machine/fs/8"),
        TargetSeen(TargetId("t2"), "p/r/h/d", "/data/t2", standing=TargetStanding.DRAINING),
        TargetSeen(TargetId("t3"), "p/r/h/d", "/data/t3", standing=TargetStanding.REMOVED),
        TargetSeen(TargetId("t2"), "p/r/h/d", "/data/t2", standing=TargetStanding.OUT),
        attempt(1),
        attempt(2),
        attempt(3),
        AttemptDecided(checkpoint(1), b"record"),
        RowAborted(checkpoint(2), "aborted", "rank 3 left"),
        RowCommitted(checkpoint(1)),
        attempt(2, 2),
        AttemptDecided(checkpoint(2, 2), b"second"),
        RowCommitted(checkpoint(2, 2)),
        ColumnsMoved(checkpoint(1), 0, b"of the first"),
        ColumnsMoved(checkpoint(2, 2), 0, b"some"),
        ColumnsMoved(checkpoint(2, 2), 15, b"others"),
        ColumnsMoved(checkpoint(2, 2), 0, b"more"),
        LabelsSent(checkpoint(1)),
        CheckpointLabeled(checkpoint(1), b"of the first"),
        CheckpointLabeled(checkpoint(2, 2), b"other words"),
        CheckpointLabeled(checkpoint(2, 2), b"last words"),
        LabelsSent(checkpoint(2, 2)),
        RetentionSaid(RUN, Retention(last=5, age_s=60)),
        RetentionSaid(RUN, Retention(every=7, best=Best("größe", Better.MAX, 3))),
        RetentionSaid(RunName("lost"), ALL_STAYS),
        RetentionSaid(RunName("other"), Retention(last=1)),
        RetentionSaid(RunName("other"), None),
        RepairSaid(RepairRules(paused_at_s=1700.5)),
        RepairSaid(RepairRules(floor_bytes=1 << 20, cap_bytes=0)),
        RepairSaid(RepairRules(balance_bytes_max=1 << 40)),
        TargetsGrouped({TargetId("t0"): 0, TargetId("größe"): 41}),
        TargetsGrouped({TargetId("t0"): 1, TargetId("t1"): 0}),
        UpgradeFinished(PROTOCOL_VERSION + 1),
        CheckpointTombstoned(checkpoint(1), "asked by a user"),
        CheckpointDeleted(checkpoint(1)),
        attempt(4),
        CheckpointDamaged(checkpoint(4), "no parity is left"),
        attempt(6),
        CheckpointDamaged(checkpoint(6), "a target is away"),
        CheckpointFound(checkpoint(6)),
        attempt(5),
        RowForgotten(checkpoint(5)),
        *_launch_entries(),
        *_drain_entries(),
        CatalogReached(CatalogPosition(1, 7)),
        CatalogOutdated("t0 knows better"),
    ]


def _launch_entries() -> list[CatalogEntry]:
    seven, eight = LaunchNumber(7), LaunchNumber(8)
    return [
        LaunchNumbered(RUN, seven, None, 2),
        LaunchEntered(RUN, seven, Rank(1), "host/1/x"),
        *(LaunchResolved(RUN, seven, turn, checkpoint(1)) for turn in (0, 1, 1 + TURNS_KEPT)),
        *(
            LaunchResolved(RUN, seven, 0, id, by_number=True)
            for id in (checkpoint(1), checkpoint(2), checkpoint(1, 2), checkpoint(3))
        ),
        StepForgotten(RUN, seven, Step(3)),
        LaunchNumbered(RUN, eight, "key", 2),
        LaunchResolved(RUN, eight, 0, checkpoint(1)),
        LaunchResolved(RUN, eight, 0, checkpoint(1), by_number=True),
        LaunchForgotten(RUN, eight),
    ]


def _drain_entries() -> list[CatalogEntry]:
    one = StorePolicy("s3://b", 2, None, ("a*", RUN))
    held = ((Step(1), Generation(1, 1)), (Step(3), Generation(1, 1)))
    return [
        StoreOpened(one),
        CheckpointDrained("s3://b", checkpoint(1)),
        StoreHolds("s3://b", RUN, held),
        CheckpointDrained("s3://b", checkpoint(2, 2)),
        CheckpointDrained("s3://b", checkpoint(2, 2)),
        StoreOpened(StorePolicy("s3://b", 1, 5)),
        StoreOpened(StorePolicy("file:///gone")),
        CheckpointDrained("file:///gone", checkpoint(1)),
        StoreForgotten("file:///gone"),
        CheckpointDrained("file:///gone", checkpoint(3)),
    ]


def entries_by_chance(seed: int, count: int) -> list[CatalogEntry]:
    """Each is one that may come after those before it; few names, so that they meet."""
    chance, image, entries = random.Random(seed), CatalogImage(0), list[CatalogEntry]()
    while len(entries) < count:
        entry = chance.choice(_possible(chance, image))
        image.apply(entry)
        entries.append(entry)
    return entries


def _possible(chance: random.Random, image: CatalogImage) -> list[CatalogEntry]:
    """One of each kind that may come now."""
    id, target = checkpoint(chance.randrange(4), chance.randrange(3)), chance.choice("abc")
    number = LaunchNumber(chance.randrange(3))
    url = f"s3://{chance.choice('xy')}"
    held = (id.step, id.generation), (Step(9), Generation(2, chance.randrange(9)))
    possible: list[CatalogEntry] = [
        attempt(id.step, id.generation.counter),
        RowForgotten(id),
        TargetSeen(TargetId(target), "p/r/h/d", f"/{number}", bytes([number] * 16), target),
        LaunchResolved(RUN, number, chance.randrange(2 * TURNS_KEPT), id),
        LaunchResolved(RUN, number, 0, id, by_number=True),
        StepForgotten(RUN, number, id.step),
        LaunchForgotten(RUN, number),
        StoreOpened(StorePolicy(url, chance.randrange(1, 9), chance.choice([None, 5]))),
        StoreHolds(url, RUN, held[: chance.randrange(1, 3)]),
        CheckpointDrained(url, id),
        StoreForgotten(url),
        RetentionSaid(RunName(target), chance.choice([None, Retention(last=1 + number)])),
        RepairSaid(RepairRules(cap_bytes=chance.choice([None, 7]))),
        TargetsGrouped({TargetId(target): number} if chance.randrange(2) else {}),
        UpgradeFinished(image.protocol + chance.randrange(2)),
        CatalogReached(CatalogPosition(2, chance.randrange(99))),
        CatalogOutdated(f"{target} knows better"),
    ]
    if (RUN, number) in image.launches:
        possible.append(LaunchEntered(RUN, number, Rank(chance.randrange(3)), target))
    else:
        possible.append(LaunchNumbered(RUN, number, chance.choice([None, "key"]), 3))
    if id in image.rows:
        possible += [
            AttemptDecided(id, chance.randbytes(3)),
            RowCommitted(id),
            RowAborted(id, "aborted", target),
            CheckpointDamaged(id, target),
            CheckpointFound(id),
            CheckpointTombstoned(id, target),
            ColumnsMoved(id, chance.randrange(3), chance.randbytes(3)),
            LabelsSent(id),
            CheckpointLabeled(id, chance.randbytes(chance.randrange(3))),
            CheckpointDeleted(id),
        ]
    return possible
