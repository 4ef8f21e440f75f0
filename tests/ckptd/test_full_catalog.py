"""A catalog's file on a disk that others fill to the last byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ckptd.catalog.room import RESERVE_BYTES, STEP_BYTES, give_reserve, keep_reserve
from tests.ckptd.catalogs import begin_term
from tests.small_disk import FILL, run_on_small_disk
from tests.tree import ROOT

LIMIT_S = 120.0
MADE_AGAIN = (
    FILL
    + """
import json, os, sys
from pathlib import Path
from ckpt.base.errors import NoSpace
from ckpt.protocol.coordinator.image import CatalogImage
from ckptd.catalog.sqlite import create_catalog, read_image

folder, filler = Path(sys.argv[1]) / "catalog", Path(sys.argv[1]) / "filler"
create_catalog(folder, "c1", CatalogImage(2))
ends = []
for free in range(4, 80, 6):
    fill(filler)
    os.truncate(filler, filler.stat().st_size - 4096 * free)
    try:
        create_catalog(folder, "c1", CatalogImage(3), keep_old=True)
        said = "made"
    except NoSpace as error:
        said = error.message
    filler.unlink()
    ends.append([said, read_image(folder)[1].term, sorted(os.listdir(folder))])
    if said == "made":
        break
print(json.dumps({"ends": ends, "folder": str(folder)}))
"""
)
SCRIPT = (
    FILL
    + """
import asyncio, json, os, sys
from pathlib import Path
from queue import SimpleQueue
from ckpt.protocol.coordinator.catalog import Persist
from ckpt.testing.catalog_entries import attempt
from ckptd.catalog.sqlite import SqliteCatalog, read_image
from tests.waiting import wait_until

disk = Path(sys.argv[1])
ends = {"terms": []}

def opened():
    catalog = SqliteCatalog.open(disk / "catalog", None, "c1")
    ends["terms"].append(catalog.image.term)
    heard = SimpleQueue()
    catalog.start(heard.put, heard.put)
    return catalog, heard

def killed(role):
    child = os.fork()
    if not child:
        role()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

catalog, heard = opened()
catalog.submit(Persist(1, (attempt(1),)))
assert heard.get(timeout=30) == 1
# More than the log has room for, so that something waits.
fill(disk / "filler")
tickets = range(2, 2000)
for number in tickets:
    catalog.submit(Persist(number, (attempt(number),)))
wait_until(lambda: catalog.full is not None, "it says that it is full")
ends["said"] = [catalog.full.message, catalog.full.hint]
(disk / "filler").unlink()
ends["acknowledged"] = [heard.get(timeout=30) for _ in tickets] == list(tickets)
ends["full after"] = str(catalog.full)
asyncio.run(catalog.close())

fill(disk / "filler")
for _ in range(4):
    killed(opened)  # As by SIGKILL: nothing is closed.
    fill(disk / "filler")
catalog, heard = opened()
fill(disk / "filler")
for number in range(3000, 6000):
    catalog.submit(Persist(number, (attempt(number),)))
wait_until(lambda: catalog.full is not None, "it says that it is full")
asyncio.run(catalog.close())
stored = []
while not heard.empty():
    stored.append(heard.get())
ends["the end"] = stored.pop().code
ends["in order"] = stored == list(range(3000, 3000 + len(stored)))
(disk / "filler").unlink()
rows = {id.step for id in read_image(disk / "catalog")[1].rows}
ends["kept"] = rows == {1, *tickets, *stored}
ends["term"] = read_image(disk / "catalog")[1].term
print(json.dumps(ends))
"""
)

LIMITED = """
import asyncio, json, os, resource, sys
from pathlib import Path
from queue import SimpleQueue
from ckpt.base.errors import NoSpace
from ckpt.protocol.coordinator.catalog import Persist
from ckpt.testing.catalog_entries import attempt
from ckptd.catalog.sqlite import SqliteCatalog, read_image
from tests.waiting import wait_until

directory = Path(sys.argv[1])
ends = {}

def opened():
    catalog = SqliteCatalog.open(directory, None, "c1")
    heard = SimpleQueue()
    catalog.start(heard.put, heard.put)
    return catalog, heard

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

catalog, heard = opened()
limit((directory / "catalog.sqlite-wal").stat().st_size)
catalog.submit(Persist(1, (attempt(1),)))
wait_until(lambda: catalog.full is not None or not heard.empty(), "it finds no room")
ends["said"] = str(catalog.full)
limit(resource.RLIM_INFINITY)
ends["heard"] = heard.get(timeout=30)
ends["full after"] = str(catalog.full)
asyncio.run(catalog.close())
limit(1)
try:
    opened()
except NoSpace as error:
    ends["a start"] = str(error)
limit(resource.RLIM_INFINITY)
ends["kept"] = [id.step for id in read_image(directory)[1].rows]
print(json.dumps(ends))
"""


def test_what_finds_no_room_waits_and_a_start_has_room_for_its_term(tmp_path: Path) -> None:
    mounted = tmp_path / "disk"
    ends = run_on_small_disk(SCRIPT, mounted, size="16m", limit_s=LIMIT_S)
    assert ends["said"] == [
        f"the disk of {mounted}/catalog has no room for the catalog",
        f"make room on the disk of {mounted}/catalog; what waits is then stored",
    ]
    assert ends["acknowledged"] is True
    assert ends["full after"] == "None"
    assert ends["terms"] == [1, 6], "four more began in processes of their own"
    assert ends["term"] == 6
    assert ends["the end"] == "no_space", "what waited at the close is not stored"
    assert (ends["in order"], ends["kept"]) == (True, True)


def test_a_file_that_may_not_grow_is_no_disk_that_fails(tmp_path: Path) -> None:
    """Nor is a quota that is used up, of which SQLite says the same."""
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "c")]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    ends = json.loads(ended.stdout)
    assert ends["said"] == (
        f"the disk of {tmp_path}/c has no room for the catalog: File too large; raise the"
        " coordinator's limit of a file's size (ulimit -f, prlimit --fsize); what waits is then"
        " stored"
    )
    assert (ends["heard"], ends["full after"], ends["kept"]) == (1, "None", [1])
    assert ends["a start"].startswith(f"no room for the catalog in {tmp_path}/c: File too large")


def test_each_step_of_the_reserve_is_given_once_and_it_is_made_whole(tmp_path: Path) -> None:
    begin_term(tmp_path, None, "c1")
    reserve = tmp_path / "catalog.reserve"
    assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES, "it takes room"
    for given in range(1, RESERVE_BYTES // STEP_BYTES + 1):
        assert give_reserve(tmp_path)
        assert reserve.stat().st_size == RESERVE_BYTES - given * STEP_BYTES
    assert not give_reserve(tmp_path)
    keep_reserve(tmp_path)
    assert reserve.stat().st_size == RESERVE_BYTES
    reserve.unlink()
    assert not give_reserve(tmp_path)


def test_a_catalog_is_made_again_whole_or_the_old_one_stays(tmp_path: Path) -> None:
    """Its log may find room where the file itself then finds none."""
    ended = run_on_small_disk(MADE_AGAIN, tmp_path / "disk", size="2m", limit_s=LIMIT_S)
    ends = ended["ends"]
    assert isinstance(ends, list)
    full, made = ends[:-1], ends[-1]
    files = ["catalog.sqlite", "cluster.id", "coordinator.lock"]
    said = f"no room for the catalog in {ended['folder']}: No space left on device"
    assert len(full) > 5
    assert full == [[said, 2, files]] * len(full)
    assert made == ["made", 3, ["catalog.sqlite", "catalog.sqlite.1", *files[1:]]]
