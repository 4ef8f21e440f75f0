"""What must be true in each state of the small world, and when nothing can happen any more.

Judged by what is durable on disks and by what was said, never by what a machine believes, but where
the rule is about that belief.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ckpt.base.errors import CkptError
from ckpt.base.ids import CheckpointId, ColumnId, PayloadId, TargetId
from ckpt.format.messages.asking import StepDeleted
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import DropColumn, DropGeneration, Dropped
from ckpt.protocol.coordinator.catalog import CheckpointDamaged, Persist, RowState
from ckpt.protocol.coordinator.cluster.membership import TargetState
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.events import Send, Session
from ckptd.catalog.rebuild import rebuild
from tests.explore.held import Document, HeldSource
from tests.explore.parties import CLUSTER, Party, TargetParty
from tests.explore.world import World
from tests.sim.oracles import Violation

KEPT = (RowState.COMMITTED, RowState.DAMAGED)


class Rules:
    """I watch one world from its beginning."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._code = world.beginning.code
        self.deleted: set[CheckpointId] = set()
        """Their deletion was answered."""
        #: Tombstones are on their way: what is removed of these is meant to go.
        self._doomed: set[CheckpointId] = set()
        #: Of each drop of a column: how many disks were emptied, and whether all knew of it.
        self._drops: dict[tuple[str, ColumnId], tuple[int, bool]] = {}
        #: Of each checkpoint, how many disks have to be emptied for it to be lost, as seen last.
        self._tolerance: dict[CheckpointId, int] = {}
        #: Which generation each command is about that a target has heard.
        self._asked: dict[tuple[Session, int], CheckpointId] = {}
        #: The right columns of each target, as seen last.
        self._last: dict[str, frozenset[ColumnId]] = {}
        self._seen: tuple[object, ...] = ()
        self._wipes = 0
        world.on_said = self._said
        world.on_received = self._received
        world.on_persist = self._persists

    # ----------------------------------------------------------------------- what is said

    def _received(self, to: Party, action: Send) -> None:
        if isinstance(action.message, DropGeneration):
            self._asked[action.session, action.request] = action.message.checkpoint

    def _said(self, sender: Party, action: Send) -> None:
        match action.message:
            case Dropped():
                self._check_dropped(sender.name, self._asked.get((action.session, action.request)))
            case StepDeleted():
                self.deleted |= self._doomed
            case DropColumn(column=column):
                for target in self._world.targets.values():
                    if target.session == action.session:
                        self._drops[target.name, column] = self._world.wipes, self._all_know()

    def _check_dropped(self, target: str, id: CheckpointId | None) -> None:
        """What a target says it has removed does not come back when its power goes."""
        held = self._world.targets[target].held()
        columns = [str(column) for column in held.columns if column.payload.checkpoint == id]
        documents = [
            kind.value
            for kind, of in held.documents
            if of == id and kind is not DocumentKind.TOMBSTONE
        ]
        if columns or documents:
            left = ", ".join(columns + documents)
            raise Violation(f"{target} says that it dropped {id}, and {left} is durable there")

    def _persists(self, persist: Persist) -> None:
        for entry in persist.entries:
            match entry:
                case CheckpointDamaged(checkpoint=id, reason=reason):
                    self._check_loss(id, reason)

    def _check_loss(self, id: CheckpointId, reason: str) -> None:
        """No loss is proved falsely: whoever is away counts as well."""
        columns = {column.column for column in self._copies(id)}
        index = any(_has(one.held().documents, DocumentKind.INDEX, id) for one in self._members())
        if len(columns) >= self._code.k and index:
            where = ", ".join(f"{column.column} on {on}" for column, on in self._where(id))
            raise Violation(
                f"a loss of {id} is proved, and its columns are there: {where}: {reason}"
            )

    # ----------------------------------------------------------------------- in each state

    def check(self) -> None:
        """Raises Violation."""
        self._note_deletions()
        self._check_counted()
        seen = tuple(map(id, (one.held() for one in self._members())))
        if seen != self._seen or self._wipes != self._world.wipes:
            self._check_last_copies()
            self._seen, self._wipes = seen, self._world.wipes
        self._check_deleted()

    def _note_deletions(self) -> None:
        if self._world.coordinator.up:
            for one in self._kept():
                if one.state is RowState.TOMBSTONED:
                    self._doomed.add(one.id)

    def _check_counted(self) -> None:
        """What the coordinator counts is durable where it is named. Who has not heard yet that a
        target is gone cannot know.
        """
        if not self._world.coordinator.up:
            return
        for one in [one for one in self._kept() if one.state in KEPT]:
            for rank, placed in (one.placement or {}).items():
                for number in self._world.coordinator.machine.checkpoints.columns_now(one, rank):
                    holder = placed.columns[number]
                    assert holder is not None
                    self._check_holder(one, ColumnId(PayloadId(one.id, rank), number), holder)

    def _check_holder(self, one: KeptCheckpoint, column: ColumnId, holder: TargetId) -> None:
        target = self._world.targets[holder]
        known = self._world.coordinator.machine.members.targets[holder]
        if target.up and known.session == target.session and column not in target.held().columns:
            raise Violation(f"{column} counts on {holder}, and is not there")

    def _check_last_copies(self) -> None:
        """No last copy is dropped: nothing but losses of disks makes a checkpoint survive less
        than m of them.
        """
        before = self._last
        now = self._last = {one.name: one.held().columns for one in self._members()}
        known = {column.payload.checkpoint for held in now.values() for column in held}
        for id in known | set(self._tolerance):
            was, self._tolerance[id] = self._tolerance.get(id, 0), self._tolerable(id)
            is_less = self._tolerance[id] < min(was, self._code.m + 1)
            if is_less and id not in self._doomed and self._wipes == self._world.wipes:
                self._check_drops(id, before, now)

    def _check_drops(
        self,
        id: CheckpointId,
        before: dict[str, frozenset[ColumnId]],
        now: dict[str, frozenset[ColumnId]],
    ) -> None:
        """Nobody could know better when a disk was emptied since the drop was asked for."""
        for name, held in sorted(before.items()):
            for column in sorted(held - now.get(name, frozenset())):
                asked = self._drops.get((name, column), (-1, True))
                if column.payload.checkpoint == id and asked == (self._world.wipes, True):
                    raise Violation(
                        f"{column} was dropped on {name}: {self._tolerance[id]} disks more, and "
                        f"{id} is lost"
                    )

    def _tolerable(self, id: CheckpointId) -> int:
        """So many disks have to be emptied for it to be lost."""
        copies = sorted(Counter(self._copies(id)).values())
        return sum(copies[: max(0, len(copies) - self._code.k + 1)])

    def _check_deleted(self) -> None:
        """Nothing deleted comes back: not to who asks, and not with a catalog that is made again of
        all targets.
        """
        for id in sorted(self.deleted):
            if self._world.coordinator.up:
                one = self._world.coordinator.machine.checkpoints.get(id)
                if one is not None and one.state in KEPT:
                    raise Violation(f"{id} was deleted, and is {one.state.value}")
            held = [one.held().documents for one in self._members()]
            if any(_has(each, DocumentKind.RECORD, id) for each in held) and not any(
                _has(each, DocumentKind.TOMBSTONE, id) for each in held
            ):
                self._check_rebuilt(id)

    def _check_rebuilt(self, id: CheckpointId) -> None:
        members = self._members()
        try:
            found = rebuild(
                CLUSTER, [HeldSource(one.name, one.disk, one.held()) for one in members]
            )
        except CkptError:
            return
        row = found.image.rows.get(id)
        if row is not None and row.state in KEPT:
            where = [o.name for o in members if _has(o.held().documents, DocumentKind.RECORD, id)]
            raise Violation(
                f"{id} was deleted, and a catalog made of all targets has it: its record is on "
                f"{', '.join(where)}, a tombstone nowhere"
            )

    # ----------------------------------------------------------------------- at the end

    def check_end(self) -> None:
        """All are back, and nothing happens any more."""
        machine = self._world.coordinator.machine
        if not machine.vouching.serves:
            raise Violation(f"nobody is served: {machine.vouching.problem()}")
        live = [t.id for t in machine.members.live()]
        if sorted(live) != sorted(one.id for one in self._members()):
            raise Violation(f"of all targets {live} alone are live")
        for target in self._world.targets.values():
            if target.up and target.disk.list_directory("staging"):
                raise Violation(f"{target.name} keeps {target.disk.list_directory('staging')}")
        self._check_nothing_open()
        kept = {one.id for one in self._kept() if one.state is not RowState.TOMBSTONED}
        for one in self._kept():
            if one.id in kept and one.state is RowState.COMMITTED:
                self._check_whole(one)
        for member in self._members():
            left = member.held().checkpoints - kept
            if left:
                raise Violation(f"{member.name} keeps something of {', '.join(map(str, left))}")

    def _check_nothing_open(self) -> None:
        machine = self._world.coordinator.machine
        dropping = {t.id: sorted(t.dropping) for t in machine.members.live() if t.dropping}
        if machine.deleter._dropping or machine.deleter._unspread or dropping:
            raise Violation(f"drops are open: {machine.deleter._dropping}, {dropping}")
        if machine.repairs.tasks:
            raise Violation(f"tasks are open: {list(machine.repairs.tasks)}")

    def _check_whole(self, one: KeptCheckpoint) -> None:
        """n right columns, each once; m + 1 copies of its documents. What was sealed after its
        target had listed, for a lease of an earlier term, is known when it lists again.
        """
        copies = Counter(self._copies(one.id))
        known = self._world.coordinator.machine.members.targets
        listed = Counter(
            column
            for column, name in self._where(one.id)
            if known[TargetId(name)].proved.digest(column) is not None
        )
        twice = [str(column) for column, count in listed.items() if count > 1]
        if twice:
            raise Violation(f"{', '.join(twice)} lies on more targets than one")
        members = self._members()
        n = self._code.n
        if len(copies) >= self._code.k and len(members) >= n and len(copies) < n:
            raise Violation(f"{one.id} has {len(copies)} columns of {n}")
        other = [m.name for m in members if m.held().other]
        if other:
            raise Violation(f"another payload's column stays on {', '.join(other)}")
        for kind in (DocumentKind.INDEX, DocumentKind.RECORD):
            count = sum(_has(m.held().documents, kind, one.id) for m in members)
            if 0 < count < min(self._code.m + 1, len(members)):
                raise Violation(f"{one.id} has {count} copies of its {kind.value}")

    # ----------------------------------------------------------------------- questions

    def lacks(self) -> bool:
        """Something that was kept is not whole."""
        try:
            for one in self._kept():
                if one.state is RowState.COMMITTED:
                    self._check_whole(one)
        except Violation:
            return True
        return False

    def is_lost(self) -> bool:
        """Something that was kept has too few columns left, or no index."""
        kept = [one.id for one in self._kept() if one.state is RowState.COMMITTED]
        members = self._members()
        return any(
            len({column.column for column in self._copies(id)}) < self._code.k
            or not any(_has(m.held().documents, DocumentKind.INDEX, id) for m in members)
            for id in kept
        )

    def _members(self) -> list[TargetParty]:
        return self._world.members()

    def _kept(self) -> list[KeptCheckpoint]:
        return list(self._world.coordinator.machine.checkpoints.all())

    def _copies(self, id: CheckpointId) -> list[ColumnId]:
        return [column for column, _ in self._where(id)]

    def _where(self, id: CheckpointId) -> list[tuple[ColumnId, str]]:
        return sorted(
            (column, one.name)
            for one in self._members()
            for column in one.held().columns
            if column.payload.checkpoint == id
        )

    def _all_know(self) -> bool:
        """Whoever is gone, the coordinator has heard it."""
        known = self._world.coordinator.machine.members.targets
        live = [t for t in known.values() if t.state is TargetState.LIVE]
        return all(self._world.targets[t.id].session == t.session for t in live)


def _has(documents: Mapping[Document, object], kind: DocumentKind, id: CheckpointId) -> bool:
    return (kind, id) in documents
