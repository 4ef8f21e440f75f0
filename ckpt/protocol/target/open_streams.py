"""The streams that a target takes columns from, found by whatever they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt.base.ids import CheckpointId, ColumnId
from ckpt.protocol.events import Session
from ckpt.protocol.target.stream import Stream


class OpenStreams:
    """I hold those that have not ended, oldest first."""

    def __init__(self) -> None:
        #: All, by session and request.
        self._streams: dict[tuple[Session, int], Stream] = {}
        #: The same, by session, and by generation.
        self._of_session: dict[Session, dict[int, Stream]] = {}
        self._of_generation: dict[CheckpointId, dict[tuple[Session, int], Stream]] = {}
        #: The newest of each column.
        self._by_column: dict[ColumnId, Stream] = {}
        #: The user of a reservation first, then those that wait for it.
        self._by_reservation: dict[int, list[Stream]] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams.values())

    def get(self, session: Session, request: int) -> Stream | None:
        return self._streams.get((session, request))

    def of_session(self, session: Session) -> list[Stream]:
        return list(self._of_session.get(session, {}).values())

    def of(self, checkpoint: CheckpointId, only: ColumnId | None) -> list[Stream]:
        """Of a generation, or the newest one of a column: others of it are ending."""
        if only is None:
            return list(self._of_generation.get(checkpoint, {}).values())
        stream = self._by_column.get(only)
        return [] if stream is None else [stream]

    def newest(self, column: ColumnId) -> Stream | None:
        return self._by_column.get(column)

    def users(self, reservation: int) -> list[Stream]:
        """Who uses it, then those that wait for it."""
        return list(self._by_reservation.get(reservation, ()))

    def sessions(self) -> Iterator[Session]:
        """Of each."""
        return (session for session, _ in self._streams)

    def add(self, stream: Stream) -> None:
        self._streams[stream.session, stream.request] = stream
        self._of_session.setdefault(stream.session, {})[stream.request] = stream
        generation = stream.column.payload.checkpoint
        self._of_generation.setdefault(generation, {})[stream.key] = stream
        self._by_column[stream.column] = stream
        self._by_reservation.setdefault(stream.reservation.id, []).append(stream)

    def remove(self, stream: Stream) -> None:
        del self._streams[stream.session, stream.request]
        of_session = self._of_session[stream.session]
        del of_session[stream.request]
        if not of_session:
            del self._of_session[stream.session]
        generation = stream.column.payload.checkpoint
        of_generation = self._of_generation[generation]
        del of_generation[stream.key]
        if not of_generation:
            del self._of_generation[generation]
        if self._by_column.get(stream.column) is stream:
            del self._by_column[stream.column]
        users = self._by_reservation[stream.reservation.id]
        users.remove(stream)
        if not users:
            del self._by_reservation[stream.reservation.id]
