"""How fast is a drain, against a plain client that moves the same bytes to the same place?

    plain up   bound   drain   plain up   bound   plain down   load     of each round, in this order

Ratios of one round, and their medians: the places are slower and faster from minute to minute. The
plain client is the best of a few: files written by threads and synced, or obstore's own multipart
put and ranged get. What the drain does beyond it: it reads the tier, checks every byte, and reads
back what it wrote. The bound does that, too, with as little as can be: in a directory, threads that
read files around the page cache, write them so, sync, and read them back with a CRC-32; in a store,
the plain client's upload and download. CPU is that of the draining process. Files are read cold. A
drain before the first round, which nobody counts, takes the memory that a drain process keeps.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

import ckpt
from ckpt.aio.secret import read_secret
from ckpt.aio.slots import touched_memory
from ckpt.base.errors import Refused, Unavailable
from ckpt.base.ids import RunName, Step
from ckpt.base.units import MiB
from ckpt.format.checksum import crc32
from ckpt.objects.planning import WriteOptions
from ckpt.objects.reader import open_stored
from ckpt.objects.sink import Sink
from ckpt.objects.source import Array, Source, Wish
from ckpt.objects.stores import open_sink
from ckpt.objects.tier_source import TierSource
from ckpt.objects.writer import WriteLimits, write_checkpoint
from ckpt_client.cli.cluster import is_running, wait_local_ready
from ckpt_client.exchange.arrays import HeldArray
from ckpt_client.exchange.mapped_source import MappedSource

RUN: Final = RunName("bench")
ARRAY_BYTES: Final = 64 * MiB
PIECE_BYTES: Final = 4 * MiB
THREADS: Final = (1, 2, 4)
PUTS: Final = ((8 * MiB, 8), (16 * MiB, 4), (16 * MiB, 8), (64 * MiB, 2))
"""(Part bytes, parts at once) that the plain client tries."""
RANGE_BYTES: Final = 8 * MiB
OPTIONS: Final = WriteOptions(compression="none")
LIMITS: Final = WriteLimits(threads=4, memory_bytes=512 * MiB)
TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class DrainRound:
    """Seconds of one round; CPU seconds of this process where it says so."""

    plain_up_s: float
    drain_s: float
    drain_cpu_s: float
    bound_s: float
    """Writing and reading back at the least; in a directory also reading the source."""
    plain_down_s: float
    load_s: float
    tier_cpu_s: float
    """Reading the tier alone."""
    write_cpu_s: float
    """Writing from memory and reading back."""
    back_cpu_s: float
    """Reading back alone."""


@dataclass(frozen=True, slots=True)
class DrainSpeed:
    """Everything that `ckptbench offload` finds."""

    url: str
    bytes: int
    plain_up: str
    """The best plain client."""
    rounds: tuple[DrainRound, ...]

    def median(self, value: Callable[[DrainRound], float]) -> float:
        return statistics.median(map(value, self.rounds))

    @property
    def gigabytes(self) -> float:
        return self.bytes / 1e9


def measure(url: str, byte_count: int, rounds: int, note: Callable[[str], None]) -> DrainSpeed:
    """Raises Refused for a place whose plain client is not known here, and what a drain raises.

    note: is told what is done next.
    """
    plain, state = _plain(url), random_state(byte_count)
    moved = list(state.values())
    sink = open_sink(f"{url}/drained")
    note(f"does {url} answer?")
    sink.children("")
    with local_tier(state) as tier:
        client = _best(plain, moved, note)
        note("a drain that nobody counts")
        _write(sink, tier.source())
        _clear(sink)
        found = []
        for number in range(rounds):
            note(f"round {number + 1} of {rounds}")
            found.append(_round(sink, number, tier.source, client, moved))
    return DrainSpeed(url, sum(array.nbytes for array in moved), str(client), tuple(found))


def _best(
    plain: Sequence[PlainFiles | PlainObstore], arrays: Sequence[Array], note: Callable[[str], None]
) -> PlainFiles | PlainObstore:
    """The plain client that uploads soonest."""
    seconds: list[float] = []
    for client in plain:
        note(f"plain client: {client}")
        seconds.append(_timed(partial(client.up, arrays)))
    return plain[seconds.index(min(seconds))]


def _round(
    sink: Sink, number: int, tier: Callable[[], Source], client: PlainFiles | PlainObstore,
    arrays: Sequence[Array],
) -> DrainRound:  # fmt: skip
    before_s = _timed(partial(client.up, arrays))
    bound_before_s = _timed(partial(client.bound, arrays))
    cpu_s = time.process_time()
    drain_s = _timed(lambda: _write(sink, tier()))
    cpu_s = time.process_time() - cpu_s
    up_s = (before_s + _timed(partial(client.up, arrays))) / 2
    bound_s = (bound_before_s + _timed(partial(client.bound, arrays))) / 2
    place = sink.url.rpartition("/")[0]
    forget_pages(place)
    down_s = _timed(partial(client.down, arrays))
    forget_pages(place)
    load_s = _timed(lambda: _load(sink))
    tier_cpu_s = _cpu(lambda: _read(tier()))
    held = [
        HeldArray(f"w{n}", a.dtype.str, a.shape, partial(_same, a)) for n, a in enumerate(arrays)
    ]
    memory = MappedSource(held, "memory", number, "bench")
    write_cpu_s = _cpu(lambda: _write(sink, memory))
    back_cpu_s = _cpu(lambda: _verify(sink))
    _clear(sink)
    return DrainRound(
        up_s, drain_s, cpu_s, bound_s, down_s, load_s, tier_cpu_s, write_cpu_s, back_cpu_s
    )


# ------------------------------------------------------------------------ ours


@dataclass(frozen=True, slots=True)
class LocalTier:
    """A cluster of this benchmark's own, with RUN@1 in it."""

    directory: Path
    address: str

    @property
    def url(self) -> str:
        return f"ckpt+local://{self.directory}"

    def source(self) -> Source:
        secret = read_secret(self.directory / "secret")
        return TierSource.open(self.address, RUN, Step(1), secret=secret, name="bench")


@contextmanager
def local_tier(state: dict[str, Array]) -> Iterator[LocalTier]:
    """Started here, with the state saved; gone behind it."""
    with tempfile.TemporaryDirectory(prefix="ckptbench-drain-") as folder:
        directory = Path(folder, "burst")
        with ckpt.open(f"ckpt+local://{directory}?targets=6&code=4+2") as store:
            ready = wait_local_ready(directory, TIMEOUT_S)
            assert ready is not None
            try:
                store.save(RUN, 1, state, rank=0, world_size=1).wait(TIMEOUT_S)
                yield LocalTier(directory, ready.address)
            finally:
                os.kill(ready.pid, signal.SIGTERM)
                while is_running(ready.pid):
                    time.sleep(0.05)


def _write(sink: Sink, source: Source) -> None:
    try:
        write_checkpoint(sink, source, OPTIONS, LIMITS)
    finally:
        source.close()


def _read(source: Source) -> None:
    try:
        for tensor in source.tensors():
            memory = np.empty(tensor.global_shape, np.uint8)
            source.read([Wish(tensor, tensor.boxes[0].rank, (0,), memory)])
    finally:
        source.close()


def _load(sink: Sink) -> None:
    stored = open_stored(sink, RUN)
    _read(stored)


def _clear(sink: Sink) -> None:
    """The next drain finds nothing of this one."""
    sink.delete(list(sink.list("")))


def _verify(sink: Sink) -> None:
    stored = open_stored(sink, RUN)
    stored.verify()
    stored.close()


# ------------------------------------------------------------------------ plain clients


@dataclass(frozen=True, slots=True)
class PlainFiles:
    """Threads that write files, each synced, and read them."""

    folder: Path
    threads: int

    def __str__(self) -> str:
        return f"{self.threads} threads of synced files"

    def up(self, arrays: Sequence[Array]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(self._write, range(len(arrays)), arrays))

    def down(self, arrays: Sequence[Array]) -> None:
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(self._read, range(len(arrays)), map(np.empty_like, arrays)))

    def bound(self, arrays: Sequence[Array]) -> None:
        """Of the files that `up` wrote."""
        with ThreadPoolExecutor(self.threads) as pool:
            crcs = list(pool.map(self._copy, range(len(arrays))))
        assert crcs == [crc32(array.data) for array in arrays]

    def _copy(self, number: int) -> int:
        """A file's CRC-32, from what its copy gives back."""
        block = memoryview(touched_memory(PIECE_BYTES))
        source, copy = self.folder / str(number), self.folder / f"{number}.copy"
        flags = os.O_DIRECT | os.O_CLOEXEC
        with (
            _opened(source, os.O_RDONLY | flags) as old,
            _opened(copy, os.O_CREAT | os.O_TRUNC | os.O_RDWR | flags) as new,
        ):
            at = 0
            while count := os.preadv(old, [block], at):
                at += os.pwrite(new, block[:count], at)
            os.fsync(new)
            crc = at = 0
            while count := os.preadv(new, [block], at):
                crc, at = crc32(block[:count], crc), at + count
        copy.unlink()
        return crc

    def _write(self, number: int, array: Array) -> None:
        view = array.data.cast("B")
        with (self.folder / str(number)).open("wb", buffering=0) as file:
            for start in range(0, len(view), PIECE_BYTES):
                file.write(view[start : start + PIECE_BYTES])
            os.fsync(file.fileno())

    def _read(self, number: int, array: Array) -> None:
        with (self.folder / str(number)).open("rb", buffering=0) as file:
            file.readinto(array.data.cast("B"))


@dataclass(frozen=True, slots=True)
class PlainObstore:
    """obstore's own multipart put and ranged get."""

    url: str
    part_bytes: int
    concurrency: int

    def __str__(self) -> str:
        return f"obstore, parts of {self.part_bytes >> 20} MiB, {self.concurrency} at once"

    def up(self, arrays: Sequence[Array]) -> None:
        import obstore

        store = self._store()
        with self._named(), ThreadPoolExecutor(2) as pool:
            put = partial(
                obstore.put, store, use_multipart=True, chunk_size=self.part_bytes,
                max_concurrency=self.concurrency,
            )  # fmt: skip
            list(pool.map(put, map(str, range(len(arrays))), (array.data for array in arrays)))

    def down(self, arrays: Sequence[Array]) -> None:
        import obstore

        store = self._store()
        spans = [
            (str(number), start)
            for number, array in enumerate(arrays)
            for start in range(0, array.nbytes, RANGE_BYTES)
        ]
        with self._named(), ThreadPoolExecutor(self.concurrency) as pool:
            get = partial(obstore.get_range, store, length=RANGE_BYTES)
            list(pool.map(lambda span: get(span[0], start=span[1]), spans))

    def bound(self, arrays: Sequence[Array]) -> None:
        self.up(arrays)
        self.down(arrays)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Raises Unavailable that says who failed."""
        from obstore import exceptions

        try:
            yield
        except (exceptions.BaseError, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise Unavailable(f"the plain client ({self}) at {self.url}: {reason}") from error

    def _store(self) -> object:
        import obstore.store

        options = {"allow_http": True, "timeout": "300s"}
        return obstore.store.from_url(f"{self.url}/plain", client_options=options)


def _plain(url: str) -> Sequence[PlainFiles | PlainObstore]:
    if url.startswith("file://"):
        folder = Path(url.removeprefix("file://")) / "plain"
        return [PlainFiles(folder, threads) for threads in THREADS]
    if url.startswith(("s3://", "obstore+s3://")):
        return [PlainObstore(url.removeprefix("obstore+"), *shape) for shape in PUTS]
    raise Refused(f"no plain client is known for {url}", hint="file:///DIR or s3://BUCKET/PREFIX")


# ------------------------------------------------------------------------ small things


def random_state(byte_count: int) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    count = max(1, byte_count // ARRAY_BYTES)
    return {f"w{n}": rng.integers(0, 255, ARRAY_BYTES, "u1") for n in range(count)}


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def forget_pages(url: str) -> None:
    """No file below a directory's URL is in the page cache any more."""
    if not url.startswith("file://"):
        return
    for folder, _, names in os.walk(url.removeprefix("file://")):
        for name in names:
            with _opened(Path(folder, name), os.O_RDONLY) as file:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def _same(array: Array) -> Array:
    return array


def _timed(do: Callable[[], None]) -> float:
    os.sync()
    begun_s = time.monotonic()
    do()
    return time.monotonic() - begun_s


def _cpu(do: Callable[[], None]) -> float:
    begun_s = time.process_time()
    do()
    return time.process_time() - begun_s
