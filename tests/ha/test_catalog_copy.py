"""`ckpt catalog copy` between a file and a real etcd: all of it arrives, nothing is replaced,
nobody works on either meanwhile, and what was killed half-way is no catalog.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt.base.errors import Busy, Corrupt, NoSpace, NotFound, Refused
from ckpt.base.units import MiB
from ckpt.format.messages.hello import OLDEST_VERSION
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.testing.catalog_contract import found, on_a_loop, writing
from ckpt.testing.catalog_entries import apply_all, attempt, checkpoint, every_entry
from ckptd.catalog.copying import copy_from_etcd, copy_to_etcd
from ckptd.catalog.etcd.client import EtcdClient
from ckptd.catalog.etcd.fence import FencedSpace, Meta
from ckptd.catalog.etcd.folding import Writes
from ckptd.catalog.etcd.keys import SCHEMA_VERSION
from ckptd.catalog.etcd.url import parse_etcd_url
from ckptd.catalog.etcd.values import Values
from ckptd.catalog.file import LOCK_NAME
from ckptd.catalog.sqlite import CATALOG_NAME, create_catalog, read_image
from tests.ckptd.catalogs import begin_term, opened
from tests.ha.members import Etcd
from tests.ha.places import Prefix, asked, in_base64, names_in, proxied
from tests.stores.proxy import Fault, Request

WAIT_S = 60.0
ROWS = 1500
"""More than a page has, and than ten transactions take."""


def rebuilt_image() -> CatalogImage:
    """Of each kind of entry, and what only a rebuild notes."""
    image = apply_all(CatalogImage(41), every_entry())
    image.rebuilt_term, image.rebuilt_from = 33, 7
    image.passed_over = {checkpoint(8), checkpoint(9, 2)}
    return image


def large_image() -> CatalogImage:
    image = CatalogImage(5)
    for step in range(ROWS):
        image.apply(attempt(step))
    for step in range(20):
        row = image.rows[checkpoint(step)]
        image.rows[row.checkpoint] = replace(row, record=bytes(300_000))
    return image


def put(place: Prefix, etcd: Etcd, name: str, value: str) -> None:
    key = in_base64(f"{place.name}:{name}")
    asked(etcd.members[0], "/v3/kv/put", {"key": key, "value": in_base64(value)})


async def to_etcd(directory: Path, place: Prefix) -> None:
    await copy_to_etcd(directory, parse_etcd_url(place.url))


async def from_etcd(place: Prefix, directory: Path) -> None:
    await copy_from_etcd(parse_etcd_url(place.url), directory)


# --------------------------------------------------------------------------- all of it


@pytest.mark.parametrize("made", [rebuilt_image, large_image])
def test_all_of_an_image_goes_there_and_back(
    tmp_path: Path, etcd: Etcd, made: Callable[[], CatalogImage]
) -> None:
    image, place = made(), Prefix(etcd.addresses)
    there, back = tmp_path / "there", tmp_path / "back"
    create_catalog(there, "c1", image)
    asyncio.run(to_etcd(there, place))
    assert read_image(there) == ("c1", image), "the source is as it was"
    assert "copying" not in names_in(etcd, place)
    led = asyncio.run(found(place))
    assert led == replace(image, term=image.term + 1)
    asyncio.run(from_etcd(place, back))
    with opened(back, "c1", "other") as catalog:
        # Two terms began in etcd: that of whoever looked, and the copy's own.
        assert catalog.image == replace(image, term=image.term + 3)
    assert asyncio.run(found(place)) == replace(image, term=image.term + 3)


def test_an_empty_catalog_is_copied_as_one(tmp_path: Path, etcd: Etcd) -> None:
    place = Prefix(etcd.addresses)
    begin_term(tmp_path, None, "c1")
    asyncio.run(to_etcd(tmp_path, place))
    assert asyncio.run(found(place)) == CatalogImage(2)


def test_a_directory_whose_file_was_moved_away_knows_the_cluster_still(
    tmp_path: Path, etcd: Etcd
) -> None:
    place = Prefix(etcd.addresses)
    begin_term(tmp_path, None, "c1")
    (tmp_path / "cluster.id").unlink()
    asyncio.run(to_etcd(tmp_path, place))
    assert (tmp_path / "cluster.id").read_text() == "c1\n"


# --------------------------------------------------------------------------- what is there already


@pytest.mark.parametrize("name", ["somebody", "meta", "row/a/1/1.1"])
def test_a_prefix_with_any_key_is_refused_by_name_and_left_alone(
    tmp_path: Path, etcd: Etcd, name: str
) -> None:
    place = Prefix(etcd.addresses)
    create_catalog(tmp_path, "c1", rebuilt_image())
    put(place, etcd, name, "else")
    with pytest.raises(Refused, match=f"{place.name} has keys|catalog in .*{place.name}"):
        asyncio.run(to_etcd(tmp_path, place))
    assert names_in(etcd, place) == {name}


@on_a_loop
async def test_a_directory_with_a_catalog_is_refused_by_name_and_left_alone(
    tmp_path: Path, etcd: Etcd
) -> None:
    place = Prefix(etcd.addresses)
    async with writing(place) as writer:
        await writer.write(*every_entry())
    image = rebuilt_image()
    create_catalog(tmp_path, "c1", image)
    with pytest.raises(Refused, match=f"there is a catalog in {tmp_path}"):
        await from_etcd(place, tmp_path)
    assert read_image(tmp_path) == ("c1", image)


@on_a_loop
async def test_a_directory_of_another_cluster_is_refused(tmp_path: Path, etcd: Etcd) -> None:
    place = Prefix(etcd.addresses)
    async with writing(place) as writer:
        await writer.write(attempt(1))
    (tmp_path / "cluster.id").write_text("c2\n")
    with pytest.raises(Refused, match=f"{tmp_path} is of cluster c2, not c1"):
        await from_etcd(place, tmp_path)
    assert not (tmp_path / CATALOG_NAME).exists()


def test_what_there_is_not_is_not_found_and_not_made(tmp_path: Path, etcd: Etcd) -> None:
    place = Prefix(etcd.addresses)
    with pytest.raises(NotFound, match=f"no catalog in {tmp_path}"):
        asyncio.run(to_etcd(tmp_path, place))
    with pytest.raises(NotFound, match=f"no catalog in {place.url}"):
        asyncio.run(from_etcd(place, tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert names_in(etcd, place) == set()


def test_a_value_that_etcd_does_not_take_is_named_before_anything_is_written(
    tmp_path: Path, etcd: Etcd
) -> None:
    place, id = Prefix(etcd.addresses), checkpoint(1)
    image = CatalogImage(1)
    image.apply(attempt(1))
    image.rows[id] = replace(image.rows[id], record=bytes(1_600_000))
    create_catalog(tmp_path, "c1", image)
    with pytest.raises(Refused, match=r"'record/.*etcd takes"):
        asyncio.run(to_etcd(tmp_path, place))
    assert names_in(etcd, place) == set()


# --------------------------------------------------------------------------- who works there


@on_a_loop
async def test_a_source_that_a_coordinator_works_on_is_busy_by_name(
    tmp_path: Path, etcd: Etcd
) -> None:
    place = Prefix(etcd.addresses)
    worked_on, new = tmp_path / "worked on", tmp_path / "new"
    create_catalog(worked_on, "c1", rebuilt_image())
    catalog = await place.open()
    try:
        with pytest.raises(Busy, match=rf"pid {os.getpid()} on .*{place.name}"):
            await from_etcd(place, new)
    finally:
        await catalog.close()
    assert not (new / CATALOG_NAME).exists()
    lock = os.open(worked_on / LOCK_NAME, os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        with pytest.raises(Busy, match=str(worked_on)):
            await to_etcd(worked_on, Prefix(etcd.addresses))
    finally:
        os.close(lock)


def test_coordinators_that_stand_by_are_busy_by_name(tmp_path: Path, etcd: Etcd) -> None:
    place = Prefix(etcd.addresses)
    assert asyncio.run(found(place)) == CatalogImage(1)
    put(place, etcd, "coordinator/b", "{}")
    with pytest.raises(Busy, match=r"stand by .*: b"):
        asyncio.run(from_etcd(place, tmp_path))
    assert not (tmp_path / CATALOG_NAME).exists()


def test_both_are_locked_while_they_are_copied(tmp_path: Path, etcd: Etcd) -> None:
    place, there, back = Prefix(etcd.addresses), tmp_path / "there", tmp_path / "back"
    create_catalog(there, "c1", large_image())
    seen: list[set[str]] = []

    def look(request: Request) -> Fault:
        if request.path == "/v3/kv/range" and b"limit" in request.body:
            lock = os.open(there / LOCK_NAME, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                seen.append({"the directory is free"})
            except BlockingIOError:
                seen.append(names_in(etcd, place))
            finally:
                os.close(lock)
        return Fault.NONE

    with proxied(etcd.members[0], look) as proxy:
        through = place.by_way_of(f"127.0.0.1:{proxy.port}")
        asyncio.run(to_etcd(there, through))
    # The first looks are at a prefix that has nothing.
    taken = [names for names in seen if names]
    assert len(taken) > 2
    assert all(names >= {"leader", "copying"} and "meta" not in names for names in taken)
    seen.clear()
    lock = os.open(there / LOCK_NAME, os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        with proxied(etcd.members[0], look) as proxy:
            asyncio.run(from_etcd(place.by_way_of(f"127.0.0.1:{proxy.port}"), back))
    finally:
        os.close(lock)
    assert seen
    assert all("leader" in names for names in seen)


@on_a_loop
async def test_a_coordinator_that_has_just_found_nothing_begins_no_catalog_in_a_copy(
    etcd: Etcd,
) -> None:
    place = Prefix(etcd.addresses)
    client = EtcdClient(parse_etcd_url(place.url))
    try:
        put(place, etcd, "copying", "/somewhere")
        with pytest.raises(Refused, match="part of a copy of /somewhere"):
            await FencedSpace(client).begin(Meta(SCHEMA_VERSION, "c2"), math.inf)
    finally:
        await client.close()
    assert names_in(etcd, place) == {"copying"}


@on_a_loop
async def test_of_two_copies_the_later_one_finds_a_catalog(etcd: Etcd) -> None:
    place = Prefix(etcd.addresses)
    client = EtcdClient(parse_etcd_url(place.url))
    space = FencedSpace(client)
    try:
        fence = await space.take(math.inf, copied_from="/somewhere")
        later = asyncio.create_task(FencedSpace(client).take(math.inf, copied_from="/elsewhere"))
        last: Values = {"meta": b'{"schema": 1, "cluster": "c1"}', "copying": None}
        await space.write(fence, Writes(last), math.inf)
        with pytest.raises(Refused, match="there is a catalog in"):
            await later
        await space.free(fence)
    finally:
        await client.close()
    assert await found(place) == CatalogImage(2, protocol=OLDEST_VERSION)


def test_a_copy_out_of_etcd_during_which_another_one_took_the_key_is_taken_away(
    tmp_path: Path, etcd: Etcd
) -> None:
    place, back = Prefix(etcd.addresses), tmp_path / "back"
    assert asyncio.run(found(place)) == CatalogImage(1)
    key = in_base64(f"{place.name}:leader")
    seen: list[bool] = []

    def take_away(request: Request) -> Fault:
        if request.path == "/v3/kv/txn" and (back / CATALOG_NAME).exists():
            seen.append(True)
            asked(etcd.members[0], "/v3/kv/deleterange", {"key": key})
        return Fault.NONE

    with proxied(etcd.members[0], take_away) as proxy, pytest.raises(Busy, match="has lost"):
        asyncio.run(from_etcd(place.by_way_of(f"127.0.0.1:{proxy.port}"), back))
    assert seen
    assert not (back / CATALOG_NAME).exists()


# --------------------------------------------------------------------------- half-way


def killed_at(etcd: Etcd, source: str, destination: str, when: Callable[[Request], bool]) -> None:
    """`ckptd copy-catalog`, through a proxy that is called PROXY there, killed at a request."""
    children: list[subprocess.Popen[bytes]] = []

    def decide(request: Request) -> Fault:
        if not when(request):
            return Fault.NONE
        children[0].kill()
        children[0].wait()
        return Fault.CUT_BEFORE

    with proxied(etcd.members[0], decide) as proxy:
        named = [each.replace("PROXY", f"127.0.0.1:{proxy.port}") for each in (source, destination)]
        children.append(
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "ckptd.cli", "copy-catalog"),
                    *("--source", named[0], "--destination", named[1]),
                ]
            )
        )
        assert children[0].wait(WAIT_S) == -signal.SIGKILL


def test_a_copy_into_etcd_that_was_killed_is_no_catalog_and_the_next_one_clears_it(
    tmp_path: Path, etcd: Etcd
) -> None:
    place, large, small = Prefix(etcd.addresses), tmp_path / "large", tmp_path / "small"
    create_catalog(large, "c1", large_image())
    create_catalog(small, "c1", rebuilt_image())
    written: list[Request] = []

    def many(request: Request) -> bool:
        written.extend([request] if request.path == "/v3/kv/txn" else [])
        return len(written) == 7

    killed_at(etcd, str(large), place.by_way_of("PROXY").url, many)
    left = names_in(etcd, place)
    assert sum(name.startswith("row/") for name in left) > 300
    assert "meta" not in left
    with pytest.raises(Refused, match=f"part of a copy of {large}"):
        asyncio.run(found(place))
    with pytest.raises(Refused, match=f"part of a copy of {large}"):
        asyncio.run(from_etcd(place, tmp_path / "new"))
    # Of another one, of which the first has more.
    asyncio.run(to_etcd(small, place))
    assert asyncio.run(found(place)) == replace(rebuilt_image(), term=42)


@pytest.mark.parametrize("last", [b"meta", b"copying"])
def test_each_moment_before_the_last_transaction_is_no_catalog(
    tmp_path: Path, etcd: Etcd, last: bytes
) -> None:
    """Killed with all keys written but the last, and with none but the first."""
    place = Prefix(etcd.addresses)
    create_catalog(tmp_path, "c1", rebuilt_image())
    taken: list[Request] = []

    def at_last(request: Request) -> bool:
        key = in_base64(f"{place.name}:{last.decode()}").encode()
        puts = request.path == "/v3/kv/txn" and b'"request_put":{"key":"' + key in request.body
        # What asks for its limits puts each kind of key where something never holds.
        puts = puts and b'"result":"LESS"' not in request.body
        if last == b"copying" and puts:
            taken.append(request)
            return False
        return puts or bool(taken)

    killed_at(etcd, str(tmp_path), place.by_way_of("PROXY").url, at_last)
    with pytest.raises(Refused, match="part of a copy"):
        asyncio.run(found(place))
    asyncio.run(to_etcd(tmp_path, place))
    assert asyncio.run(found(place)) == replace(rebuilt_image(), term=42)


def test_a_copy_out_of_etcd_that_was_killed_leaves_no_catalog(tmp_path: Path, etcd: Etcd) -> None:
    place, back = Prefix(etcd.addresses), tmp_path / "back"
    create_catalog(tmp_path / "there", "c1", large_image())
    asyncio.run(to_etcd(tmp_path / "there", place))
    pages: list[Request] = []

    def second_page(request: Request) -> bool:
        pages.extend([request] if b'"limit":1000' in request.body else [])
        return len(pages) == 2

    killed_at(etcd, place.by_way_of("PROXY").url, str(back), second_page)
    assert not (back / CATALOG_NAME).exists()
    # As one has it that is killed while it writes.
    back.mkdir(exist_ok=True)
    for suffix in ("", "-wal"):
        (back / f"{CATALOG_NAME}.new{suffix}").write_bytes(b"half" * 4096)
    asyncio.run(from_etcd(place, back))
    assert read_image(back)[1].rows == large_image().rows
    assert sorted(path.name for path in back.glob("catalog*")) == [CATALOG_NAME]


def test_a_copy_that_is_not_what_was_read_is_taken_away_again(tmp_path: Path, etcd: Etcd) -> None:
    place = Prefix(etcd.addresses)
    create_catalog(tmp_path, "c1", rebuilt_image())
    key = in_base64(f"{place.name}:retention/other")

    def meddle(request: Request) -> Fault:
        if b'"limit":1000' in request.body:
            asked(etcd.members[0], "/v3/kv/put", {"key": key, "value": in_base64("{}")})
        return Fault.NONE

    with (
        proxied(etcd.members[0], meddle) as proxy,
        pytest.raises(Corrupt, match=f"{place.name} is not what was read"),
    ):
        asyncio.run(to_etcd(tmp_path, place.by_way_of(f"127.0.0.1:{proxy.port}")))
    assert names_in(etcd, place) == set()


def test_each_lost_answer_is_found_out(tmp_path: Path, etcd: Etcd) -> None:
    place = Prefix(etcd.addresses)
    create_catalog(tmp_path, "c1", rebuilt_image())
    lost: set[bytes] = set()

    def lose_first(request: Request) -> Fault:
        if request.path != "/v3/kv/txn" or request.body in lost:
            return Fault.NONE
        lost.add(request.body)
        return Fault.CUT_AFTER

    with proxied(etcd.members[0], lose_first) as proxy:
        asyncio.run(to_etcd(tmp_path, place.by_way_of(f"127.0.0.1:{proxy.port}")))
    assert len(lost) >= 4, "the probe of its limits, the key, the image, and the end"
    assert asyncio.run(found(place)) == replace(rebuilt_image(), term=42)


def test_an_etcd_that_gets_full_half_way_has_nothing_of_the_copy(tmp_path: Path) -> None:
    create_catalog(tmp_path / "large", "c1", large_image())
    with Etcd(tmp_path / "etcd", flags=("--quota-backend-bytes", str(3 * MiB))) as etcd:
        place = Prefix(etcd.addresses)
        with pytest.raises(NoSpace, match=place.name):
            asyncio.run(to_etcd(tmp_path / "large", place))
        assert names_in(etcd, place) == set()
    assert read_image(tmp_path / "large") == ("c1", large_image())
