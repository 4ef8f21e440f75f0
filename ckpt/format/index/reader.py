"""Where every tensor of a checkpoint lies: the index, readable in ranges by tensor name.

    header page | header page again | directory | payload pages | tensor pages | directory again

The document lies on m + 1 targets. Within one, header and directory are there twice; a page that
is damaged in one document comes from another. A reader fetches header, directory and then only
the pages it needs: tensors are sorted by name, and the directory knows the first name of each
page. The bytes are in `ckpt.format.index.pages`, how pages are filled in
`ckpt.format.index.builder`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby, pairwise
from typing import Final, TypeVar

from ckpt.base.errors import CkptError, Corrupt, NotFound, Refused
from ckpt.base.ids import CheckpointId, LaunchNumber, Rank, TargetId
from ckpt.base.limits import CELL_BYTES_MAX, PAGE_BYTES, PAYLOAD_BYTES_MAX, WORLD_SIZE_MAX
from ckpt.erasure.code import Code
from ckpt.format.checksum import XXH3_BYTES, Buffer
from ckpt.format.index.checks import TensorKey, check_tensor, tensor_order
from ckpt.format.index.document import Index
from ckpt.format.index.pages import (
    HEADER_BYTES,
    FoldedTensor,
    IndexBox,
    IndexPayload,
    IndexTensor,
    WirePayload,
    all_pages,
    decode_directory,
    decode_header,
    decode_payload_page,
    decode_tensor_page,
)
from ckpt.format.index.rows import BoxRows, Row, is_global_or_of

Fetch = Callable[[int, int], Buffer]
"""Bytes [start, end) of one copy of the document; errors of the way pass through."""


def decode_index(*documents: Buffer) -> Index:
    """The whole index from one copy, or from several that mend each other; raises Corrupt."""
    fetches = [_fetch_from(memoryview(document).cast("B")) for document in documents]
    reader = IndexReader(*fetches)
    return Index(
        reader.checkpoint,
        reader.launch,
        reader.world_size,
        reader.payloads(),
        tuple(reader.tensors()),
    )


class IndexReader:
    """I read one index by ranges: two or three fetches find one tensor of millions.

    I expect `fetch` to give bytes of one copy, and `others` bytes of further copies of the same
    document. A part that is damaged or out of reach in one copy comes from the next. Methods
    raise Corrupt when no copy has it whole, or the fetch's own CkptError when a copy was out of
    reach.
    """

    def __init__(self, fetch: Fetch, *others: Fetch) -> None:
        self._copies = (fetch, *others)
        twice = ((0, HEADER_BYTES), (HEADER_BYTES, 2 * HEADER_BYTES))
        self._header = header = self._whole(twice, decode_header)
        starts = (header.directory_offset, header.directory_again_offset)
        self._directory = self._whole(
            [(start, start + header.directory_bytes) for start in starts],
            lambda view: decode_directory(header, view),
        )
        pages = all_pages(self._directory)
        end = header.directory_offset + header.directory_bytes
        self._starts = list(accumulate((page.packed_bytes for page in pages), initial=end))
        self._firsts = [page.first for page in self._directory.tensor_pages]
        #: Decoded tensor pages, least recently used first, at most _CACHED_PAGES.
        self._cache: OrderedDict[int, _NamedPage] = OrderedDict()
        #: Of these pages the tensors that are whole and the only form of their name, for sure.
        self._lone: dict[str, FoldedTensor] = {}
        #: Pages that the next look-up brings at once, at most _PAGES_AT_ONCE; doubled by each that
        #: has to fetch: who asks for many names does not wait for each page.
        self._ahead = 1

    @property
    def checkpoint(self) -> CheckpointId:
        """Whose index it is."""
        return self._header.checkpoint

    @property
    def launch(self) -> LaunchNumber:
        """Which launch wrote it."""
        return self._header.launch

    @property
    def world_size(self) -> int:
        """Ranks of that launch."""
        return self._header.world_size

    def payloads(self) -> tuple[IndexPayload, ...]:
        """All payloads, ascending by rank."""
        pages = range(len(self._directory.payload_pages))
        found = tuple(payload for number in pages for payload in self._payload_page(number))
        if any(before.rank >= after.rank for before, after in pairwise(found)):
            raise Corrupt("index: its payloads do not ascend")
        return found

    def payload(self, rank: Rank) -> IndexPayload:
        """One rank's payload; raises NotFound."""
        pages = self._directory.payload_pages
        number = bisect_right(pages, int(rank), key=lambda page: page.first) - 1
        if number >= 0:
            for payload in self._payload_page(number):
                if payload.rank == rank:
                    return payload
        raise NotFound(f"{self.checkpoint} has no payload of rank {rank}")

    def tensor(self, name: str) -> IndexTensor:
        """The one tensor of that name; raises NotFound, or Refused when it has several forms."""
        found = self.variants(name)
        if len(found) > 1:
            raise Refused(
                f"{name}: ranks hold it with {len(found)} different meanings, dtypes or shapes"
            )
        return found[0]

    def variants(self, name: str) -> tuple[IndexTensor, ...]:
        """Every form of a name, at least one; raises NotFound."""
        lone = self._lone.get(name)
        if lone is not None:
            return (_tensor_of((lone,)),)
        parts: list[FoldedTensor] = []
        # A page that begins with the name may go on with a tensor of the page before.
        start = number = max(0, bisect_left(self._firsts, name) - 1)
        missed = False
        while number < len(self._firsts) and (number == start or self._firsts[number] <= name):
            if number not in self._cache:
                ahead = self._ahead if number == start else 1
                self._load(number, min(len(self._firsts), number + ahead))
                missed = True
            self._cache.move_to_end(number)
            page = self._cache[number]
            at = bisect_left(page.names, name)
            while at < len(page.names) and page.names[at] == name:
                parts.append(page.tensors[at])
                at += 1
            number += 1
        if missed:
            self._ahead = min(2 * self._ahead, _PAGES_AT_ONCE)
        if not parts:
            raise NotFound(f"{self.checkpoint} has no tensor {name}")
        return (_tensor_of(parts),) if len(parts) == 1 else tuple(_ascending(parts))

    def tensors(self, prefix: str = "") -> Iterator[IndexTensor]:
        """All tensors whose name begins with `prefix`, ascending by `tensor_order`."""

        def beyond(name: str) -> bool:
            return name > prefix and not name.startswith(prefix)

        for tensor in self._walk(prefix, beyond, _PAGES_AT_ONCE):
            if beyond(tensor.name):
                return
            if tensor.name.startswith(prefix):
                yield tensor

    def names_beyond(self, seen: Set[str], rank: Rank) -> Iterator[str]:
        """Names that are not among these, of what is global or what the rank has of its own, some
        more than once. No tensor is put together for those that are.
        """
        for page in self._pages(0, len(self._firsts), _PAGES_AT_ONCE):
            for name in sorted(set(page.names) - seen):
                if any(is_global_or_of(rank, form) for form in self.variants(name)):
                    yield name

    def _walk(
        self, low: str, beyond: Callable[[str], bool], pages_at_once: int
    ) -> Iterator[IndexTensor]:
        """Tensors in order, from the first at or above `low` to the last page not `beyond`."""
        pages = self._directory.tensor_pages
        # A page that begins with `low` may go on with a tensor of the page before.
        start = max(0, bisect_left(pages, low, key=lambda page: page.first) - 1)
        end = start
        while end < len(pages) and (end == start or not beyond(pages[end].first)):
            end += 1
        # The first page may begin in the middle of a tensor, which then is below `low`.
        yield from _ascending(self._wire_tensors(start, end, pages_at_once), low)

    def _wire_tensors(self, start: int, end: int, pages_at_once: int) -> Iterator[FoldedTensor]:
        for page in self._pages(start, end, pages_at_once):
            yield from page.tensors

    def _pages(self, start: int, end: int, pages_at_once: int) -> Iterator[_NamedPage]:
        for number in range(start, end):
            if number not in self._cache:
                self._load(number, min(end, number + pages_at_once))
            self._cache.move_to_end(number)
            yield self._cache[number]

    def _load(self, start: int, end: int) -> None:
        """Bring tensor pages [start, end) into the cache, by one fetch if nothing is damaged."""
        pages = self._directory.tensor_pages[start:end]
        offsets = self._starts[len(self._directory.payload_pages) + start :]
        try:
            view = memoryview(self._copies[0](offsets[0], offsets[len(pages)]))
        except CkptError:
            view = memoryview(b"")
        for number, page, offset in zip(range(start, end), pages, offsets, strict=False):
            decode = partial(decode_tensor_page, page)
            at = offset - offsets[0]
            try:
                tensors = decode(view[at : at + page.packed_bytes])
            except Corrupt:
                tensors = self._whole(((offset, offset + page.packed_bytes),), decode)
            names = [tensor.name for tensor in tensors]
            if names != sorted(names):
                raise Corrupt("index: its tensors do not ascend")
            self._cache[number] = _NamedPage(names, tensors)
            if len(set(names)) == len(names):
                # The first may have begun, and the last may go on, in a neighbour.
                self._lone.update(zip(names[1:-1], tensors[1:-1], strict=True))
        while len(self._cache) > _CACHED_PAGES:
            for name in self._cache.popitem(last=False)[1].names:
                self._lone.pop(name, None)

    def _payload_page(self, number: int) -> tuple[IndexPayload, ...]:
        page = self._directory.payload_pages[number]
        start = self._starts[number]
        wires = self._whole(
            ((start, start + page.packed_bytes),), partial(decode_payload_page, page)
        )
        return tuple(_payload_of(wire, self._directory.targets) for wire in wires)

    def _whole(self, ranges: Sequence[tuple[int, int]], decode: Callable[[Buffer], _Part]) -> _Part:
        """The first whole one among all copies' ranges."""
        problem: CkptError | None = None
        for fetch in self._copies:
            for start, end in ranges:
                try:
                    return decode(fetch(start, end))
                except CkptError as error:
                    # What is out of reach may come back; only what was read can be called damaged.
                    if problem is None or (error.retryable and not problem.retryable):
                        problem = error
        assert problem is not None
        raise problem


# --------------------------------------------------------------------------- the wire's own types

_CACHED_PAGES: Final = 1024
"""Of 64 KiB raw at most: the look-ups of a load come in the order of its tree, not of the names."""
_PAGES_AT_ONCE: Final = 16

_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class _NamedPage:
    """A decoded page."""

    names: list[str]
    """Of the tensors, ascending; one that goes on has its name in each of its pages."""
    tensors: tuple[FoldedTensor, ...]


def _ascending(wires: Iterable[FoldedTensor], low: str = "") -> Iterator[IndexTensor]:
    """Tensors at or above `low` from their parts; raises Corrupt when they do not ascend."""
    before: TensorKey | None = None
    for key, parts in groupby(wires, tensor_order):
        if before is not None and key <= before:
            raise Corrupt("index: its tensors do not ascend")
        before = key
        if key[0] >= low:
            yield _tensor_of(list(parts))


def _tensor_of(parts: Sequence[FoldedTensor]) -> IndexTensor:
    """One tensor from all its parts; raises Corrupt."""
    head = parts[0]
    boxes: Sequence[IndexBox] = head.boxes
    if len(parts) > 1 or head.repeats:
        rows = _joined(head.name, [row for part in parts for row in _rows_of(part)])
        is_plain = not any(repeats for _, repeats in rows)
        boxes = tuple([box for box, _ in rows]) if is_plain else BoxRows(rows)
    tensor = IndexTensor(head.name, head.meaning, head.dtype, head.global_shape, boxes)
    check_tensor(tensor, Corrupt)
    return tensor


def _rows_of(part: FoldedTensor) -> Iterable[Row]:
    return zip(part.boxes, part.repeats or ((),) * len(part.boxes), strict=True)


def _joined(name: str, parts: Iterable[Row]) -> list[Row]:
    """Whole boxes; raises Corrupt."""
    rows: list[Row] = []
    for part, repeats in parts:
        if not part.continued:
            rows.append((part, repeats))
        elif rows and rows[-1][1] == repeats:
            last, _ = rows.pop()
            locations = last.locations + part.locations
            rows.append((IndexBox(last.rank, last.offset, last.shape, locations), repeats))
        else:
            raise Corrupt(f"index: {name} begins in the middle of a box")
    return rows


def _payload_of(wire: WirePayload, targets: tuple[str, ...]) -> IndexPayload:
    """One payload; raises Corrupt when a value is out of bounds."""
    try:
        code = Code(wire.k, wire.m)
    except Refused as error:
        raise Corrupt(f"index: {error.message}") from None
    if not (
        0 <= wire.rank < WORLD_SIZE_MAX
        and 0 <= wire.payload_bytes <= PAYLOAD_BYTES_MAX
        and PAGE_BYTES <= wire.cell_bytes <= CELL_BYTES_MAX
        and wire.cell_bytes % PAGE_BYTES == 0
        and wire.document_offset >= 0
        and wire.document_bytes >= 0
        and wire.document_offset + wire.document_bytes <= wire.payload_bytes
        and len(wire.manifest_digest) == XXH3_BYTES
        and len(wire.columns) == len(wire.column_crcs) == code.n
        and all(number is None or 0 <= number < len(targets) for number in wire.columns)
        and all(0 <= crc < 1 << 32 for crc in wire.column_crcs)
    ):
        raise Corrupt(f"index: the payload of rank {wire.rank} cannot be")
    return IndexPayload(
        rank=Rank(wire.rank),
        code=code,
        payload_bytes=wire.payload_bytes,
        cell_bytes=wire.cell_bytes,
        document_offset=wire.document_offset,
        document_bytes=wire.document_bytes,
        manifest_digest=wire.manifest_digest,
        columns=tuple(
            None if number is None else TargetId(targets[number]) for number in wire.columns
        ),
        column_crcs=wire.column_crcs,
    )


def _fetch_from(view: memoryview) -> Fetch:
    return lambda start, end: view[start:end]
