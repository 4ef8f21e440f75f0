"""A cluster with something of everything, and all that its peers may say to the coordinator.

What the coordinator sends is encoded as it would be, and what it stores goes into the tables of a
real catalog: neither takes every number that Python has.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ckpt.base.ids import BootId, ColumnNumber, Home, LaunchNumber, PayloadId, Rank, Step, TargetId
from ckpt.format.messages import (
    Message,
    drains,
    launches,
    loading,
    preempting,
    repairs,
    saving,
    sharing,
)
from ckpt.format.messages import asking as ask
from ckpt.format.messages import targets as of_targets
from ckpt.format.messages.balancing import BalanceTargets
from ckpt.format.messages.hello import Role
from ckpt.format.messages.keeping import Best, Better, KeepSteps, Retention
from ckpt.format.messages.reading import Damage
from ckpt.format.messages.upgrading import FinishUpgrade
from ckpt.format.spans import OURS, PayloadSpan, encode_spans
from ckpt.protocol.coordinator.catalog import Persist
from ckpt.protocol.coordinator.desk import Action
from ckpt.protocol.events import Send, Session
from ckptd.catalog.entry_tables import apply_entry
from ckptd.catalog.file import connect
from ckptd.catalog.sqlite import load_image
from tests.protocol.coordinating import RUN, SECOND_US, Bench, every, team

URL: Final = "s3://bucket/runs"
NUMBERS: Final = (-1, 1 << 63, (1 << 64) - 1)
FRACTIONS: Final = (nan, inf)
TEXTS: Final = ("", "x" * 9000)
BYTES: Final = (b"x" * 17,)


class StoredBench(Bench):
    """As the daemon does it: messages are encoded, entries are stored."""

    def __init__(self, blank: Path) -> None:
        """blank: a catalog of which nobody has begun a term."""
        # In memory: a sync for each ticket would take most of the time.
        self.connection = connect(Path(":memory:"))
        weakref.finalize(self, self.connection.close)
        with closing(connect(blank)) as stored:
            stored.backup(self.connection)
        super().__init__(5, "2+1")

    def check_catalog(self) -> None:
        """The next coordinator can begin from it."""
        load_image(self.connection)

    def _perform(self, action: Action) -> None:
        if isinstance(action, Send):
            msgspec.msgpack.encode(action.message)
        super()._perform(action)

    def _make_durable(self, persist: Persist) -> None:
        with self.connection:
            for entry in persist.entries:
                apply_entry(self.connection, entry)
        super()._make_durable(persist)


@dataclass(frozen=True, slots=True)
class Saying:
    """What a peer may say now, as an honest one does."""

    session: Session
    message: Message
    bulk: bytes = b""


class Everything:
    """Two checkpoints, a save under way of two ranks and one of a file, a launch that loads, a
    worker with a lease of each kind.
    """

    def __init__(self, blank: Path) -> None:
        self.bench = bench = StoredBench(blank)
        self.old, self.new = bench.save(1), bench.save(2)
        self.admin, self.loader = bench.session(Role.ADMIN), bench.session()
        self.worker, self.writer = bench.session(Role.DRAIN), bench.session(Role.STAGER)
        bench.tell(self.worker, drains.OpenStore(URL, "w"))
        bench.tell(self.worker, drains.LeaseDrain(URL, "w"))
        joined = bench.tell(self.loader, launches.JoinLaunch(RUN, "load", Rank(0), 2, "p"))[-1]
        assert isinstance(joined, launches.LaunchJoined)
        self.loads = joined.launch
        found = bench.tell(self.loader, loading.Resolve(RUN, None, self.loads, Rank(0), 2))[-1]
        assert isinstance(found, loading.Resolved)
        self.pin = found.pin
        self.ranks = team(bench, 2, key="save")
        every(self.ranks, lambda rank: rank.open(5))
        every(self.ranks, lambda rank: rank.seal_all())
        self.ranks[0].certify()
        bench.tell(self.writer, self.file("f"))

    def file(self, name: str) -> saving.OpenPayload:
        return saving.OpenPayload(RUN, Step(9), LaunchNumber(0), Rank(0), 0, "p", 1000, member=name)

    def sayings(self) -> list[Saying]:
        """Each of another message, or of another use of it."""
        return [
            *self._saving(),
            *self._loading(),
            *self._asking(),
            *self._working(),
            *self._targets(),
        ]

    def _saving(self) -> Iterator[Saying]:
        rank, home = self.ranks[1], Home.of(self.new)
        places, table = rank.places(), rank.table()
        space = saving.SpaceStands(RUN, "2+1", 10_000, 4 << 20, tuple(places.values()), ())
        certificate = replace(
            rank.certificate(), table_bytes=len(table), slow=(TargetId("t1"),),
            repeats=saving.Repeats(1, 2, 2, 2, 2),
        )  # fmt: skip
        standing = preempting.GuardStanding(
            RUN, rank.launch, rank.rank, "SIGTERM", Step(4), True, Step(5), Step(5)
        )
        said: list[Message] = [
            rank.joining(),
            launches.JoinLaunch(RUN, None, Rank(0), 1, "q", LaunchNumber(3)),
            standing,
            replace(rank.question(6), save=7, metrics={"a": 1.0}, nth=1, homes=(home,)),
            replace(rank.question(5), resume=rank.payload.checkpoint),
            saving.ClaimSpace(rank.launch, rank.rank, space, 5),
            saving.RequestSpares(
                rank.payload,
                ColumnNumber(0),
                (TargetId("t0"),),
                ((ColumnNumber(1), TargetId("t1")),),
            ),
            saving.BoxesCompared(rank.payload, (bytes(16),)),
            saving.PayloadGivenUp(rank.payload, "aborted", "why", "hint"),
            launches.TrainerLeft(RUN, rank.launch, rank.rank, rank.process),
        ]
        yield from (Saying(rank.session, one) for one in said)
        yield Saying(rank.session, certificate, table)
        yield Saying(self.writer, self.file("g"))
        yield Saying(self.writer, saving.CommitMembers(rank.payload.checkpoint, True, rank.launch))

    def _loading(self) -> Iterator[Saying]:
        payload, turn = PayloadId(self.new, Rank(0)), self.loads
        where = loading.TargetAddress(TargetId("a"), BootId(1), "h:1")
        said: list[Message] = [
            loading.Resolve(RUN, None, turn, Rank(0), 2, SECOND_US, True, 1, True, True),
            loading.Resolve(RUN, Step(2), turn, Rank(1), 2, 0, only=self.new.generation),
            loading.AskMoves(self.new, 0),
            loading.LoadBegan(RUN, turn, Rank(0), 0),
            loading.ConfirmLoad(RUN, turn, Rank(0), 0, self.new, 10),
            loading.ConfirmLoad(RUN, turn, Rank(0), 1, self.new, 10, Step(2), True),
            loading.ReportDamage(payload, "why", False, self.new),
            loading.ReportDamage(payload, "why", True, self.new),
            sharing.LeaveReads(5),
            loading.ReleasePin(self.pin),
        ]
        span = encode_spans([PayloadSpan(OURS, Rank(0), 0, 10_000)])
        yield Saying(self.loader, sharing.ShareReads(self.new, "k", where, 4096), span)
        yield from (Saying(self.loader, one) for one in said)

    def _asking(self) -> Iterator[Saying]:
        rules = Retention(1, 2, Best("a", Better.MIN, 1), 50)
        said: list[Message] = [
            ask.Ask("show", RUN, Step(2), self.new.generation),
            ask.LabelStep(RUN, Step(2), self.new.generation, ("good",), ("bad",), True),
            ask.RollBack(RUN, Step(1), True),
            ask.ReplaceTarget(TargetId("t0"), bytes(16), True),
            ask.ChangeTarget(TargetId("t0"), "draining", True, True),
            KeepSteps(RUN, rules, True),
            KeepSteps(RUN, rules),
            repairs.SetRepair(False, 1000, 2000, True),
            BalanceTargets(),
            FinishUpgrade(),
            ask.DeleteStep(RUN, Step(1), self.old.generation, True, True),
            drains.ForgetStore("s3://other", True),
        ]
        yield from (Saying(self.admin, one) for one in said)

    def _working(self) -> Iterator[Saying]:
        stored = drains.encode_stored([(self.old.step, self.old.generation)])
        yield Saying(self.worker, drains.TellStored(URL, "w", RUN), stored)
        begun = drains.BeginParts(URL, "w", self.old, 4)
        yield Saying(self.worker, begun, drains.encode_parts([0]))
        payload = PayloadId(self.new, Rank(0))
        said: list[Message] = [
            drains.OpenStore(URL, "w", 2, 3, ("*",)),
            drains.LeaseDrain(URL, "w"),
            drains.TakePart(URL, "w", self.old, 0, 1),
            drains.RenewDrain(URL, "w", self.old, 5, 1.5),
            drains.EndDrain(URL, "w", self.old, "why"),
            drains.EndDrain(URL, "w", self.old),
            drains.TellTrouble("s3://other", "w", "why"),
            repairs.LeaseRepair("r"),
            repairs.RenewRepair("r", payload, 5),
            repairs.EndRepair("r", payload),
        ]
        yield from (Saying(self.worker, one) for one in said)

    def _targets(self) -> Iterator[Saying]:
        target = self.bench.targets[TargetId("t0")]
        assert target.session is not None
        rot = of_targets.Rot(self.new, Damage("column", "cells", 0, 1, "why"), 0, 0)
        scrub = of_targets.ScrubReport(5.0, 1, 2, 3, 4, 1, (rot,), 6)
        counters = {"usable_bytes": 1 << 41, "reserved_bytes": 5, "device_used_bytes": 7}
        device = of_targets.DeviceReport({"write": 1}, 5, "write: EIO")
        yield Saying(
            target.session,
            of_targets.RenewLease(
                target.id, target.boot, 1 << 40, 0, counters, 1 << 40, device, scrub
            ),
        )
        fresh = of_targets.RegisterTarget(
            TargetId("t9"), BootId(9), "t9:1", "", "p/r/h9/d9", "d/t9", 1, 1 << 40, 1 << 40, 0, 0,
            (), 1 << 40, None, bytes(16), "place", b"", "auto", scrub, b"", 3,
        )  # fmt: skip
        yield Saying(self.bench.session(Role.TARGET), fresh)


def variants(value: object) -> Iterator[object]:
    """The same with one number, text or bytes in it at an extreme."""
    match value:
        case bool() | None:
            return
        case int():
            yield from NUMBERS
        case float():
            yield from FRACTIONS
        case str():
            yield from TEXTS
        case bytes():
            yield from BYTES
        case Struct():
            for name in value.__struct_fields__:
                for other in variants(getattr(value, name)):
                    yield replace(value, **{name: other})
        case tuple():
            yield ()
            for other in variants(value[0]) if value else ():  # The others are alike.
                yield (other, *value[1:])
        case dict():
            for key, item in value.items():
                yield from ({**value, key: other} for other in variants(item))
