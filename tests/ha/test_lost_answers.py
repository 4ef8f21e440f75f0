"""Answers of etcd that are lost, and requests that come late: each transaction is done once."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ckpt.base.errors import Busy
from ckpt.protocol.coordinator.catalog import RowAborted, RowState
from ckpt.testing.catalog_contract import Writer, folded, found, on_a_loop, writing
from ckpt.testing.catalog_entries import attempt, checkpoint, entries_by_chance
from ckptd.catalog.etcd.catalog import EtcdCatalog
from ckptd.catalog.etcd.client import EtcdClient
from ckptd.catalog.etcd.fence import FencedSpace
from ckptd.catalog.etcd.folding import Writes
from ckptd.catalog.etcd.history import RevisionHistory
from ckptd.catalog.etcd.lease import LeaseKeeper
from ckptd.catalog.etcd.opening import all_keys
from ckptd.catalog.etcd.url import parse_etcd_url
from tests.ha.members import Etcd
from tests.ha.places import Prefix, asked, names_in, no_fault, proxied, value_of
from tests.stores.proxy import Fault, Request

TRANSACTION = "/v3/kv/txn"
CUTS = (Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.CUT_ANSWER, Fault.FULL_AFTER)


@pytest.mark.parametrize("fault", CUTS, ids=lambda fault: fault.name)
@on_a_loop
async def test_each_ticket_is_stored_once_whatever_becomes_of_answers(
    etcd: Etcd, fault: Fault
) -> None:
    """Every second transaction has another answer, that which takes the catalog among them."""

    def decide(request: Request) -> Fault:
        lost = request.path == TRANSACTION and request.number % 2
        return fault if lost else Fault.NONE

    entries = entries_by_chance(7, 24)
    with proxied(etcd.members[0], no_fault) as proxy:
        place = Prefix(f"127.0.0.1:{proxy.port}")
        await found(place)  # There is one: none is begun in an etcd that is full.
        proxy.decide = decide
        async with writing(place) as writer:
            for entry in entries:
                await writer.write(entry)
            assert writer.durable == list(range(1, 25))
            assert value_of(etcd, place, "sequence") == b"25"  # And that of the start's own check.
        assert sum(each is fault for _, each in proxy.log) > 8
        image = await found(place)
    assert image == folded(image, entries)


@on_a_loop
async def test_a_request_that_comes_late_puts_nothing_old_back(etcd: Etcd) -> None:
    """It was repeated and others followed: by the leader's key alone it would still be taken."""
    late: list[bytes] = []

    def decide(request: Request) -> Fault:
        if request.path != TRANSACTION or late:
            return Fault.NONE
        late.append(request.body)
        return Fault.CUT_BEFORE

    with proxied(etcd.members[0], no_fault) as proxy:
        place = Prefix(f"127.0.0.1:{proxy.port}")
        async with writing(place) as writer:
            proxy.decide = decide
            await writer.write(attempt(1))
            await writer.write(RowAborted(checkpoint(1), "aborted", "rank 3 left"))
            done = asked(etcd.members[0], TRANSACTION, _json(late[0]))
            assert "succeeded" not in done
            await writer.write(attempt(2))
        image = await found(place)
    assert image.rows[checkpoint(1)].state is RowState.ABORTED


@on_a_loop
async def test_a_late_request_of_who_was_deposed_does_nothing(etcd: Etcd) -> None:
    kept: list[bytes] = []

    def decide(request: Request) -> Fault:
        kept.append(request.body)
        return Fault.CUT_BEFORE

    with proxied(etcd.members[0], no_fault) as proxy:
        place = Prefix(etcd.addresses)
        older = Writer(await place.by_way_of(f"127.0.0.1:{proxy.port}").open())
        proxy.decide = decide
        older.submit(attempt(1))
        async with writing(place) as newer:
            # The newer one has written as often, then more often: the leader's key says it all.
            for step in (2, 3):
                assert value_of(etcd, place, "sequence") == b"%d" % (step - 1)
                bodies = [body for body in kept if b"compare" in body]
                assert bodies
                for body in bodies:
                    assert "succeeded" not in asked(etcd.members[0], TRANSACTION, _json(body))
                await newer.write(attempt(step))
            proxy.decide = no_fault
            await older.wait_until(lambda: bool(older.failures))
            assert [type(each) for each in older.failures] == [Busy]
            assert f"the coordinator of term {newer.catalog.image.term}" in str(older.failures[0])
            await older.catalog.close()
    assert set((await found(place)).rows) == {checkpoint(2), checkpoint(3)}


@on_a_loop
async def test_a_key_that_another_one_has_is_not_taken(etcd: Etcd) -> None:
    """It was free when it was looked at."""
    place = Prefix(etcd.addresses)
    await found(place)
    async with space_at(place) as space, space_at(place) as other:
        fence = await space.take(math.inf)
        assert await other.try_to_take(math.inf) is None
        await space.write(fence, Writes(), math.inf)
        assert value_of(etcd, place, "term") == b"%d" % fence.term


@on_a_loop
async def test_a_term_that_began_and_ended_meanwhile_is_not_begun_again(etcd: Etcd) -> None:
    """Between the look at the term and the transaction that raises it, with the key free again."""
    place = Prefix(etcd.addresses)
    await found(place)
    meanwhile: list[int] = []

    async def lead() -> None:
        async with space_at(place) as other:
            fence = await other.take(math.inf)
            meanwhile.append(fence.term)
            await other.free(fence)

    def decide(request: Request) -> Fault:
        if request.path == TRANSACTION and not meanwhile:
            asyncio.run(lead())
        return Fault.NONE

    with proxied(etcd.members[0], decide) as proxy:
        async with space_at(place.by_way_of(f"127.0.0.1:{proxy.port}")) as space:
            assert await space.try_to_take(math.inf) is None
            fence = await space.take(math.inf)
    assert [fence.term - 1] == meanwhile


@on_a_loop
async def test_who_unseats_a_leader_names_its_key_and_no_later_one(etcd: Etcd) -> None:
    """Its request may come when another one leads."""
    place = Prefix(etcd.addresses)
    await found(place)
    async with space_at(place) as space:
        fence = await space.take(math.inf)
        await space.unseat(fence.revision - 1, math.inf)
        await space.write(fence, Writes({"label/one": b""}), math.inf)
        await space.unseat(fence.revision, math.inf)
        with pytest.raises(Busy):
            await space.write(fence, Writes({"label/two": b""}), math.inf)
    assert names_in(etcd, place) >= {"meta", "label/one"}
    assert not names_in(etcd, place) & {"leader", "label/two"}


@on_a_loop
async def test_who_was_deposed_while_it_loaded_leads_nothing(etcd: Etcd) -> None:
    """Its pages may be of before and after what another one has written."""
    place = Prefix(etcd.addresses)
    await found(place)
    async with space_at(place) as space:
        fence = await space.take(math.inf)
        keeper = LeaseKeeper(space, fence, RevisionHistory())
        pairs = await all_keys(space, math.inf)
        await space.unseat(fence.revision, math.inf)
        with pytest.raises(Busy):
            await EtcdCatalog.load(space, fence, "c1", keeper, math.inf, pairs)


@on_a_loop
async def test_who_clears_what_it_copied_clears_no_catalog(etcd: Etcd) -> None:
    """The answer to the last transaction of its copy may have been lost."""
    place = Prefix(etcd.addresses)
    async with writing(place) as writer:
        await writer.write(attempt(1))
    async with space_at(place) as space:
        fence = await space.take(math.inf)
        await space.clear(fence, math.inf)
        await space.free(fence)
    assert set((await found(place)).rows) == {checkpoint(1)}


@asynccontextmanager
async def space_at(place: Prefix) -> AsyncIterator[FencedSpace]:
    client = EtcdClient(parse_etcd_url(place.url))
    try:
        yield FencedSpace(client)
    finally:
        await client.close()


def _json(body: bytes) -> object:
    return json.loads(body)
