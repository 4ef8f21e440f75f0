"""Who writes the catalog, so that nobody else does?

Goals: of two coordinators at most one stores anything, whatever their clocks say and however late a
request arrives; an answer that was lost is found out.

Plan: the leader's key hangs on a lease, and goes when its coordinator is gone. One transaction
takes it where it is free, and raises the term. Every later one compares

    the leader's key    its create revision, of no other key; and what it says, which no other does:
                        an etcd that was put back to a snapshot counts its revisions once more
    the sequence        the number of the transaction before it, and puts its own

so each is done once, in order. Repeated, it finds its own number: it was done. One that was on its
way for long, while it was repeated elsewhere and others followed, finds a later number and does
nothing; by the leader's key alone it would put old values back.

Warning: nothing is safe because a lease lasts. The lease only says when another one may try.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from ckpt.aio.clock import now_us
from ckpt.base.errors import Busy, CkptError, Corrupt, NoSpace, NotFound, Refused, Unavailable
from ckpt.format.messages.hello import PROTOCOL_VERSION
from ckpt.protocol.coordinator.leading import KeyHolder
from ckptd.catalog.etcd import keys
from ckptd.catalog.etcd.client import EtcdClient
from ckptd.catalog.etcd.folding import OPERATIONS_MAX, REQUEST_BYTES_MAX, Writes
from ckptd.catalog.etcd.leader_key import Campaigner, Leader, holder_of, leader_of, name_of
from ckptd.catalog.etcd.times import TransactionTimes
from ckptd.catalog.etcd.url import EtcdUrl
from ckptd.catalog.etcd.words import (
    Compact,
    Compacted,
    Compare,
    DeleteRange,
    KeyValue,
    Lease,
    LeaseGrant,
    Operation,
    Put,
    Range,
    RangeFound,
    Transaction,
    TransactionDone,
    encode,
)

LEASE_S: Final = 2
"""A coordinator that was killed is missed after this."""
HELD_LEASES: Final = 2
"""A process that keeps the leader's key for so many leases lives, and renews its own."""
_LOOK_S: Final = 0.1
_PAGE_ATTEMPT_S: Final = 10.0
"""It may have tens of megabytes; most are here long before any other answer counts as lost, so that
each member is asked for one in that time first.
"""
_TERM_MAX: Final = (1 << 31) - 1
_PROBE_BYTES: Final = REQUEST_BYTES_MAX - 8192

_Value = TypeVar("_Value")


class Meta(Struct, frozen=True):
    """Of `meta`; a later schema may say more."""

    schema: int
    cluster: str


@dataclass(slots=True)
class Fence:
    """What a coordinator that has the catalog must show."""

    term: int
    revision: int
    """The leader key's create revision."""
    lease: int
    lease_s: int
    """Granted; etcd gives more than was asked for where its election takes longer."""
    sequence: int = 0
    """Of the newest transaction that is known to be done."""
    key: bytes = b""
    """What the leader's key says since then."""
    kept_us: int = 0
    """When that was asked which granted or renewed the lease last, before it was taken."""


class FencedSpace:
    """I take the catalog below a prefix, and write to it under my fence."""

    def __init__(self, client: EtcdClient, me: Campaigner | None = None) -> None:
        self.process = secrets.token_hex(16)
        """Says to others, and to me, that the leader's key is mine."""
        self.times = TransactionTimes()
        """Of `write`."""
        self.written = 0
        """The revision of the newest transaction that `write` was answered."""
        self.limits_checked = False
        """etcd takes as much at once as the writer may ask of it."""
        self._me = me or Campaigner()
        self._client = client
        self._space = keys.KeySpace(client.url.prefix)

    @property
    def url(self) -> EtcdUrl:
        """Where it lies."""
        return self._client.url

    # ----------------------------------------------------------------------- reading

    async def meta(self, deadline: float, *, had_one: bool = False) -> Meta | None:
        """What the catalog is; None for one that there is not yet, or, if it `had_one`, is not any
        more, whatever is left of its keys. Raises Refused, Corrupt.
        """
        found = await self._one(keys.META, deadline)
        if found is None:
            await self._check_empty(deadline, had_one=had_one)
            return None
        meta = self._value(keys.META, found, Meta)
        if meta.schema > keys.SCHEMA_VERSION:
            raise Refused(
                f"the catalog in {self._client.url} has schema {meta.schema}; this is"
                f" {keys.SCHEMA_VERSION}",
                hint="a newer version wrote it: use that",
            )
        return meta

    async def _check_empty(self, deadline: float, *, had_one: bool = False) -> None:
        part = await self._one(keys.COPYING, deadline)
        if part is not None:
            source = part.value.decode(errors="replace")
            raise Refused(
                f"{self._client.url} has a part of a copy of {source}, which is not whole",
                hint="run the same ckpt catalog copy, or rebuild, again: it clears that first",
            )
        if not had_one and await self.page(keys.FIRST, keys.LAST, 1, deadline):
            raise Refused(
                f"{self._client.url} has keys that are no catalog's",
                hint="name a prefix that nobody else uses",
            )

    async def check_free(self, deadline: float) -> None:
        """Raises Refused where a copy would find anything but a part of another copy."""
        # First this one, which goes when the other comes.
        part = await self._one(keys.COPYING, deadline)
        if await self._one(keys.META, deadline) is not None:
            raise Refused(
                f"there is a catalog in {self._client.url}",
                hint="name a prefix that nobody uses: what is there is never replaced",
            )
        if part is None:
            await self._check_empty(deadline)

    async def page(
        self, start: str, end: str, limit: int, deadline: float, since: int = 0
    ) -> list[tuple[str, bytes]]:
        """(name, value) of the first keys from a name to another (exclusive), in their order; fewer
        than `limit` when there are no more. Raises Unavailable for what was there ahead of a
        revision that etcd had before: something in between keeps answers.
        """
        request = Range(self._space.full(start), self._space.full(end), limit)
        try:
            found = await self._client.call("kv/range", request, RangeFound)
        except Unavailable:
            found = await self._client.call(
                "kv/range", request, RangeFound, deadline, attempt_s=_PAGE_ATTEMPT_S
            )
        if found.header.revision < since:
            raise Unavailable(f"{self.url} answers a read with what was there earlier")
        return [(self._space.name(each.key), each.value) for each in found.kvs]

    async def check_limits(self, deadline: float) -> None:
        """Raises Refused for an etcd that takes less at once than the writer may ask of it,
        Unauthorized where not each key may be written. Nothing is: none has a version below 0.
        """
        full = self._space.full
        # Of each kind: a role may have rights to some alone.
        names = [*keys.KINDS, *(f"probe/{index}" for index in range(OPERATIONS_MAX))]
        small = tuple(_put(full(name), b"") for name in names[:OPERATIONS_MAX])
        never = Compare(full(keys.META), "VERSION", version=0, result="LESS")
        # As large as a put would be, which counts against the space that is left.
        large = Compare(full(keys.META), "VALUE", value=bytes(_PROBE_BYTES))
        probe = Transaction((never, large), small)
        try:
            await self._client.call("kv/txn", probe, TransactionDone, deadline)
        except Refused as error:
            flag = "--max-request-bytes" if "large" in error.message else "--max-txn-ops"
            raise Refused(
                error.message,
                hint=f"a catalog needs {OPERATIONS_MAX} operations and {REQUEST_BYTES_MAX} bytes in"
                f" one transaction: leave {flag} of each member at its default, or raise it",
            ) from None
        self.limits_checked = True

    # ----------------------------------------------------------------------- taking

    async def begin(self, meta: Meta, deadline: float) -> Meta:
        """Make the catalog, which has nothing yet; returns what it is now, also where another
        coordinator was faster.
        """
        name = self._space.full(keys.META)
        # A copy that is under way is somebody else's.
        absent = tuple(
            Compare(self._space.full(each), "VERSION", version=0)
            for each in (keys.META, keys.COPYING)
        )
        # Who begins one has no earlier version beside it.
        needs = _put(self._space.full(keys.PROTOCOL), str(PROTOCOL_VERSION).encode())
        request = Transaction(absent, (_put(name, encode(meta)), needs))
        await self._client.call("kv/txn", request, TransactionDone, deadline)
        made = await self.meta(deadline)
        if made is None:
            raise Unavailable(f"{self._client.url} was emptied while it was begun")
        return made

    async def holder(self, deadline: float) -> KeyHolder | None:
        """Who has the leader's key now; None: nobody. Raises Busy, once, where etcd has fewer
        revisions than it had when it answered `write`.
        """
        written = self.written
        request = Range(self._space.full(keys.LEADER))
        answer = await self._client.call("kv/range", request, RangeFound, deadline)
        if answer.header.revision < written:
            self.written = 0
            raise self._put_back()
        found = answer.kvs[0] if answer.kvs else None
        if found is not None and not found.lease:
            # Somebody wrote it by hand: on no lease it would stay for ever.
            await self.unseat(found.create_revision, deadline)
            return None
        return None if found is None else holder_of(found)

    async def take(self, deadline: float, *, copied_from: str = "") -> Fence:
        """Begin a term. Waits for the lease of who may be gone; raises Busy when they are not.

        `copied_from`: of a prefix without a catalog, which gets a copy of that one. Raises as
        `check_free`, also when another copy is faster.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            if copied_from:
                await self.check_free(deadline)
            found = await self._one(keys.LEADER, deadline)
            if found is None:
                fence = await self.try_to_take(deadline, copied_from=copied_from)
                if fence is not None:
                    return fence
            waited_s = loop.time() - began
            if found is not None and waited_s > HELD_LEASES * _lease_s(found):
                raise Busy(f"{name_of(found)} works on {self._client.url}")
            if found is None and loop.time() > deadline:
                raise Unavailable(f"{self._client.url} is slow: a lease of {LEASE_S} s runs out")
            await asyncio.sleep(_LOOK_S)

    async def try_to_take(self, deadline: float, *, copied_from: str = "") -> Fence | None:
        """Begin a term, of a catalog that there is or, as `take` says, is none; None when somebody
        else has the key. Raises NoSpace; NotFound where there is no catalog any more.
        """
        kept_us = [now_us()]
        granted = await self._client.call("lease/grant", LeaseGrant(LEASE_S), Lease, deadline)
        # A slow etcd takes longer for the rest than the lease lasts.
        async with self._client.keeping(granted, kept_us.append):
            fence = await self._take_on(granted, deadline, copied_from)
        if fence is not None:
            fence.kept_us = kept_us[-1]
        return fence

    async def _take_on(self, granted: Lease, deadline: float, copied_from: str) -> Fence | None:
        known = await self._one(keys.TERM, deadline)
        term = _term_of(known) + 1
        full, me = self._space.full, self._me
        leader = Leader(
            self.process, me.host, me.pid, term, granted.TTL, me.id, me.address, time.time(),
            me.secret_mark,
        )  # fmt: skip
        request = Transaction(
            (
                Compare(full(keys.LEADER), "CREATE", create_revision=0),
                Compare(full(keys.TERM), "MOD", mod_revision=known.mod_revision if known else 0),
                # A catalog that was taken away is not begun in its place, nor one copied over it.
                Compare(
                    full(keys.META), "VERSION", version=0,
                    result="EQUAL" if copied_from else "GREATER",
                ),
            ),
            (
                Operation(Put(full(keys.LEADER), encode(leader), granted.ID)),
                _put(full(keys.TERM), str(term).encode()),
                _put(full(keys.SEQUENCE), b"0"),
                *([_put(full(keys.COPYING), copied_from.encode())] if copied_from else ()),
            ),
        )  # fmt: skip
        full_up: NoSpace | None = None
        try:
            await self._client.call("kv/txn", request, TransactionDone, deadline)
        except NotFound:
            return None  # The lease ran out before.
        except NoSpace as error:
            full_up = error  # And it may be done, if it is what filled it.
        # Its answer may have been lost, and it may have been done: the key says who has it.
        found = await self._one(keys.LEADER, deadline)
        if found is None or found.lease != granted.ID:
            await self._client.end_lease(granted.ID)
            if full_up is not None:
                raise full_up
            if found is None and not copied_from:
                await self._check_there(deadline)
            return None
        return Fence(term, found.create_revision, found.lease, granted.TTL, key=found.value)

    async def _check_there(self, deadline: float) -> None:
        if await self._one(keys.META, deadline) is None:
            raise NotFound(
                f"the catalog in {self._client.url} is gone: somebody has removed its keys, or it"
                " was below another prefix",
                hint="put them back, or name that one; or make another one from the targets: ckpt"
                " catalog rebuild",
            )

    async def unseat(self, revision: int, deadline: float) -> None:
        """Free the leader's key if it is still of that revision: whoever had it stores nothing more
        under its fence.
        """
        name = self._space.full(keys.LEADER)
        still = Compare(name, "CREATE", create_revision=revision)
        gone = Operation(request_delete_range=DeleteRange(name))
        request = Transaction((still,), (gone,))
        await self._client.call("kv/txn", request, TransactionDone, deadline)

    async def clear(self, fence: Fence, deadline: float) -> None:
        """Remove a copy that is not complete, and the fence's key with it."""
        full = self._space.full
        mine = Compare(full(keys.LEADER), "CREATE", create_revision=fence.revision)
        unfinished = Compare(full(keys.META), "VERSION", version=0)
        gone = Operation(request_delete_range=DeleteRange(full(keys.FIRST), full(keys.LAST)))
        request = Transaction((mine, unfinished), (gone,))
        await self._client.call("kv/txn", request, TransactionDone, deadline)

    # ----------------------------------------------------------------------- writing

    async def write(self, fence: Fence, writes: Writes, deadline: float) -> None:
        """All of them or none, durable on return. Waits while etcd does not answer.

        Raises Busy when another one has taken the catalog, or may: nothing of it is stored under
        this fence any more. NoSpace: it is not stored yet, and may be repeated unchanged. Refused.
        """
        number = fence.sequence + 1
        put = _put(self._space.full(keys.SEQUENCE), str(number).encode())
        request = self._fenced(fence, (*self._operations(writes), put))
        began_s = time.monotonic()
        with self.times.waiting() as failed:
            ask = partial(self._transact, deadline=deadline, failed=failed)
            try:
                done = await ask(request)
            except NoSpace:
                # It may be stored all the same: etcd says so of the transaction that fills it, and
                # applies it. It says so ahead of every comparison; what only reads it takes.
                done = await ask(self._fenced(fence, ()))
                if done.succeeded:
                    raise
        self.times.took(time.monotonic() - began_s)
        if done.succeeded:
            self.written = done.header.revision
            self.times.written_bytes += writes.value_bytes
        else:
            self._explain(fence, done, number)
        fence.sequence = number

    async def _transact(
        self, request: Transaction, deadline: float, failed: Callable[[Unavailable], None]
    ) -> TransactionDone:
        return await self._client.call("kv/txn", request, TransactionDone, deadline, failed=failed)

    def _fenced(self, fence: Fence, operations: tuple[Operation, ...]) -> Transaction:
        """All of that where nothing was done under this fence since; else says what there is."""
        full = self._space.full
        return Transaction(
            (
                Compare(full(keys.LEADER), "CREATE", create_revision=fence.revision),
                Compare(full(keys.LEADER), "VALUE", value=fence.key),
                Compare(full(keys.SEQUENCE), "VALUE", value=str(fence.sequence).encode()),
            ),
            operations,
            (_get(full(keys.LEADER)), _get(full(keys.SEQUENCE)), _get(full(keys.TERM))),
        )

    def _explain(self, fence: Fence, done: TransactionDone, number: int) -> None:
        """Returns when it was done before. Raises Busy."""
        holder, sequence, term = (done.found(index) for index in range(3))
        mine = fence.revision, fence.key
        if holder is None or (holder.create_revision, holder.value) != mine:
            raise self._deposed(fence, holder, term)
        if sequence is None or sequence.value != str(number).encode():
            if sequence is None or _number_of(sequence) < number:
                raise self._put_back()
            raise CkptError(
                f"somebody else writes to {self._client.url} by the key of this coordinator",
                hint="keep all other programs away from the prefix",
            )

    def _deposed(self, fence: Fence, holder: KeyValue | None, term: KeyValue | None) -> Busy:
        if holder is not None:
            why = f"{name_of(holder)} has taken it over"
        elif _term_of(term) > fence.term:
            why = f"another coordinator had it in term {_term_of(term)}"
        else:
            why = f"its lease of {fence.lease_s} s ran out: it, or etcd, stood still for so long"
        return Busy(
            f"the coordinator of term {fence.term} has lost {self._client.url}: {why}",
            hint="it leads again when nobody else does",
        )

    def _put_back(self) -> Busy:
        """Who leads next reads what there is, and the targets say whether that is old."""
        return Busy(
            f"what this coordinator has stored in {self._client.url} is gone: somebody has put back"
            " a snapshot, or removed keys",
            hint="ckpt status says whether the catalog is old now, and what to do",
        )

    def _operations(self, writes: Writes) -> Iterator[Operation]:
        full = self._space.full
        for name in sorted(writes.values):
            value = writes.values[name]
            if value is None:
                yield Operation(request_delete_range=DeleteRange(full(name)))
            else:
                yield _put(full(name), value)
        for name in sorted(writes.sweeps):
            yield Operation(request_delete_range=DeleteRange(full(name), full(name + keys.LAST)))

    # ----------------------------------------------------------------------- the lease

    async def keep(self, fence: Fence) -> int:
        """As `EtcdClient.keep_lease`."""
        return await self._client.keep_lease(fence.lease)

    async def compact(self, revision: int) -> None:
        """Let etcd forget older values up to this revision; if it does not, the next call will."""
        with suppress(CkptError):
            await self._client.call("kv/compaction", Compact(revision), Compacted)

    async def free(self, fence: Fence) -> None:
        """End the lease, and with it the leader's key, if etcd answers at once."""
        await self._client.end_lease(fence.lease)

    def _value(self, name: str, found: KeyValue, kind: type[_Value]) -> _Value:
        try:
            return msgspec.json.decode(found.value, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(f"{name!r} of {self._client.url} cannot be read: {error}") from None

    async def _one(self, name: str, deadline: float) -> KeyValue | None:
        return await self._client.one(self._space.full(name), deadline)


def _term_of(found: KeyValue | None) -> int:
    if found is None:
        return 0
    try:
        term = int(found.value)
    except ValueError:
        raise Corrupt(f"the catalog's term cannot be read: {found.value!r}") from None
    assert term < _TERM_MAX, "a launch number is (term << 32) | counter in 63 bits"
    return term


def _number_of(sequence: KeyValue) -> float:
    """Of the newest transaction; without end where somebody wrote what is none."""
    return int(sequence.value) if sequence.value.isdigit() else math.inf


def _lease_s(holder: KeyValue) -> int:
    leader = leader_of(holder)
    return LEASE_S if leader is None else max(LEASE_S, leader.lease_s)


def _put(key: bytes, value: bytes) -> Operation:
    return Operation(request_put=Put(key, value))


def _get(key: bytes) -> Operation:
    return Operation(request_range=Range(key))
