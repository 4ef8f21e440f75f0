"""One process serves a target's directory, and says why none can."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt.base.errors import Busy
from ckptd.target.directory_lock import DirectoryLock
from tests.small_disk import FILL, run_on_small_disk

FULL = (
    FILL
    + """
import json, subprocess, sys
from pathlib import Path
from ckpt.base.errors import CkptError
from ckptd.target.directory_lock import DirectoryLock

disk = Path(sys.argv[1])
(disk / "served").mkdir()
DirectoryLock(disk / "served").close()
fill(disk / "filler")
said = {}

def locks(name):
    try:
        DirectoryLock(disk / name).close()
    except CkptError as error:
        said[name] = [error.code, str(error)]
    else:
        said[name] = ["locked", ""]

locks("served")
subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
locks("served")
locks("")
print(json.dumps(said))
"""
)


def test_only_one_process_holds_a_directory(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(Busy, match="another process serves"):
        DirectoryLock(tmp_path)
    lock.close()
    DirectoryLock(tmp_path).close()


def test_a_full_or_read_only_device_is_locked_where_it_was_before_and_else_named(
    tmp_path: Path,
) -> None:
    found = run_on_small_disk(FULL, tmp_path / "disk", size="1m", limit_s=60)
    assert found["served"] == ["locked", ""]
    assert found[""] == ["refused", f"cannot make {tmp_path}/disk/lock: Read-only file system"]
