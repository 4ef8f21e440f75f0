"""What scripts that run ckpt beside other tools share: our cluster, packages, caches, words.

Exit codes of these scripts: 0 done, 1 a process failed or bytes differ, 2 a wrong option, 69 a
package is missing or cannot be loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import ckpt

CODE = "targets=6&code=4+2&pretend_domains=1&keep=2"
EXIT_MISSING = 69
"""EX_UNAVAILABLE of sysexits.h."""
QUIET_S = 2.0
DROPPED_FILE = Path("/proc/sys/vm/drop_caches")


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """The URL of our store in the directory: 4+2 on 6 targets of one device, stopped at the end."""
    url = f"ckpt+local://{directory}"
    ckpt.open(f"{url}?{CODE}").close()
    try:
        yield url
    finally:
        command = str(Path(sys.executable).with_name("ckpt"))
        subprocess.run([command, "local", "stop", str(directory)], check=True, stdout=sys.stderr)


def drop_caches() -> bool:
    """Write back, and let go of files' pages; False where that is not allowed: loads are warm."""
    os.sync()
    try:
        DROPPED_FILE.write_text("1")
    except OSError:  # Not root, or a container whose /proc/sys is read-only.
        return False
    return True


def missing(packages: Mapping[str, str]) -> str:
    """What to tell of modules that cannot be imported, "" for none.

    packages: module -> the name that pip knows its package by.
    """
    lines: list[str] = []
    wanted: list[str] = []
    for module, package in packages.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            wanted.append(package)
            lines.append(f"error: package {package} cannot be used: {error}")
    if wanted:
        lines.append(f"hint: {sys.executable} -m pip install {' '.join(wanted)}")
    return "\n".join(lines)


def middle(values: Sequence[float]) -> str:
    """`median [lowest - highest]`."""
    return f"{statistics.median(values):.3f} [{min(values):.3f} - {max(values):.3f}]"


class PeerProgress:
    """Says on stderr what is being done, at most every two seconds; a short run says nothing."""

    def __init__(self) -> None:
        self._said_s = time.monotonic()

    def note(self, text: str) -> None:
        """What begins now."""
        now = time.monotonic()
        if now - self._said_s >= QUIET_S:
            self._said_s = now
            print(text, file=sys.stderr, flush=True)
