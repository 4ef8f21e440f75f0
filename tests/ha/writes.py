"""Which catalog write is that transaction, and its leader's death at it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass

from tests.ha.coordinators import Coordinators
from tests.stores.proxy import Fault, Request

TRANSACTION = "/v3/kv/txn"


@dataclass(frozen=True, slots=True)
class Kind:
    """Some key that begins so is put, with this in its value."""

    start: str
    part: str = ""
    within: str = ""
    """In its name."""


def puts(request: Request) -> Iterator[tuple[str, str]]:
    """(name, value) of each, without the prefix."""
    for operation in json.loads(request.body).get("success", []):
        put = operation.get("request_put")
        if put is not None:
            _, _, name = base64.b64decode(put["key"]).decode().partition(":")
            yield name, base64.b64decode(put.get("value", "")).decode(errors="replace")


def is_of(kind: Kind, request: Request) -> bool:
    return request.path == TRANSACTION and any(
        name.startswith(kind.start) and kind.within in name and kind.part in value
        for name, value in puts(request)
    )


class Assassin:
    """I am the `decide` of a proxy before etcd: who leads dies at its next write of `kind`, and the
    write is as `fault` says.
    """

    def __init__(self, cluster: Coordinators, fault: Fault) -> None:
        self.kind: Kind | None = None
        """None again once it has happened."""
        self.body = b""
        """Of that write."""
        self.killed: list[str] = []
        """Who runs no more."""
        self._cluster = cluster
        self._fault = fault

    def __call__(self, request: Request) -> Fault:
        if self.kind is None or not is_of(self.kind, request):
            return Fault.NONE
        self.kind, self.body = None, request.body
        leader = self._cluster.leader()
        self._cluster.kill(leader)
        self.killed.append(leader)
        return self._fault
