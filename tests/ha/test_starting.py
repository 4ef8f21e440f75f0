"""A coordinator that cannot lead when it starts, or is ended while nobody does yet."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e_remote.cluster import Daemon
from tests.ha.coordinators import Coordinators
from tests.ha.members import Etcd
from tests.ha.places import Prefix, asked, in_base64, names_in, no_fault, proxied
from tests.stores.proxy import Fault, Request
from tests.waiting import wait_until

OF_NO_RECORD = (
    '{"state": "committed", "launch": 1, "launch_key": null, "world_size": 1, "reason": ""}'
)


@pytest.fixture
def none(tmp_path: Path, etcd: Etcd) -> Iterator[Coordinators]:
    """Of coordinators; the prefix has a catalog."""
    with Coordinators(tmp_path, etcd, Prefix(etcd.addresses), ids="a") as made:
        made.kill("a", signal.SIGTERM)
        yield made


def launched(kit: Coordinators, place: Prefix) -> Daemon:
    """Coordinator a, which may never be ready."""
    daemon = kit.running["a"] = Daemon(
        "coordinator", "--directory", str(kit.directory / "a"), "--listen", "127.0.0.1:0",
        "--id", "a", "--catalog", place.url, "--secret-file", str(kit.secret_file),
        log=kit.log_of("a"),
    )  # fmt: skip
    return daemon


@pytest.mark.parametrize(
    ("row", "why"), [("{", "row/llama"), (OF_NO_RECORD, "entry of llama@1#1.1")]
)
def test_a_catalog_that_cannot_be_read_is_named_at_start(
    none: Coordinators, row: str, why: str
) -> None:
    """It waited for somebody to lead, and said that nobody did."""
    key = in_base64(f"{none.place.name}:row/llama/1/1.1")
    asked(none.etcd.members[0], "/v3/kv/put", {"key": key, "value": in_base64(row)})
    daemon = launched(none, none.place)
    assert daemon.process.wait() == 4
    assert none.logged("a", why)
    assert none.logged("a", "run: ckpt catalog rebuild")
    assert none.logged("a", "Traceback") == 0
    assert none.logged("a", "nobody could lead") == 0
    assert names_in(none.etcd, none.place) >= {"meta", "term"}
    assert "leader" not in names_in(none.etcd, none.place)


def test_one_that_is_ended_before_anybody_leads_leaves_the_roll(none: Coordinators) -> None:
    """Its campaigns are lost before they are begun."""
    lost: list[Request] = []

    def decide(request: Request) -> Fault:
        about_it = in_base64(f"{none.place.name}:leader").encode() in request.body
        if request.path != "/v3/kv/range" or not about_it:
            return Fault.NONE
        lost.append(request)
        return Fault.CUT_BEFORE

    with proxied(none.etcd.members[0], no_fault) as proxy:
        proxy.decide = decide
        daemon = launched(none, none.place.by_way_of(f"127.0.0.1:{proxy.port}"))
        wait_until(lambda: bool(lost), "it looks who leads")
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait() == 0
    assert "coordinator/a" not in names_in(none.etcd, none.place)


def test_one_that_is_ended_while_it_loads_frees_the_key(none: Coordinators) -> None:
    """Its copy of the catalog is late, as no watch begins."""

    def decide(request: Request) -> Fault:
        return Fault.CUT_BEFORE if request.path == "/v3/watch" else Fault.NONE

    with proxied(none.etcd.members[0], no_fault) as proxy:
        proxy.decide = decide
        daemon = launched(none, none.place.by_way_of(f"127.0.0.1:{proxy.port}"))
        wait_until(lambda: bool(none.key()), "it has the key")
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait() == 0
    assert none.key() == {}
    assert none.logged("a", '"msg": "leads"') == 1, "the first one did"
