"""Prefixes of an etcd for tests, and a proxy before it that loses requests and answers."""

from __future__ import annotations

import base64
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ckpt.protocol.coordinator.image import CatalogImage
from ckptd.catalog.backup import read_backup
from ckptd.catalog.etcd.catalog import EtcdCatalog
from ckptd.catalog.etcd.history import RevisionHistory
from ckptd.catalog.etcd.url import parse_etcd_url
from tests.ha.members import Etcd, Member
from tests.stores.proxy import Fault, Proxy, Request
from tests.waiting import wait_until

_COUNT = itertools.count()


class Prefix:
    """Where one catalog lies: a place of `ckpt.testing.catalog_contract`."""

    def __init__(self, addresses: str, name: str = "", options: str = "") -> None:
        self.name = name or f"test/{next(_COUNT)}"
        self.url = f"etcd://{addresses}/{self.name}{options}"

    async def open(
        self, cluster: str | None = None, new_cluster: str = "c1", patience_s: float = 30.0,
        history: RevisionHistory | None = None,
    ) -> EtcdCatalog:  # fmt: skip
        return await EtcdCatalog.open(
            parse_etcd_url(self.url), cluster, new_cluster, patience_s=patience_s, history=history
        )

    def read_copy(self, path: Path) -> CatalogImage:
        return read_backup(path, "c1")

    def by_way_of(self, addresses: str) -> Prefix:
        """The same catalog through other addresses."""
        return Prefix(addresses, self.name)


@contextmanager
def proxied(member: Member, decide: Callable[[Request], Fault]) -> Iterator[Proxy]:
    """Before a member, for as long."""
    proxy = Proxy(member.port)
    proxy.decide = decide
    try:
        yield proxy
    finally:
        proxy.close()


def no_fault(_request: Request) -> Fault:
    return Fault.NONE


def asked(member: Member, path: str, body: object = None, *, token: str = "") -> dict[str, Any]:
    """What a member answers as soon as it has a leader, past every catalog. `token`: who asks."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{member.address}{path}", data)
    if token:
        request.add_header("Authorization", token)
    found: list[dict[str, Any]] = []

    def answers() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                found.append(json.load(answer))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 503:
                raise
        return bool(found)

    wait_until(answers, f"{member.name} answers {path}")
    return found[0]


def in_base64(text: str) -> str:
    """As the gateway takes bytes."""
    return base64.b64encode(text.encode()).decode()


def value_of(etcd: Etcd, prefix: Prefix, name: str) -> bytes | None:
    """What a key holds; None: there is none."""
    found = asked(etcd.members[0], "/v3/kv/range", {"key": in_base64(f"{prefix.name}:{name}")})
    pairs = found.get("kvs")
    return base64.b64decode(pairs[0].get("value", "")) if pairs else None


def names_in(etcd: Etcd, prefix: Prefix) -> set[str]:
    """All keys of a catalog, without the prefix."""
    return set(pairs_in(etcd, prefix))


def pairs_in(etcd: Etcd, prefix: Prefix) -> dict[str, str]:
    """Each key's value as well, in base64."""
    start = f"{prefix.name}:"
    request = {"key": in_base64(start), "range_end": in_base64(f"{prefix.name};")}
    found = asked(etcd.members[0], "/v3/kv/range", request)
    named = ((base64.b64decode(pair["key"]).decode(), pair) for pair in found.get("kvs", []))
    return {name.removeprefix(start): pair.get("value", "") for name, pair in named}
