"""How far the catalog had come, as far as this target heard: kept on its stable storage.

A coordinator tells it with every lease. One that begins from an older catalog hears of it when
this target registers, and serves nobody (ckpt/protocol/coordinator/cluster/vouching.py). The first
word of a coordinator is written at once, later ones at most every NOTE_US: commits and deletions
are named by their documents as well.
"""

from __future__ import annotations

import struct

from ckpt.base.ids import CatalogPosition
from ckpt.format.checksum import crc32
from ckpt.protocol.target.core import Core
from ckpt.protocol.target.notes.note_file import NoteFile
from ckpt.protocol.target.space import Reservations

CATALOG_FILE = "catalog"
NOTE_US = 5_000_000
_NOTE = struct.Struct("<4sQQ")
_NOTE_MAGIC = b"CKPN"


def encode_note(position: CatalogPosition) -> bytes:
    """The `catalog` file: magic, u64 term, u64 ticket, CRC-32 of all three, all little-endian."""
    body = _NOTE.pack(_NOTE_MAGIC, position.term, position.ticket)
    return body + crc32(body).to_bytes(4, "little")


def decode_note(data: bytes) -> CatalogPosition | None:
    """The inverse; None when the bytes are not a note."""
    body = data[: _NOTE.size]
    if len(data) != _NOTE.size + 4 or crc32(body) != int.from_bytes(data[-4:], "little"):
        return None
    magic, term, ticket = _NOTE.unpack(body)
    return CatalogPosition(term, ticket) if magic == _NOTE_MAGIC else None


class CatalogNote:
    """I keep the newest position that I heard of. `stored` is on stable storage."""

    def __init__(self, core: Core, reservations: Reservations) -> None:
        self._core = core
        self._file = NoteFile(core, reservations, CATALOG_FILE, "the catalog's note")
        #: When this process last began to write; None before it did.
        self._written_us: int | None = None
        self.stored: CatalogPosition | None = None

    def told(self, position: CatalogPosition | None) -> None:
        """By the coordinator that is obeyed here."""
        if position is None or self._file.is_writing:
            return
        stored, now_us = self.stored, self._core.now_us
        if stored is not None and position <= stored:
            return
        rested = self._written_us is None or now_us - self._written_us >= NOTE_US
        if rested or stored is None or stored.term < position.term:
            self._write(position)

    def _write(self, position: CatalogPosition) -> None:
        self._written_us = self._core.now_us

        def written(is_stored: bool) -> None:
            if is_stored:
                self.stored = position

        self._file.write(encode_note(position), written)
