"""Logs of a local cluster, of which none grows for as long as its daemon lives, which is months.

Who writes has its log open, to append. So what is in one that has grown too large is copied to
NAME.old.log, in the place of the copy before, and the log is emptied where it is: the next line
lands at its begin. A line that comes between these two is lost.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ckptd.log import Reporter

LOG_BYTES_MAX: Final = 16 << 20
"""A log that has grown above it is put aside."""
LOOK_S: Final = 60.0
OLD: Final = ".old.log"


class Logs:
    """I look after folders of logs, whoever writes there."""

    def __init__(self, report: Reporter) -> None:
        self._report = report
        self._look_at_s = 0.0

    def look(self, folders: Iterable[Path]) -> None:
        """Put aside what has grown too large, once in LOOK_S. Where that fails it is reported."""
        now_s = time.monotonic()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_S
        for log in sorted(log for folder in set(folders) for log in folder.glob("*.log")):
            try:
                if not log.name.endswith(OLD) and log.stat().st_size > LOG_BYTES_MAX:
                    _put_aside(log)
            except OSError as error:
                fields = {"log": str(log), "error": str(error)}
                self._report("warning", "a log cannot be put aside", fields)


def _put_aside(log: Path) -> None:
    old = log.with_name(log.name.removesuffix(".log") + OLD)
    old.unlink(missing_ok=True)  # Where a disk is nearly full there is room for one.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with log.open("rb") as full, os.fdopen(os.open(old, flags, 0o600), "wb") as aside:
        shutil.copyfileobj(full, aside, 1 << 20)
    os.truncate(log, 0)
