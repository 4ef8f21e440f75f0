"""An index that lies in memory whole, as a document."""

from __future__ import annotations

from ckpt.format.index.checks import tensor_order
from ckpt.format.index.document import Index, TensorPages, index_document


def encode_index(index: Index, *, in_rows: bool = False) -> bytes:
    """Raises Refused when a tensor passes a limit, or the whole."""
    pages = TensorPages(in_rows=in_rows)
    for tensor in sorted(index.tensors, key=tensor_order):
        pages.add(tensor)
    pages.finish()
    return index_document(index.checkpoint, index.launch, index.world_size, index.payloads, pages)
