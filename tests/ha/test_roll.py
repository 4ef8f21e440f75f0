"""The roll of coordinators, whatever becomes of answers."""

from __future__ import annotations

import json

from ckpt.testing.catalog_contract import on_a_loop
from ckptd.catalog.etcd.client import EtcdClient
from ckptd.catalog.etcd.roll import Coordinator, Roll
from ckptd.catalog.etcd.url import parse_etcd_url
from tests.ha.members import Etcd
from tests.ha.places import Prefix, asked, in_base64, names_in, no_fault, proxied
from tests.stores.proxy import Fault, Request
from tests.waiting import wait_until_async

ME = Coordinator("process", "host", 1, "127.0.0.1:1")


@on_a_loop
async def test_an_entry_is_kept_by_the_lease_it_hangs_on_when_the_answer_to_it_was_lost(
    etcd: Etcd,
) -> None:
    """Its first lease has ended; the transaction that writes it down again is done unheard."""
    cut: list[Request] = []
    kept: list[str] = []

    def decide(request: Request) -> Fault:
        if request.path == "/v3/lease/keepalive":
            kept.append(str(json.loads(request.body)["ID"]))
        if request.path != "/v3/kv/txn" or cut:
            return Fault.NONE
        cut.append(request)
        return Fault.CUT_AFTER

    def lease() -> str:
        key = {"key": in_base64(f"{place.name}:coordinator/a")}
        found = asked(etcd.members[0], "/v3/kv/range", key).get("kvs")
        return str(found[0]["lease"]) if found else ""

    place = Prefix(etcd.addresses)
    with proxied(etcd.members[0], no_fault) as proxy:
        client = EtcdClient(parse_etcd_url(place.by_way_of(f"127.0.0.1:{proxy.port}").url))
        roll = Roll(client, "a", ME)
        await roll.join(-1.0)
        first = lease()
        proxy.decide = decide
        asked(etcd.members[0], "/v3/lease/revoke", {"ID": first})
        await wait_until_async(lambda: bool(cut) and kept[-1] != first, "it is there again")
        assert kept[-1] == lease()
        await roll.leave()
        await client.close()
    assert lease() == ""


@on_a_loop
async def test_an_entry_that_somebody_removed_is_written_down_again(etcd: Etcd) -> None:
    place = Prefix(etcd.addresses)
    client = EtcdClient(parse_etcd_url(place.url))
    roll = Roll(client, "a", ME)
    await roll.join(-1.0)
    key = in_base64(f"{place.name}:coordinator/a")
    asked(etcd.members[0], "/v3/kv/deleterange", {"key": key})
    await roll.all(-1.0)
    wanted = {"coordinator/a"}
    await wait_until_async(lambda: names_in(etcd, place) == wanted, "it is there again")
    assert await roll.all(-1.0) == {"a": ME}
    await roll.leave()
    await client.close()
    await wait_until_async(lambda: names_in(etcd, place) == set(), "it is gone")
