"""The cluster's map as this target was given it last: kept for a catalog that has to be made again.

Nothing here goes by it.
"""

from __future__ import annotations

from ckpt.base.errors import Corrupt
from ckpt.format.documents.cluster_map import decode_map
from ckpt.format.messages.targets import MapKept, MapTold
from ckpt.protocol.events import Buffer, Session
from ckpt.protocol.target.core import Core
from ckpt.protocol.target.notes.note_file import NoteFile
from ckpt.protocol.target.space import Reservations

MAP_FILE = "map"


class MapNote:
    """I keep it. `document` and `digest` are of what is on stable storage; empty: nothing."""

    def __init__(self, core: Core, reservations: Reservations) -> None:
        self._core = core
        self._file = NoteFile(core, reservations, MAP_FILE, "the cluster's map")
        self.document = self.digest = b""

    def load(self, document: bytes) -> None:
        """What was found at start; one that cannot be read is given again."""
        try:
            found = decode_map(document) if document else None
        except Corrupt as error:
            self._core.report("warning", "the cluster's map cannot be read", error=str(error))
            found = None
        if found is not None:
            self.document, self.digest = document, found.digest

    def keep(self, session: Session, request: int, bulk: Buffer) -> None:
        """Answered when it is durable. Failed when it is not, or is no map of this cluster."""
        document = bytes(bulk)
        try:
            found = decode_map(document)
        except Corrupt as error:
            self._core.fail(session, request, error.code, error.message)
            return
        if found.cluster != self._core.identity.cluster:
            self._core.fail(session, request, "refused", f"a map of cluster {found.cluster}")
            return
        if self._file.is_writing:
            self._core.fail(session, request, "busy", "an earlier map is being written")
            return

        def written(is_stored: bool) -> None:
            if is_stored:
                self.document, self.digest = document, found.digest
                self._core.send(session, request, MapKept())
            else:
                self._core.fail(session, request, "unavailable", "the map was not written")

        self._file.write(document, written)

    def tell(self, session: Session, request: int) -> None:
        """The document as it is, and whose copy."""
        told = MapTold(self._core.identity.target)
        self._core.send(session, request, told, self.document)
