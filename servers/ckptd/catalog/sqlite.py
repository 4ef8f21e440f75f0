"""What does the coordinator know after a crash? The catalog on stable storage, in SQLite.

Goals: an acknowledged ticket survives SIGKILL and power loss; one fsync serves every ticket that
waits; the event loop never blocks on it.

Plan: the write-ahead log with synchronous=FULL; one writer thread that owns the connection, takes
all tickets that have gathered, puts them into one transaction and acknowledges them after its
COMMIT. The tables hold folded rows (`CatalogImage.apply`), not a log, so the file grows with what
exists and a start reads it once.

Invariants
- One process at a time: an exclusive flock on `coordinator.lock`, held for life.
- The term of a process is durable, and above every earlier one, before `open` returns.
- Tickets are acknowledged in order. Those that find no room wait for it: nothing of them is stored.
  After any other error nothing more is acknowledged: after a failed fsync nobody knows what the
  disk holds, so the only sound step is to stop and to load again.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from ckpt.aio.durable import is_there, sync_directory
from ckpt.aio.threads import start_thread
from ckpt.base.errors import CkptError, NoSpace, NotFound, Refused, Unavailable
from ckpt.format.messages.hello import PROTOCOL_VERSION
from ckpt.protocol.coordinator.catalog import CatalogEntry, CatalogOutdated, Persist
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.said import UpgradeFinished
from ckptd.catalog import (
    checkpoint_tables,
    drain_tables,
    label_tables,
    launch_tables,
    move_tables,
    retention_tables,
    standing_tables,
    target_tables,
)
from ckptd.catalog.entry_tables import apply_entry
from ckptd.catalog.file import (
    DAMAGED,
    connect,
    copy_catalog,
    keep_cluster,
    kept_cluster,
    lock_directory,
    mending_command,
    unusable,
)
from ckptd.catalog.room import LOOK_S, give_reserve, keep_reserve, no_room, shortage
from ckptd.directory import make_directory

CATALOG_NAME: Final = "catalog.sqlite"
SCHEMA_VERSION: Final = standing_tables.SCHEMA_VERSION
APPLICATION_ID: Final = 0x636B7074  # "ckpt"
TICKETS_WAITING_MAX: Final = 1 << 20
"""With more waiting, the disk has stood still for minutes: better to stop than to grow."""

_TERM_MAX: Final = (1 << 31) - 1
_SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL);
CREATE TABLE target (id TEXT PRIMARY KEY, domain TEXT NOT NULL, directory TEXT NOT NULL);
"""
_FROM_SCHEMA_1: Final = checkpoint_tables.FROM_SCHEMA_1 + "DROP TABLE repair;"
"""That noted which columns were missing at each commit, which nobody read."""
_LATER_SCHEMA: Final = (
    launch_tables.SCHEMA
    + drain_tables.SCHEMA
    + standing_tables.SCHEMA
    + target_tables.SCHEMA
    + label_tables.SCHEMA
    + move_tables.SCHEMA
    + retention_tables.SCHEMA
)


class SqliteCatalog:
    """I am a `ckpt.aio.catalog.Catalog` in a file. For another coordinator on its directory it is
    Busy until `close`, which frees the lock.
    """

    def __init__(
        self, directory: Path, connection: sqlite3.Connection, lock: int, cluster: str,
        image: CatalogImage,
    ) -> None:  # fmt: skip
        self.cluster = cluster
        self.image = image
        self.full: NoSpace | None = None
        self._directory = directory
        self._connection = connection
        self._lock = lock
        #: Tickets that wait for the writer; filled by the loop's thread, emptied by the writer's.
        self._waiting: deque[Persist] = deque()
        #: Copies that wait for it, likewise: where to, and who hears of the end.
        self._copies: list[tuple[Path, Callable[[CkptError | None], None]]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._failure: CkptError | None = None
        self._writer: threading.Thread | None = None

    @classmethod
    def open(cls, directory: Path, cluster: str | None, new_cluster: str) -> SqliteCatalog:
        """Lock, create or load the catalog in `directory`, and begin a new term.

        `cluster` is the id that the caller insists on, `new_cluster` the one for a new catalog.
        Raises Busy (another coordinator lives here), Refused (another cluster's, or a newer
        version's catalog), NoSpace, Unavailable (the disk does not let it), Corrupt (unreadable;
        `ckpt catalog rebuild` makes a new one).
        """
        make_directory(directory)
        lock = lock_directory(directory)
        try:
            while True:
                try:
                    connection, image = _opened(directory, cluster, new_cluster)
                    break
                except NoSpace:
                    if not give_reserve(directory):
                        raise
        except BaseException:
            os.close(lock)
            raise
        keep_reserve(directory)
        return cls(directory, connection, lock, str(_meta(connection, "cluster")), image)

    def start(
        self, on_durable: Callable[[int], None], on_failed: Callable[[CkptError], None]
    ) -> None:
        """Begin to write. The callbacks come from the writer's thread. Raises Scarce."""
        assert self._writer is None
        writer = threading.Thread(
            target=self._write_all, args=(on_durable, on_failed), name="catalog", daemon=True
        )
        start_thread(writer)
        self._writer = writer

    def submit(self, persist: Persist) -> None:
        """Queue one ticket; returns at once. Raises the error that ended the writer."""
        with self._changed:
            assert not self._closing
            if self._failure is not None:
                raise self._failure
            if len(self._waiting) >= TICKETS_WAITING_MAX:
                raise Unavailable("the catalog's disk does not answer")
            self._waiting.append(persist)
            self._changed.notify()

    def copy_to(self, path: Path, done: Callable[[CkptError | None], None]) -> None:
        """Copy all that is durable; `done` comes from the writer's thread. Tickets wait meanwhile.

        Raises the error that ended the writer.
        """
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._copies.append((path, done))
            self._changed.notify()

    async def close(self) -> None:
        """Write what waits, end the writer, close the file, and free the lock."""
        # It blocks for a sync or two: its caller has nothing else to do any more.
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._writer is not None:
            self._writer.join()
        self._connection.close()
        os.close(self._lock)

    def _write_all(
        self, on_durable: Callable[[int], None], on_failed: Callable[[CkptError], None]
    ) -> None:
        try:
            failure = self._write_on(on_durable)
        except Exception as defect:
            # Nobody sees what a thread raises: tickets would wait for it for ever.
            failure = CkptError(f"the catalog cannot be written: {defect!r}")
        if failure is not None:
            with self._changed:
                self._failure = failure
                self._waiting.clear()
            on_failed(failure)

    def _write_on(self, on_durable: Callable[[int], None]) -> CkptError | None:
        """Until it is closed; returns what ends the writing before."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._copies or self._closing)
                batch, copies = list(self._waiting), self._copies
                self._waiting.clear()
                self._copies = []
            if not batch and not copies:
                return None
            failure = self._stored([entry for persist in batch for entry in persist.entries])
            if failure is not None:
                return failure
            for persist in batch:
                on_durable(persist.ticket)
            for path, done in copies:
                done(_copied(self._connection, path))

    def _stored(self, entries: list[CatalogEntry]) -> CkptError | None:
        """None when they are durable, however long that takes; else what ends the writing."""
        while True:
            try:
                _store(self._connection, entries)
            except (sqlite3.Error, KeyError) as error:
                said = shortage(self._directory, error)
                if said is None:
                    return CkptError(f"the catalog cannot be written: {error}")
                self.full = no_room(self._directory, said)
                with self._changed:
                    if self._changed.wait_for(lambda: self._closing, LOOK_S):
                        return self.full
            else:
                if self.full is not None:
                    keep_reserve(self._directory)
                    self.full = None
                return None


def _opened(
    directory: Path, insisted: str | None, new_cluster: str
) -> tuple[sqlite3.Connection, CatalogImage]:
    """In a new term. Raises as `SqliteCatalog.open`."""
    cluster = kept_cluster(directory, insisted)
    connection = connect(directory / CATALOG_NAME)
    try:
        _create(connection, directory, cluster or new_cluster)
        found = _meta(connection, "cluster")
        if cluster is not None and found != cluster:
            raise Refused(
                f"the catalog in {directory} is of cluster {found}, not {cluster}",
                hint=f"put its own back, or run: {mending_command(directory)}",
            )
        keep_cluster(directory, str(found))
        image = _load(connection)
        image.term = _begin_term(connection, image)
    except DAMAGED as error:
        connection.close()
        raise unusable(directory, error) from error
    except BaseException:
        connection.close()
        raise
    return connection, image


def _copied(connection: sqlite3.Connection, path: Path) -> CkptError | None:
    try:
        copy_catalog(connection, path)
    except CkptError as error:
        return error
    return None


def create_catalog(
    directory: Path, cluster: str, image: CatalogImage, *, keep_old: bool = False
) -> Path:
    """Write a whole new catalog; for `ckpt catalog rebuild`. Returns its path.

    `image.term` is the highest term seen anywhere: the next coordinator begins above it. With
    `keep_old` an old catalog is moved aside as `catalog.sqlite.N`. Raises Refused when there is one
    without that, Busy when a coordinator lives there, or as `unusable`: then nothing is changed.
    """
    path = directory / CATALOG_NAME
    make_directory(directory)
    lock = lock_directory(directory)
    aside = directory / f"{CATALOG_NAME}.new"
    try:
        if is_there(path) and not keep_old:
            raise Refused(f"{path} exists", hint="move it away first")
        _make_aside(aside, cluster, image)
        keep_cluster(directory, cluster)
        _move_old_away(path)
        aside.rename(path)
        sync_directory(directory)
    finally:
        os.close(lock)
    return path


def _make_aside(aside: Path, cluster: str, image: CatalogImage) -> None:
    """All of it in a file that has no name yet; nothing is left of one that fails."""
    aside.unlink(missing_ok=True)
    try:
        with closing(connect(aside)) as connection:
            _fill(connection, aside.parent, cluster, image)
            # Its close does that as well, but tells nobody that the log found no room in the file.
            (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            assert not busy, "nobody else has it open"
    except BaseException as error:
        said = unusable(aside.parent, error) if isinstance(error, DAMAGED) else error
        for suffix in ("", "-wal"):
            with suppress(OSError):
                Path(f"{aside}{suffix}").unlink(missing_ok=True)
        raise said from None


def write_copy(path: Path, cluster: str, image: CatalogImage) -> None:
    """A catalog that is elsewhere, in a file that `ckptd.catalog.backup` reads; durable on return.

    It appears under its name when it is complete; one that stands there is replaced. Raises as
    `copy_catalog`.
    """
    make_directory(path.parent)
    connection = connect(Path(":memory:"))
    try:
        _fill(connection, path.parent, cluster, image)
        copy_catalog(connection, path)
    finally:
        connection.close()


def _fill(
    connection: sqlite3.Connection, directory: Path, cluster: str, image: CatalogImage
) -> None:
    """All of it, into an empty file."""
    _create(connection, directory, cluster)
    with connection:
        _set_meta(connection, "term", image.term)
        for row in image.rows.values():
            checkpoint_tables.insert(connection, row)
        for seen in image.targets.values():
            target_tables.store(connection, seen)
        standing_tables.note(connection, image)
        if image.outdated:
            standing_tables.store(connection, CatalogOutdated(image.outdated))
        for entry in (
            *image.launch_entries(),
            *image.drain_entries(),
            *image.move_entries(),
            *image.label_entries(),
            *image.retention_entries(),
        ):
            apply_entry(connection, entry)


def _move_old_away(path: Path) -> None:
    """The old file and its log keep each other's names, so that both can still be read.

    The file first: without it the log is void, while the file without its log would be an older
    catalog in force.
    """
    number = next(n for n in itertools.count(1) if not is_there(Path(f"{path}.{n}")))
    for suffix in ("", "-wal"):
        old = Path(f"{path}{suffix}")
        if is_there(old):
            old.rename(f"{path}.{number}{suffix}")


def read_image(directory: Path) -> tuple[str, CatalogImage]:
    """(cluster id, image) of a catalog at rest; begins no term. Raises as `SqliteCatalog.open`."""
    with image_at_rest(directory) as found:
        return found


@contextmanager
def image_at_rest(directory: Path) -> Iterator[tuple[str, CatalogImage]]:
    """The same, with the directory locked for as long as the block lasts. Raises NotFound."""
    path = directory / CATALOG_NAME
    if not is_there(path):
        raise NotFound(f"there is no catalog in {directory}: it has no {CATALOG_NAME}")
    lock = lock_directory(directory)
    try:
        yield _read(directory)
    finally:
        os.close(lock)


def _read(directory: Path) -> tuple[str, CatalogImage]:
    """An earlier version's gets what it lacks in memory: the file stays as it is."""
    connection = connect(directory / CATALOG_NAME)
    memory = connect(Path(":memory:"))
    try:
        connection.backup(memory)
        _create(memory, directory, "")
        cluster, image = load_image(memory)
    except DAMAGED as error:
        raise unusable(directory, error) from error
    finally:
        memory.close()
        connection.close()
    if not cluster:
        raise NotFound(f"the catalog in {directory} has not begun yet")
    return cluster, image


def load_image(connection: sqlite3.Connection) -> tuple[str, CatalogImage]:
    """(cluster id, image) of an open catalog. Raises sqlite3.DatabaseError."""
    return str(_meta(connection, "cluster")), _load(connection)


def _create(connection: sqlite3.Connection, directory: Path, cluster: str) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise Refused(f"the catalog in {directory} has schema {version}; this is {SCHEMA_VERSION}")
    if version:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        _run_all(connection, _LATER_SCHEMA)
        if version < standing_tables.SCHEMA_UNFINISHED:
            _take_over(connection)
        return
    # One transaction: a crash leaves an empty file of version 0, which the next start fills.
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        _run_all(connection, checkpoint_tables.SCHEMA + _SCHEMA + _LATER_SCHEMA)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        standing_tables.store(connection, UpgradeFinished(PROTOCOL_VERSION))
        _set_meta(connection, "cluster", cluster)
        _set_meta(connection, "term", 0)
    sync_directory(directory)


def _take_over(connection: sqlite3.Connection) -> None:
    """An earlier version's, whole or not at all: that version refuses it from then on."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        _run_all(connection, _FROM_SCHEMA_1)
        connection.execute(f"PRAGMA user_version = {standing_tables.SCHEMA_UNFINISHED}")


def _run_all(connection: sqlite3.Connection, script: str) -> None:
    for statement in script.split(";")[:-1]:
        connection.execute(statement)


def _meta(connection: sqlite3.Connection, key: str) -> str | int:
    found = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    if found is None:
        raise sqlite3.DatabaseError(f"no {key} in its meta table")
    value = found[0]
    if not isinstance(value, str | int):
        raise sqlite3.DatabaseError(f"its {key} is {value!r}")
    return value


def _set_meta(connection: sqlite3.Connection, key: str, value: str | int) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def _begin_term(connection: sqlite3.Connection, image: CatalogImage) -> int:
    term = image.term + 1
    assert term <= _TERM_MAX, "a launch number is (term << 32) | counter in 63 bits"
    with connection:
        _set_meta(connection, "term", term)
        standing_tables.note(connection, image)
    return term


def _load(connection: sqlite3.Connection) -> CatalogImage:
    """Raises sqlite3.DatabaseError for rows that no coordinator has written, as well."""
    try:
        return _loaded(connection)
    except (AssertionError, KeyError, Refused, TypeError, ValueError) as error:
        raise sqlite3.DatabaseError(f"its rows do not fit together: {error!r}") from error


def _loaded(connection: sqlite3.Connection) -> CatalogImage:
    image = CatalogImage(int(_meta(connection, "term")))
    assert 0 <= image.term < _TERM_MAX, f"term {image.term}"
    checkpoint_tables.load(connection, image)
    target_tables.load(connection, image)
    launch_tables.load(connection, image)
    drain_tables.load(connection, image)
    label_tables.load(connection, image)
    move_tables.load(connection, image)
    retention_tables.load(connection, image)
    standing_tables.load(connection, image)
    return image


def _store(connection: sqlite3.Connection, entries: list[CatalogEntry]) -> None:
    """All entries in one transaction, durable on return; nothing of them after an error."""
    try:
        with connection:
            for entry in entries:
                apply_entry(connection, entry)
    finally:
        # A COMMIT that has failed leaves it open.
        if connection.in_transaction:
            connection.rollback()
