"""A member of etcd that was started with --force-new-cluster has left the others, and keeps their
etcd's number and the catalog of that moment: nobody leads that catalog while others are named.
"""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from pathlib import Path

import pytest

from ckpt.base.errors import Refused, Unavailable
from ckpt.testing.catalog_contract import found, on_a_loop, writing
from ckpt.testing.catalog_entries import attempt, checkpoint
from ckptd.catalog.etcd.identity import LEFT
from tests.ha.coordinators import Coordinators
from tests.ha.members import Etcd, Member, free_ports
from tests.ha.places import Prefix, asked, in_base64, no_fault, proxied, value_of
from tests.ha.test_mirror import WAIT_S
from tests.ha.test_other_etcds import ends
from tests.ha.test_renewed_credentials import asking
from tests.waiting import wait_until

LEFT_EACH_OTHER = "have left each other by --force-new-cluster"
LOOKS = 30
"""So many requests are more than a campaign has."""


def forced(etcd: Etcd, member: Member) -> None:
    """It leads itself on return, with what it had, out of reach for the others: who reaches one
    that has left ends itself.
    """
    member.kill()
    (port,) = free_ports(1)
    together = ",".join(f"{each.name}={each.peer_url}" for each in etcd.members)
    elsewhere = ("--listen-peer-urls", f"http://{member.host}:{port}")
    member.launch(["--initial-cluster", together, "--force-new-cluster", *elsewhere])
    member.wait_up()
    asked(member, "/v3/kv/range", {"key": in_base64("none")})
    assert len(asked(member, "/v3/cluster/member/list", {})["members"]) == 1


@on_a_loop
async def test_who_starts_asks_the_others(tmp_path: Path) -> None:
    """What came after it was forced is theirs; it alone is waited beside, not led."""
    with Etcd(tmp_path / "etcd", 3) as etcd:
        alone, *majority = etcd.members
        place = Prefix(etcd.addresses)
        async with writing(place) as writer:
            await writer.write(attempt(1))
        forced(etcd, alone)
        there = place.by_way_of(",".join(member.address for member in majority))
        async with writing(there) as writer:
            await writer.write(attempt(2))
        assert set((await found(place)).rows) == {checkpoint(1), checkpoint(2)}
        for member in majority:
            member.kill()
        with pytest.raises(Unavailable, match="most members of"):
            await place.open(patience_s=0.5)
        forced(etcd, majority[0])
        with pytest.raises(Refused, match=LEFT_EACH_OTHER):
            await place.by_way_of(f"{alone.address},{majority[0].address}").open()
        assert set((await found(place.by_way_of(alone.address))).rows) == {checkpoint(1)}


@on_a_loop
async def test_who_runs_does_not_follow_it(tmp_path: Path) -> None:
    with Etcd(tmp_path / "etcd", 3) as etcd:
        alone, *majority = etcd.members
        place = Prefix(",".join(member.address for member in (*majority, alone)))
        key = f"{place.name}:meta".encode()
        async with writing(place) as writer:
            await writer.write(attempt(1))
        async with asking(place) as client:
            assert await client.one(key, -1.0) is not None
            forced(etcd, alone)
            async with writing(place) as writer:
                await writer.write(attempt(2))
            for member in majority:
                member.kill()
            for _ in range(2):
                with pytest.raises(Unavailable, match=f"{alone.address}: {LEFT}"):
                    await client.one(key, -1.0)
            assert (await client.health(alone.address))[1] == LEFT
            for member in majority:
                member.start()
            assert await client.one(key, asyncio.get_running_loop().time() + WAIT_S) is not None
        assert set((await found(place)).rows) == {checkpoint(1), checkpoint(2)}


@on_a_loop
async def test_of_two_members_the_forced_one_has_all_and_who_runs_goes_on_with_it(
    tmp_path: Path,
) -> None:
    """What the two had acknowledged both have. Who starts cannot know whether the other one was
    forced as well, and went on: it is to be left out first.
    """
    with Etcd(tmp_path / "etcd", 2) as etcd:
        kept, gone = etcd.members
        place = Prefix(etcd.addresses)
        key = f"{place.name}:meta".encode()
        async with writing(place) as writer:
            await writer.write(attempt(1))
        async with asking(place) as client:
            assert await client.one(key, -1.0) is not None
            gone.kill()
            forced(etcd, kept)
            until = asyncio.get_running_loop().time() + WAIT_S
            assert await client.one(key, until) is not None
        with pytest.raises(Unavailable, match=f"do not answer: {gone.address}") as refused:
            await place.open(patience_s=0.5)
        assert "leave those out" in refused.value.hint
        assert set((await found(place.by_way_of(kept.address))).rows) == {checkpoint(1)}
        forced(etcd, gone)
        with pytest.raises(Refused, match=LEFT_EACH_OTHER):
            await place.open()


def test_no_term_begins_in_it_while_the_others_are_silent(tmp_path: Path) -> None:
    with Etcd(tmp_path / "etcd", 3) as etcd, proxied(etcd.members[0], no_fault) as proxy:
        alone, *majority = etcd.members
        named = f"127.0.0.1:{proxy.port},{','.join(member.address for member in majority)}"
        place = Prefix(named)
        with Coordinators(tmp_path / "two", etcd, place, ids="ab") as two:
            for member in majority:
                member.kill()
            wait_until(partial(ends, two), "nobody leads")
            forced(etcd, alone)
            looks = len(proxy.log)
            wait_until(lambda: len(proxy.log) > looks + LOOKS, "it is asked")
            assert value_of(etcd, place, "term") == b"1"
            for member in majority:
                member.start()
            for member in majority:
                member.wait_up()
            alone.kill()
            wait_until(lambda: term_at(majority[0], place) == 2, "somebody leads again")


def term_at(member: Member, place: Prefix) -> int:
    """The highest that it knows of."""
    found = asked(member, "/v3/kv/range", {"key": in_base64(f"{place.name}:term")})
    return int(base64.b64decode(found["kvs"][0]["value"]))
