"""A device that has become read-only, and whose target starts again: what it holds counts and is
read. Of one with the cluster's own directory, every command and call says what to do.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.small_disk import run_on_small_disk

STORY = """
import json, os, signal, subprocess, sys
from pathlib import Path
import numpy as np
import ckpt
from tests.client.clikit import run
from tests.e2e.cluster import Cluster
from tests.waiting import wait_until

device, directory = Path(sys.argv[1]), Path(sys.argv[2])

def say(*words):
    ended = run(*words, environ={**os.environ, "CKPT_STORE": cluster.url})
    assert ended.code == 0, ended.err

# Of six in the end, four obey the coordinator without t0 and the one that cannot note that.
cluster = Cluster(directory, "targets=5&code=4+1")
STEPS = range(1, 7)
with ckpt.open(cluster.url) as store:
    say("target", "add", str(device))
    wait_until(lambda: "t5" in cluster.live(), "the added target is live")
    for step in STEPS:
        store.save("run", step, {"w": np.arange(step, step + 65_536)}).wait(60)
held = len(list((device / "columns").iterdir()))
say("local", "stop", str(directory))
subprocess.run(["mount", "-o", "remount,ro", str(device)], check=True)

with ckpt.open(cluster.url) as store:
    wait_until(lambda: "t5" in cluster.live(), "it serves what its device has")
    (directory / "targets/t0/held").touch()
    os.kill(cluster.pid_of("t0"), signal.SIGKILL)
    wait_until(lambda: "t0" not in cluster.live(), "another target is gone")
    wrong = [step for step in STEPS if store.load("run", step)["w"][0] != step]
say("local", "stop", str(directory))
print(json.dumps({"held": held, "wrong": wrong}))
"""


def test_a_target_that_starts_on_a_read_only_device_serves_what_it_holds(tmp_path: Path) -> None:
    device, directory = tmp_path / "device", tmp_path / "c"
    found = run_on_small_disk(STORY, device, str(directory), size="64m", limit_s=120)
    assert found["held"], "it has columns"
    assert not found["wrong"]


OWN = """
import json, os, subprocess, sys
import ckpt
from tests.client.clikit import run

device = sys.argv[1]
url = f"ckpt+local://{device}/c?targets=3&code=2+1"
ckpt.open(url).close()
run("local", "stop", f"{device}/c")
subprocess.run(["mount", "-o", "remount,ro", device], check=True)

heard = {}
try:
    ckpt.open(url)
except Exception as error:
    heard["open"] = [type(error).__name__, str(error)]
for words in (["doctor"], ["ls"], ["export", "run@1", "--format", "npz", "/dev/null/x"]):
    ended = run(*words, environ={**os.environ, "CKPT_STORE": url})
    heard[words[0]] = [str(ended.code), ended.out + ended.err]
print(json.dumps(heard))
"""


def test_a_cluster_in_a_read_only_directory_is_refused_with_what_to_do(tmp_path: Path) -> None:
    found = run_on_small_disk(OWN, tmp_path / "disk", size="64m", limit_s=120)
    heard = msgspec.convert(found, dict[str, tuple[str, str]])
    codes = {name: code for name, (code, _) in heard.items()}
    assert codes == {"open": "Refused", "doctor": "2", "ls": "2", "export": "2"}
    for _, said in heard.values():
        assert "Read-only file system" in said
        assert "mount it for writing, or name another directory" in said
