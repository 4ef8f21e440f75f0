"""The disk under the coordinator's catalog has not one free byte, the targets' have: who reads is
served, also by a coordinator that begins meanwhile; who saves hears why not; then all goes on.
"""

from __future__ import annotations

from pathlib import Path

from tests.small_disk import FILL, run_on_small_disk

LIMIT_S = 240.0
SCRIPT = (
    FILL
    + """
import contextlib, io, json, os, sys
from pathlib import Path
import numpy as np
import ckpt
from ckpt_client.cli.main import main
from tests.e2e_remote.cluster import RemoteCluster
from tests.waiting import ASKED_S, wait_until

disk, directory = Path(sys.argv[1]), Path(sys.argv[2])
cluster = RemoteCluster(directory, hosts=2, code="2+1")
cluster.coordinator_directory = disk / "coordinator"
os.environ["CKPT_SECRET_FILE"] = str(cluster.secret_file)
ends = {}

def state(step):
    return {"a": np.random.default_rng(step).integers(0, 255, 1 << 20, "u1")}

def save(step):
    with ckpt.open(cluster.url) as store:
        store.save("run", step, state(step)).wait(60.0)

def load(step):
    with ckpt.open(cluster.url) as store:
        found = store.load("run", step)
    return bool((found["a"] == state(step)["a"]).all())

def command(*words):
    with contextlib.redirect_stdout(io.StringIO()):
        return main([*words, "--store", cluster.url, "--json"])

def is_full():
    return "CATALOG_FULL" in {check.name for check in cluster.status().checks}

def refuses():
    try:
        save(2)
    except ckpt.CkptError as error:
        ends["save"] = [error.code, str(error), error.hint]
        return True
    return False

try:
    cluster.start()
    save(1)
    fill(disk / "filler")
    # Each change takes some of what is left of the log.
    wait_until(lambda: command("tag", "run@1", "best") or is_full(), "it has no room", 60.0)
    wait_until(is_full, "status says so", poll_s=ASKED_S)
    ends["loaded"] = load(1)
    ends["refused"] = refuses()
    ends["checks"] = {c.name: [c.message, c.remedy] for c in cluster.status().checks}
    ends["runs"] = cluster.coordinator.process.poll() is None
    for _ in range(2):
        cluster.coordinator.end()
        fill(disk / "filler")
        cluster.start_coordinator()
        fill(disk / "filler")
        cluster.wait_live()
    ends["loaded by the next"] = load(1)
    ends["listed"] = command("ls", "run")
    (disk / "filler").unlink()
    wait_until(lambda: not is_full(), "there is room", poll_s=ASKED_S)
    save(3)
    ends["saved"] = load(3)
finally:
    cluster.end()
print(json.dumps(ends))
"""
)


def test_reads_are_served_and_saves_refused_until_there_is_room(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    directory.mkdir()
    mounted = tmp_path / "disk"
    ends = run_on_small_disk(SCRIPT, mounted, str(directory), size="16m", limit_s=LIMIT_S)
    assert ends["runs"], "the coordinator has not ended"
    assert (ends["loaded"], ends["refused"]) == (True, True)
    why = f"the disk of {mounted}/coordinator has no room for the catalog"
    mend = f"make room on the disk of {mounted}/coordinator; what waits is then stored"
    assert ends["checks"] == {"CATALOG_FULL": [why, mend]}
    save = ends["save"]
    assert isinstance(save, list)
    code, text, hint = save
    assert (code, hint) == ("no_space", mend)
    assert text.startswith("the catalog of cluster ")
    assert f"takes nothing more: {why}" in text
    assert (ends["loaded by the next"], ends["listed"], ends["saved"]) == (True, 0, True)
