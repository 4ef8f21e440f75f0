"""What a process has open of one filesystem: its connections, made once, whoever needs them first.

A forked child makes its own: threads and sessions are its parent's.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from ckpt_client.connection import Connection
from ckpt_client.environment import find_launch_key
from ckpt_client.fs.publishing import Publisher
from ckpt_client.fs.steps import Steps

if TYPE_CHECKING:
    from ckpt_client.fs.files import WriteFile
    from ckpt_client.url import LocalUrl, RemoteUrl

START_TIMEOUT_S: Final = 60.0


class Live:
    """I am thread safe. Close me."""

    def __init__(self, url: LocalUrl | RemoteUrl) -> None:
        self.connection = Connection(url, find_launch_key(), START_TIMEOUT_S)
        self.steps = Steps(self.connection)
        self.publisher = Publisher(self.connection)
        self.writing: WeakValueDictionary[str, WriteFile] = WeakValueDictionary()
        """Files that are being written, by path; a file that nobody refers to goes, with its
        memory.
        """

    def close(self) -> None:
        """What is not committed is given up."""
        self.publisher.close()
        self.steps.close()
        self.connection.close()


class LiveHolder:
    """I make one Live for all threads of a process, so that one thread can commit what another
    wrote.
    """

    def __init__(self, url: LocalUrl | RemoteUrl) -> None:
        self._url = url
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._live: Live | None = None

    def get(self) -> Live:
        """Made when it is first needed, and again after `close`."""
        self._check_process()
        with self._lock:
            if self._live is None:
                self._live = Live(self._url)
            return self._live

    def close(self) -> None:
        """Idempotent."""
        self._check_process()
        with self._lock:
            live, self._live = self._live, None
        if live is not None:
            live.close()

    def _check_process(self) -> None:
        """In a forked child a thread that is not there may hold the lock."""
        if self._pid != os.getpid():
            self._begin()
