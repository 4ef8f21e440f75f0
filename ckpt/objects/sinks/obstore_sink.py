"""S3, GCS and Azure through obstore: a third of fsspec's CPU time for each byte.

An object is gathered and put in one request: nothing can be left over by a process that is
killed, and a worker holds one object (a shard) in memory for each upload.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from ckpt.base.errors import CkptError, NotFound, Refused, Unauthorized, Unavailable
from ckpt.base.units import MiB
from ckpt.format.checksum import Buffer, crc32
from ckpt.objects.sinks.gathering import GatheredUpload, Gatherings
from ckpt.objects.sinks.probe import probe_conditional
from ckpt.objects.sinks.retry import Patience, retried
from ckpt.objects.sinks.sink import (
    NO_BUCKET,
    PendingUpload,
    Upload,
    at_once,
    install_hint,
    no_bucket,
    putting,
)

CONNECT_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 120.0
"""Patience with a whole request, including a shard's body."""
SPAN_BYTES: Final = 64 * MiB
"""Most bytes that one request reads back."""
_STATUS: Final = re.compile(r"status code: (\d{3})")
"""obstore's errors of a listing have no kind; their text contains the answer's status."""
_ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Variables that obstore reads."""
Value = TypeVar("Value")


class ObstoreSink:
    """A Sink on one of obstore's stores; `url` is `s3://BUCKET/PREFIX`, `gs://`, `az://`."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, object] | None = None,
        patience: Patience | None = None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """Raises Refused for an unknown scheme or when obstore is not installed.

        options: obstore's configuration of that store, such as `endpoint` and `region`.
        timeout_s: of one request.
        """
        try:
            from obstore.store import from_url
        except ImportError:
            raise Refused(
                f"store obstore+{url} needs the package obstore, which is not installed",
                hint=install_hint(url.partition("://")[0]),
            ) from None
        given = dict(options or {})
        client: dict[str, object] = {
            "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
            "timeout": timedelta(seconds=timeout_s),
            "allow_http": _endpoint(url.partition("://")[0], given).startswith("http://"),
        }
        try:
            self._store = from_url(
                url,
                config=given or None,
                client_options=client,
                # One voice decides how long to try: ours.
                retry_config={"max_retries": 0, "retry_timeout": timedelta(0)},
            )
        except Exception as error:  # obstore's own errors of many kinds
            raise Refused(f"store obstore+{url}: {error}") from None
        self.url = f"obstore+{url.rstrip('/')}"
        self._patience = patience or Patience()
        self._conditional: bool | None = None
        self._gatherings = Gatherings()

    @property
    def conditional(self) -> bool:
        if self._conditional is None:
            self._conditional = probe_conditional(self)
        return self._conditional

    def put(self, key: str, data: Buffer) -> None:
        self._put(key, data, "overwrite")

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        try:
            self._put(key, data, "create")
        except _Exists:
            return False
        return True

    def settle(self, key: str) -> None:
        """A store shows nothing that it could lose."""

    def upload(self, key: str) -> Upload:
        return GatheredUpload(partial(self._put_pieces, key), self._gatherings)

    def get(self, key: str) -> bytes:
        import obstore

        return self._retried(key, lambda: bytes(obstore.get(self._store, key).bytes()))

    def get_range(self, key: str, start: int, end: int) -> Buffer:
        import obstore

        if start >= end:
            return b""
        get = partial(obstore.get_range, self._store, key, start=start, end=end)
        return memoryview(self._retried(key, get))

    def checksum(self, key: str, wait_turn: Callable[[], None] = at_once) -> tuple[int, int]:
        # Streamed: half the requests' cost of a store, and no piece is gathered first.
        size = self.head(key)
        if size is None:
            raise NotFound(f"{self.url}/{key} is not there")
        seen = _Seen()
        for start in range(0, size, SPAN_BYTES):
            end = min(size, start + SPAN_BYTES)
            self._retried(key, partial(self._add_span, key, seen, end, wait_turn))
            if seen.length < end:
                break  # It is shorter by now.
        return seen.length, seen.crc

    def head(self, key: str) -> int | None:
        import obstore

        try:
            return self._retried(key, lambda: int(obstore.head(self._store, key)["size"]))
        except NotFound:
            return None

    def list(self, prefix: str) -> Iterator[str]:
        import obstore

        # obstore lists whole folders only.
        folder = prefix.rpartition("/")[0]
        pages = self._retried(prefix, lambda: [*obstore.list(self._store, folder or None)])
        keys = sorted(str(entry["path"]) for page in pages for entry in page)
        yield from (key for key in keys if key.startswith(prefix))

    def children(self, prefix: str) -> Sequence[str]:
        import obstore

        folder = prefix.rstrip("/")
        found = self._retried(
            prefix, lambda: obstore.list_with_delimiter(self._store, folder or None)
        )
        folders = [f"{path.rstrip('/').rpartition('/')[2]}/" for path in found["common_prefixes"]]
        objects = [str(entry["path"]).rpartition("/")[2] for entry in found["objects"]]
        return sorted((*folders, *objects))

    def delete(self, keys: Sequence[str]) -> None:
        import obstore

        for key in keys:
            with suppress(NotFound):
                self._retried(key, partial(obstore.delete, self._store, key))

    def pending_uploads(self, prefix: str) -> Sequence[PendingUpload]:
        """None of ours: objects are put at once. Others' are `FsspecSink`'s to find."""
        return []

    def abort_upload(self, upload: PendingUpload) -> None:
        raise Refused(f"{self.url} names no uploads", hint="use the s3:// URL")

    def close(self) -> None:
        """Connections end with the store."""

    def _add_span(self, key: str, seen: _Seen, end: int, wait_turn: Callable[[], None]) -> None:
        """What is there from where `seen` stands; tried again, it goes on."""
        import obstore

        if seen.length == end:
            return
        span = {"range": (seen.length, end)}
        wait_turn()
        for piece in obstore.get(self._store, key, options=span).stream(min_chunk_size=MiB):
            seen.add(memoryview(piece))
            wait_turn()

    def _put_pieces(self, key: str, pieces: Sequence[memoryview]) -> None:
        """One request with all of them, sent from where they lie."""
        self._put(key, pieces or b"", "overwrite")

    def _put(self, key: str, content: Buffer | Sequence[memoryview], mode: str) -> None:
        import obstore

        put = partial(obstore.put, self._store, key, content, mode=mode, use_multipart=False)
        with putting(f"{self.url}/{key}"):
            self._retried(key, put)

    def _retried(self, what: str, once: Callable[[], Value]) -> Value:
        where = f"{self.url}/{what}"
        return retried(f"asking {self.url}", lambda: _told(where, once), self._patience)


def _endpoint(scheme: str, options: Mapping[str, object]) -> str:
    """Where a store is said to be: who writes http:// means it."""
    names = _ENDPOINTS.get(scheme, ())
    given = (options.get("endpoint"), options.get("base_url"))
    return str(next(filter(None, (*given, *map(os.environ.get, names))), ""))


@dataclass(slots=True)
class _Seen:
    """How much of an object was read, and its CRC-32."""

    length: int = 0
    crc: int = 0

    def add(self, piece: memoryview) -> None:
        self.crc, self.length = crc32(piece, self.crc), self.length + len(piece)


class _Exists(CkptError):
    """A conditional put met an object. Never leaves this module."""


def _told(what: str, once: Callable[[], Value]) -> Value:
    """Its value, with obstore's errors in our words: what may pass is Unavailable."""
    from obstore import exceptions

    try:
        return once()
    except (FileNotFoundError, exceptions.NotFoundError) as error:
        if _tells_no_bucket(error):
            raise no_bucket(what) from None
        raise NotFound(f"there is no object {what}") from None
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise _Exists(f"{what} exists") from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise _unauthorized(what, error) from None
    except (exceptions.NotSupportedError, exceptions.UnknownConfigurationKeyError) as error:
        raise Refused(f"{what}: the store cannot do this: {error}") from None
    except (exceptions.BaseError, OSError) as error:
        status = _STATUS.search(str(error))
        if status and status[1] in ("401", "403"):
            raise _unauthorized(what, error) from None
        if _tells_no_bucket(error):
            raise no_bucket(what) from None
        raise Unavailable(f"{what}: {_brief(error)}") from error


def _tells_no_bucket(error: BaseException) -> bool:
    return any(code in str(error) for code in NO_BUCKET)


def _unauthorized(what: str, error: BaseException) -> Unauthorized:
    return Unauthorized(f"{what}: {_brief(error)}", hint="see the store's credentials")


def _brief(error: BaseException) -> str:
    """Without the library's own innards, which it appends."""
    return str(error).partition("\n\nDebug source")[0].strip()
