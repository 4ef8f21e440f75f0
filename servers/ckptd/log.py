"""What a daemon says of itself: one JSON object per line on stderr, with fixed field names.

ts        seconds since 1970, for people       level   info, warning, error
logger    who speaks                           msg     what happened, a constant text
and the fields of the event: run, step, rank, target, column, dur_s, bytes, …; one that has the
name of one of these four gets an underscore at its end.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping

from ckpt.base.errors import Refused

Fields = Mapping[str, str | int | float]
Reporter = Callable[[str, str, Fields], None]

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class JsonLines(logging.Formatter):
    """A record as one line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        for name, value in getattr(record, "fields", {}).items():
            line[f"{name}_" if name in line else name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str = "info") -> None:
    """Send the whole process's log to stderr as JSON lines. Only a program's main calls this.

    Raises Refused for an unknown level.
    """
    if level not in _LEVELS:
        raise Refused(f"log level {level!r}: {', '.join(_LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])


def reporter(name: str) -> Reporter:
    """How a shell passes its machine's reports on."""
    logger = logging.getLogger(name)

    def report(level: str, text: str, values: Fields) -> None:
        logger.log(_LEVELS.get(level, logging.ERROR), text, extra={"fields": dict(values)})

    return report


def write_ready_line(document: Mapping[str, object]) -> None:
    """The ready line, on standard output. One that has no place there, as in a log on a full disk,
    does not end who serves: it is logged.
    """
    line = json.dumps(document)
    try:
        os.write(sys.stdout.fileno(), line.encode() + b"\n")
    except OSError as error:
        fields = {"error": error.strerror or str(error), "line": line}
        reporter(__name__)("warning", "the ready line is not written", fields)
