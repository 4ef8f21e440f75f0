"""What befalls an etcd under a catalog: leases that run out, members that go."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt.base.errors import Busy, Unavailable
from ckpt.testing.catalog_contract import Writer, found, on_a_loop, writing
from ckpt.testing.catalog_entries import attempt, checkpoint
from tests.ha.members import Etcd
from tests.ha.places import Prefix, asked, no_fault, proxied
from tests.stores.proxy import Fault, Request


def leader_of(etcd: Etcd) -> int:
    """Index of etcd's own leader among its members."""
    told = [asked(member, "/v3/maintenance/status", {}) for member in etcd.members]
    leads = [each["header"]["member_id"] == each["leader"] for each in told]
    return leads.index(True)


@on_a_loop
async def test_a_lease_that_ran_out_is_heard_of_without_a_ticket(etcd: Etcd) -> None:
    def decide(request: Request) -> Fault:
        return Fault.CUT_BEFORE if request.path == "/v3/lease/keepalive" else Fault.NONE

    with proxied(etcd.members[0], decide) as proxy:
        place = Prefix(etcd.addresses)
        writer = Writer(await place.by_way_of(f"127.0.0.1:{proxy.port}").open())
        await writer.write(attempt(1))
        gone = Prefix(etcd.addresses, place.name)
        async with writing(gone) as newer:
            await newer.write(attempt(2))
            proxy.decide = no_fault
            await writer.wait_until(lambda: bool(writer.failures))
        assert [type(each) for each in writer.failures] == [Busy]
        await writer.catalog.close()
    assert set((await found(place)).rows) == {checkpoint(1), checkpoint(2)}


@on_a_loop
async def test_who_comes_while_the_lease_lives_is_refused_by_name(etcd: Etcd) -> None:
    place = Prefix(etcd.addresses)
    async with writing(place) as older:
        with pytest.raises(Busy, match=f"the coordinator of term 1 .pid .* works on {place.url}"):
            await place.open()
        await older.write(attempt(1))
    async with writing(place) as newer:  # At once: the key was freed.
        await newer.write(attempt(2))


@on_a_loop
async def test_a_commit_goes_on_when_etcd_s_leader_is_killed(tmp_path: Path) -> None:
    with Etcd(tmp_path / "etcd", 3) as etcd:
        place = Prefix(etcd.addresses)
        async with writing(place) as writer:
            for step in range(30):
                if step == 10:
                    etcd.members[leader_of(etcd)].kill()
                await writer.write(attempt(step))
            assert writer.failures == []
        assert set((await found(place)).rows) == {checkpoint(step) for step in range(30)}


@on_a_loop
async def test_tickets_wait_for_a_majority_and_are_stored_then(tmp_path: Path) -> None:
    with Etcd(tmp_path / "etcd", 3) as etcd:
        place = Prefix(etcd.addresses)
        async with writing(place) as writer:
            await writer.write(attempt(0))
            for member in etcd.members[1:]:
                member.kill()
            for step in range(1, 20):
                writer.submit(attempt(step))
            for member in etcd.members[1:]:
                member.start()
            await writer.wait_until(lambda: len(writer.durable) == 20)
            assert writer.failures == []
        assert set((await found(place)).rows) == {checkpoint(step) for step in range(20)}


@on_a_loop
async def test_without_a_majority_a_start_and_an_end_say_so(tmp_path: Path) -> None:
    with Etcd(tmp_path / "etcd", 3) as etcd:
        place = Prefix(etcd.addresses)
        async with writing(place) as writer:
            await writer.write(attempt(0))
            for member in etcd.members[1:]:
                member.kill()
            writer.submit(attempt(1))
        assert [type(each) for each in writer.failures] == [Unavailable]
        with pytest.raises(Unavailable) as caught:
            await place.open(patience_s=3.0)
        for member in etcd.members:
            assert member.address in str(caught.value)
        for member in etcd.members[1:]:
            member.start()
        assert checkpoint(0) in (await found(place)).rows


@on_a_loop
async def test_a_member_that_stands_still_costs_neither_ticket_nor_lease(tmp_path: Path) -> None:
    """It takes connections, and never answers."""
    with Etcd(tmp_path / "etcd", 3) as etcd:
        still = etcd.members[(leader_of(etcd) + 1) % 3]
        others = [member.address for member in etcd.members if member is not still]
        place = Prefix(",".join([still.address, *others]))
        async with writing(place) as writer:
            await writer.write(attempt(0))
            still.stop()
            for step in range(1, 8):
                await writer.write(attempt(step))
            assert writer.failures == []
            still.go_on()
        assert len((await found(place)).rows) == 8
