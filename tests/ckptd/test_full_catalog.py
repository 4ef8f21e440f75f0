"""A catalog's file on a disk that others fill to the last byte."""

from __future__ import annotations

from pathlib import Path

from ckptd.catalog.room import RESERVE_BYTES, STEP_BYTES, give_reserve, keep_reserve
from tests.ckptd.catalogs import begin_term
from tests.small_disk import FILL, run_on_small_disk

LIMIT_S = 120.0
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
