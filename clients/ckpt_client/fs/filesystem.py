"""The fsspec filesystems: `ckpt://HOST:PORT/RUN/STEP/FILE` and `ckpt+local:///DIR/RUN/STEP/FILE`.

step_files.py   what both have: files of steps, read and written
paths.py        what a URL means
steps.py        what is committed, and reading it
publishing.py   when what was written is committed
transaction.py  `with fs.transaction:`
together.py     calls that write many files
sealing.py      a folder that many processes write and one commits
files.py        open files
layers.py       text and compressors above a file that is written
live.py         what a process has open
base.py         names, and the connections of a filesystem
"""

from __future__ import annotations

import os

from ckpt_client.fs import paths
from ckpt_client.fs.live import LiveHolder
from ckpt_client.fs.step_files import CkptFileSystemBase
from ckpt_client.url import LocalOptions, LocalUrl, RemoteUrl, parse_url


class CkptFileSystem(CkptFileSystemBase):
    """`ckpt://HOST:PORT/RUN/STEP/FILE`; the secret is found as by `ckpt.open`."""

    protocol = paths.REMOTE
    _scheme = paths.REMOTE

    def __init__(self, host: str, **options: object) -> None:
        """host: `HOST:PORT` of the coordinator, or of each, with commas between them."""
        super().__init__(host=host, **options)
        url = parse_url(f"ckpt://{host}")
        assert isinstance(url, RemoteUrl)
        self._holder = LiveHolder(url)
        self._host = host

    @classmethod
    def _split(cls, url: str) -> tuple[str, str]:
        return paths.split_remote(url)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"host": paths.split_remote(path)[0]} if paths.is_url(paths.REMOTE, path) else {}

    def unstrip_protocol(self, name: str) -> str:
        return f"ckpt://{self._host}/{self._strip_protocol(name)}"


class CkptLocalFileSystem(CkptFileSystemBase):
    """`ckpt+local:///DIR/RUN/STEP/FILE`, of a cluster that `ckptd local DIR` has made."""

    protocol = paths.LOCAL
    _scheme = paths.LOCAL

    def __init__(self, directory: str, **options: object) -> None:
        """directory: where the cluster's `cluster.toml` is; absolute."""
        super().__init__(directory=directory, **options)
        self._directory = os.path.normpath(directory)
        self._holder = LiveHolder(LocalUrl(self._directory, LocalOptions()))

    @classmethod
    def _split(cls, url: str) -> tuple[str, str]:
        return paths.split_local(url)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"directory": paths.split_local(path)[0]} if paths.is_url(paths.LOCAL, path) else {}

    def unstrip_protocol(self, name: str) -> str:
        return f"ckpt+local://{self._directory}/{self._strip_protocol(name)}"
