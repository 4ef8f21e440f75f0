"""How an index is cut into pages: greedily, by an upper bound of each part's encoded size.

A tensor with many boxes, or a box with many locations (a large replica written by many ranks),
goes on in the next page; so a page never passes INDEX_PAGE_BYTES_MAX, whatever the checkpoint
looks like.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from ckpt.base.ids import TargetId
from ckpt.base.limits import (
    CODE_COLUMNS_MAX,
    INDEX_PAGE_BYTES_MAX,
    TENSOR_DIMS_MAX,
    TENSOR_NAME_BYTES_MAX,
)
from ckpt.format.array_table import WholeTensors
from ckpt.format.dtypes import DTYPE_CHARS_MAX
from ckpt.format.index.pages import (
    FoldedTensor,
    IndexBox,
    IndexPayload,
    IndexTensor,
    RawTensors,
    WirePayload,
    WireTensor,
)
from ckpt.format.index.rows import REPEATS_MAX, BoxRows, Repeats, Row, rows_of

# Upper bounds in MessagePack: 9 bytes for a number, 5 in front of an array, a text or bytes.
_NUMBER: Final = 9
_FRAME: Final = 5
_LOCATION_COST: Final = _FRAME + 6 * _NUMBER
_PAYLOAD_COST: Final = _FRAME + 7 * _NUMBER + 21 + 2 * (_FRAME + CODE_COLUMNS_MAX * _NUMBER)
_ROOM: Final = INDEX_PAGE_BYTES_MAX - _FRAME
_DIMS_COST_MAX: Final = _FRAME + TENSOR_DIMS_MAX * _NUMBER
_TENSOR_COST_MIN: Final = 5 * _FRAME + 16
_TENSOR_COST_MAX: Final = 4 * _FRAME + TENSOR_NAME_BYTES_MAX + 16 + DTYPE_CHARS_MAX + _DIMS_COST_MAX
_BOX_COST_MIN: Final = 5 * _FRAME + _NUMBER
_REPEAT_COST_MAX: Final = _FRAME + 4 * _NUMBER + _DIMS_COST_MAX
_BOX_COST_MAX: Final = 6 * _FRAME + _NUMBER + 2 * _DIMS_COST_MAX + REPEATS_MAX * _REPEAT_COST_MAX

assert _TENSOR_COST_MAX + _BOX_COST_MAX + _LOCATION_COST < _ROOM, "every page takes a step on"


def payload_pages(
    payloads: Iterable[IndexPayload], numbers: Mapping[TargetId, int]
) -> Iterator[list[WirePayload]]:
    """Pages in rank order; `numbers` are the targets' positions in the directory."""
    page: list[WirePayload] = []
    for payload in payloads:
        page.append(_wire_payload(payload, numbers))
        if (len(page) + 1) * _PAYLOAD_COST > _ROOM:
            yield page
            page = []
    if page:
        yield page


class PageBuilder:
    """I fill one page at a time and begin another when the next part would not fit."""

    def __init__(self) -> None:
        #: Those that are finished and were not taken.
        self._pages: list[list[WireTensor | RawTensors]] = []
        #: The page that is being filled.
        self._page: list[WireTensor | RawTensors] = []
        #: Of the tensor that is being cut, what goes to this page.
        self._rows: list[Row] = []
        #: Room that is left in this page, by the upper bounds above.
        self._room = _ROOM

    def add(self, tensor: IndexTensor) -> None:
        """Add the next tensor, in the index's order."""
        tensor_cost = _tensor_cost(tensor)
        if self._room < tensor_cost + _BOX_COST_MAX:
            self.finish()
        boxes = tensor.boxes
        rows = boxes.rows if type(boxes) is BoxRows else None
        if len(rows or boxes) * _BOX_COST_MIN > self._room:
            self._cut(tensor, tensor_cost)
            return
        whole_cost = tensor_cost
        if rows is None:
            for box in boxes:
                whole_cost += _row_cost(box, ()) + len(box.locations) * _LOCATION_COST
        else:
            for box, repeats in rows:
                whole_cost += _row_cost(box, repeats) + len(box.locations) * _LOCATION_COST
        if whole_cost + _LOCATION_COST <= self._room:
            self._page.append(_wire_tensor(tensor, rows))
            self._room -= whole_cost
        else:
            self._cut(tensor, tensor_cost)

    def add_wholes(self, wholes: WholeTensors) -> None:
        """Add many; pages end where they would if each came by itself."""
        table, first = wholes.table, wholes.first
        here = slice(first, wholes.end)
        dims = table.arrays.axes_each[here].astype(np.int64) * _NUMBER
        texts = table.arrays.name_bytes[here] + table.dtype_chars[here]
        tensor_costs = texts + dims + _TENSOR_COST_MIN
        costs = tensor_costs + 2 * dims + (_BOX_COST_MIN + _LOCATION_COST)
        ends = np.cumsum(costs)
        # A tensor begins a page where there would not be this much room for it.
        needed = np.maximum.accumulate(ends - costs + tensor_costs + _BOX_COST_MAX)
        begin = spent = 0
        while begin < len(costs):
            end = int(np.searchsorted(needed, spent + self._room, "right"))
            if end > begin:
                raw = table.arrays.tensors(first + begin, first + end, INDEX_PAGE_BYTES_MAX)
                name = table.entry(first + begin).name
                self._page.append(RawTensors(name, end - begin, raw))
                self._room -= int(ends[end - 1]) - spent
                begin, spent = end, int(ends[end - 1])
            if begin < len(costs):
                self.finish()

    @property
    def has_pages(self) -> bool:
        """Whether any were finished since the last `take`."""
        return bool(self._pages)

    def take(self) -> list[list[WireTensor | RawTensors]]:
        """The pages that were finished since the last call, in order."""
        pages, self._pages = self._pages, []
        return pages

    def finish(self) -> None:
        """End the page: what comes next belongs to another one."""
        if self._page:
            self._pages.append(self._page)
        self._page = []
        self._room = _ROOM

    def _cut(self, tensor: IndexTensor, tensor_cost: int) -> None:
        self._room -= tensor_cost
        for box, repeats in rows_of(tensor.boxes):
            self._add_row(tensor, tensor_cost, box, repeats)
        self._close_tensor(tensor)

    def _add_row(
        self, tensor: IndexTensor, tensor_cost: int, box: IndexBox, repeats: Repeats
    ) -> None:
        row_cost = _row_cost(box, repeats)
        done, continued = 0, False
        while done < len(box.locations) or not continued:
            count = (self._room - row_cost) // _LOCATION_COST
            if count < 1:
                self._close_tensor(tensor)
                self.finish()
                self._room -= tensor_cost
                continue
            part = box.locations[done : done + count]
            piece = IndexBox(box.rank, box.offset, box.shape, part, continued)
            self._rows.append((piece, repeats))
            self._room -= row_cost + len(part) * _LOCATION_COST
            done += len(part)
            continued = True

    def _close_tensor(self, tensor: IndexTensor) -> None:
        self._page.append(_wire_tensor(tensor, self._rows))
        self._rows = []


def _wire_tensor(tensor: IndexTensor, rows: Sequence[Row] | None) -> WireTensor:
    """With these rows of it; None: with its boxes, of which none is in a row."""
    form = tensor.name, tensor.meaning, tensor.dtype, tensor.global_shape
    if rows is None:
        return WireTensor(*form, tuple(tensor.boxes))
    boxes = tuple([box for box, _ in rows])
    if not any(repeats for _, repeats in rows):
        return WireTensor(*form, boxes)
    return FoldedTensor(*form, boxes, tuple([repeats for _, repeats in rows]))


def _tensor_cost(tensor: IndexTensor) -> int:
    name = tensor.name
    texts = (len(name) if name.isascii() else len(name.encode())) + len(tensor.dtype)
    return _TENSOR_COST_MIN + texts + len(tensor.global_shape) * _NUMBER


def _row_cost(box: IndexBox, repeats: Repeats) -> int:
    cost = _BOX_COST_MIN + (len(box.offset) + len(box.shape)) * _NUMBER
    if repeats:
        cost += _FRAME + len(repeats) * (2 * _FRAME + (4 + len(box.offset)) * _NUMBER)
    return cost


def _wire_payload(payload: IndexPayload, numbers: Mapping[TargetId, int]) -> WirePayload:
    return WirePayload(
        payload.rank,
        payload.code.k,
        payload.code.m,
        payload.payload_bytes,
        payload.cell_bytes,
        payload.document_offset,
        payload.document_bytes,
        payload.manifest_digest,
        tuple(None if target is None else numbers[target] for target in payload.columns),
        payload.column_crcs,
    )
