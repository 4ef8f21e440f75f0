"""A file system as small as a test wants it: a tmpfs in a user namespace of the test's own. Or
files that are.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.tree import ROOT

_MOUNT: Final = 'mount -t tmpfs -o "size=$1" none "$2" && shift 2 && exec "$@"'
_NAMESPACE: Final = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _MOUNT, "sh")
FILL: Final = '''
def fill(path):
    """Somebody else takes all of the disk, to the last byte."""
    import contextlib, os
    for size in (1 << 16, 512):
        with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(size))
    assert os.statvfs(path).f_bavail == 0
'''
"""For scripts: `fill(path)`."""


def run_on_small_disk(
    script: str, mounted: Path, *arguments: str, size: str, limit_s: float
) -> dict[str, object]:
    """What the script prints last, as JSON: it gets the directory of that size, and the arguments.

    Skips the test where there are no user namespaces.
    """
    mounted.mkdir()
    within = [*_NAMESPACE, size, str(mounted)]
    try:
        able = subprocess.run([*within, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        able = False
    if not able:
        pytest.skip("no user namespaces here, so no small file system without root")
    line = [*within, sys.executable, "-c", script, str(mounted), *arguments]
    ended = subprocess.run(
        line, capture_output=True, text=True, timeout=limit_s, check=False, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """No file of this process grows beyond it: as on a full disk, a write ends in its middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
