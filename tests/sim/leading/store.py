"""What etcd keeps, and what it answers: keys with revisions, leases, transactions, history.

Pure: `execute` does a request whole and at once. When a request comes, whether its answer does, and
when a lease ends is `cluster.py`'s business.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from ckptd.catalog.etcd.words import (
    AnswerHeader,
    Compact,
    Compacted,
    Compare,
    DeleteRange,
    Failure,
    KeyChange,
    KeyValue,
    Lease,
    LeaseGrant,
    LeaseKept,
    LeaseNamed,
    Operation,
    OperationDone,
    Put,
    Range,
    RangeFound,
    Transaction,
    TransactionDone,
    encode,
)

NOT_FOUND = 5
"""gRPC's code."""


EXHAUSTED = 8
"""Likewise."""


class NoRoom(Exception):
    """Its quota is reached: it takes nothing that stores anything."""


class NoLease(Exception):
    """It has ended, or never was."""


@dataclass(slots=True)
class GrantedLease:
    """Keys that hang on it go with it."""

    ttl_s: int
    keys: set[bytes] = field(default_factory=set)
    kept_us: int = 0
    """When etcd renewed it last."""


class EtcdStore:
    """I am the state that a majority of the members agrees on."""

    def __init__(self) -> None:
        self.revision = 1
        self.is_full = self.was_full = False
        self.compacted = 0
        """What was overwritten up to this revision is gone."""
        self.keys: dict[bytes, KeyValue] = {}
        self.versions: dict[bytes, int] = {}
        self.leases: dict[int, GrantedLease] = {}
        self.changes: list[KeyChange] = []
        """All that ever happened, by revisions."""
        self._lease_count = 0
        self._paths: dict[str, tuple[type[Struct], Callable[..., Struct]]] = {
            "/v3/kv/txn": (Transaction, self._transact),
            "/v3/kv/range": (Range, self._range),
            "/v3/kv/compaction": (Compact, self._compact),
            "/v3/lease/grant": (LeaseGrant, self._grant),
            "/v3/lease/keepalive": (LeaseNamed, self._keep),
            "/v3/lease/revoke": (LeaseNamed, self._revoke),
        }

    def parse(self, path: str, body: bytes) -> Struct:
        """What it asks for."""
        return msgspec.json.decode(body, type=self._paths[path][0], strict=False)

    def execute(self, path: str, request: Struct, now_us: int) -> tuple[int, bytes, Struct | None]:
        """The HTTP status with what is answered, as text and as it is."""
        try:
            answer = self._paths[path][1](request, now_us)
        except NoLease:
            failure = Failure("etcdserver: requested lease not found", NOT_FOUND)
            return 404, encode(failure), None
        except NoRoom:
            failure = Failure("etcdserver: mvcc: database space exceeded", EXHAUSTED)
            return 429, encode(failure), None
        return 200, encode(answer), answer

    def since(self, revision: int) -> list[KeyChange]:
        """What happened at that revision, and later."""
        first = bisect.bisect_left(self.changes, revision, key=lambda c: c.kv.mod_revision)
        return self.changes[first:]

    def expire(self, lease: int) -> None:
        """It has run out."""
        if lease in self.leases:
            self._end_lease(lease)

    # ----------------------------------------------------------------------- requests

    def _transact(self, request: Transaction, now_us: int) -> TransactionDone:
        if self.is_full and any(each.request_put for each in (*request.success, *request.failure)):
            raise NoRoom
        holds = all(map(self._holds, request.compare))
        operations = request.success if holds else request.failure
        puts = [each.request_put for each in operations if each.request_put is not None]
        if any(put.lease and put.lease not in self.leases for put in puts):
            raise NoLease
        revision, changed = self.revision + 1, False
        done: list[OperationDone] = []
        for each in operations:
            changed |= self._operate(each, revision, done, now_us)
        self.revision += changed
        return TransactionDone(holds, tuple(done))

    def _operate(
        self, one: Operation, revision: int, done: list[OperationDone], now_us: int
    ) -> bool:
        """Whether it changed anything."""
        found: RangeFound | None = None
        changed = False
        if one.request_put is not None:
            self._put(one.request_put, revision)
            changed = True
        elif one.request_delete_range is not None:
            changed = self._delete(one.request_delete_range, revision)
        elif one.request_range is not None:
            found = self._range(one.request_range, now_us)
        done.append(OperationDone(found))
        return changed

    def _holds(self, one: Compare) -> bool:
        known = self.keys.get(one.key)
        match one.target:
            case "VALUE":
                return known is not None and self._compare(one, known.value, one.value or b"")
            case "CREATE":
                return self._compare(
                    one, known.create_revision if known else 0, one.create_revision or 0
                )
            case "MOD":
                return self._compare(one, known.mod_revision if known else 0, one.mod_revision or 0)
            case "VERSION":
                version = self.versions.get(one.key, 0) if known else 0
                return self._compare(one, version, one.version or 0)
        raise AssertionError(one.target)

    def _compare(self, one: Compare, known: object, asked: object) -> bool:
        match one.result:
            case "EQUAL":
                return known == asked
            case "GREATER":
                return known > asked  # type: ignore[operator]
            case "LESS":
                return known < asked  # type: ignore[operator]
        raise AssertionError(one.result)

    def _range(self, request: Range, _now_us: int) -> RangeFound:
        keys = self._within(request.key, request.range_end)
        more = 0 < request.limit < len(keys)
        kvs = tuple(self.keys[key] for key in (keys[: request.limit] if more else keys))
        return RangeFound(kvs, more, AnswerHeader(self.revision))

    def _compact(self, request: Compact, _now_us: int) -> Compacted:
        self.compacted = max(self.compacted, request.revision)
        return Compacted()

    def _grant(self, request: LeaseGrant, now_us: int) -> Lease:
        if self.is_full:
            raise NoRoom
        self._lease_count += 1
        self.leases[self._lease_count] = GrantedLease(request.TTL, kept_us=now_us)
        return Lease(self._lease_count, request.TTL, AnswerHeader(self.revision))

    def _keep(self, request: LeaseNamed, now_us: int) -> LeaseKept:
        known = self.leases.get(request.ID)
        if known is None:
            return LeaseKept(Lease(request.ID, 0, AnswerHeader(self.revision)))
        known.kept_us = now_us
        return LeaseKept(Lease(request.ID, known.ttl_s, AnswerHeader(self.revision)))

    def _revoke(self, request: LeaseNamed, _now_us: int) -> Lease:
        if request.ID not in self.leases:
            raise NoLease
        self._end_lease(request.ID)
        return Lease(header=AnswerHeader(self.revision))

    # ----------------------------------------------------------------------- keys

    def _within(self, key: bytes, end: bytes) -> list[bytes]:
        if not end:
            return [key] if key in self.keys else []
        return sorted(each for each in self.keys if key <= each < end)

    def _put(self, put: Put, revision: int) -> None:
        before = self.keys.get(put.key)
        created = revision if before is None else before.create_revision
        self._unhang(put.key)
        if put.lease:
            self.leases[put.lease].keys.add(put.key)
        found = KeyValue(put.key, put.value, created, revision, put.lease)
        self.keys[put.key] = found
        self.versions[put.key] = 1 if before is None else self.versions[put.key] + 1
        self.changes.append(KeyChange(found))

    def _delete(self, request: DeleteRange, revision: int) -> bool:
        gone = self._within(request.key, request.range_end)
        for key in gone:
            self._unhang(key)
            del self.keys[key]
            self.changes.append(KeyChange(KeyValue(key, mod_revision=revision), "DELETE"))
        return bool(gone)

    def _unhang(self, key: bytes) -> None:
        known = self.keys.get(key)
        if known is not None and known.lease:
            self.leases[known.lease].keys.discard(key)

    def _end_lease(self, lease: int) -> None:
        keys = sorted(self.leases[lease].keys)
        revision = self.revision + bool(keys)
        for key in keys:
            self._delete(DeleteRange(key), revision)
        self.revision = revision
        del self.leases[lease]
