"""Which coordinators run, beside the one that leads? Each writes itself down under its id, on a
lease of its own, and is gone from the roll soon after it is gone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from ckpt.base.errors import Busy, CkptError, NotFound
from ckpt.format.messages.hello import TAGS_VERSION
from ckptd.catalog.etcd import keys
from ckptd.catalog.etcd.client import KEEPS_PER_LEASE, EtcdClient
from ckptd.catalog.etcd.fence import LEASE_S
from ckptd.catalog.etcd.words import (
    Compare,
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

_LOOK_S: Final = 0.2
_PATIENCE_LEASES: Final = 3
"""A process that holds an id for so many leases lives."""


class Coordinator(Struct, frozen=True):
    """The value of `coordinator/ID`. For people, except for `process` and `address`."""

    process: str
    """Of one process alone."""
    host: str
    pid: int
    address: str
    """Where it listens, as HOST:PORT."""
    http: str = ""
    version: str = ""
    since_s: float = 0.0
    """It runs since then, by its own wall clock."""
    code: str = ""
    """By which it would plan saves, and the options by which it would lead otherwise than usual."""
    protocol: int = TAGS_VERSION
    """The newest that it speaks; an earlier version does not say."""


class Roll:
    """I am the entry of one coordinator, and read those of all."""

    def __init__(self, client: EtcdClient, id: str, me: Coordinator) -> None:
        self.id = id
        self._me = me
        self._client = client
        self._space = keys.KeySpace(client.url.prefix)
        self._lease = 0
        #: Somebody has removed my entry.
        self._is_missing = False
        self._task: asyncio.Task[None] | None = None

    async def join(self, deadline: float) -> None:
        """Write the entry, which is there on return, and keep it until `leave`. Raises Busy when
        another living process has this id.
        """
        loop = asyncio.get_running_loop()
        began, seen = loop.time(), None
        while not await self._enter(deadline):
            found = await self._one(deadline)
            if found is not None and found.value != seen:
                began, seen = loop.time(), found.value
            if seen is not None and loop.time() - began > _PATIENCE_LEASES * LEASE_S:
                raise self._taken(_read(seen))
            await asyncio.sleep(_LOOK_S)
        self._task = loop.create_task(self._keep(), name="ckptd-roll")

    async def all(self, deadline: float) -> dict[str, Coordinator]:
        """By id, in their order. One that cannot be read is left out: a later version's."""
        full = self._space.full
        request = Range(full(keys.COORDINATORS), full(keys.COORDINATORS + keys.LAST))
        found = await self._client.call("kv/range", request, RangeFound, deadline)
        self._is_missing = all(self._id_of(each) != self.id for each in found.kvs)
        named = ((self._id_of(each), each.value) for each in found.kvs)
        return {id: one for id, value in named if (one := _read(value)) is not None}

    async def leave(self) -> None:
        """Remove the entry at once, if etcd answers."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._lease:
            await self._client.end_lease(self._lease)

    def _taken(self, other: Coordinator | None) -> Busy:
        who = f": pid {other.pid} on {other.host}, at {other.address}" if other else ""
        return Busy(
            f"a coordinator with the id {self.id} runs already{who}",
            hint="give each an --id of its own",
        )

    def _id_of(self, found: KeyValue) -> str:
        return keys.unquoted(self._space.name(found.key).removeprefix(keys.COORDINATORS))

    async def _enter(self, deadline: float) -> bool:
        """False when another process is there."""
        granted = await self._client.call("lease/grant", LeaseGrant(LEASE_S), Lease, deadline)
        key, value = self._space.full(keys.of_coordinator(self.id)), encode(self._me)
        request = Transaction(
            (Compare(key, "VERSION", version=0),), (Operation(Put(key, value, granted.ID)),)
        )
        with suppress(NotFound):  # The lease ran out before.
            await self._client.call("kv/txn", request, TransactionDone, deadline)
        # Its answer may have been lost, or that to one before it: the key says who is there, and on
        # which lease.
        found = await self._one(deadline)
        mine = found is not None and found.value == value
        if found is not None and mine:
            self._lease = found.lease
        if found is None or found.lease != granted.ID:
            await self._client.end_lease(granted.ID)
        return mine

    async def _one(self, deadline: float) -> KeyValue | None:
        return await self._client.one(self._space.full(keys.of_coordinator(self.id)), deadline)

    async def _keep(self) -> None:
        """For ever; written down again after etcd, or this process, stood still for a lease, and
        when the entry is missed.
        """
        while True:
            await asyncio.sleep(LEASE_S / KEEPS_PER_LEASE)
            # What it was this time, the next time may not be.
            with suppress(CkptError):
                if not await self._client.keep_lease(self._lease) or self._is_missing:
                    self._is_missing = not await self._enter(-1.0)


def _read(value: bytes) -> Coordinator | None:
    try:
        return msgspec.json.decode(value, type=Coordinator)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
