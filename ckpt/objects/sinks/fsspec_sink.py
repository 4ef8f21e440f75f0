"""Any store that fsspec knows (s3, gs, az, memory, ...) as a Sink.

An object that is uploaded in parts is a real multipart upload on s3, with a checksum of each part;
elsewhere parts are gathered and put at once (memory: one object). s3fs's own multipart is not used:
cancelled, its parts stay in the store.

Warning: `request_checksum_calculation=when_required` keeps botocore from adding a trailer of its
own, which some stores keep inside the object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from ckpt.base.errors import CkptError, NotFound, Refused, Unauthorized, Unavailable
from ckpt.format.checksum import Buffer
from ckpt.objects.sinks.gathering import GatheredUpload, Gatherings
from ckpt.objects.sinks.probe import probe_conditional
from ckpt.objects.sinks.retry import Patience, retried
from ckpt.objects.sinks.s3_upload import Checksum, S3Upload, abort_upload, pending_uploads
from ckpt.objects.sinks.sink import (
    NO_BUCKET,
    PendingUpload,
    Upload,
    at_once,
    checksum_by_ranges,
    install_hint,
    no_bucket,
    putting,
)

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 30.0
"""Patience without a byte."""
REQUEST_TIMEOUT_S: Final = 120.0
"""Of a whole request, its body included: gcsfs has no other, and waits for ever without."""
_S3: Final = ("s3", "s3a")
_GCS: Final = ("gs", "gcs")
_AZURE: Final = ("az", "abfs", "abfss")
Value = TypeVar("Value")


class FsspecSink:
    """A Sink on an fsspec file system, below a folder of it."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, object] | None = None,
        patience: Patience | None = None,
        checksum: Checksum = Checksum.CRC32,
    ) -> None:
        """Raises Refused for an unknown scheme or a package that is not installed.

        checksum: sent to an S3 store with each body; others get none.
        """
        import fsspec

        scheme = url.partition("://")[0]
        given = _with_defaults(scheme, options or {})
        try:
            # use_listings_cache: another writer's objects must be seen at once.
            self._fs, root = fsspec.url_to_fs(url, use_listings_cache=False, **given)
        except (ImportError, ValueError) as error:
            raise Refused(f"store {url!r}: {error}", hint=_hint(scheme, error)) from None
        _one_voice(self._fs)
        self.url = url.rstrip("/")
        self._root = str(root).rstrip("/")
        self._is_s3 = scheme in _S3
        self._has_folders = scheme not in (*_S3, *_GCS, *_AZURE)
        self._checksum = checksum
        self._patience = patience or Patience()
        self._conditional: bool | None = None
        self._gatherings = Gatherings()

    @property
    def conditional(self) -> bool:
        if self._conditional is None:
            self._conditional = probe_conditional(self)
        return self._conditional

    def put(self, key: str, data: Buffer) -> None:
        if self._is_s3:
            self._put_s3(key, data, {})
        else:
            self._put(key, data)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        try:
            if self._is_s3:
                self._put_s3(key, data, {"IfNoneMatch": "*"})
            else:
                self._put(key, data, mode="create")
        except _Exists:
            return False
        return True

    def settle(self, key: str) -> None:
        """It stays as well as the store keeps it."""

    def upload(self, key: str) -> Upload:
        if self._is_s3:
            return S3Upload(self.call_s3, *self._bucket_key(key), self._checksum)
        return GatheredUpload(lambda pieces: self.put(key, b"".join(pieces)), self._gatherings)

    def get(self, key: str) -> bytes:
        return self._bytes(key, None, None)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        return self._bytes(key, start, end) if start < end else b""

    def checksum(self, key: str, wait_turn: Callable[[], None] = at_once) -> tuple[int, int]:
        return checksum_by_ranges(self, key, wait_turn)

    def head(self, key: str) -> int | None:
        try:
            info = self._retried(key, lambda: self._fs.info(self._path(key)))
        except NotFound:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def list(self, prefix: str) -> Iterator[str]:
        path = self._path(prefix.rpartition("/")[0])
        try:
            found: Sequence[str] = self._retried(prefix, partial(self._fs.find, path))
        except NotFound:
            return
        yield from (key for key in sorted(map(self._key, found)) if key.startswith(prefix))

    def children(self, prefix: str) -> Sequence[str]:
        path = self._path(prefix.rstrip("/"))
        try:
            entries: Sequence[Mapping[str, str]] = self._retried(
                prefix, partial(self._fs.ls, path, detail=True)
            )
        except NotFound:
            return []
        return sorted(
            f"{_last(entry['name'])}/" if entry["type"] == "directory" else _last(entry["name"])
            for entry in entries
            if entry["name"].strip("/") != path.strip("/")
        )

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            with suppress(NotFound):
                self._retried(key, partial(self._fs.rm_file, self._path(key)))

    def pending_uploads(self, prefix: str) -> Sequence[PendingUpload]:
        if not self._is_s3:
            return []
        bucket, full = self._bucket_key(prefix)
        cut = len(full) - len(prefix)
        found = pending_uploads(self.call_s3, bucket, full)
        return [PendingUpload(key[cut:], upload, begun_s) for key, upload, begun_s in found]

    def abort_upload(self, upload: PendingUpload) -> None:
        abort_upload(self.call_s3, *self._bucket_key(upload.key), upload.upload)

    def close(self) -> None:
        """fsspec shares its sessions; they end with the process."""

    def call_s3(self, method: str, **arguments: object) -> Mapping[str, object]:
        """One request of the S3 API, tried again while the store asks for it."""
        where = f"{self.url}: {method} {arguments.get('Key', '')}".rstrip()
        answer: Mapping[str, object] = self._asked(
            where, lambda: self._fs.call_s3(method, **arguments)
        )
        return answer

    # ----------------------------------------------------------------------- inside

    def _put_s3(self, key: str, data: Buffer, condition: Mapping[str, str]) -> None:
        bucket, full = self._bucket_key(key)
        body = bytes(data)
        self.call_s3(
            "put_object", Bucket=bucket, Key=full, Body=body, **self._checksum.of(body), **condition
        )

    def _put(self, key: str, data: Buffer, **mode: str) -> None:
        put = partial(self._fs.pipe_file, self._path(key), bytes(data), **mode)
        if self._has_folders:
            parent = self._path(key).rpartition("/")[0]
            self._retried(key, lambda: self._fs.makedirs(parent, exist_ok=True))
            self._retried(key, put)
            return
        with putting(f"{self.url}/{key}"):  # gcsfs and adlfs would make a bucket that is missing.
            self._retried(key, put)

    def _bytes(self, key: str, start: int | None, end: int | None) -> bytes:
        path = self._path(key)
        content = self._retried(key, lambda: self._fs.cat_file(path, start=start, end=end))
        return bytes(content)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    def _key(self, path: str) -> str:
        return path.lstrip("/").removeprefix(self._root.lstrip("/")).lstrip("/")

    def _bucket_key(self, key: str) -> tuple[str, str]:
        bucket, _, path = self._path(key).partition("/")
        return bucket, path

    def _retried(self, what: str, once: Callable[[], Value]) -> Value:
        return self._asked(f"{self.url}/{what}", once)

    def _asked(self, where: str, once: Callable[[], Value]) -> Value:
        return retried(f"asking {self.url}", lambda: in_our_words(where, once), self._patience)


class _Exists(CkptError):
    """A conditional put met an object. Never leaves this module."""


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _hint(scheme: str, error: Exception) -> str:
    is_missing = isinstance(error, ImportError) and scheme in (*_S3, *_GCS, *_AZURE)
    return install_hint(scheme) if is_missing else ""


def _one_voice(fs: object) -> None:
    """How long to try is ours to decide. The Azure SDK would try four times in 84 s before it says
    that nobody answers, and adlfs has no option for it."""
    client = getattr(fs, "service_client", None)
    policy = getattr(getattr(client, "_config", None), "retry_policy", None)
    if policy is not None:
        policy.total_retries = 0


def _with_defaults(scheme: str, options: Mapping[str, object]) -> dict[str, object]:
    if scheme in _GCS:
        return {"requests_timeout": REQUEST_TIMEOUT_S, **options}
    if scheme in _AZURE:
        times = {"connection_timeout": CONNECT_TIMEOUT_S, "read_timeout": READ_TIMEOUT_S}
        return {**times, **options}
    if scheme not in _S3:
        return dict(options)
    ours = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": READ_TIMEOUT_S,
        # One voice decides how long to try: ours.
        "retries": {"max_attempts": 0},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    given = options.get("config_kwargs", {})
    assert isinstance(given, Mapping)
    return {**options, "config_kwargs": {**ours, **given}}


def in_our_words(what: str, once: Callable[[], Value]) -> Value:
    """Its value, with a library's error in our words: what may pass is Unavailable."""
    try:
        return once()
    except CkptError:
        raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        if _answer_of(error)[1] in NO_BUCKET:
            raise no_bucket(what) from None
        raise NotFound(f"there is no object {what}") from None
    except FileExistsError:
        raise _Exists(f"{what} exists") from None
    except PermissionError as error:
        raise _unauthorized(what, error) from None
    except (NotImplementedError, TypeError) as error:
        raise Refused(f"{what}: the store cannot do this: {error}") from None
    except Exception as error:  # Each library has its own tree of errors for a bad connection.
        raise _meant(what, error) from error


def _meant(what: str, error: Exception) -> CkptError:
    """What an answer's status and code mean; without them the store was not reached."""
    status, code = _answer_of(error)
    if status in (401, 403):
        return _unauthorized(what, error)
    if code in NO_BUCKET:
        return no_bucket(what)
    if status == 404:
        return NotFound(f"there is no object {what}")
    if status == 412:
        return _Exists(f"{what} exists")
    is_passing = status in _PASSING or code in _ROTTEN
    if (400 <= status < 500 and not is_passing) or type(error).__name__ in _NEVER:
        return Refused(f"{what}: {error}")
    return Unavailable(f"{what}: {type(error).__name__}: {error}")


def _unauthorized(what: str, error: Exception) -> Unauthorized:
    reason = _answer_of(error)[1] or error
    return Unauthorized(f"{what}: {reason}", hint="see the store's credentials")


_GCSFS: Final = {"Forbidden: ": 403, "Bad Request: ": 400}
"""How gcsfs begins what it says of an answer whose status it does not keep."""
_PASSING: Final = (408, 409, 425, 429)
"""Of the 4xx: timeouts, conflicts of two writers, and too many requests."""
_ROTTEN: Final = ("BadDigest", "XAmzContentSHA256Mismatch", "RequestTimeout")
"""400s that say that a body did not arrive as it was sent."""
_NEVER: Final = ("NoCredentialsError", "ParamValidationError", "PartialCredentialsError")


def _answer_of(error: BaseException | None) -> tuple[int, str]:
    """The answer's status and error code where a library kept them, else 0 and nothing."""
    while error is not None:
        match getattr(error, "response", None):
            case {
                "ResponseMetadata": {"HTTPStatusCode": int(status)},
                "Error": {"Code": str(code)},
            }:
                return status, code
        for name in ("status_code", "status", "code"):  # Azure's, aiohttp's, gcsfs's
            match getattr(error, name, None):
                case int(status):
                    code = getattr(error, "error_code", None) or ""
                    return status, str(getattr(code, "value", code))
        for words, status in _GCSFS.items():
            if str(error).startswith(words):
                return status, ""
        error = error.__cause__
    return 0, ""
