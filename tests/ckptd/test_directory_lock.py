"""One process serves a target's directory, and says why none can."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from ckpt.base.errors import Busy
from ckpt.base.system_errors import LOCKS_REMEDY
from ckptd.local.cluster_file import ClusterOptions, load_or_create
from ckptd.target.directory_lock import DirectoryLock
from tests.ckptd.target_peers import SECRET
from tests.harm import WITHOUT_LOCKS, harmed
from tests.small_disk import FILL, run_on_small_disk

LIMIT_S: Final = 120.0
REFUSED: Final = 2
"""Exit code."""
CKPT: Final = Path(sys.executable).with_name("ckpt")
CKPTD: Final = Path(sys.executable).with_name("ckptd")
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


OPEN: Final = """
import sys
import ckpt

try:
    ckpt.open(sys.argv[1])
except ckpt.CkptError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize(
    ("line", "lock"),
    [(("target", "--directory", "DIR", "--coordinator", "127.0.0.1:9"), "lock"),
     (("coordinator", "--directory", "DIR", "--listen", "127.0.0.1:0"), "coordinator.lock"),
     (("local", "DIR"), "supervisor.lock"),
     (("ckpt+local://DIR?targets=3",), "lock"),
     (("ls", "--store", "ckpt+local://DIR"), "supervisor.lock")],
)  # fmt: skip
def test_a_file_system_without_locks_is_refused_by_name(
    tmp_path: Path, line: tuple[str, ...], lock: str
) -> None:
    """Of a daemon, of a trainer that opens a store there, or of a command that sees a cluster's
    directory by such a mount. It was a traceback, or an error number alone.
    """
    site, secret, directory = tmp_path / "site", tmp_path / "secret", tmp_path / "d"
    site.mkdir()
    secret.write_text(SECRET.hex())
    secret.chmod(0o600)
    environ = {
        **harmed(site, WITHOUT_LOCKS), "CKPT_SECRET_FILE": str(secret),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }  # fmt: skip
    programs = {"ckpt+local": [sys.executable, "-c", OPEN], "ls": [str(CKPT)]}
    program = programs.get(line[0].partition(":")[0], [str(CKPTD)])
    if "ls" in line:
        directory.mkdir()
        (directory / "supervisor.lock").touch()
        load_or_create(directory, ClusterOptions(), socket.gethostname(), "ckptd")
    ended = subprocess.run(
        [*program, *(word.replace("DIR", str(directory)) for word in line)],
        env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == REFUSED, ended.stderr
    assert f"cannot lock {directory}/{lock}: {os.strerror(errno.ENOLCK)}" in ended.stderr
    assert LOCKS_REMEDY in ended.stderr
    assert "Traceback" not in ended.stderr
