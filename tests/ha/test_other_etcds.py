"""A member of etcd comes back as an etcd of its own, or all of etcd as another one that has the
catalog, while coordinators run: they know which is which, and nobody has to start them again.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from ckpt.base.errors import Busy, Refused, Unavailable
from ckpt.testing.catalog_contract import found, on_a_loop, writing
from ckpt.testing.catalog_entries import attempt, checkpoint
from ckpt_client.cli.main import main
from ckptd.catalog.etcd import copying
from ckptd.catalog.etcd.client import EtcdClient
from ckptd.catalog.etcd.copying import whole_catalog
from ckptd.catalog.etcd.fence import Fence, FencedSpace
from ckptd.catalog.etcd.folding import Writes
from ckptd.catalog.etcd.url import parse_etcd_url
from tests.ha.coordinators import Coordinators
from tests.ha.members import Etcd, Member
from tests.ha.places import (
    Prefix,
    asked,
    in_base64,
    names_in,
    no_fault,
    pairs_in,
    proxied,
    value_of,
)
from tests.ha.test_mirror import WAIT_S
from tests.ha.test_renewed_credentials import asking
from tests.ha.test_snapshots import kept, put_back
from tests.stores.proxy import Fault, Request
from tests.waiting import ASKED_S, wait_until


def begun_again(member: Member, *flags: str) -> None:
    """As an etcd of its own, as when its disk was emptied and it has the options of a first one."""
    member.kill()
    shutil.rmtree(member.log.with_suffix(".data"))
    member.launch(["--initial-cluster", f"{member.name}={member.peer_url}", *flags])
    member.wait_up()


def ends(coordinators: Coordinators) -> bool:
    """A term."""
    return any(coordinators.logged(id, "the term ends") for id in coordinators.running)


def health(
    capsys: pytest.CaptureFixture[str], coordinators: Coordinators, member: Member
) -> str | None:
    """What `ckpt coordinator ls` says of a member that is not well; None while nobody says."""
    url = f"ckpt://{','.join(each.address for each in coordinators.running.values())}"
    if main(["coordinator", "ls", "--json", "--store", url]):
        return None
    listed = json.loads(capsys.readouterr().out)["members"]
    (one,) = (each for each in listed if each["address"] == member.address)
    return str(one["reason"])


def test_a_member_that_is_an_etcd_of_its_own_is_no_member_of_the_one_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It alone answers while the others have no majority, and as if all keys were gone."""
    with (
        Etcd(tmp_path / "etcd", 3) as etcd,
        Coordinators(tmp_path / "two", etcd, Prefix(etcd.addresses), ids="ab") as two,
    ):
        monkeypatch.setenv("CKPT_SECRET_FILE", str(two.secret_file))
        first, _, third = etcd.members
        begun_again(third)
        wait_until(
            lambda: health(capsys, two, third) == "it is a member of another etcd",
            "it is said", poll_s=ASKED_S,
        )  # fmt: skip
        two.kill("b")
        two.start("b")
        first.kill()
        wait_until(partial(ends, two), "nobody can lead")
        first.start()
        first.wait_up()
        wait_until(lambda: two.term() == 2, "somebody leads again")
        assert two.leader() in "ab"
        assert not two.logged("a", "cannot lead")
        assert not two.logged("b", "cannot lead")


@on_a_loop
async def test_no_catalog_is_begun_where_one_member_answers_alone(tmp_path: Path) -> None:
    """With an emptied disk it is an etcd of its own, and says that there is none."""
    looks = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    def decide(request: Request) -> Fault:
        if request.path == "/v3/maintenance/status":
            loop.call_soon_threadsafe(looks.release)
        return Fault.NONE

    with Etcd(tmp_path / "etcd", 3) as etcd:
        alone, *majority = etcd.members
        there = Prefix(",".join(member.address for member in majority))
        async with writing(there) as writer:
            await writer.write(attempt(1))
        begun_again(alone)
        for member in majority:
            member.kill()
        with proxied(alone, no_fault) as proxy:
            addresses = [f"127.0.0.1:{proxy.port}", *(member.address for member in majority)]
            place = there.by_way_of(",".join(addresses))
            with pytest.raises(Unavailable, match="most members of"):
                await place.open(patience_s=0.5)
            proxy.decide = decide
            start = asyncio.create_task(found(place))
            for _ in range(3):
                await looks.acquire()
            assert names_in(etcd, place) == set()
            alone.kill()
            for member in majority:
                member.start()
            assert set((await start).rows) == {checkpoint(1)}


@on_a_loop
async def test_an_older_catalog_of_one_member_is_not_led_while_most_are_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was restored from a snapshot as an etcd of its own: the others have what came later."""
    with Etcd(tmp_path / "etcd", 3) as etcd:
        alone, *majority = etcd.members
        place = Prefix(",".join(member.address for member in (*majority, alone)))
        async with writing(place) as writer:
            await writer.write(attempt(1))
        pairs = pairs_in(etcd, place)
        key = f"{place.name}:meta".encode()
        async with writing(place) as writer, asking(place) as client:
            assert await client.one(key, -1.0) is not None
            client.identity.cluster = "c1"
            await writer.write(attempt(2))
            begun_again(alone)
            put(alone, place, pairs)
            for member in majority:
                member.kill()
            for _ in range(2):
                with pytest.raises(
                    Unavailable, match=f"{alone.address}: it is a member of another"
                ):
                    await client.one(key, -1.0)
            with pytest.raises(Unavailable, match="most members of"):
                await place.open(patience_s=0.5)
            monkeypatch.setattr(copying, "OPEN_S", 0.5)
            with pytest.raises(Unavailable, match="most members of"):
                await whole_catalog(parse_etcd_url(place.url)).__aenter__()
            for member in majority:
                member.start()
        assert set((await found(place)).rows) == {checkpoint(1), checkpoint(2)}


@on_a_loop
async def test_a_member_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    """By a number and a name. Emptied, it is an etcd of its own, and two of three in the URL."""
    with Etcd(tmp_path / "etcd", 3) as etcd:
        alone, *majority = etcd.members
        there = Prefix(",".join(member.address for member in majority))
        async with writing(there) as writer:
            await writer.write(attempt(1))
        begun_again(alone)
        names = f"{alone.address},localhost:{alone.port}"
        place = there.by_way_of(f"{names},{majority[0].address}")
        with pytest.raises(Refused, match="are members of different etcds"):
            await place.open()
        for member in majority:
            member.kill()
        with pytest.raises(Unavailable, match="most members of"):
            await place.open(patience_s=0.5)
        assert names_in(etcd, place) == set()
        alone.kill()
        for member in majority:
            member.start()
        twice = ",".join(f"{host}:{majority[0].port}" for host in ("127.0.0.1", "localhost"))
        assert set((await found(there.by_way_of(twice))).rows) == {checkpoint(1)}


def test_an_etcd_that_takes_the_place_of_another_is_followed_once_it_has_the_catalog(
    tmp_path: Path,
) -> None:
    """As one that was made again from a snapshot: its number is another, and it counts anew."""
    with (
        Etcd(tmp_path / "etcd") as etcd,
        Coordinators(tmp_path / "two", etcd, Prefix(etcd.addresses), ids="ab") as two,
    ):
        (member,) = etcd.members
        pairs = pairs_in(etcd, two.place)
        begun_again(member, "--initial-cluster-token", "another")
        wait_until(partial(ends, two), "its lease is gone")
        put(member, two.place, pairs)
        wait_until(lambda: two.term() == 2, "somebody leads again")
        assert two.leader() in "ab"


def put(member: Member, place: Prefix, pairs: Mapping[str, str]) -> None:
    """All but those that hang on leases. With `meta`, the last, it is a catalog."""
    for name in sorted(pairs, key=lambda name: name == "meta"):
        if name != "leader" and not name.startswith("coordinator/"):
            request = {"key": in_base64(f"{place.name}:{name}"), "value": pairs[name]}
            asked(member, "/v3/kv/put", request)


@on_a_loop
async def test_a_leader_of_before_a_snapshot_was_put_back_stores_nothing_beside_one_after_it(
    tmp_path: Path,
) -> None:
    """Both have taken the key at the same revision, in the same term: etcd counts once more. The
    one after it has written less often than the one before, as often, or more often.
    """
    with Etcd(tmp_path / "etcd") as etcd:
        (member,) = etcd.members
        places = [Prefix(etcd.addresses) for _ in range(3)]
        for place in places:
            await found(place)
        copy = kept(member, tmp_path / "copy")
        async with AsyncExitStack() as stack:
            before = [await taken(stack, place) for place in places]
            for space, fence in before:
                await space.write(fence, Writes({"label/one": b"before"}), math.inf)
            put_back(member, copy)
            after = [await taken(stack, place) for place in places]
            for times, (space, fence) in enumerate(after, 1):
                for _ in range(times):
                    await space.write(fence, Writes({"label/one": b"after"}), math.inf)
            assert [fence.revision for _, fence in before] == [fence.revision for _, fence in after]
            assert [fence.term for _, fence in before] == [fence.term for _, fence in after]
            for space, fence in before:
                with pytest.raises(Busy, match="has taken it over"):
                    await space.write(fence, Writes({"label/two": b"before"}), math.inf)
        for place in places:
            assert value_of(etcd, place, "label/two") is None


async def taken(stack: AsyncExitStack, place: Prefix) -> tuple[FencedSpace, Fence]:
    client = EtcdClient(parse_etcd_url(place.url))
    stack.push_async_callback(client.close)
    space = FencedSpace(client)
    return space, await space.take(asyncio.get_running_loop().time() + WAIT_S)
