"""What a target finds in its directory at start, and what becomes of it.

columns/ NAME     header of this cluster, right name and size -> served
documents/ NAME   likewise
columns/ NAME     cannot be read now -> stays there, reported, not served: a later start may.
                  Where rights keep us from it, nobody who asks hears that it is missing
anything else in these two -> moved to `aside/`, reported, never served, never deleted
staging/ NAME     a save that never sealed -> removed
"""

from __future__ import annotations

from dataclasses import dataclass

from ckpt.base.errors import Corrupt
from ckpt.base.ids import CatalogPosition
from ckpt.format.checksum import Buffer
from ckpt.format.column import ColumnHeader, decode_header
from ckpt.format.documents.file import DocumentHeader, decode_document_header, document_name
from ckpt.format.messages.reading import DocumentKind
from ckpt.protocol.target.at_rest.scrub_note import ScrubNote
from ckpt.protocol.target.core import (
    ASIDE,
    Completion,
    Core,
    SealedColumn,
    StoredDocument,
    column_name,
)
from ckpt.protocol.target.disk_events import DiskFailed, RemoveFile, RenameFile


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One file as the scan saw it."""

    file: str
    """Relative to the target's directory."""
    file_bytes: int
    header: ColumnHeader | DocumentHeader | None
    """From the first page, else from the last; None when neither holds one."""
    unread: str = ""
    """Why the device, or the file's owner, let us read no header: `EIO`, `EACCES`."""


@dataclass(frozen=True, slots=True)
class DirectoryLoaded:
    """The scan's whole result: files of `columns/`, `documents/` and `staging/` in name order, the
    term, and how far the catalog had come.
    """

    now_us: int
    files: tuple[FoundFile, ...]
    term: int = 0
    catalog: CatalogPosition | None = None
    coordinator: bytes = b""
    """Whose term it is; empty when that is not known."""
    scrub: ScrubNote | None = None
    protocol: int = 0
    """What one has to speak here; 0: nothing is known of it."""
    wall_us: int | None = None
    """What a wall clock shows now; None: there is none but the process's own."""
    map: bytes = b""
    """The file of the cluster's map, as it is; empty without one."""


def identify(file: str, pages: tuple[Buffer, ...]) -> ColumnHeader | DocumentHeader | None:
    """The header that one of the pages holds, the first that is whole; `file` says which kind."""
    for page in pages:
        try:
            if file.startswith("columns/"):
                return decode_header(page)
            return decode_document_header(memoryview(page))
        except Corrupt:
            continue
    return None


def adopt(core: Core, loaded: DirectoryLoaded) -> None:
    """Take over what can be attributed; everything else is set aside. Never fatal."""
    for found in loaded.files:
        if is_aside(found):
            _remove(core, found.file)
            continue
        # A document may tell of what is deleted meanwhile, and there are others of it.
        if found.header is None and found.unread and found.file.startswith("columns/"):
            core.report("error", "not read, and left there", file=found.file, error=found.unread)
            core.unread[found.file.partition("/")[2]] = found.unread
            continue
        reason = _objection(core, found)
        if reason:
            _set_aside(core, found.file, reason)
            continue
        name = found.file.partition("/")[2]
        match found.header:
            case ColumnHeader() as header:
                core.add_column(SealedColumn(header, name, found.file_bytes))
            case DocumentHeader() as header:
                kind = DocumentKind(header.kind)
                core.add_document(StoredDocument(header, kind, name))


def is_aside(found: FoundFile) -> bool:
    """An earlier process had it under way."""
    return found.file.startswith("staging/")


def _objection(core: Core, found: FoundFile) -> str:
    """Why the file cannot be attributed; empty when it can."""
    folder, _, name = found.file.partition("/")
    header = found.header
    if header is None:
        return "no readable header"
    if header.cluster != core.identity.cluster:
        return f"of cluster {header.cluster}"
    if header.file_bytes != found.file_bytes:
        return f"{found.file_bytes} bytes long, {header.file_bytes} expected"
    if isinstance(header, ColumnHeader):
        expected = column_name(header.column) if folder == "columns" else ""
    else:
        known = header.kind in {kind.value for kind in DocumentKind}
        right = known and folder == "documents"
        expected = document_name(header.kind, header.checkpoint) if right else ""
    return "" if name == expected else f"its header belongs to {expected or 'another directory'}"


def _set_aside(core: Core, file: str, reason: str) -> None:
    core.counters.set_aside += 1
    # The boot makes the name unique: what lies there already is never overwritten.
    number = core.counters.set_aside
    kept = f"{ASIDE}/{file.replace('/', '.')[:180]}~{core.identity.boot:016x}-{number}"
    core.report("warning", "set aside", file=file, why=reason, kept=kept)

    def moved(event: Completion) -> None:
        if isinstance(event, DiskFailed):
            core.report("error", "not set aside", file=file, error=event.errno_name)

    core.out.append(RenameFile(core.expect(moved), file, kept))


def _remove(core: Core, file: str) -> None:
    def removed(event: Completion) -> None:
        if isinstance(event, DiskFailed):
            core.report("error", "leftover not removed", file=file, error=event.errno_name)

    core.out.append(RemoveFile(core.expect(removed), file))
