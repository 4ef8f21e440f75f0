"""Where does each byte that a rank stages lie in its half of the arena?

    | tree document |00| own leaves, shards, share of copies  |0000| others' shares | declaration |
    |<----------------------- payload ----------------------->|    |<-- witness --->|             |
    0                                             payload_bytes                         half_bytes

The payload is what is stored. The document has a whole number of pages, so that other scalars in it
seldom move all that follows. The zeros after the payload are the padding of its last stripe, which
is encoded in place. A copy is what several ranks hold: a replica, or a box with holders. The
witness is the bytes of copies that other ranks store, so that the stager can fingerprint this
rank's whole copy; the declaration tells the stager where everything lies. Items begin on 64 bytes.
How the bytes get there: `copying`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, cast

import msgspec
import numpy as np

from ckpt.aio.collector import collector_paused
from ckpt.base.errors import Refused
from ckpt.base.ids import Rank
from ckpt.base.limits import CODE_COLUMNS_MAX, PAGE_BYTES, PAYLOAD_BYTES_MAX
from ckpt.base.units import MiB, align_up, format_bytes
from ckpt.format.messages.saving import ReplicaPolicy
from ckpt.format.table import Meaning, Piece, RankTable, TensorEntry, encode_table
from ckpt.format.tree import TreeTemplate
from ckpt.plan.replicas import leaf_parts, share_replicas
from ckpt_client.save.arrays import AnyArray
from ckpt_client.save.finite import check_finite
from ckpt_client.save.forms import Found, StateForm, form_of, settled
from ckpt_client.save.state import FlatState, Leaf, flatten
from ckpt_client.stager.declaration import Witness, write_declaration

ITEM_ALIGN: Final = 64
SMALL_BYTES: Final = MiB
"""Parts below this lie side by side: an accelerator gathers them, and moves them as one copy."""
TAIL_BYTES: Final = CODE_COLUMNS_MAX * PAGE_BYTES
"""The last stripe's padding stays below k pages."""


Picker = Callable[[Sequence[object]], tuple[object, ...]]


def picker(places: Sequence[int]) -> Picker:
    """Takes the values at these places, in their order; the loop is C's."""
    if len(places) < 2:  # Where an itemgetter gives no tuple.
        return lambda values: tuple([values[place] for place in places])
    return itemgetter(*places)


class Span(msgspec.Struct, frozen=True, gc=False):
    """Bytes [start, start + length) of a leaf's C-order bytes lie at `offset` of the half."""

    leaf: int
    start: int
    length: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class StateLayout:
    """Where everything of a state lies; all states of one form have the same one."""

    rank: Rank
    world_size: int
    names: tuple[str, ...]
    """Of the leaves, sorted."""
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    sorted: Picker
    """Takes what each leaf has in the walk over the state, in the leaves' order."""
    template: TreeTemplate
    document_room: int
    """Bytes that the tree document, which lies at offset 0, may have."""
    spans: tuple[Span, ...]
    """Ascending by offset; those below `payload_bytes` are stored, the others are witness."""
    whole: Mapping[int, Span]
    """Of each leaf that lies in one piece; nearly all do."""
    parts: tuple[Span, ...]
    """Of leaves whose storing is shared with other ranks."""
    payload_bytes: int
    declaration: bytes
    declaration_offset: int

    @property
    def half_bytes(self) -> int:
        return self.declaration_offset + len(self.declaration)

    def place_of(self, found: Found) -> Sequence[object]:
        """The number of each array, by its number in the walk."""
        order = self.sorted(range(len(found.arrays)))
        places: list[object] = [0] * len(order)
        for place, number in enumerate(cast(Sequence[int], order)):
            places[number] = place
        return places

    def packing(self, found: Found) -> PackingPlan | None:
        """The plan of a state of this form; None when its scalars need more room than there is, or
        cannot be stored.
        """
        try:
            document = self.template.encode(found.scalars)
        except Refused:  # The long way names the path.
            return None
        if len(document) > self.document_room:
            return None
        return PackingPlan(self, document, self.sorted(found.arrays))


@dataclass(frozen=True, slots=True, eq=False)
class PackingPlan:
    """The whole plan of one save."""

    layout: StateLayout
    document: bytes
    arrays: tuple[object, ...]
    """The leaves' memory, in the layout's order: whatever the copier takes."""
    checked: tuple[int, ...] = ()
    """Leaves that are refused for NaN and infinity once they are copied: they lie on a device."""

    def check_finite(self) -> None:
        """Of numpy arrays. Raises Refused naming the first that holds NaN or infinity."""
        for name, array in zip(self.layout.names, self.arrays, strict=True):
            check_finite(name, cast(AnyArray, array))


class PackingPlanner:
    """I plan saves, and remember the last one: a state of the same form, as every step of a
    training has it, is neither taken apart nor laid out again.
    """

    def __init__(self) -> None:
        self._last: tuple[tuple[object, ...], StateForm | None, StateLayout] | None = None

    def plan(
        self,
        state: object,
        rank: int,
        world_size: int,
        replicas: ReplicaPolicy = ReplicaPolicy.ABORT,
        *,
        replicated: bool = False,
        keep_form: bool = True,
    ) -> PackingPlan:
        """Take the state apart and lay it out. Raises what `flatten` and `plan_packing` raise.

        keep_form: know the next state of this form again; who does so by himself says False.
        """
        asked = (rank, world_size, replicas, replicated)
        last = self._last  # Another thread may save something else meanwhile.
        if last is not None and last[0] == asked:
            _, form, layout = last
            found = form.recognise(state) if form is not None else None
            packing = layout.packing(found) if found is not None else None
            if packing is not None:
                return packing
        with collector_paused():
            # The form is of what is laid out here, whatever becomes of the caller's containers.
            taken = settled(state) if keep_form else state
            flat = flatten(taken, replicated=replicated)
            packing = plan_packing(flat, rank, world_size, replicas)
            form = form_of(taken, replicated, flat.walked()) if keep_form else None
            self._last = asked, form, packing.layout
        return packing


def plan_packing(
    state: FlatState, rank: int, world_size: int, replicas: ReplicaPolicy = ReplicaPolicy.ABORT
) -> PackingPlan:
    """Lay a state out for one rank. Equal states have equal plans.

    Raises Refused when it is too large for a payload, or when a box's holders leave this rank
    out. With ReplicaPolicy.KEEP every rank stores its whole replicas: a copy that differs must
    be there to be kept, and which one differs is known only afterwards.
    """
    template = TreeTemplate(state.root)
    document = template.document
    leaves = state.leaves
    sizes = [leaf.array.nbytes for leaf in leaves]
    stored_parts, witness_parts = _share_out(leaves, sizes, rank, world_size, replicas)
    room = align_up(len(document), PAGE_BYTES)
    stored, payload_bytes = _place(stored_parts, room)
    if payload_bytes > PAYLOAD_BYTES_MAX:
        raise Refused(
            f"rank {rank} would store {format_bytes(payload_bytes)}, "
            f"{format_bytes(PAYLOAD_BYTES_MAX)} are allowed"
        )
    witness, end = _place(witness_parts, payload_bytes + TAIL_BYTES)
    spans = stored + witness
    whole = {span.leaf: span for span in spans if span.length == sizes[span.leaf]}
    parts = () if len(whole) == len(spans) else [one for one in spans if one.leaf not in whole]
    layout = StateLayout(
        rank=Rank(rank),
        world_size=world_size,
        names=tuple([leaf.name for leaf in leaves]),
        dtypes=tuple([leaf.dtype for leaf in leaves]),
        shapes=tuple([leaf.array.shape for leaf in leaves]),
        sorted=picker(state.order),
        template=template,
        document_room=room,
        spans=tuple(spans),
        whole=whole,
        parts=tuple(parts),
        payload_bytes=payload_bytes,
        declaration=_declare(leaves, stored, witness, rank, world_size),
        declaration_offset=align_up(end, ITEM_ALIGN),
    )
    return PackingPlan(layout, document, tuple([leaf.array for leaf in leaves]))


Part = tuple[int, int, int]
"""(leaf, start, end): bytes [start, end) of a leaf."""


def _share_out(
    leaves: Sequence[Leaf],
    sizes: Sequence[int],
    rank: int,
    world_size: int,
    replicas: ReplicaPolicy,
) -> tuple[list[Part], list[Part]]:
    """What this rank stores, its own first, and what others store of the copies that it holds.

    Copies with the same holders are shared out together, each group over its holders.
    """
    stored: list[Part] = []
    groups: dict[Sequence[int], list[int]] = {}
    replicated: list[int] = []
    shared_by_all = None if replicas is ReplicaPolicy.KEEP else Meaning.REPLICATED
    for number, leaf in enumerate(leaves):
        if leaf.meaning is shared_by_all:
            if not replicated:
                groups[range(world_size)] = replicated
            replicated.append(number)
        elif leaf.holders:
            _check_holders(leaf, rank, world_size)
            groups.setdefault(leaf.holders, []).append(number)
        else:
            stored.append((number, 0, sizes[number]))
    witness: list[Part] = []
    for holders, numbers in groups.items():
        shared = [sizes[number] for number in numbers]
        cuts = share_replicas(shared, len(holders))
        place = holders.index(rank)
        first, last = cuts[place], cuts[place + 1]
        stored += _parts(numbers, shared, first, last)
        witness += _parts(numbers, shared, 0, first) + _parts(numbers, shared, last, cuts[-1])
    return stored, witness


def _check_holders(leaf: Leaf, rank: int, world_size: int) -> None:
    if rank not in leaf.holders or leaf.holders[-1] >= world_size:
        raise Refused(
            f"{leaf.name}: holders {leaf.holders} do not fit rank {rank} of {world_size}",
            hint="holders name every rank that declares the box, this one too",
        )


def _parts(numbers: Sequence[int], sizes: Sequence[int], first: int, last: int) -> list[Part]:
    """Parts under the concatenated bytes [first, last) of a group of copies."""
    return [(numbers[n], start, end) for n, start, end in leaf_parts(sizes, first, last)]


def _place(parts: Sequence[Part], begin: int) -> tuple[list[Span], int]:
    """Parts one after the other from `begin` on, small ones first, each aligned; empty ones need
    no place. And where the last one ends.
    """
    leaf, start, end = np.array(parts, np.int64).reshape(-1, 3).T
    length = end - start
    (small,) = np.nonzero((length > 0) & (length < SMALL_BYTES))
    (large,) = np.nonzero(length >= SMALL_BYTES)
    order = np.concatenate((small, large))
    if not order.size:
        return [], begin
    length = length[order]
    room = -(-length // ITEM_ALIGN) * ITEM_ALIGN
    offset = align_up(begin, ITEM_ALIGN) + np.cumsum(room) - room
    columns = (leaf[order], start[order], length, offset)
    spans = list(map(Span, *[column.tolist() for column in columns]))
    return spans, int(offset[-1] + length[-1])


def _declare(
    leaves: Sequence[Leaf],
    stored: Iterable[Span],
    witness: Iterable[Span],
    rank: int,
    world_size: int,
) -> bytes:
    pieces: list[tuple[Piece, ...]] = [()] * len(leaves)
    for span in stored:
        pieces[span.leaf] += (Piece(span.start, span.offset, span.length),)
    entries = tuple(
        [
            TensorEntry(
                leaf.name, leaf.meaning, leaf.dtype, leaf.global_shape, leaf.offset,
                leaf.array.shape, kept,
            )
            for leaf, kept in zip(leaves, pieces, strict=True)
        ]
    )  # fmt: skip
    table = encode_table(RankTable(Rank(rank), world_size, entries))
    outside = [Witness(one.leaf, one.start, one.offset, one.length) for one in witness]
    copied = Meaning.REPLICATED  # To look it up costs more than to ask.
    copies = [n for n, leaf in enumerate(leaves) if leaf.meaning is copied or leaf.holders]
    return write_declaration(table, outside, copies)
