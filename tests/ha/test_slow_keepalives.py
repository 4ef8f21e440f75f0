"""Members of etcd that are slow, or hang, when a lease is to be renewed: who leads stays."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.ha.coordinators import Coordinators
from tests.ha.members import Etcd
from tests.ha.places import Prefix, no_fault, proxied
from tests.stores.proxy import Fault, Proxy, Request
from tests.waiting import wait_until

KEEP = "/v3/lease/keepalive"
SLOW_S = 0.7
"""Longer than one member alone is waited for; less than half of the lease."""
RENEWALS = 12
"""Those of a leader in three leases and more."""


def renewals(proxies: list[Proxy]) -> int:
    """That members were asked for, by all coordinators, and not in vain."""
    return sum(
        request.path == KEEP and fault is Fault.NONE
        for proxy in proxies
        for request, fault in tuple(proxy.log)
    )


def check_stays(two: Coordinators, proxies: list[Proxy]) -> None:
    """Who leads, in its term, while leases are renewed often."""
    leader, so_far = two.leader(), renewals(proxies)
    for proxy in proxies:
        proxy.delay_s = lambda request: SLOW_S if request.path == KEEP else 0.0
    wait_until(lambda: renewals(proxies) >= so_far + RENEWALS, "leases are renewed")
    assert (two.logged(leader, "the term ends"), two.term()) == (0, 1)
    assert two.leader() == leader


def test_a_leader_stays_whose_etcd_renews_leases_slowly(tmp_path: Path, etcd: Etcd) -> None:
    with proxied(etcd.members[0], no_fault) as proxy:
        place = Prefix(f"127.0.0.1:{proxy.port}")
        with Coordinators(tmp_path, etcd, place, ids="ab") as two:
            check_stays(two, [proxy])


def test_a_leader_stays_where_one_member_hangs_and_the_others_renew_leases_slowly(
    tmp_path: Path,
) -> None:
    def hangs(request: Request) -> Fault:
        return Fault.STALL if request.path == KEEP else Fault.NONE

    with Etcd(tmp_path / "etcd", 3) as etcd, ExitStack() as stack:
        proxies = [stack.enter_context(proxied(member, no_fault)) for member in etcd.members]
        addresses = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        with Coordinators(tmp_path / "two", etcd, Prefix(addresses), ids="ab") as two:
            two.leader()
            proxies[0].decide = hangs
            check_stays(two, proxies)
