"""Boxes in rows: the same boxes in the same order, found by arithmetic, and nothing that a hostile
index could make of them.
"""

from __future__ import annotations

from itertools import product
from math import prod

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import CkptError, Corrupt, Refused
from ckpt.base.ids import Rank
from ckpt.base.limits import INDEX_PAGE_BYTES_MAX, PAYLOAD_BYTES_MAX, WORLD_SIZE_MAX
from ckpt.format.checksum import Buffer
from ckpt.format.index.checks import check_tensor, tensor_order
from ckpt.format.index.document import Index, TensorPages, index_document
from ckpt.format.index.pages import (
    HEADER_BYTES,
    ROWS_VERSION,
    VERSION,
    FoldedTensor,
    IndexBox,
    IndexTensor,
    Location,
    Repeat,
    TensorPage,
    WireTensor,
    decode_directory,
    decode_header,
    decode_tensor_page,
    pack_page,
)
from ckpt.format.index.reader import IndexReader, decode_index
from ckpt.format.index.rows import (
    REPEATED_BOXES_MAX,
    REPEATS_MAX,
    BoxRows,
    Repeats,
    boxes_of,
    ends_of,
    folded,
    rows_of,
)
from ckpt.format.table import Meaning
from ckpt.plan.boxes import intersect
from ckpt.testing.indexes import encode_index
from tests.format.test_index import DOCUMENT, LARGE, indexes, row_sharded


def mesh_tensor(
    name: str, mesh: tuple[int, ...], share: tuple[int, ...], held: int = 0
) -> IndexTensor:
    """Cut along axis n into mesh[n] shares of share[n] items by ranks in C order; `held`: in how
    many replicas beside, each of which stores a part of every box.
    """
    world, whole = prod(mesh), tuple(map(prod, zip(mesh, share, strict=True)))
    size, boxes = 4 * prod(share), []
    for rank in range(world * (held + 1)):
        place = next(
            at for n, at in enumerate(product(*map(range, mesh))) if n == rank % world
        )  # fmt: skip
        pieces = held + 1
        locations = tuple(
            Location(
                Rank(rank % world + world * piece), piece * size // pieces, 4096,
                (piece + 1) * size // pieces - piece * size // pieces,
            )
            for piece in range(pieces)
        )  # fmt: skip
        offset = tuple(n * count for n, count in zip(place, share, strict=True))
        boxes.append(IndexBox(Rank(rank), offset, share, locations))
    return IndexTensor(name, Meaning.SHARD, "<f4", whole, tuple(boxes))


def near(
    boxes: tuple[IndexBox, ...], offset: tuple[int, ...], shape: tuple[int, ...]
) -> list[IndexBox]:
    return [box for box in boxes if intersect(offset, shape, box.offset, box.shape) is not None]


# --------------------------------------------------------------------------- the same boxes


@st.composite
def cut_tensors(draw: st.DrawFn) -> IndexTensor:
    """Cut by a mesh, then a few boxes changed, swapped or left out."""
    axes = draw(st.integers(1, 3))
    mesh = tuple(draw(st.integers(1, 5)) for _ in range(axes))
    share = tuple(draw(st.integers(0, 3)) for _ in range(axes))
    held = draw(st.integers(0, 2)) if all(share) and prod(share) > 2 else 0
    tensor = mesh_tensor("w", mesh, share, held)
    boxes = list(tensor.boxes)
    if not prod(share):
        boxes = [msgspec.structs.replace(box, locations=()) for box in boxes]
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(boxes) - 1))
        box = boxes[at]
        match draw(st.integers(0, 3)):
            case 0 if len(boxes) > 1:
                del boxes[at]
            case 1:
                boxes.insert(draw(st.integers(0, len(boxes) - 1)), boxes.pop(at))
            case 2:
                moved = tuple(
                    msgspec.structs.replace(one, payload_offset=one.payload_offset + 4096)
                    for one in box.locations
                )
                boxes[at] = msgspec.structs.replace(box, locations=moved)
            case _:
                home = tuple(
                    msgspec.structs.replace(one, term=3, counter=4) for one in box.locations
                )
                boxes[at] = msgspec.structs.replace(box, locations=home)
    return IndexTensor("w", Meaning.SHARD, "<f4", tensor.global_shape, tuple(boxes))


@given(cut_tensors(), st.data())
def test_rows_are_the_same_boxes_in_the_same_order(
    tensor: IndexTensor, data: st.DataObject
) -> None:
    plain = tuple(tensor.boxes)
    rows = folded(plain)
    assert tuple(rows) == plain
    assert len(rows) == len(plain)
    assert rows == plain
    assert plain == rows
    for number in range(-len(plain), len(plain)):
        assert rows[number] == plain[number]
    assert tuple(rows[1:3]) == plain[1:3]
    for rank in range(max(box.rank for box in plain) + 2):
        assert list(boxes_of(rows, Rank(rank))) == [box for box in plain if box.rank == rank]
    offset = tuple(data.draw(st.integers(0, size)) for size in tensor.global_shape)
    shape = tuple(
        data.draw(st.integers(0, size - at))
        for size, at in zip(tensor.global_shape, offset, strict=True)
    )
    if isinstance(rows, BoxRows):
        assert list(rows.near(offset, shape)) == near(plain, offset, shape)
        for box, repeats in rows.rows:
            low, high = ends_of(box, repeats)
            alone = tuple(BoxRows([(box, repeats)]))
            assert low.rank == min(one.rank for one in alone)
            assert high.rank == max(one.rank for one in alone)
            for axis in range(len(offset)):
                assert low.offset[axis] == min(one.offset[axis] for one in alone)
                assert high.offset[axis] == max(one.offset[axis] for one in alone)


@pytest.mark.parametrize(
    ("mesh", "share", "held"),
    [((1024,), (4,), 0), ((16, 8), (2, 3), 0), ((4, 3, 5), (1, 2, 3), 0), ((8,), (6,), 3)],
)
def test_what_a_mesh_cuts_is_one_row(
    mesh: tuple[int, ...], share: tuple[int, ...], held: int
) -> None:
    rows = folded(mesh_tensor("w", mesh, share, held).boxes)
    assert len(rows_of(rows)) == 1


def test_a_tensor_that_does_not_part_evenly_is_a_few_rows() -> None:
    """As torch cuts 1,000 rows among 64 ranks: 62 of 16, one of 8, the last without any."""
    boxes = [
        IndexBox(
            Rank(r), (min(16 * r, 1000),), (min(16, max(0, 1000 - 16 * r)),),
            (Location(Rank(r), 0, 0, 4 * min(16, 1000 - 16 * r)),) if r < 63 else (),
        )
        for r in range(64)
    ]  # fmt: skip
    assert len(rows_of(folded(boxes))) == 3


def test_boxes_that_nothing_repeats_stay_as_they_are() -> None:
    boxes = tuple(
        IndexBox(Rank(r), (r,), (r + 1,), (Location(Rank(r), 0, 64 * r, 4),)) for r in range(9)
    )
    assert folded(boxes) is boxes


# --------------------------------------------------------------------------- the document


@given(indexes())
def test_an_index_in_rows_comes_back_equal(index: Index) -> None:
    assert decode_index(encode_index(index, in_rows=True)) == index


@given(indexes(), cut_tensors(), st.booleans(), st.integers(0, 8), st.data())
def test_names_beyond_some_are_of_what_is_global_or_the_ranks_own(
    index: Index, cut: IndexTensor, in_rows: bool, rank: int, data: st.DataObject
) -> None:
    own = msgspec.structs.replace(cut, name="what ranks have", meaning=Meaning.OWN)
    tensors = tuple(sorted((*index.tensors, own), key=tensor_order))
    document = encode_index(msgspec.structs.replace(index, tensors=tensors), in_rows=in_rows)
    seen = data.draw(st.sets(st.sampled_from([tensor.name for tensor in tensors])))
    reader = IndexReader(lambda start, end: memoryview(document)[start:end])
    assert list(reader.names_beyond(seen, Rank(rank))) == [
        tensor.name for tensor in tensors
        if tensor.meaning is not Meaning.OWN or any(box.rank == rank for box in tensor.boxes)
        if tensor.name not in seen
    ]  # fmt: skip


def test_an_index_in_rows_is_short_and_says_its_version() -> None:
    document = encode_index(LARGE, in_rows=True)
    assert decode_index(document) == LARGE
    assert decode_header(document[:HEADER_BYTES]).version == ROWS_VERSION
    assert decode_header(DOCUMENT[:HEADER_BYTES]).version == VERSION
    tensors = [row_sharded(f"layers/#{n}/w", 1000) for n in range(50)]
    index = msgspec.structs.replace(LARGE, tensors=tuple(sorted(tensors, key=lambda t: t.name)))
    plain, rows = (tensor_bytes(encode_index(index, in_rows=on)) for on in (False, True))
    assert rows < plain / 100


def tensor_bytes(document: bytes) -> int:
    """Of all its tensor pages, unpacked."""
    header = decode_header(document[:HEADER_BYTES])
    start = header.directory_offset
    directory = decode_directory(header, document[start : start + header.directory_bytes])
    return sum(page.raw_bytes for page in directory.tensor_pages)


def test_without_a_row_the_version_is_the_first() -> None:
    tensors = (row_sharded("a", 2),)
    document = encode_index(msgspec.structs.replace(LARGE, tensors=tensors), in_rows=True)
    assert decode_header(document[:HEADER_BYTES]).version == VERSION


def test_a_row_whose_boxes_have_many_places_goes_over_several_pages() -> None:
    pieces = tuple(Location(Rank(p), p * 4, p * 64, 4) for p in range(5000))
    boxes = tuple(IndexBox(Rank(r), (0,), (5000,), pieces) for r in range(100))
    tensor = IndexTensor("w", Meaning.SHARD, "<f4", (5000,), boxes)
    document = encode_index(msgspec.structs.replace(LARGE, tensors=(tensor,)), in_rows=True)
    header = decode_header(document[:HEADER_BYTES])
    start = header.directory_offset
    directory = decode_directory(header, document[start : start + header.directory_bytes])
    assert 1 < len(directory.tensor_pages) < 12
    assert all(page.raw_bytes <= INDEX_PAGE_BYTES_MAX for page in directory.tensor_pages)
    assert decode_index(document).tensors == (tensor,)


def test_what_one_rank_reads_does_not_grow_with_the_ranks() -> None:
    fetched = []
    for ranks in (100, 10_000):
        tensors = tuple(
            sorted((row_sharded(f"{n}", ranks) for n in range(20)), key=lambda t: t.name)
        )
        document = encode_index(msgspec.structs.replace(LARGE, tensors=tensors), in_rows=True)
        asked: list[int] = []

        def fetch(start: int, end: int, of: bytes = document, to: list[int] = asked) -> Buffer:
            to.append(end - start)
            return memoryview(of)[start:end]

        reader = IndexReader(fetch)
        for tensor in tensors:
            (mine,) = boxes_of(reader.tensor(tensor.name).boxes, Rank(77))
            assert mine == tensor.boxes[77]
        fetched.append(sum(asked))
    assert fetched[1] < 1.1 * fetched[0]


# --------------------------------------------------------------------------- hostile


BOX = IndexBox(Rank(0), (0,), (1,), (Location(Rank(0), 0, 0, 4),))


@pytest.mark.parametrize(
    "repeats",
    [
        (Repeat(1, 1, (1,), 1, 0),),
        (Repeat(0, 1, (1,), 1, 0),),
        (Repeat(-5, 1, (1,), 1, 0),),
        (Repeat(REPEATED_BOXES_MAX + 1, 0, (0,), 0, 0),),
        (Repeat(1 << 62, 0, (0,), 0, 0),),
        (Repeat(2048, 0, (0,), 0, 0), Repeat(2049, 0, (0,), 0, 0)),
        (Repeat(2, 0, (0,), 0, 0),) * (REPEATS_MAX + 1),
        (Repeat(8, 1, (), 1, 0),),
        (Repeat(8, 1, (1, 1), 1, 0),),
        (Repeat(9, 1, (1,), 1, 0),),
        (Repeat(8, -1, (1,), 1, 0),),
        (Repeat(8, 1, (-1,), 1, 0),),
        (Repeat(8, 1, (1,), -1, 0),),
        (Repeat(8, 1, (1,), 1, -4),),
        (Repeat(8, WORLD_SIZE_MAX, (1,), 1, 0),),
        (Repeat(8, 1, (1,), WORLD_SIZE_MAX, 0),),
        (Repeat(8, 1, (1,), 1, PAYLOAD_BYTES_MAX),),
    ],
)
@pytest.mark.parametrize("problem", [Corrupt, Refused])
def test_a_row_that_cannot_be_is_refused(repeats: Repeats, problem: type[CkptError]) -> None:
    fine = (Repeat(8, 1, (1,), 1, 0),)
    check_tensor(IndexTensor("w", Meaning.SHARD, "<f4", (8,), BoxRows([(BOX, fine)])), problem)
    tensor = IndexTensor("w", Meaning.SHARD, "<f4", (8,), BoxRows([(BOX, repeats)]))
    with pytest.raises(problem, match="w"):
        check_tensor(tensor, problem)


def test_many_rows_that_are_more_than_a_reader_holds_are_refused() -> None:
    row = BOX, (Repeat(REPEATED_BOXES_MAX // 2, 0, (0,), 0, 0),)
    own = IndexTensor("w", Meaning.OWN, "<f4", (1,), BoxRows([row] * 3))
    with pytest.raises(Corrupt, match="row of boxes"):
        check_tensor(own, Corrupt)


def test_a_page_with_other_repeats_than_boxes_is_damaged() -> None:
    repeats = (Repeat(8, 1, (1,), 1, 0),)
    for wire in (
        FoldedTensor("w", Meaning.SHARD, "<f4", (8,), (BOX, BOX), (repeats,)),
        FoldedTensor("w", Meaning.SHARD, "<f4", (8,), (BOX,), (repeats, repeats)),
    ):
        packed, raw_bytes, crc = pack_page([wire])
        with pytest.raises(Corrupt, match="repeats"):
            decode_tensor_page(TensorPage("w", len(packed), raw_bytes, crc), packed)


def test_a_row_that_goes_on_as_another_is_damaged() -> None:
    """The same box, and repeats that differ from those it began with."""
    first = WireTensor("w", Meaning.SHARD, "<f4", (8,), (BOX,))
    on = IndexBox(Rank(0), (0,), (1,), (Location(Rank(0), 4, 4, 4),), True)
    second = FoldedTensor("w", Meaning.SHARD, "<f4", (8,), (on,), ((Repeat(8, 1, (1,), 1, 0),),))
    document = document_of([first], [second])
    with pytest.raises(Corrupt, match="middle of a box"):
        list(IndexReader(lambda start, end: memoryview(document)[start:end]).tensors())


def document_of(*pages: list[WireTensor]) -> bytes:
    """An index whose pages are given as they are stored."""
    packed = TensorPages(in_rows=True)
    for page in pages:
        body, raw_bytes, crc = pack_page(page)
        packed.parts.append(body)
        packed.entries.append(TensorPage(page[0].name, len(body), raw_bytes, crc))
    return index_document(LARGE.checkpoint, LARGE.launch, 1000, LARGE.payloads, packed)
