"""Where the payloads of a load lie: in the generation that is read, or in one of its homes.

    key (home or None, rank) --commit record of that generation--> its index --> payload, columns

Bytes that did not change since an earlier step are not written again: a location names the
generation that holds them, its home. How a payload was cut, its columns and the digest of its
manifest are then in the home's own index. References never chain. A column that was moved since has
another holder than the index says: then the coordinator is asked, a page of ranks at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final, Self

from ckpt.base.errors import Corrupt, Lost, NotFound
from ckpt.base.ids import (
    CheckpointId,
    ColumnNumber,
    Generation,
    Home,
    PayloadId,
    Rank,
    TargetId,
)
from ckpt.base.limits import WORLD_SIZE_MAX
from ckpt.format.checksum import Buffer
from ckpt.format.documents.moves import Moves, decode_moves, page_of
from ckpt.format.documents.record import CommitRecord, decode_record
from ckpt.format.index.pages import IndexPayload
from ckpt.format.index.reader import IndexReader
from ckpt.format.index.rows import BoxRows, rows_of
from ckpt.format.layout import Layout
from ckpt.format.messages.loading import AskMoves, Resolved
from ckpt.plan.reads import PayloadKey
from ckpt.transfer.index_source import IndexSource, IndexUnreadable
from ckpt.transfer.landings import Landings
from ckpt.transfer.read_job import ReadJob

OWN: Final = 0
"""Homes are numbered from 1, in the order in which the commit record names them."""
AskPage = Callable[[AskMoves], Buffer]
"""The coordinator's answer, the bulk of its `MovesFound`; raises what the call raises."""


class HomeUnreadable(IndexUnreadable):
    """A home's index was not to be had whole: damaged, or out of reach."""

    def __init__(self, home: CheckpointId, of: CheckpointId, message: str) -> None:
        super().__init__(f"the index of {home}, which holds bytes of {of}: {message}")
        self.home = home


@dataclass(frozen=True, slots=True)
class FoundPayload:
    """A payload, and what the index of its generation says of it."""

    id: PayloadId
    entry: IndexPayload
    columns: tuple[TargetId | None, ...]
    """Who holds each now: as the entry says, but for those that have moved."""


class PayloadFinder:
    """I find payloads of a resolved generation and of its homes. Each index is fetched once, when
    it is first asked for. Close me."""

    def __init__(
        self, resolved: Resolved, record: CommitRecord, ask_moves: AskPage, *, secret: bytes,
        name: str, timeout_s: float, avoid: Collection[TargetId] = (),
    ) -> None:  # fmt: skip
        """`record` is of the generation that was resolved. avoid: targets that are done without, as
        if they were not live. Raises Corrupt for a home's record that is damaged."""
        self._ask_moves = ask_moves
        self._moved = {each.generation: each for each in resolved.moved}
        #: Pages that were asked for, by their generation.
        self._moves: dict[tuple[Generation, int], Moves] = {}
        self._addresses = {
            where.target: where for where in resolved.targets if where.target not in avoid
        }
        self._secret = secret
        self._name = name
        self._timeout_s = timeout_s
        self._record = record
        homes = map(decode_record, resolved.homes)
        self._homes = {home.info.checkpoint.generation: home for home in homes}
        #: Indexes that are being read, with their connections; all are closed when I am.
        self._open: dict[Generation, tuple[IndexSource, IndexReader]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections; no index is read any more. Idempotent."""
        while self._open:
            _, (source, _) = self._open.popitem()
            source.close()

    @property
    def index(self) -> IndexReader:
        """Of the generation that is read. Raises as IndexSource.reader, Lost for another's."""
        return self._reader(self._record)

    def find(self, key: PayloadKey) -> FoundPayload:
        """Raises Corrupt for a home that the generation does not have, HomeUnreadable, and as
        `index` for its own."""
        if key.home is None:
            return self._found(self._record, key.rank)
        record = self._homes.get(key.home)
        own = self._record.info
        if record is None or Home.of(record.info.checkpoint) not in own.homes:
            known = ", ".join(map(str, own.homes)) or "none"
            text = f"{own.checkpoint} has bytes in generation {key.home}, which is not given as"
            raise Corrupt(f"{text} one of its homes ({known})")
        try:
            return self._found(record, key.rank)
        except NotFound as error:
            raise Corrupt(f"{own.checkpoint} has bytes in a home: {error.message}") from error
        except (IndexUnreadable, Corrupt) as error:
            home = record.info.checkpoint
            raise HomeUnreadable(home, own.checkpoint, error.message) from error

    def payloads(self) -> list[FoundPayload]:
        """All that hold bytes of it: its own, then those of its homes, each once. Raises as `index`
        and `find`."""
        own = [self._placed(self._record, entry) for entry in self.index.payloads()]
        if not self._record.info.homes:
            return own
        keys = {
            PayloadKey(location.generation, location.rank)
            for tensor in self.index.tensors()
            for row in rows_of(tensor.boxes)
            if any(location.generation is not None for location in row[0].locations)
            for box in BoxRows([row])
            for location in box.locations
            if location.generation is not None
        }
        return own + [self.find(key) for key in sorted(keys, key=lambda key: key.order)]

    def index_sources(self) -> Iterator[IndexSource]:
        """Of its index, then of those of its homes; each is closed when the next is asked for."""
        for record in (self._record, *self._homes.values()):
            with self._source(record) as source:
                yield source

    def job(self, found: FoundPayload, landings: Landings) -> ReadJob:
        """Reads these bytes of it. Raises Corrupt when it does not have them."""
        entry = found.entry
        if landings.end > entry.payload_bytes:
            own = self._record.info.checkpoint
            text = f"{own} has bytes up to {landings.end} in {found.id}, which has"
            raise Corrupt(f"{text} {entry.payload_bytes}")
        return ReadJob(
            payload=found.id,
            layout=Layout(entry.code, entry.payload_bytes, entry.cell_bytes),
            manifest_digest=entry.manifest_digest,
            columns=found.columns,
            addresses=self._addresses,
            landings=landings,
        )

    def number(self, payload: PayloadId) -> Rank:
        """What ranks that read together call it: its rank, and after all ranks those of the
        homes. The same for all, who have the same record."""
        home = Home.of(payload.checkpoint)
        homes = self._record.info.homes
        place = homes.index(home) + 1 if home in homes else OWN
        return Rank(place * WORLD_SIZE_MAX + payload.rank)

    def _found(self, record: CommitRecord, rank: Rank) -> FoundPayload:
        return self._placed(record, self._reader(record).payload(rank))

    def _placed(self, record: CommitRecord, entry: IndexPayload) -> FoundPayload:
        rank = entry.rank
        moves = self._moves_of(record.info.checkpoint, rank)
        columns = tuple(
            moves.get((rank, ColumnNumber(j)), target) for j, target in enumerate(entry.columns)
        )
        return FoundPayload(PayloadId(record.info.checkpoint, rank), entry, columns)

    def _moves_of(self, checkpoint: CheckpointId, rank: Rank) -> Moves:
        """Of its page. Raises as the question, Corrupt."""
        generation, page = checkpoint.generation, page_of(rank)
        moved = self._moved.get(generation)
        if moved is None or page not in moved.pages:
            return {}
        known = self._moves.get((generation, page))
        if known is None:
            known = decode_moves(page, self._ask_moves(AskMoves(checkpoint, page)))
            self._moves[generation, page] = known
        return known

    def _reader(self, record: CommitRecord) -> IndexReader:
        checkpoint = record.info.checkpoint
        known = self._open.get(checkpoint.generation)
        if known is not None:
            return known[1]
        source = self._source(record)
        try:
            reader = source.reader(self._timeout_s)
            if reader.checkpoint != checkpoint:
                raise Lost(f"the index of {checkpoint} is another's")
        except BaseException:
            source.close()
            raise
        self._open[checkpoint.generation] = source, reader
        return reader

    def _source(self, record: CommitRecord) -> IndexSource:
        moved = self._moved.get(record.info.checkpoint.generation)
        holders = record.index_targets if moved is None or not moved.indexes else moved.indexes
        return IndexSource(record, holders, self._addresses, self._secret, self._name)
