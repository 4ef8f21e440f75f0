"""A directory as an object store: whole files or none, durable before they are visible.

    KEY.part-XXXX   being written: synced, then renamed (put) or linked (put_if_absent) to KEY
    HEAD=+/REST     a segment HEADREST of a key, longer than file systems take: a run of 90 letters
                    that are no ASCII is one. No key has `=+` of its own

A link fails where the name exists, which makes creation atomic on every file system that has
links; NFS too. Objects go around the page cache (direct_file.py), documents do not.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

from ckpt.aio.durable import make_directories, sync_names
from ckpt.base.errors import NotFound, Refused, Unauthorized, Unavailable
from ckpt.base.system_errors import system_error
from ckpt.format.checksum import Buffer
from ckpt.objects.sinks.direct_file import Blocks, DirectWriter, checksum, read_range
from ckpt.objects.sinks.sink import PendingUpload, Upload, at_once

PART: Final = ".part-"
NAME_BYTES_MAX: Final = 255
"""Of a file or directory, on nearly all file systems."""
CUT: Final = "=+"
"""At the end of a directory's name: the segment goes on below it."""
FOLDER_TRIES: Final = 64
"""Tries to make a folder that others remove."""
_LINKLESS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
"""What a file system without hard links says; vfat and many that lie in user space have none."""
_ROOMLESS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
Value = TypeVar("Value")


class FileSink:
    """A Sink on a local or shared file system; `url` is file:///DIR."""

    conditional: Final = True

    def __init__(self, directory: Path) -> None:
        self._root = directory
        self._blocks = Blocks()
        self.url = f"file://{directory}"

    def put(self, key: str, data: Buffer) -> None:
        with self.upload(key) as upload:
            upload.part(data)
            upload.complete()

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        with _FileUpload(self._path(key), self._blocks) as upload:
            upload.part(data)
            return upload.link()

    def settle(self, key: str) -> None:
        for folder in self._path(key).parents:
            _told(str(folder), partial(sync_names, folder))
            if folder == self._root:
                break

    def upload(self, key: str) -> Upload:
        return _FileUpload(self._path(key), self._blocks)

    def get(self, key: str) -> bytes:
        return _told(key, self._path(key).read_bytes)

    def get_range(self, key: str, start: int, end: int) -> Buffer:
        return _told(key, lambda: read_range(self._path(key), start, end))

    def checksum(self, key: str, wait_turn: Callable[[], None] = at_once) -> tuple[int, int]:
        return _told(key, lambda: checksum(self._path(key), self._blocks, wait_turn))

    def head(self, key: str) -> int | None:
        try:
            return _told(key, lambda: self._path(key).stat().st_size)
        except NotFound:
            return None

    def list(self, prefix: str) -> Iterator[str]:
        yield from (key for key in self._files(prefix) if PART not in key)

    def children(self, prefix: str) -> Sequence[str]:
        folder = self._path(prefix)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise Unavailable(f"{folder} cannot be listed: {error.strerror}") from None
        found: list[str] = []
        for entry in entries:
            if entry.name.endswith(CUT):
                head = entry.name.removesuffix(CUT)
                rests = self.children(f"{prefix.rstrip('/')}/{entry.name}/".lstrip("/"))
                found += [head + rest for rest in rests]
            elif PART not in entry.name:
                found.append(f"{entry.name}/" if entry.is_dir() else entry.name)
        return found

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            path = self._path(key)
            with suppress(NotFound):
                _told(key, path.unlink)
            for folder in path.parents:  # An empty folder is nothing that a store would have.
                if folder == self._root:
                    break
                with suppress(OSError):
                    folder.rmdir()

    def pending_uploads(self, prefix: str) -> Sequence[PendingUpload]:
        found = []
        for name in self._files(prefix):
            key, part, _ = name.rpartition(PART)
            if part:
                with suppress(FileNotFoundError):  # It was completed meanwhile.
                    begun_s = self._path(name).stat().st_mtime
                    found.append(PendingUpload(key, name, begun_s))
        return found

    def abort_upload(self, upload: PendingUpload) -> None:
        self.delete([upload.upload])

    def close(self) -> None:
        """Nothing is held open."""

    def _files(self, prefix: str) -> Iterator[str]:
        """Ascending. What another worker removes meanwhile may be left out."""
        top = self._path(prefix.rpartition("/")[0])
        keys = (
            Path(folder, name).relative_to(self._root).as_posix().replace(f"{CUT}/", "")
            for folder, _, files in os.walk(top, onerror=_raise_unless_gone)
            for name in files
        )
        yield from sorted(key for key in keys if key.startswith(prefix))

    def _path(self, key: str) -> Path:
        if any(part in (".", "..") for part in key.split("/")) or key.startswith("/"):
            raise Refused(f"key {key!r} leaves the store")
        return self._root / "/".join(map(_cut, key.split("/")))


def _cut(segment: str) -> str:
    """A key's segment as the path that a file system takes. Keys are ASCII."""
    size = NAME_BYTES_MAX - len(CUT)
    if len(segment) <= NAME_BYTES_MAX:
        return segment
    heads = [segment[at : at + size] + CUT for at in range(0, len(segment) - size, size)]
    return "/".join([*heads, segment[len(heads) * size :]])


class _FileUpload:
    """I write a file aside and give it its name at the end."""

    def __init__(self, path: Path, blocks: Blocks) -> None:
        self._path = path
        self._blocks = blocks
        self._aside = path.with_name(f"{path.name}{PART}{secrets.token_hex(4)}")
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._descriptor = _told(str(self._path), self._begun)
        try:
            self._writer = _told(
                str(self._path), lambda: DirectWriter(self._descriptor, self._blocks)
            )
        except BaseException:
            os.close(self._descriptor)
            self._aside.unlink(missing_ok=True)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        os.close(self._descriptor)
        self._aside.unlink(missing_ok=True)

    def _begun(self) -> int:
        """A new file; what its folder lacks is made, and again when another worker, who deletes,
        has just found it empty.
        """
        folder, flags = self._path.parent, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for left in reversed(range(FOLDER_TRIES)):
            try:
                make_directories(folder)
                return os.open(self._aside, flags, 0o644)
            except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
                if not left:
                    what = f"the folder {folder} cannot be made"
                    if isinstance(error, FileNotFoundError):
                        raise NotFound(f"{what}: {error.strerror}") from None
                    raise system_error(what, error) from None
        raise AssertionError("the last try returns or raises")

    def part(self, data: Buffer) -> None:
        _told(str(self._path), partial(self._writer.write, data))

    def complete(self) -> None:
        def finish() -> None:
            self._writer.finish()
            os.fsync(self._descriptor)
            self._aside.rename(self._path)
            sync_names(self._path.parent)

        _told(str(self._path), finish)

    def link(self) -> bool:
        """Take the name unless somebody has it."""

        def finish() -> bool:
            self._writer.finish()
            os.fsync(self._descriptor)
            try:
                self._path.hardlink_to(self._aside)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _LINKLESS:
                    raise
                raise Refused(
                    f"{self._path.parent}: its file system makes no links, without which two "
                    "writers of one checkpoint cannot be kept apart",
                    hint="name the bucket by its own URL, or a directory of another file system",
                ) from None
            sync_names(self._path.parent)
            return True

        return _told(str(self._path), finish)


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        where = error.filename
        raise Unavailable(f"{where} cannot be listed: {error.strerror}") from None


def _told(what: str, once: Callable[[], Value]) -> Value:
    """Its value, with errors in our words. Nothing is tried again: a disk does not change its
    mind."""
    try:
        return once()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise NotFound(f"there is no object {what}") from None
    except PermissionError:
        raise Unauthorized(f"{what}: this user may not", hint="see its owner and mode") from None
    except OSError as error:
        if error.errno in _ROOMLESS:
            raise system_error(what, error) from None
        raise Unavailable(f"{what}: {error.strerror}", hint="see the file system") from None
