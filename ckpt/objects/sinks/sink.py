"""What an object store can do for us: a few words that every store has.

Keys are relative to the sink's URL. Contents are visible whole or not at all. Methods block, may be
called from several threads, and retry by themselves what a store refuses for a moment; they raise
NotFound, Unauthorized, Refused, or Unavailable when the deadline has passed. After Unavailable the
effect may have happened: look before you decide (`create_once`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from ckpt.base.errors import NotFound, Unavailable
from ckpt.base.extras import install_command
from ckpt.base.units import MiB
from ckpt.format.checksum import Buffer, crc32


class Upload(Protocol):
    """One object in parts. Left without `complete`, by whatever way, it never was: nothing of it
    stays in the store."""

    def part(self, data: Buffer) -> None:
        """Append bytes; the memory may be reused on return."""

    def complete(self) -> None:
        """All parts become the object, in place of an older one."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Abort what was not completed."""


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """An upload that somebody began and neither completed nor aborted."""

    key: str
    upload: str
    """The store's own name for it."""
    begun_s: float
    """Unix time."""


def at_once() -> None:
    """Nothing is waited for."""


class Sink(Protocol):
    """A place in an object store."""

    @property
    def url(self) -> str:
        """The URL that was asked for, without credentials."""

    @property
    def conditional(self) -> bool:
        """`put_if_absent` is one atomic step here; probed once. Without it, two writers of one
        checkpoint must be kept apart by other means."""

    def put(self, key: str, data: Buffer) -> None:
        """Store an object, in place of an older one."""

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Store an object unless there is one; False when there is."""

    def settle(self, key: str) -> None:
        """What is seen under this key stays from now on, whoever has put it there: a writer that
        died may have shown it before it was durable."""

    def upload(self, key: str) -> Upload:
        """Store an object in parts; use it in a `with`."""

    def get(self, key: str) -> bytes:
        """Read a whole object."""

    def get_range(self, key: str, start: int, end: int) -> Buffer:
        """Bytes [start, end) of an object; fewer when it ends before."""

    def checksum(self, key: str, wait_turn: Callable[[], None] = at_once) -> tuple[int, int]:
        """Length and CRC-32 of what the store gives back now, in a few MiB of memory; `wait_turn`
        is called before each piece. Raises NotFound."""

    def head(self, key: str) -> int | None:
        """An object's length, None when there is none."""

    def list(self, prefix: str) -> Iterator[str]:
        """Keys that begin with the prefix, ascending."""

    def children(self, prefix: str) -> Sequence[str]:
        """Names of objects and folders directly below a prefix that ends in `/` or is empty,
        ascending; folders end in `/`."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there are no error."""

    def pending_uploads(self, prefix: str) -> Sequence[PendingUpload]:
        """What was begun under the prefix and never ended; empty where a store has no such
        thing."""

    def abort_upload(self, upload: PendingUpload) -> None:
        """End one; idempotent."""

    def close(self) -> None:
        """Let connections go. Idempotent."""


NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound")
"""As S3 and Google call it, and Azure."""
EXTRAS: Final = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}
"""Schemes that the extra of another scheme serves."""
CREATE_COUNT_MAX: Final = 8
PIECE_BYTES: Final = 8 * MiB
"""Bytes that are read back at once; a library holds them twice for a moment."""


def no_bucket(where: str) -> NotFound:
    """What a store says that has not even the place."""
    return NotFound(f"{where}: there is no such bucket", hint="create it, or see the store's URL")


@contextmanager
def putting(where: str) -> Iterator[None]:
    """Around a put to a store without folders: nothing but the bucket can be missing, also where
    a library or a store does not name what is."""
    try:
        yield
    except NotFound:
        raise no_bucket(where) from None


def install_hint(scheme: str) -> str:
    """How the library of an object store's URL is had."""
    return install_command(EXTRAS.get(scheme, scheme))


def checksum_by_ranges(sink: Sink, key: str, wait_turn: Callable[[], None]) -> tuple[int, int]:
    """`Sink.checksum` by `get_range`."""
    size = sink.head(key)
    if size is None:
        raise NotFound(f"{sink.url}/{key} is not there")
    length = crc = 0
    while length < size:
        wait_turn()
        piece = sink.get_range(key, length, min(size, length + PIECE_BYTES))
        if not len(piece):
            break
        crc, length = crc32(piece, crc), length + len(piece)
    return length, crc


def create_once(sink: Sink, key: str, data: Buffer) -> bytes | None:
    """Create the object once and for all: None when it now holds our bytes, else what it holds.

    An answer that was lost is not guessed about: the object is read and compared. A store may
    refuse because another creation is under way that then fails: when nothing is there, it is
    tried again.
    """
    for _ in range(CREATE_COUNT_MAX):
        try:
            if sink.put_if_absent(key, data):
                return None
        except Unavailable:
            if sink.head(key) is None:
                raise
        try:
            found = sink.get(key)
        except NotFound:
            continue
        if found != bytes(data):
            return found
        sink.settle(key)
        return None
    raise Unavailable(f"{sink.url}/{key} cannot be created, and is not there")
