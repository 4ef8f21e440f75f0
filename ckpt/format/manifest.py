"""What every column knows of its whole payload: the checksums of all fragments of all n columns.

A column that is read, scrubbed or rebuilt is proved against it; any column can be restored from k others
and checked without asking anybody. Its size is a function of the layout alone, so that the space of a
column file is known before the first byte is sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckpt.base.ids import LaunchNumber, PayloadId
from ckpt.erasure.code import Code
from ckpt.format.checksum import Buffer
from ckpt.format.layout import Layout


@dataclass(frozen=True, slots=True, eq=False)
class RankManifest:
    """One payload's shape and checksums. Arrays are read-only after decoding."""

    payload: PayloadId
    launch: LaunchNumber
    code: Code
    matrix_id: int
    """Of ckpt.erasure: which matrix made the parity."""
    code_version: int
    payload_bytes: int
    cell_bytes: int
    fragment_crcs: NDArray[np.uint32]
    """[stripe_count, n]: CRC-32 of each cell, its padding included."""
    column_crcs: NDArray[np.uint32]
    """[n]: CRC-32 of all fragment bytes of each column."""

    @property
    def layout(self) -> Layout:
        """How the payload is cut."""
        return Layout(self.code, self.payload_bytes, self.cell_bytes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RankManifest):
            return NotImplemented
        return encode_manifest(self) == encode_manifest(other)

    def __hash__(self) -> int:
        return hash((self.payload, self.launch))


def manifest_bytes(layout: Layout) -> int:
    """Size of the manifest of any payload of this layout; raises Refused above MANIFEST_BYTES_MAX."""
    raise NotImplementedError


def encode_manifest(manifest: RankManifest) -> bytes:
    """The document of exactly `manifest_bytes(layout)`; equal manifests give equal bytes."""
    raise NotImplementedError


def decode_manifest(document: Buffer) -> RankManifest:
    """The inverse; copies the tables, so the buffer may be used again. Raises Corrupt."""
    raise NotImplementedError
