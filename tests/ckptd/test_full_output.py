"""Standard output on a full disk, as where a log takes it: what a daemon says there is lost, and it
serves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ckpt_client.local.cluster import serving
from tests.waiting import wait_until

LIMIT_S = 60.0
SAY = """
from ckptd.log import configure, write_ready_line
configure()
write_ready_line({"ready": "test", "pid": 7})
"""


def test_a_line_that_has_no_room_is_logged_instead() -> None:
    said = subprocess.run([sys.executable, "-c", SAY], capture_output=True, check=True).stdout
    assert json.loads(said.splitlines()[0]) == {"ready": "test", "pid": 7}
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", SAY], stdout=full, stderr=subprocess.PIPE, check=True
        )
    (line,) = ended.stderr.splitlines()
    logged = json.loads(line)
    assert (logged["level"], logged["msg"]) == ("warning", "the ready line is not written")
    assert logged["error"] == "No space left on device"
    assert json.loads(logged["line"]) == {"ready": "test", "pid": 7}


def test_a_local_cluster_comes_up_where_its_output_has_no_room(tmp_path: Path) -> None:
    made = tmp_path / "cluster"
    with Path("/dev/full").open("w") as full:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "ckptd.cli", "local", str(made), "--targets", "1"],
            stdout=full, stderr=full,
        )  # fmt: skip
    try:
        wait_until(
            lambda: serving(made) is not None or supervisor.poll() is not None, "ready, or ended"
        )
        ready = serving(made)
        assert ready is not None
        # It goes on where it was about to say that.
        assert os.waitid(os.P_PID, supervisor.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    finally:
        supervisor.terminate()
        assert supervisor.wait(LIMIT_S) == 0
