"""The records of a ZIP file, of stored (never deflated) entries below 4 GiB.

    local header, data | local header, data | ... | directory entry | ... | end record

local header      offset  size  field
                       0     4  "PK\\3\\4"
                       4     2  version needed: 20
                       6     2  flags: bit 11, the name is UTF-8
                       8     2  method: 0, stored
                      10     4  time and date: 1980-01-01
                      14     4  CRC-32 (IEEE) of the data
                      18   4+4  bytes, twice
                      26     2  bytes of the name
                      28     2  bytes of the padding
                      30        name, then padding: an extra field 0xD935 (as Android's zipalign)

A directory entry says the same, and where the local header is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ckpt.base.units import align_up

ENTRIES_MAX: Final = 65_535 - 1
_LOCAL: Final = struct.Struct("<4s5H3I2H")
_ENTRY: Final = struct.Struct("<4s6H3I5H2I")
_END: Final = struct.Struct("<4s4H2IH")
_PADDING: Final = struct.Struct("<3H")
_VERSION: Final = 20
_UNIX: Final = 3 << 8
_UTF8: Final = 1 << 11
_DATE: Final = (1 << 5) | 1
_PADDING_ID: Final = 0xD935
_MODE: Final = 0o100644 << 16


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One file of an archive."""

    name: str
    start: int
    """Of its local header."""
    size: int
    """Bytes of its data."""
    crc: int


def data_start(name: str, start: int, alignment: int) -> int:
    """Where the data of an entry begins whose header is at `start`; aligned, after padding."""
    return align_up(start + _LOCAL.size + len(name.encode()) + _PADDING.size, alignment)


def local_header(entry: ZipEntry, alignment: int) -> bytes:
    """What stands before the data."""
    name = entry.name.encode()
    end = entry.start + _LOCAL.size + len(name)
    padding = data_start(entry.name, entry.start, alignment) - end
    head = _LOCAL.pack(
        b"PK\3\4", _VERSION, _UTF8, 0, 0, _DATE,
        entry.crc, entry.size, entry.size, len(name), padding,
    )  # fmt: skip
    extra = _PADDING.pack(_PADDING_ID, padding - 4, alignment)
    return head + name + extra.ljust(padding, b"\0")


def directory(entries: Sequence[ZipEntry], start: int) -> bytes:
    """The directory, which begins at `start`, and the end record."""
    assert len(entries) <= ENTRIES_MAX
    listed = b"".join(map(_directory_entry, entries))
    count = len(entries)
    return listed + _END.pack(b"PK\5\6", 0, 0, count, count, len(listed), start, 0)


def _directory_entry(entry: ZipEntry) -> bytes:
    name = entry.name.encode()
    head = _ENTRY.pack(
        b"PK\1\2", _UNIX | _VERSION, _VERSION, _UTF8, 0, 0, _DATE,
        entry.crc, entry.size, entry.size, len(name), 0, 0, 0, 0, _MODE, entry.start,
    )  # fmt: skip
    return head + name
