"""Where engines without a cluster of their own save to: a fresh directory, or a name in a store."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from ckpt.base.errors import Refused
from ckptbench.engines.base import rank_environment
from ckptbench.engines.objects import remove_all
from ckptbench.job.options import JobOptions


class DirectoryStorage:
    """A fresh directory below `directory=`, removed at the end."""

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        self._directory: Path | None = None

    def durability(self, options: JobOptions) -> str:
        return file_durability(options)

    @property
    def url(self) -> str:
        return str(self.log_directory / "data")

    @property
    def environment(self) -> dict[str, str]:
        return rank_environment()

    @property
    def log_directory(self) -> Path:
        assert self._directory is not None, "entered"
        return self._directory

    def stages(self) -> dict[str, list[int]]:
        return {}

    def files(self) -> list[Path]:
        return [one for one in Path(self.url).rglob("*") if one.is_file()]

    def forget_readers(self) -> None:
        """Ranks hold nothing for one another here."""

    def __enter__(self) -> Self:
        self._directory = make_directory(self._options)
        Path(self.url).mkdir()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


class ObjectStorage(DirectoryStorage):
    """Below `url=`, under a name of its own; what is written there is removed at the end."""

    def __init__(self, options: JobOptions) -> None:
        super().__init__(options)
        if not options.url:
            raise Refused(
                f"ioengine={options.ioengine} needs url=", hint="like url=s3://bucket/prefix"
            )
        self._url = f"{options.url.rstrip('/')}/ckptbench-{secrets.token_hex(4)}"

    def durability(self, options: JobOptions) -> str:
        return "what the store promises for an object that it has accepted"

    @property
    def url(self) -> str:
        return self._url

    def files(self) -> list[Path]:
        return []

    def __enter__(self) -> Self:
        self._directory = make_directory(self._options)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            remove_all(self._options.ioengine, self._url)
        finally:
            super().__exit__(kind, error, trace)


def make_directory(options: JobOptions) -> Path:
    """A temporary one on the device to measure. Raises Refused."""
    try:
        return Path(tempfile.mkdtemp(prefix="ckptbench-", dir=options.directory or None))
    except OSError as error:
        raise Refused(f"directory={options.directory}: {error.strerror}") from None


def file_durability(options: JobOptions) -> str:
    """What a file is worth when it is written as the options say."""
    if options.end_fsync:
        return "fsynced, one copy on one device"
    return "handed to the device, not fsynced" if options.direct else "page cache only"
