"""Small files and names that are there after a power loss."""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(directory: Path | str) -> None:
    """What was made, renamed or linked in it stays so."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_aside(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file atomically and durably: aside, sync, rename, sync the directory.

    Raises OSError; then the file is as it was, and nothing is left aside.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
