"""What every Catalog does, whatever stores it: subclass CatalogContract and give it a `place`
fixture; KilledCatalogContract where processes are killed that have it open.

class TestSqliteCatalog(KilledCatalogContract):
    @pytest.fixture
    def place(self, tmp_path): ...
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Final, Protocol

import pytest

from ckpt.aio.catalog import Catalog
from ckpt.base.errors import Busy, CkptError, Refused
from ckpt.base.ids import CheckpointId, Generation, LaunchNumber, RunName, Step
from ckpt.protocol.coordinator.catalog import (
    AttemptOpened,
    CatalogEntry,
    Persist,
    RowCommitted,
    RowForgotten,
    RowState,
)
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.testing.catalog_entries import (
    apply_all,
    attempt,
    checkpoint,
    entries_by_chance,
    every_entry,
)

WAIT_S: Final = 30.0
UNDER_WAY: Final = 8
"""Most tickets that a writer which is killed has not heard of."""


class CatalogPlace(Protocol):
    """Where one catalog lies; at first there is none."""

    async def open(self, cluster: str | None = None, new_cluster: str = "c1") -> Catalog:
        """Begin a term. `cluster` is insisted on, `new_cluster` is for a new catalog."""

    def read_copy(self, path: Path) -> CatalogImage:
        """What a copy has that `copy_to` made."""


class KilledCatalogPlace(CatalogPlace, Protocol):
    """One whose catalog outlives the processes that have it open."""

    def writer(self) -> Sequence[str]:
        """The command of a process that runs `write_for_ever` on it."""


class Writer:
    """I write to an open catalog, one ticket after the other, and keep what I hear of them."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.durable: list[int] = []
        self.failures: list[CkptError] = []
        self._ticket = 0
        self._loop = asyncio.get_running_loop()
        self._heard = asyncio.Event()
        catalog.start(self._hear_durable, self._hear_failure)

    def submit(self, *entries: CatalogEntry) -> None:
        """One ticket."""
        self._ticket += 1
        self.catalog.submit(Persist(self._ticket, entries))

    async def write(self, *entries: CatalogEntry) -> None:
        """One ticket, durable on return. Raises what ended the writing."""
        self.submit(*entries)
        await self.wait_until(lambda: self._ticket in self.durable or bool(self.failures))
        if self.failures:
            raise self.failures[0]

    async def copy(self, path: Path) -> CkptError | None:
        """How it ended."""
        ends: list[CkptError | None] = []

        def done(end: CkptError | None) -> None:
            ends.append(end)
            self._wake()

        self.catalog.copy_to(path, done)
        await self.wait_until(lambda: bool(ends))
        return ends[0]

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Asked again whenever something was heard."""
        async with asyncio.timeout(WAIT_S):
            while not is_so():
                self._heard.clear()
                await self._heard.wait()

    def _hear_durable(self, ticket: int) -> None:
        self.durable.append(ticket)
        self._wake()

    def _hear_failure(self, error: CkptError) -> None:
        self.failures.append(error)
        self._wake()

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._heard.set)


@asynccontextmanager
async def writing(
    place: CatalogPlace, cluster: str | None = None, new_cluster: str = "c1"
) -> AsyncIterator[Writer]:
    """In a term of its own, closed at the end."""
    catalog = await place.open(cluster, new_cluster)
    try:
        yield Writer(catalog)
    finally:
        await catalog.close()


async def found(place: CatalogPlace) -> CatalogImage:
    """What the next coordinator finds."""
    catalog = await place.open()
    await catalog.close()
    return catalog.image


def folded(image: CatalogImage, entries: Sequence[CatalogEntry]) -> CatalogImage:
    """What must have been found: that image's term, with these entries."""
    return apply_all(CatalogImage(image.term), entries)


def on_a_loop(story: Callable[..., Coroutine[object, object, None]]) -> Callable[..., None]:
    """A test that waits."""

    @wraps(story)
    def told(*arguments: object, **fixtures: object) -> None:
        asyncio.run(story(*arguments, **fixtures))

    return told


class CatalogContract:
    """One suite for all catalogs."""

    @on_a_loop
    async def test_a_new_catalog_is_empty_and_of_the_new_cluster(self, place: CatalogPlace) -> None:
        catalog = await place.open(None, "c7")
        assert catalog.cluster == "c7"
        assert catalog.image.term >= 1
        assert catalog.image == CatalogImage(catalog.image.term)
        await catalog.close()

    @on_a_loop
    async def test_what_was_stored_is_found_as_the_machine_folds_it(
        self, place: CatalogPlace
    ) -> None:
        entries = every_entry()
        async with writing(place) as writer:
            for entry in entries:
                writer.submit(entry)
            await writer.wait_until(lambda: len(writer.durable) == len(entries))
        image = await found(place)
        assert image == folded(image, entries)
        assert image.rows[checkpoint(2)].state is RowState.ABORTED

    @on_a_loop
    async def test_the_entries_of_one_ticket_are_folded_in_their_order(
        self, place: CatalogPlace
    ) -> None:
        async with writing(place) as writer:
            await writer.write(*every_entry())
        image = await found(place)
        assert image == folded(image, every_entry())

    @pytest.mark.parametrize("seed", range(6))
    @on_a_loop
    async def test_an_image_is_the_fold_of_all_entries_however_they_came(
        self, place: CatalogPlace, seed: int
    ) -> None:
        """In tickets of any size, over several terms."""
        entries = entries_by_chance(seed, 240)
        written = 0
        for life in range(3):
            async with writing(place) as writer:
                assert writer.catalog.image == folded(writer.catalog.image, entries[:written])
                while written < 80 * (life + 1):
                    size = 1 + (seed + written) % 7
                    await writer.write(*entries[written : written + size])
                    written += size
        image = await found(place)
        assert image == folded(image, entries[:written])

    @on_a_loop
    async def test_a_forgotten_row_is_gone_also_after_a_start(self, place: CatalogPlace) -> None:
        forgotten = [RowForgotten(checkpoint(1)), RowForgotten(checkpoint(9))]
        async with writing(place) as writer:
            await writer.write(*every_entry())
            await writer.write(*forgotten)
        image = await found(place)
        assert image == folded(image, [*every_entry(), *forgotten])
        assert checkpoint(1) not in image.rows

    @on_a_loop
    async def test_no_later_entry_is_in_the_image(self, place: CatalogPlace) -> None:
        async with writing(place) as writer:
            await writer.write(attempt(1))
            assert writer.catalog.image.rows == {}

    @on_a_loop
    async def test_each_term_is_above_all_earlier_ones(self, place: CatalogPlace) -> None:
        """Also where nothing was written."""
        terms = [(await found(place)).term for _ in range(4)]
        assert terms == sorted(set(terms))

    @on_a_loop
    async def test_a_catalog_stays_its_cluster_s(self, place: CatalogPlace) -> None:
        await found(place)
        with pytest.raises(Refused, match="c1"):
            await place.open("c2", "c2")
        for insisted in ("c1", None):
            catalog = await place.open(insisted, "c2")
            await catalog.close()
            assert catalog.cluster == "c1"

    @on_a_loop
    async def test_tickets_are_acknowledged_once_each_in_order(self, place: CatalogPlace) -> None:
        async with writing(place) as writer:
            for step in range(300):
                writer.submit(attempt(step))
            writer.submit()  # It may be empty.
            await writer.wait_until(lambda: len(writer.durable) == 301)
        assert writer.durable == list(range(1, 302))
        assert writer.failures == []

    @on_a_loop
    async def test_close_waits_for_every_ticket(self, place: CatalogPlace) -> None:
        async with writing(place) as writer:
            for step in range(50):
                writer.submit(attempt(step))
        assert writer.durable == list(range(1, 51))
        assert len((await found(place)).rows) == 50

    @on_a_loop
    async def test_a_closed_catalog_is_opened_again_and_goes_on(self, place: CatalogPlace) -> None:
        """Tickets count from 1 in each term."""
        for life in range(3):
            async with writing(place, "c1") as writer:
                assert set(writer.catalog.image.rows) == {checkpoint(step) for step in range(life)}
                await writer.write(attempt(life))
            assert writer.durable == [1]

    @on_a_loop
    async def test_a_ticket_that_cannot_be_stored_ends_the_writing_and_harms_nothing_before(
        self, place: CatalogPlace
    ) -> None:
        """Nothing of it is stored, nothing after it is acknowledged, and the next one goes on."""
        async with writing(place) as writer:
            await writer.write(attempt(1))
            with pytest.raises(CkptError):
                await writer.write(attempt(2), RowCommitted(checkpoint(99)), attempt(3))
            with pytest.raises(CkptError):
                writer.submit(attempt(4))
        assert writer.durable == [1]
        assert len(writer.failures) == 1
        async with writing(place) as writer:
            assert writer.catalog.image == folded(writer.catalog.image, [attempt(1)])
            await writer.write(attempt(5))
        assert set((await found(place)).rows) == {checkpoint(1), checkpoint(5)}

    @on_a_loop
    async def test_of_two_writers_one_stores(self, place: CatalogPlace) -> None:
        """The newer one is refused, or the older one is fenced."""
        async with writing(place) as older:
            await older.write(attempt(1))
            try:
                newer = await place.open()
            except Busy:
                await older.write(attempt(2))
                stored = {checkpoint(1), checkpoint(2)}
            else:
                assert newer.image.term > older.catalog.image.term
                assert set(newer.image.rows) == {checkpoint(1)}
                stored = {checkpoint(1), checkpoint(4)}
                await _hears_that_it_is_fenced(older)
                assert older.durable == [1]
                await Writer(newer).write(attempt(4))
                await newer.close()
        assert set((await found(place)).rows) == stored

    @on_a_loop
    async def test_a_newer_writer_finds_all_that_the_older_one_heard_of(
        self, place: CatalogPlace
    ) -> None:
        """Also of tickets that are under way when it comes."""
        async with writing(place) as older:
            for step in range(100):
                older.submit(attempt(step))
            try:
                newer = await place.open()
            except Busy:
                stored = {checkpoint(step) for step in range(100)}
            else:
                await _hears_that_it_is_fenced(older)
                stored = set(newer.image.rows)
                assert stored >= {checkpoint(ticket - 1) for ticket in older.durable}
                await newer.close()
        assert set((await found(place)).rows) == stored

    @on_a_loop
    async def test_a_copy_has_all_that_is_durable(
        self, place: CatalogPlace, tmp_path: Path
    ) -> None:
        """And replaces an older one."""
        path = tmp_path / "copies" / "copy"
        async with writing(place) as writer:
            await writer.write(attempt(9))
            assert await writer.copy(path) is None
            await writer.write(*every_entry())
            assert await writer.copy(path) is None
            await writer.write(attempt(8))
            image = writer.catalog.image
        assert place.read_copy(path) == folded(image, [attempt(9), *every_entry()])

    @on_a_loop
    async def test_a_copy_that_cannot_be_written_harms_nothing(
        self, place: CatalogPlace, tmp_path: Path
    ) -> None:
        (tmp_path / "copies").write_text("a file is in the way")
        async with writing(place) as writer:
            assert isinstance(await writer.copy(tmp_path / "copies" / "copy"), CkptError)
            await writer.write(attempt(1))
        assert set((await found(place)).rows) == {checkpoint(1)}


async def _hears_that_it_is_fenced(older: Writer) -> None:
    """At its next ticket, if it has not heard it yet; its last word is that."""
    with suppress(Busy):
        older.submit(attempt(200))
    await older.wait_until(lambda: bool(older.failures))
    assert [type(each) for each in older.failures] == [Busy]
    with pytest.raises(Busy):
        older.submit(attempt(201))


async def write_for_ever(opening: Awaitable[Catalog]) -> None:
    """Until this process is killed: in each ticket the attempt of that step, and `TERM TICKET` on a
    line of the standard output as soon as it is durable.
    """
    catalog = await opening
    term, loop, room = catalog.image.term, asyncio.get_running_loop(), asyncio.Semaphore(UNDER_WAY)

    def say(ticket: int) -> None:
        os.write(1, b"%d %d\n" % (term, ticket))
        loop.call_soon_threadsafe(room.release)

    catalog.start(say, lambda _error: os._exit(9))
    for ticket in range(1, 1 << 20):
        await room.acquire()
        id = CheckpointId(RunName("run"), Step(ticket), Generation(term, ticket))
        catalog.submit(Persist(ticket, (AttemptOpened(id, LaunchNumber(1), "key", 4),)))


class KilledCatalogContract(CatalogContract):
    """And what catalogs do whose writers are killed."""

    @on_a_loop
    async def test_acknowledged_tickets_survive_sigkill_and_none_is_missing_before_them(
        self, place: KilledCatalogPlace
    ) -> None:
        promised: set[tuple[int, int]] = set()
        for line_count in (0, 1, 3, 40, 200, 7, 90):
            promised |= _killed_after(line_count, place.writer())
            image = await found(place)
            stored = {(int(id.generation.term), int(id.step)) for id in image.rows}
            assert promised <= stored
            for term in {term for term, _ in stored}:
                tickets = {ticket for each, ticket in stored if each == term}
                assert tickets == set(range(1, len(tickets) + 1)), "stored in order"
                assert term < image.term


def _killed_after(line_count: int, command: Sequence[str]) -> set[tuple[int, int]]:
    """What a process has said in whole lines: (term, ticket)."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(line_count)]
        writer.send_signal(signal.SIGKILL)
        # What lies in the pipe was promised as well.
        lines += [line for line in writer.stdout if line.endswith(b"\n")]
    assert all(lines), "it ended by itself"
    return {(int(term), int(ticket)) for term, ticket in map(bytes.split, lines)}
