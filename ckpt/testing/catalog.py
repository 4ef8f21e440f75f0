"""A catalog in memory that coordinators share, as one on other hosts is shared: whoever opens it
takes it over.

What it models
    time        a ticket takes turns of the loop; others run meanwhile
    fencing     every write names its term, and only that of the newest one is taken; an older
                writer hears of it at its next write
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from ckpt.base.errors import Busy, CkptError, NoSpace, Refused
from ckpt.protocol.coordinator.catalog import CatalogEntry, Persist
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.testing.catalog_entries import apply_all

Done = Callable[[CkptError | None], None]


class FakeCatalogStore:
    """I am what outlives coordinators, and the place for `ckpt.testing.catalog_contract`."""

    def __init__(self) -> None:
        self.cluster = ""
        self.term = 0
        #: All that were stored.
        self._entries: list[CatalogEntry] = []
        self._image = CatalogImage(0)
        #: By the file that stands for each.
        self._copies: dict[Path, CatalogImage] = {}

    async def open(self, cluster: str | None = None, new_cluster: str = "c1") -> FakeCatalog:
        """Begin a term. Raises Refused."""
        await asyncio.sleep(0)
        known = self.cluster or cluster or new_cluster
        if cluster not in (None, known):
            raise Refused(f"the catalog is of cluster {known}, not {cluster}")
        self.cluster = known
        self.term += 1
        return FakeCatalog(self, replace(deepcopy(self._image), term=self.term))

    def write(self, term: int, entries: Sequence[CatalogEntry]) -> None:
        """All or nothing. Raises Busy in an older term, CkptError for what cannot be."""
        self._check(term)
        try:
            apply_all(self._image, entries)
        except KeyError as error:
            self._image = apply_all(CatalogImage(0), self._entries)
            raise CkptError(f"the catalog cannot be written: {error} is not there") from error
        self._entries += entries

    def copy(self, term: int, path: Path) -> None:
        """Raises Busy in an older term, Refused when no file can be there."""
        self._check(term)
        try:
            path.parent.mkdir(exist_ok=True)
            path.touch()
        except OSError as error:
            raise Refused(f"cannot write {path}: {error.strerror}") from None
        self._copies[path] = replace(deepcopy(self._image), term=term)

    def read_copy(self, path: Path) -> CatalogImage:
        """What was copied there last."""
        return self._copies[path]

    def _check(self, term: int) -> None:
        if term != self.term:
            raise Busy(f"a coordinator of term {self.term} has the catalog")


class FakeCatalog:
    """I am a Catalog whose callbacks come on the loop of `start`."""

    def __init__(self, store: FakeCatalogStore, image: CatalogImage) -> None:
        self.cluster = store.cluster
        self.image = image
        self.full: NoSpace | None = None
        """What the test says."""
        self._store = store
        self._term = image.term
        #: Tickets and copies that wait for the writer, in order.
        self._waiting: deque[Persist | tuple[Path, Done]] = deque()
        self._changed = asyncio.Event()
        self._closing = False
        self._failure: CkptError | None = None
        self._writer: asyncio.Task[None] | None = None

    def start(
        self, on_durable: Callable[[int], None], on_failed: Callable[[CkptError], None]
    ) -> None:
        assert self._writer is None
        self._writer = asyncio.create_task(self._write_all(on_durable, on_failed))

    def submit(self, persist: Persist) -> None:
        self._queue(persist)

    def copy_to(self, path: Path, done: Done) -> None:
        self._queue((path, done))

    async def close(self) -> None:
        self._closing = True
        self._changed.set()
        if self._writer is not None:
            await self._writer

    def _queue(self, work: Persist | tuple[Path, Done]) -> None:
        assert not self._closing
        if self._failure is not None:
            raise self._failure
        self._waiting.append(work)
        self._changed.set()

    async def _write_all(
        self, on_durable: Callable[[int], None], on_failed: Callable[[CkptError], None]
    ) -> None:
        while self._waiting or not self._closing:
            await self._changed.wait()
            self._changed.clear()
            while self._waiting:
                await asyncio.sleep(0)  # On its way to the store.
                try:
                    answer = self._perform(self._waiting.popleft(), on_durable)
                except CkptError as error:
                    self._failure = error
                    on_failed(error)
                    return
                await asyncio.sleep(0)  # And back.
                answer()

    def _perform(
        self, work: Persist | tuple[Path, Done], on_durable: Callable[[int], None]
    ) -> Callable[[], None]:
        """What its caller is to hear. Raises what ends the writing."""
        match work:
            case Persist():
                self._store.write(self._term, work.entries)
                return lambda: on_durable(work.ticket)
            case (path, done):
                failure = None
                try:
                    self._store.copy(self._term, path)
                except Refused as error:
                    failure = error
                return lambda: done(failure)
