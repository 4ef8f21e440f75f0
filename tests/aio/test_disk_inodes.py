"""A file system may run out of inodes with most of its bytes free: what it says of both."""

from __future__ import annotations

import errno
from pathlib import Path

from tests.small_disk import run_on_small_disk

STORY = """
import json, sys
from pathlib import Path
from ckpt.aio.disk import RealDisk

directory = Path(sys.argv[1])
disk = RealDisk(directory)
found = [disk.space()]
refused = 0
for number in range(1000):
    try:
        disk.preallocate(f"small-{number}", 0)
    except OSError as error:
        refused = error.errno
        break
found.append(disk.space())
disk.remove_file("small-0")
found.append(disk.space())
print(json.dumps({"refused": refused, "inodes": [one.inodes_free for one in found],
                  "free": [one.bytes_free for one in found]}))
"""


def test_what_is_left_of_inodes_is_measured_beside_the_bytes(tmp_path: Path) -> None:
    found = run_on_small_disk(STORY, tmp_path / "disk", size="16m,nr_inodes=200", limit_s=60)
    assert found["refused"] == errno.ENOSPC
    before, full, after = found["inodes"]
    assert (full, after) == (0, 1)
    assert 0 < before < 200
    assert found["free"][0] == found["free"][1] == 16 << 20, "no byte of it was taken"
