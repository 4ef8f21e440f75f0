"""The simulator's etcd answers as the real one does: both are asked the same, at random."""

from __future__ import annotations

import random
import urllib.error
import urllib.request

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace as replaced

from ckptd.catalog.etcd.words import (
    AnswerHeader,
    Compare,
    DeleteRange,
    Failure,
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
from tests.ha.members import Etcd, Member
from tests.landing import in_turn
from tests.sim.leading.store import EtcdStore

KEYS = tuple(f"sim:{name}".encode() for name in ("a", "b", "b/1", "b/2", "c"))
VALUES = (b"", b"1", b"2")
NUMBERS = ("CREATE", "MOD", "VERSION")
REQUESTS = 150
NEVER = 77


class Both:
    """The real one and the simulator's; revisions and leases of the first are told as the second
    counts them.
    """

    def __init__(self, member: Member) -> None:
        self.store = EtcdStore()
        self._member = member
        # What the test before has left.
        gone = Operation(request_delete_range=DeleteRange(b"sim:", b"sim;"))
        self._real("/v3/kv/txn", Transaction((), (gone,)), TransactionDone)
        found = self._real("/v3/kv/range", Range(b"sim:", b"sim;"), RangeFound)
        assert isinstance(found, RangeFound)
        #: Real revisions are so much higher.
        self._ahead = found.header.revision - self.store.revision
        self.leases: dict[int, int] = {0: 0, NEVER: 12345}
        """The simulator's -> the real one; 0 is none, and one there never was."""

    def ask(self, path: str, request: Struct, kind: type[Struct]) -> tuple[object, object]:
        """What each says."""
        text = encode(request)
        status, answer, _ = self.store.execute(path, self.store.parse(path, text), 0)
        ours = _decoded(status, answer, kind)
        theirs = self._real(path, self._as_real(request), kind)
        if isinstance(ours, Lease) and isinstance(theirs, Lease) and kind is Lease:
            self.leases.setdefault(ours.ID, theirs.ID)
        return _without_headers(ours), _without_headers(self._as_ours(theirs))

    def _real(self, path: str, request: Struct, kind: type[Struct]) -> object:
        url = f"http://{self._member.address}{path}"
        try:
            with urllib.request.urlopen(url, encode(request), 30) as answer:
                return _decoded(200, answer.read(), kind)
        except urllib.error.HTTPError as error:
            with error:
                return _decoded(error.code, error.read(), kind)

    # ----------------------------------------------------------------------- the other's words

    def _as_real(self, request: Struct) -> Struct:
        match request:
            case LeaseNamed(ID):
                return LeaseNamed(self.leases[ID])
            case Transaction():
                return Transaction(
                    tuple(map(self._compare_as_real, request.compare)),
                    tuple(map(self._operation_as_real, request.success)),
                    tuple(map(self._operation_as_real, request.failure)),
                )
        return request

    def _compare_as_real(self, one: Compare) -> Compare:
        create, mod = one.create_revision, one.mod_revision
        return replaced(
            one, create_revision=create + self._ahead if create else create,
            mod_revision=mod + self._ahead if mod else mod,
        )  # fmt: skip

    def _operation_as_real(self, one: Operation) -> Operation:
        put = one.request_put
        if put is None:
            return one
        return Operation(replaced(put, lease=self.leases[put.lease]))

    def _as_ours(self, answer: object) -> object:
        match answer:
            case RangeFound():
                return RangeFound(
                    tuple(map(self._key_as_ours, answer.kvs)), answer.more,
                    self._header_as_ours(answer.header),
                )  # fmt: skip
            case TransactionDone():
                found = [self._as_ours(each.response_range) for each in answer.responses]
                return TransactionDone(answer.succeeded, tuple(map(OperationDone, found)))
            case Lease():
                return self._lease_as_ours(answer)
            case LeaseKept(result):
                return LeaseKept(self._lease_as_ours(result))
        return answer

    def _key_as_ours(self, kv: KeyValue) -> KeyValue:
        return replaced(
            kv, create_revision=kv.create_revision - self._ahead,
            mod_revision=kv.mod_revision - self._ahead, lease=self._lease_of(kv.lease),
        )  # fmt: skip

    def _header_as_ours(self, header: AnswerHeader) -> AnswerHeader:
        return AnswerHeader(header.revision - self._ahead)

    def _lease_as_ours(self, one: Lease) -> Lease:
        return Lease(self._lease_of(one.ID), one.TTL, self._header_as_ours(one.header))

    def _lease_of(self, real: int) -> int:
        return next(ours for ours, other in self.leases.items() if other == real)


def _without_headers(answer: object) -> object:
    """A range in a transaction has the revision of that; nobody reads it."""
    if not isinstance(answer, TransactionDone):
        return answer
    found = [each.response_range for each in answer.responses]
    bare = [one and replaced(one, header=AnswerHeader()) for one in found]
    return TransactionDone(answer.succeeded, tuple(map(OperationDone, bare)))


def _decoded(status: int, answer: bytes, kind: type[Struct]) -> object:
    if status == 200:
        return msgspec.json.decode(answer, type=kind, strict=False)
    # Gateways differ in which field has the words, and some say them in both.
    failure = msgspec.json.decode(answer, type=Failure, strict=False)
    return failure.code, failure.error or failure.message


# --------------------------------------------------------------------------- what is asked


def _compare(rng: random.Random, both: Both) -> Compare:
    key, result = rng.choice(KEYS), rng.choice(["EQUAL", "GREATER", "LESS"])
    target = rng.choice([*NUMBERS, "VALUE"])
    if target == "VALUE":
        return Compare(key, target, value=rng.choice(VALUES), result=result)
    number = rng.choice([0, 1, 2, both.store.revision])
    match target:
        case "CREATE":
            return Compare(key, target, create_revision=number, result=result)
        case "MOD":
            return Compare(key, target, mod_revision=number, result=result)
    return Compare(key, target, version=number, result=result)


def _operations(rng: random.Random, both: Both) -> tuple[Operation, ...]:
    """Of keys that are not named twice: etcd refuses that."""
    found: list[Operation] = []
    for key in rng.sample(KEYS, rng.randint(1, 3)):
        match rng.randrange(4):
            case 0:
                found.append(Operation(request_delete_range=DeleteRange(key)))
            case 1:
                found.append(Operation(request_range=Range(b"sim:", b"sim;")))
            case _:
                lease = rng.choice([0, 0, *both.leases])
                found.append(Operation(Put(key, rng.choice(VALUES), lease)))
    return tuple(found)


def _swept(rng: random.Random) -> Transaction:
    return Transaction((), (Operation(request_delete_range=DeleteRange(b"sim:b/", b"sim:b0")),))


def _asked(rng: random.Random, both: Both) -> tuple[str, Struct, type[Struct]]:
    lease = LeaseNamed(rng.choice([*both.leases][1:]))
    match rng.randrange(10):
        case 0:
            return "/v3/lease/grant", LeaseGrant(100), Lease
        case 1:
            return "/v3/lease/revoke", lease, Lease
        case 2:
            return "/v3/lease/keepalive", lease, LeaseKept
        case 3 | 4:
            return "/v3/kv/range", Range(b"sim:", b"sim;", rng.choice([0, 1, 2])), RangeFound
        case 5:
            return "/v3/kv/txn", _swept(rng), TransactionDone
    compare = tuple(_compare(rng, both) for _ in range(rng.randint(0, 2)))
    done, else_done = _operations(rng, both), _operations(rng, both)
    return "/v3/kv/txn", Transaction(compare, done, else_done), TransactionDone


@pytest.mark.parametrize("seed", in_turn(range(4), every=4))
def test_both_say_the_same(etcd: Etcd, seed: int) -> None:
    (member,) = etcd.members
    rng, both = random.Random(seed), Both(member)
    kinds: set[str] = set()
    for number in range(REQUESTS):
        path, request, kind = _asked(rng, both)
        ours, theirs = both.ask(path, request, kind)
        kinds.add(f"{path} {type(ours).__name__}")
        assert ours == theirs, f"request {number} of seed {seed}: {request}"
    assert len(kinds) >= 5, kinds
