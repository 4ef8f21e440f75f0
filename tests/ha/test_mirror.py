"""The copy of all keys that who stands by keeps is what is stored, whatever happens on the way."""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ckpt.base.errors import Unavailable
from ckpt.protocol.coordinator.catalog import AttemptDecided
from ckpt.testing.catalog_contract import on_a_loop, writing
from ckpt.testing.catalog_entries import attempt, checkpoint, every_entry
from ckptd.catalog.etcd import mirror
from ckptd.catalog.etcd.client import EtcdClient
from ckptd.catalog.etcd.fence import Fence, FencedSpace
from ckptd.catalog.etcd.mirror import Mirror
from ckptd.catalog.etcd.opening import all_keys
from ckptd.catalog.etcd.url import parse_etcd_url
from ckptd.catalog.etcd.words import Compact, Compacted, KeyChanges, WatchFrom, WatchKeys
from tests.aio.tap import Tap
from tests.ha.members import Etcd, Member, free_ports
from tests.ha.places import Prefix, asked, proxied
from tests.stores.proxy import Fault, Request
from tests.waiting import wait_until

WAIT_S = 30.0


class Standby:
    """A mirror, and what it is to be compared with."""

    def __init__(self, url: str) -> None:
        self.client = EtcdClient(parse_etcd_url(url))
        self.space = FencedSpace(self.client)
        self.mirror = Mirror(self.client, self.space)

    async def check(self) -> None:
        """It takes the key, as who leads next does: the copy is what is stored then."""
        loop = asyncio.get_running_loop()
        fence = await self.space.take(loop.time() + WAIT_S)
        mirrored = await self.mirror.pairs_at(fence, WAIT_S)
        stored = await all_keys(self.space, math.inf)
        assert mirrored is not None
        assert dict(mirrored) == dict(stored)
        assert len(mirrored) == len(stored)
        await self.space.free(fence)


@asynccontextmanager
async def standing_by(url: str) -> AsyncIterator[Standby]:
    standby = Standby(url)
    standby.mirror.start()
    try:
        yield standby
    finally:
        await standby.mirror.stop()
        await standby.client.close()


async def reads(standby: Standby, count: int) -> None:
    what = f"all keys are read for the {count}. time"
    await asyncio.to_thread(wait_until, lambda: standby.mirror.reads >= count, what)


@on_a_loop
async def test_it_follows_each_kind_of_entry(etcd: Etcd) -> None:
    place = Prefix(etcd.addresses)
    async with writing(place) as writer:
        await writer.write(attempt(1))
    async with standing_by(place.url) as standby:
        await reads(standby, 1)
        async with writing(place) as writer:
            for entry in every_entry():
                await writer.write(entry)
        await standby.check()
        assert standby.mirror.reads == 1, "the rest came by the watch"


@on_a_loop
async def test_it_is_read_again_where_a_watch_was_cut(etcd: Etcd) -> None:
    """The next one is another member's."""
    place = Prefix(etcd.addresses)

    def decide(request: Request) -> Fault:
        return Fault.CUT_BEFORE if request.path == "/v3/watch" else Fault.NONE

    with proxied(etcd.members[0], decide) as proxy:
        by_way = place.by_way_of(f"127.0.0.1:{proxy.port},{etcd.addresses}")
        async with standing_by(by_way.url) as standby:
            async with writing(place) as writer:
                await reads(standby, 2)
                await writer.write(attempt(1))
            await standby.check()
            assert standby.mirror.reads == 2


@on_a_loop
async def test_a_watch_that_never_begins_is_given_up(etcd: Etcd) -> None:
    """Its member takes the connection, and says nothing."""
    place = Prefix(etcd.addresses)

    def decide(request: Request) -> Fault:
        return Fault.STALL if request.path == "/v3/watch" else Fault.NONE

    with proxied(etcd.members[0], decide) as proxy:
        by_way = place.by_way_of(f"127.0.0.1:{proxy.port},{etcd.addresses}")
        async with standing_by(by_way.url) as standby:
            async with writing(place) as writer:
                await reads(standby, 2)
                await writer.write(attempt(1))
            await standby.check()


@on_a_loop
async def test_a_copy_of_what_came_after_a_snapshot_is_no_copy_of_that(tmp_path: Path) -> None:
    """The hosts of etcd are gone without a word, and others have its older snapshot: a watch of the
    first ones stands, with more revisions than the others have.
    """
    with Etcd(tmp_path / "etcd") as etcd:
        place, (member,) = Prefix(etcd.addresses), etcd.members
        async with writing(place) as writer:
            await writer.write(attempt(1))
        older = snapshot(member, tmp_path / "older")
        tap = Tap(member.port)
        async with standing_by(place.by_way_of(f"127.0.0.1:{tap.port}").url) as standby:
            await reads(standby, 1)
            async with writing(place) as writer:
                for step in range(2, 20):
                    await writer.write(attempt(step))
            newest = int(asked(member, "/v3/kv/range", {"key": "eA=="})["header"]["revision"])
            there = lambda: standby.mirror.revision >= newest  # noqa: E731
            await asyncio.to_thread(wait_until, there, "it has followed")
            member.stop()
            older.launch(["--initial-cluster", f"{older.name}={older.peer_url}"])
            try:
                older.wait_up()
                tap.lead_to(older.port)
                loop = asyncio.get_running_loop()
                fence = await standby.space.take(loop.time() + WAIT_S)
                assert fence.revision < newest
                assert await standby.mirror.pairs_at(fence, 0.1) is None
            finally:
                older.kill()
        tap.close()


def snapshot(member: Member, folder: Path) -> Member:
    """One that begins with what this one has now."""
    folder.mkdir()
    first, second = free_ports(2)
    other = Member(member.name, folder, (first, second))
    member.kill()
    shutil.copytree(member.log.with_suffix(".data"), folder / f"{member.name}.data")
    member.start()
    member.wait_up()
    return other


@on_a_loop
async def test_a_watch_that_begins_before_what_is_compacted_ends_and_says_so(etcd: Etcd) -> None:
    place = Prefix(etcd.addresses)
    async with writing(place) as writer:
        for step in range(5):
            await writer.write(attempt(step))
    standby = Standby(place.url)
    status = asked(etcd.members[0], "/v3/maintenance/status", {})
    newest = int(status["header"]["revision"])
    await standby.client.call("kv/compaction", Compact(newest), Compacted)
    request = WatchKeys(WatchFrom(f"{place.name}:".encode(), f"{place.name};".encode(), 1))
    watch = standby.client.watch(request, 0, WAIT_S)
    ended = [changes async for changes in until_canceled(watch)]
    assert ended[-1].compact_revision == newest
    with pytest.raises(Unavailable, match="compacted"):
        standby.mirror._take(ended[-1])
    await watch.aclose()
    await standby.client.close()


async def until_canceled(
    watch: AsyncIterator[KeyChanges | None],
) -> AsyncIterator[KeyChanges]:
    async for changes in watch:
        assert changes is not None
        yield changes
        if changes.canceled:
            return


@on_a_loop
async def test_it_goes_to_another_member_when_its_own_is_gone_or_hangs(tmp_path: Path) -> None:
    with Etcd(tmp_path / "etcd", 3) as etcd:
        place = Prefix(etcd.addresses)
        async with standing_by(place.url) as standby:
            async with writing(place) as writer:
                await writer.write(attempt(1))
                await reads(standby, 1)
                # It watches the first of its URL.
                etcd.members[0].stop()
                for step in range(2, 6):
                    await writer.write(attempt(step))
            standby.mirror.expects(1 << 40)
            await reads(standby, 2)
            standby.mirror.expects(0)
            await standby.check()
            etcd.members[0].go_on()


@on_a_loop
async def test_it_stays_with_an_etcd_that_was_put_back_and_has_fewer_revisions_now(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is late for what there was before, and only until who looks at the key says less."""
    monkeypatch.setattr(mirror, "LATE_S", 0.05)
    monkeypatch.setattr(mirror, "REST_S", (0.01, 0.01))
    place = Prefix(etcd.addresses)
    async with writing(place) as writer, standing_by(place.url) as standby:
        await writer.write(attempt(0))
        await reads(standby, 1)
        standby.mirror.expects(1 << 40)
        await reads(standby, 3)
        standby.mirror.expects(1)
        before = standby.mirror.reads
        for step in range(1, 40):
            await writer.write(attempt(step))
            there = lambda step=step: step_of(standby) == step  # noqa: E731
            await asyncio.to_thread(wait_until, there, "it has followed")
        # One may have been under way.
        assert standby.mirror.reads <= before + 1


def step_of(standby: Standby) -> int:
    """The newest that the copy has a row of."""
    rows = [name.split("/")[2] for name in standby.mirror._values if name.startswith("row/")]
    return max(map(int, rows), default=0)


@on_a_loop
async def test_who_is_not_there_in_time_says_so(etcd: Etcd) -> None:
    place = Prefix(etcd.addresses)
    async with standing_by(place.url) as standby:
        assert await standby.mirror.pairs_at(Fence(1, 1 << 40, 0, 2), 0.01) is None
        await standby.mirror.stop()
        assert await standby.mirror.pairs_at(Fence(1, 1, 0, 2), 0.01) is None


@pytest.mark.parametrize("size", [100, 100_000, 1_000_000])
@on_a_loop
async def test_a_value_may_be_long(etcd: Etcd, size: int) -> None:
    place = Prefix(etcd.addresses)
    async with standing_by(place.url) as standby:
        async with writing(place) as writer:
            await reads(standby, 1)
            writer.submit(attempt(1))
            await writer.write(AttemptDecided(checkpoint(1), bytes(size)))
        await standby.check()
