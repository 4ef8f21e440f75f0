"""The index comes back equal, is read by ranges, and one flipped byte never loses it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from ckpt.base.errors import Corrupt, NotFound, Refused, Unavailable
from ckpt.base.ids import (
    CheckpointId,
    Generation,
    LaunchNumber,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.base.limits import (
    CELL_BYTES_MAX,
    INDEX_PAGE_BYTES_MAX,
    PAGE_BYTES,
    PAYLOAD_BYTES_MAX,
    WORLD_SIZE_MAX,
)
from ckpt.erasure.code import Code
from ckpt.format.checksum import Buffer
from ckpt.format.index import builder
from ckpt.format.index.checks import tensor_order
from ckpt.format.index.document import Index
from ckpt.format.index.pages import (
    HEADER_BYTES,
    PAGE_PACKED_BYTES_MAX,
    IndexBox,
    IndexPayload,
    IndexTensor,
    Location,
    decode_directory,
    decode_header,
    decode_tensor_page,
    encode_directory,
)
from ckpt.format.index.reader import Fetch, IndexReader, decode_index
from ckpt.format.table import DIM_MAX, Meaning
from ckpt.testing.indexes import encode_index
from tests.format.strategies import flipped, generations, layouts, masks, positions, u32

CHECKPOINT = CheckpointId(RunName("run"), Step(7), Generation(1, 2))


@st.composite
def payloads(draw: st.DrawFn, rank: int) -> IndexPayload:
    """Any payload that keeps the rules."""
    layout = draw(layouts)
    n = layout.code.n
    target = st.none() | st.sampled_from([TargetId(f"t{number}") for number in range(40)])
    start = draw(st.integers(0, layout.payload_bytes))
    return IndexPayload(
        rank=Rank(rank),
        code=layout.code,
        payload_bytes=layout.payload_bytes,
        cell_bytes=layout.cell_bytes,
        document_offset=start,
        document_bytes=draw(st.integers(0, layout.payload_bytes - start)),
        manifest_digest=draw(st.binary(min_size=16, max_size=16)),
        columns=tuple(draw(st.lists(target, min_size=n, max_size=n))),
        column_crcs=tuple(draw(st.lists(u32, min_size=n, max_size=n))),
    )


@st.composite
def tensors(draw: st.DrawFn, name: str) -> IndexTensor:
    """Any tensor that keeps the rules."""
    dims = draw(st.lists(st.integers(0, 1 << 40), max_size=3).map(tuple))
    boxes = []
    for rank in draw(st.lists(st.integers(0, 100), max_size=3)):
        offset = tuple(draw(st.integers(0, dim)) for dim in dims)
        shape = tuple(draw(st.integers(0, dim - at)) for dim, at in zip(dims, offset, strict=True))
        locations, start = [], 0
        for length in draw(st.lists(st.integers(1, 1 << 30), max_size=3)):
            generation = draw(st.none() | generations)
            at = draw(st.integers(0, 1 << 40))
            locations.append(Location(Rank(rank), start, at, length).at(generation))
            start += length
        boxes.append(IndexBox(Rank(rank), offset, shape, tuple(locations)))
    return IndexTensor(
        name, draw(st.sampled_from(Meaning)), draw(st.sampled_from(["<f4", "bfloat16"])),
        dims, tuple(boxes),
    )  # fmt: skip


@st.composite
def indexes(draw: st.DrawFn) -> Index:
    """Any index that keeps the rules, in its stored order."""
    ranks = sorted(draw(st.sets(st.integers(0, 100), max_size=4)))
    names = sorted(draw(st.sets(st.text(max_size=12), max_size=5)))
    found = [draw(tensors(name)) for name in names]
    return Index(
        CHECKPOINT,
        LaunchNumber(draw(st.integers(0, (1 << 63) - 1))),
        128,
        tuple(draw(payloads(rank)) for rank in ranks),
        tuple(found),
    )


def row_sharded(name: str, ranks: int) -> IndexTensor:
    """A tensor of `ranks` boxes."""
    return IndexTensor(
        name,
        Meaning.SHARD,
        "<f4",
        (ranks, 8),
        tuple(
            IndexBox(Rank(r), (r, 0), (1, 8), (Location(Rank(r), 0, 64 * r, 32),))
            for r in range(ranks)
        ),
    )


def wide_replica(name: str, pieces: int) -> IndexTensor:
    """A replica in many pieces."""
    locations = tuple(Location(Rank(p), p * 4, p * 4, 4) for p in range(pieces))
    return IndexTensor(
        name, Meaning.REPLICATED, "<f4", (pieces,), (IndexBox(Rank(0), (0,), (pieces,), locations),)
    )


def large_index() -> Index:
    """Many pages of tensors, one tensor over several pages, one box over several pages."""
    names = [f"layers/#{number}/w" for number in range(300)]
    found = [row_sharded(name, 20) for name in names]
    found += [row_sharded("many boxes", 5000), wide_replica("many pieces", 5000)]
    ranks = tuple(
        IndexPayload(
            Rank(r), Code(2, 1), 10**6, 4096, 0, 10, bytes(16),
            (TargetId(f"t{r}"), None, None), (1, 2, 3),
        )
        for r in range(1000)
    )  # fmt: skip
    return Index(CHECKPOINT, LaunchNumber(3), 1000, ranks, tuple(sorted(found, key=tensor_order)))


LARGE = large_index()
DOCUMENT = encode_index(LARGE)


class Copy:
    """One copy of a document that counts what is fetched from it."""

    def __init__(self, document: bytes) -> None:
        self.document = document
        self.fetched: list[tuple[int, int]] = []

    def fetch(self, start: int, end: int) -> Buffer:
        self.fetched.append((start, end))
        return memoryview(self.document)[start:end]


def unreachable(start: int, end: int) -> Buffer:
    raise Unavailable(f"no target for [{start}, {end})")


@given(indexes())
def test_an_index_comes_back_equal(index: Index) -> None:
    assert decode_index(encode_index(index)) == index


def test_a_large_index_comes_back_equal_and_in_order_whatever_order_it_was_given_in() -> None:
    assert decode_index(DOCUMENT) == LARGE
    mixed = replace(LARGE, payloads=LARGE.payloads[::-1], tensors=LARGE.tensors[::-1])
    assert encode_index(mixed) == DOCUMENT


def test_pages_are_bounded_and_a_tensor_may_go_over_several() -> None:
    header = decode_header(DOCUMENT[:HEADER_BYTES])
    start = header.directory_offset
    directory = decode_directory(header, DOCUMENT[start : start + header.directory_bytes])
    pages = directory.tensor_pages
    assert all(page.raw_bytes <= INDEX_PAGE_BYTES_MAX for page in pages)
    assert sum(page.first == "many boxes" for page in pages) > 1
    assert sum(page.first == "many pieces" for page in pages) > 1
    assert sum(page.raw_bytes for page in pages) > len(pages) * INDEX_PAGE_BYTES_MAX // 8


@pytest.mark.parametrize("name", ["layers/#0/w", "layers/#299/w", "many boxes", "many pieces"])
def test_one_tensor_is_read_by_a_few_ranges(name: str) -> None:
    copy = Copy(DOCUMENT)
    wanted = next(tensor for tensor in LARGE.tensors if tensor.name == name)
    assert IndexReader(copy.fetch).tensor(name) == wanted
    pages = sum(end - start <= PAGE_PACKED_BYTES_MAX for start, end in copy.fetched)
    assert pages == len(copy.fetched)
    if name.startswith("layers"):
        assert len(copy.fetched) <= 4
        assert sum(end - start for start, end in copy.fetched) < len(DOCUMENT) / 4


def test_a_page_that_is_asked_for_again_and_again_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt.format.index.reader._CACHED_PAGES", 3)
    monkeypatch.setattr("ckpt.format.index.reader._PAGES_AT_ONCE", 1)
    copy = Copy(DOCUMENT)
    reader = IndexReader(copy.fetch)
    often, *others = (f"layers/#{number}/w" for number in range(0, 300, 20))
    reader.tensor(often)
    fetched = []
    for name in others:
        reader.tensor(name)
        before = len(copy.fetched)
        reader.tensor(often)
        fetched.append(len(copy.fetched) - before)
    assert fetched == [0] * len(others)
    assert len(copy.fetched) > 2 + 3, "more pages than are kept"


def test_tensors_are_found_by_prefix() -> None:
    reader = IndexReader(Copy(DOCUMENT).fetch)
    assert [tensor.name for tensor in reader.tensors("layers/#29")] == sorted(
        ["layers/#29/w", *(f"layers/#29{digit}/w" for digit in range(10))]
    )
    assert [tensor.name for tensor in reader.tensors("many")] == ["many boxes", "many pieces"]
    assert list(reader.tensors("z")) == []
    assert list(reader.tensors("a")) == []
    assert tuple(reader.tensors()) == LARGE.tensors


def test_a_scan_fetches_many_pages_at_once() -> None:
    copy = Copy(DOCUMENT)
    assert len(list(IndexReader(copy.fetch).tensors())) == len(LARGE.tensors)
    header = decode_header(DOCUMENT[:HEADER_BYTES])
    start = header.directory_offset
    directory = decode_directory(header, DOCUMENT[start : start + header.directory_bytes])
    assert len(copy.fetched) == 2 + math.ceil(len(directory.tensor_pages) / 16)


def test_one_payload_is_found_by_its_rank() -> None:
    copy = Copy(DOCUMENT)
    reader = IndexReader(copy.fetch)
    assert reader.payload(Rank(777)) == LARGE.payloads[777]
    assert len(copy.fetched) == 3
    assert reader.payloads() == LARGE.payloads
    with pytest.raises(NotFound):
        reader.payload(Rank(1000))


def test_names_that_are_not_there_are_not_found() -> None:
    reader = IndexReader(Copy(DOCUMENT).fetch)
    for name in ("", "layers", "layers/#29", "zzz", "many boxes "):
        with pytest.raises(NotFound):
            reader.tensor(name)
    empty = IndexReader(Copy(encode_index(replace(LARGE, payloads=(), tensors=()))).fetch)
    assert (list(empty.tensors()), empty.payloads()) == ([], ())
    with pytest.raises(NotFound):
        empty.tensor("x")


def test_a_name_that_ranks_hold_in_several_forms_is_never_guessed() -> None:
    forms = tuple(
        replace(row_sharded("own", 2), meaning=Meaning.OWN, dtype=d) for d in ("<f4", "<f8")
    )
    reader = IndexReader(Copy(encode_index(replace(LARGE, tensors=forms))).fetch)
    assert reader.variants("own") == forms
    with pytest.raises(Refused, match="2 different"):
        reader.tensor("own")


SMALL = replace(
    LARGE,
    payloads=LARGE.payloads[:3],
    tensors=(row_sharded("a", 3), row_sharded("b", 2), wide_replica("c", 9)),
)
SMALL_DOCUMENT = encode_index(SMALL)


@given(positions, masks)
def test_one_flipped_byte_in_one_copy_loses_nothing(position: int, mask: int) -> None:
    damaged = flipped(SMALL_DOCUMENT, position, mask)
    assert decode_index(damaged, SMALL_DOCUMENT) == SMALL
    assert decode_index(SMALL_DOCUMENT, damaged) == SMALL


@given(positions, masks)
def test_one_flipped_byte_in_the_only_copy_is_mended_or_refused(position: int, mask: int) -> None:
    header = decode_header(SMALL_DOCUMENT[:HEADER_BYTES])
    pages = range(
        header.directory_offset + header.directory_bytes, header.directory_again_offset
    )  # what has no second copy in this document
    damaged = flipped(SMALL_DOCUMENT, position, mask)
    if position % len(SMALL_DOCUMENT) in pages:
        with pytest.raises(Corrupt):
            decode_index(damaged)
    else:
        assert decode_index(damaged) == SMALL


def test_no_flipped_byte_of_a_page_is_read() -> None:
    """Pages have no second copy in a document, and are a small part of a small one."""
    header = decode_header(SMALL_DOCUMENT[:HEADER_BYTES])
    for position in range(
        header.directory_offset + header.directory_bytes, header.directory_again_offset
    ):
        with pytest.raises(Corrupt, match="fails its checksum"):
            decode_index(flipped(SMALL_DOCUMENT, position, 1))


@given(st.lists(st.tuples(positions, masks), max_size=5))
def test_two_damaged_copies_mend_each_other_or_are_refused(flips: list[tuple[int, int]]) -> None:
    copies = [SMALL_DOCUMENT, SMALL_DOCUMENT]
    for number, (position, mask) in enumerate(flips):
        copies[number % 2] = flipped(copies[number % 2], position, mask)
    try:
        found = decode_index(*copies)
    except Corrupt:
        return
    assert found == SMALL


def test_a_copy_out_of_reach_is_replaced_by_the_next() -> None:
    reader = IndexReader(unreachable, Copy(DOCUMENT).fetch)
    assert reader.tensor("layers/#1/w") == row_sharded("layers/#1/w", 20)


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_out_of_reach_for_now_is_not_called_corrupt(order: int) -> None:
    zeros: Fetch = Copy(bytes(len(DOCUMENT))).fetch
    copies: list[Fetch] = [unreachable, zeros]
    with pytest.raises(Unavailable):
        IndexReader(*copies[::order])


@given(st.integers(0, len(SMALL_DOCUMENT) - 1))
def test_a_cut_document_is_refused(end: int) -> None:
    header = decode_header(SMALL_DOCUMENT[:HEADER_BYTES])
    if end >= header.directory_again_offset:
        assert decode_index(SMALL_DOCUMENT[:end]) == SMALL
    else:
        with pytest.raises(Corrupt):
            decode_index(SMALL_DOCUMENT[:end])


@settings(max_examples=50)
@given(st.binary(max_size=10_000))
def test_random_bytes_are_refused(noise: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_index(noise)


def boxed(box: IndexBox) -> IndexTensor:
    """A tensor of it, to which no global shape says what may be."""
    return replace(wide_replica("a", 1), meaning=Meaning.OWN, boxes=(box,))


def located(*locations: Location) -> IndexTensor:
    """One whose bytes lie there."""
    return boxed(IndexBox(Rank(0), (0,), (1,), locations))


@pytest.mark.parametrize(
    "bad",
    [
        replace(row_sharded("a", 2), global_shape=(1, 8)),
        replace(row_sharded("a", 2), dtype="f\x00"),
        replace(row_sharded("a", 2), name="n" * 5000),
        replace(row_sharded("a", 2), meaning=Meaning.OWN, global_shape=(DIM_MAX + 1, 8)),
        boxed(IndexBox(Rank(0), (-1,), (1,), ())),
        boxed(IndexBox(Rank(-1), (0,), (1,), ())),
        boxed(IndexBox(Rank(WORLD_SIZE_MAX), (0,), (1,), ())),
        boxed(IndexBox(Rank(0), (0,), (1,), (), continued=True)),
        located(Location(Rank(-1), 0, 0, 4)),
        located(Location(Rank(WORLD_SIZE_MAX), 0, 0, 4)),
        located(Location(Rank(0), -1, 0, 4)),
        located(Location(Rank(0), 0, 0, 4), Location(Rank(0), 3, 4, 4)),
        located(Location(Rank(0), 0, -1, 4)),
        located(Location(Rank(0), 0, 0, 0)),
        located(Location(Rank(0), PAYLOAD_BYTES_MAX, 0, 1)),
        located(Location(Rank(0), 0, PAYLOAD_BYTES_MAX, 1)),
    ],
    ids=[
        "box outside", "dtype", "name", "dimension", "own box", "rank", "rank above", "part",
        "location's rank", "location's rank above", "start", "overlap", "place", "empty", "end",
        "place above",
    ],
)  # fmt: skip
def test_a_tensor_that_breaks_a_rule_is_refused(bad: IndexTensor) -> None:
    with pytest.raises(Refused):
        encode_index(replace(SMALL, tensors=(bad,)))


def test_a_tensor_at_the_limits_comes_back_equal() -> None:
    last, end = Rank(WORLD_SIZE_MAX - 1), PAYLOAD_BYTES_MAX - 1
    locations = (Location(last, 0, end, 1), Location(last, end, 0, 1))
    box = IndexBox(last, (0,), (DIM_MAX,), locations)
    tensor = replace(boxed(box), global_shape=(DIM_MAX,))
    assert decode_index(encode_index(replace(SMALL, tensors=(tensor,)))).tensors == (tensor,)


@pytest.mark.parametrize(
    "bad",
    [
        replace(LARGE.payloads[0], rank=Rank(-1)),
        replace(LARGE.payloads[0], rank=Rank(WORLD_SIZE_MAX)),
        replace(LARGE.payloads[0], payload_bytes=PAYLOAD_BYTES_MAX + 1),
        replace(LARGE.payloads[0], document_bytes=10**7),
        replace(LARGE.payloads[0], document_offset=-1),
        replace(LARGE.payloads[0], document_bytes=-1),
        replace(LARGE.payloads[0], manifest_digest=b""),
        replace(LARGE.payloads[0], columns=(None,)),
        replace(LARGE.payloads[0], cell_bytes=5000),
        replace(LARGE.payloads[0], cell_bytes=0),
        replace(LARGE.payloads[0], cell_bytes=CELL_BYTES_MAX + PAGE_BYTES),
        replace(LARGE.payloads[0], column_crcs=(1, 2)),
        replace(LARGE.payloads[0], column_crcs=(1, 2, 1 << 32)),
        replace(LARGE.payloads[0], column_crcs=(1, 2, -1)),
    ],
    ids=[
        "rank", "rank above", "bytes", "document outside", "document's place", "document's bytes",
        "digest", "columns", "cells", "no cells", "large cells", "few checksums", "checksums",
        "checksum below",
    ],
)  # fmt: skip
def test_a_payload_that_cannot_be_is_refused(bad: IndexPayload) -> None:
    with pytest.raises(Corrupt, match=f"the payload of rank {bad.rank} cannot be"):
        decode_index(encode_index(replace(SMALL, payloads=(bad,))))


@pytest.mark.parametrize("lie", [{"k": 0}, {"columns": (1, None, None)}, {"columns": (-1,) * 3}])
def test_a_stored_payload_that_nobody_has_is_refused(
    lie: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of no code, or with a column on a target that the index does not name."""
    honest = builder._wire_payload
    monkeypatch.setattr(
        builder, "_wire_payload", lambda *given: structs.replace(honest(*given), **lie)
    )
    document = encode_index(replace(SMALL, payloads=LARGE.payloads[:1]))
    with pytest.raises(Corrupt, match="index: "):
        decode_index(document)


@pytest.mark.parametrize("cell_bytes", [PAGE_BYTES, CELL_BYTES_MAX])
def test_a_payload_at_the_limits_comes_back_equal(cell_bytes: int) -> None:
    payload = replace(
        LARGE.payloads[0], rank=Rank(WORLD_SIZE_MAX - 1), payload_bytes=PAYLOAD_BYTES_MAX,
        document_offset=PAYLOAD_BYTES_MAX - 10, cell_bytes=cell_bytes,
        column_crcs=(0, 1, (1 << 32) - 1),
    )  # fmt: skip
    assert decode_index(encode_index(replace(SMALL, payloads=(payload,)))).payloads == (payload,)


def test_a_page_of_another_place_is_refused() -> None:
    header = decode_header(DOCUMENT[:HEADER_BYTES])
    start = header.directory_offset
    directory = decode_directory(header, DOCUMENT[start : start + header.directory_bytes])
    first, second = directory.tensor_pages[:2]
    offset = start + header.directory_bytes
    offset += sum(page.packed_bytes for page in directory.payload_pages)
    packed = DOCUMENT[offset : offset + first.packed_bytes]
    assert decode_tensor_page(first, packed)[0].name == first.first
    with pytest.raises(Corrupt):
        decode_tensor_page(second, packed)


@pytest.mark.parametrize("packed_bytes", [0, -1, PAGE_PACKED_BYTES_MAX + 1])
@pytest.mark.parametrize("raw_bytes", [None, 0, INDEX_PAGE_BYTES_MAX + 1])
def test_a_directory_with_a_page_out_of_bounds_is_corrupt(
    packed_bytes: int, raw_bytes: int | None
) -> None:
    """All pages together are as long as the document says: each is looked at by itself."""
    header = decode_header(DOCUMENT[:HEADER_BYTES])
    start = header.directory_offset
    directory = decode_directory(header, DOCUMENT[start : start + header.directory_bytes])
    first, second, *rest = directory.tensor_pages
    if raw_bytes is None:
        both = first.packed_bytes + second.packed_bytes
        first = structs.replace(first, packed_bytes=packed_bytes)
        second = structs.replace(second, packed_bytes=both - packed_bytes)
    else:
        first = structs.replace(first, raw_bytes=raw_bytes)
    made = structs.replace(directory, tensor_pages=(first, second, *rest))
    with pytest.raises(Corrupt, match=f"a page of {first.packed_bytes}, {first.raw_bytes} bytes"):
        decode_directory(header, encode_directory(made))


@pytest.mark.parametrize("kind", ["payload_pages", "tensor_pages"])
def test_a_directory_whose_pages_do_not_ascend_is_corrupt(kind: str) -> None:
    header = decode_header(DOCUMENT[:HEADER_BYTES])
    start = header.directory_offset
    directory = decode_directory(header, DOCUMENT[start : start + header.directory_bytes])
    pages = getattr(directory, kind)
    assert len(pages) > 1
    made = structs.replace(directory, **{kind: pages[::-1]})
    with pytest.raises(Corrupt, match="do not ascend"):
        decode_directory(header, encode_directory(made))
