"""What does a target find in its directory when it starts?"""

from __future__ import annotations

import errno
from contextlib import suppress

from ckpt.aio.disk import Disk
from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import align_down
from ckpt.format.documents.cluster_map import MAP_BYTES_MAX
from ckpt.protocol.target.at_rest.scrub_note import (
    NOTE_BYTES_MAX,
    SCRUB_FILE,
    decode_scrub_note,
)
from ckpt.protocol.target.core import COLUMNS, DIRECTORIES, DOCUMENTS, STAGING
from ckpt.protocol.target.directory import DirectoryLoaded, FoundFile, identify
from ckpt.protocol.target.notes.catalog_note import CATALOG_FILE, decode_note
from ckpt.protocol.target.notes.map_note import MAP_FILE
from ckpt.protocol.target.term import (
    COORDINATOR_FILE,
    PROTOCOL_FILE,
    TERM_FILE,
    decode_coordinator,
    decode_protocol,
    noted_term,
)


def scan(disk: Disk, now_us: int, wall_us: int | None = None) -> DirectoryLoaded:
    """Everything that the machine must know of the directory at start. It stays, from now on.

    Unreadable files are named, not fatal.
    """
    for directory in DIRECTORIES:
        disk.make_directory(directory)
    _settle(disk)
    files: list[FoundFile] = []
    for directory in (COLUMNS, DOCUMENTS, STAGING):
        for name in disk.list_directory(directory):
            files.append(_found(disk, f"{directory}/{name}", read=directory != STAGING))
    term = noted_term(_read_note(disk, TERM_FILE), _read_note(disk, COORDINATOR_FILE))
    position = decode_note(_read_note(disk, CATALOG_FILE))
    process = decode_coordinator(_read_note(disk, COORDINATOR_FILE), term)
    scrub = decode_scrub_note(_read_note(disk, SCRUB_FILE, NOTE_BYTES_MAX))
    map = _read_note(disk, MAP_FILE, MAP_BYTES_MAX)
    protocol = decode_protocol(_read_note(disk, PROTOCOL_FILE))
    return DirectoryLoaded(
        now_us, tuple(files), term, position, process, scrub, protocol, wall_us, map
    )


def _settle(disk: Disk) -> None:
    """An earlier process may have been killed before it had synced what is seen here; it counts as
    durable once it is listed. A device that refuses is found out by its probe (`disk_probe`).
    """
    for file in (TERM_FILE, COORDINATOR_FILE):  # On a full device they are written over.
        with suppress(OSError):
            disk.file_bytes(file)
            disk.sync_file(file)
    for directory in ("", *DIRECTORIES):
        with suppress(OSError):
            disk.sync_directory(directory)


def _found(disk: Disk, file: str, *, read: bool) -> FoundFile:
    try:
        size = disk.file_bytes(file)
    except OSError as error:
        return FoundFile(file, -1, None, _name_of(error))
    pages, unread = [], ""
    last = align_down(max(0, size - PAGE_BYTES), PAGE_BYTES)
    for offset in (0, last) if read else ():
        try:
            data = disk.read_at(file, offset, PAGE_BYTES)
        except OSError as error:
            unread = _name_of(error)
            continue
        pages.append(bytes(data))
        disk.release(data)
    return FoundFile(file, size, identify(file, tuple(pages)), unread)


def _name_of(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "EIO")


def _read_note(disk: Disk, file: str, bytes_max: int = PAGE_BYTES) -> bytes:
    """A small file whole; empty when there is none or it cannot be read."""
    try:
        data = disk.read_at(file, 0, min(disk.file_bytes(file), bytes_max))
    except OSError:
        return b""
    content = bytes(data)
    disk.release(data)
    return content
