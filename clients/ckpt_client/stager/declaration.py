"""What does a trainer tell its stager about a half that it has filled?

Apart from how the half is planned (`packing`), which a stager never does and need not import.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import msgspec

from ckpt.base.errors import Corrupt
from ckpt.format.checksum import Buffer, xxh3_128
from ckpt.format.table import RankTable
from ckpt.format.table_decoding import decode_table


class Witness(msgspec.Struct, frozen=True, array_like=True):
    """Bytes [start, start + length) of an entry lie at `offset` of the half,
    outside the payload.
    """

    entry: int
    start: int
    offset: int
    length: int


class _Document(msgspec.Struct, frozen=True, array_like=True):
    table: bytes
    witnesses: list[Witness]
    copies: list[int]


@dataclass(frozen=True, slots=True)
class Declaration:
    """The table without fingerprints, the witness, and which entries are copies."""

    table: RankTable
    witnesses: tuple[Witness, ...]
    copies: frozenset[int]
    """Entries that other ranks hold too: each is fingerprinted whole."""


_decoder = msgspec.msgpack.Decoder(_Document)


def write_declaration(table: bytes, witnesses: list[Witness], copies: list[int]) -> bytes:
    """As it lies in the half; `table` is encoded."""
    return msgspec.msgpack.encode(_Document(table, witnesses, copies))


class DeclarationReader:
    """I read declarations, and know the last one again: a training's saves declare the same. I am
    thread safe: a worker may read what the loop soon wants, which waits for it then.
    """

    def __init__(self) -> None:
        #: Held to read, since two who want the same are to read it once.
        self._reading = threading.Lock()
        self._digest = b""
        self._last: Declaration | None = None

    def read(self, document: memoryview) -> Declaration:
        """As `read_declaration`."""
        # A copy, that the trainer cannot change between the digest and the rest.
        content = bytes(document)
        with self._reading:
            digest = xxh3_128(content)
            if self._last is None or digest != self._digest:
                self._last = read_declaration(content)
                self._digest = digest
            return self._last


def read_declaration(document: Buffer) -> Declaration:
    """What `write_declaration` wrote; raises Corrupt."""
    try:
        raw = _decoder.decode(document)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the declaration of a staged save does not parse: {error}") from None
    return Declaration(decode_table(raw.table), tuple(raw.witnesses), frozenset(raw.copies))
