"""The whole index document: packed as its tensors come, or held in memory."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import msgspec

from ckpt.base.errors import Refused
from ckpt.base.ids import CheckpointId, LaunchNumber
from ckpt.base.limits import INDEX_BYTES_MAX
from ckpt.format.array_table import WholeTensors
from ckpt.format.index.builder import PageBuilder, payload_pages
from ckpt.format.index.checks import check_tensor, tensor_order
from ckpt.format.index.pages import (
    HEADER_BYTES,
    ROWS_VERSION,
    VERSION,
    Directory,
    IndexHeader,
    IndexPayload,
    IndexTensor,
    PayloadPage,
    TensorPage,
    encode_directory,
    encode_header,
    pack_page,
)
from ckpt.format.index.rows import BoxRows, folded


class Index(msgspec.Struct, frozen=True):
    """The whole index in memory."""

    checkpoint: CheckpointId
    launch: LaunchNumber
    world_size: int
    payloads: tuple[IndexPayload, ...]
    """Ascending by rank."""
    tensors: tuple[IndexTensor, ...]
    """Ascending by `tensor_order`, which no two share."""


class TensorPages:
    """I pack an index as its tensors come: what is packed needs the memory of its bytes alone.

    `in_rows`: boxes that repeat each other are written once, which readers of 0.1.0 do not know.
    """

    def __init__(self, *, in_rows: bool) -> None:
        self.parts: list[bytes] = []
        """Packed."""
        self.entries: list[TensorPage] = []
        """Of the directory, one for each part."""
        self.version = VERSION
        """Of the document."""
        self._in_rows = in_rows
        self._builder = PageBuilder()
        self._last: IndexTensor | None = None

    def add(self, tensor: IndexTensor) -> None:
        """Add a tensor; they come in the order of `tensor_order`. Raises Refused when it passes a
        limit.
        """
        if len(tensor.boxes) > 1:
            boxes = folded(tensor.boxes) if self._in_rows else tuple(tensor.boxes)
            form = tensor.name, tensor.meaning, tensor.dtype, tensor.global_shape
            tensor = IndexTensor(*form, boxes)
            if type(boxes) is BoxRows:
                self.version = ROWS_VERSION
        check_tensor(tensor, Refused)
        last, self._last = self._last, tensor
        assert (
            last is None or last.name < tensor.name or tensor_order(last) < tensor_order(tensor)
        ), "ascending, one form once"
        self._builder.add(tensor)
        if self._builder.has_pages:
            self._pack()

    def add_wholes(self, wholes: WholeTensors) -> None:
        """Add the next ones, which have no fault."""
        first, last = wholes.table.entry(wholes.first), wholes.table.entry(wholes.end - 1)
        assert self._last is None or self._last.name < first.name, "ascending, one form once"
        self._last = IndexTensor(last.name, last.meaning, last.dtype, last.global_shape, ())
        self._builder.add_wholes(wholes)
        self._pack()

    def finish(self) -> None:
        """Finish: there are no more tensors."""
        self._builder.finish()
        self._pack()

    def _pack(self) -> None:
        for names in self._builder.take():
            packed, raw_bytes, crc = pack_page(names)
            self.parts.append(packed)
            self.entries.append(TensorPage(names[0].name, len(packed), raw_bytes, crc))


def index_document(
    checkpoint: CheckpointId, launch: LaunchNumber, world_size: int,
    payloads: Iterable[IndexPayload], pages: TensorPages,
) -> bytes:  # fmt: skip
    """The document of tensors that are packed; `pages` are finished. Raises Refused when it passes
    INDEX_BYTES_MAX.
    """
    payloads = sorted(payloads, key=lambda payload: payload.rank)
    assert all(a.rank < b.rank for a, b in pairwise(payloads)), "one payload for each rank"
    targets = sorted({t for payload in payloads for t in payload.columns if t is not None})
    numbers = {target: number for number, target in enumerate(targets)}
    parts: list[bytes] = []
    payload_entries: list[PayloadPage] = []
    for ranks in payload_pages(payloads, numbers):
        packed, raw_bytes, crc = pack_page(ranks)
        parts.append(packed)
        payload_entries.append(PayloadPage(ranks[0].rank, len(packed), raw_bytes, crc))
    directory = encode_directory(
        Directory(tuple(targets), tuple(payload_entries), tuple(pages.entries))
    )
    parts += pages.parts
    offset = 2 * HEADER_BYTES
    again = offset + len(directory) + sum(len(part) for part in parts)
    size = again + len(directory)
    if size > INDEX_BYTES_MAX:
        raise Refused(f"an index of {size} bytes: at most {INDEX_BYTES_MAX} are allowed")
    header = encode_header(
        IndexHeader(
            checkpoint, launch, world_size, size, offset, len(directory), again, pages.version
        )
    )
    return b"".join((header, header, directory, *parts, directory))
