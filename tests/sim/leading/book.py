"""What must be true of a catalog that several coordinators write, seen from etcd's side: what is
done there, by whom, and what each of them says of it.

    a transaction is done                    while its term has the leader's key: P10
    tickets of a term are stored             in their order: P2
    a ticket is durable for who wrote it     once a transaction of its own term did it: P2
    the keys                                 are the fold of all that was done: P1, P10
    a term                                   begins with that, and is nobody else's: P10
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ckpt.base.errors import CkptError
from ckpt.base.ids import RunName, Step
from ckpt.protocol.coordinator.catalog import CatalogEntry, Persist
from ckpt.protocol.coordinator.image import CatalogImage
from ckptd.catalog.etcd import keys
from ckptd.catalog.etcd.catalog import Batch, EtcdCatalog
from ckptd.catalog.etcd.folding import Writes
from ckptd.catalog.etcd.leader_key import Leader
from ckptd.catalog.etcd.loading import load
from ckptd.catalog.etcd.words import Transaction, TransactionDone
from tests.sim.leading.client import URL
from tests.sim.leading.cluster import Request
from tests.sim.leading.loop import running
from tests.sim.leading.store import EtcdStore
from tests.sim.oracles import Oracles, Violation

SPACE = keys.KeySpace(URL.prefix)
LEADER, SEQUENCE = SPACE.full(keys.LEADER), SPACE.full(keys.SEQUENCE)
NOT_FOLDED = (keys.META, keys.LEADER, keys.TERM, keys.SEQUENCE, keys.COUNT)


@dataclass(slots=True, eq=False)
class Sent:
    """Tickets that one transaction is to store."""

    who: str
    term: int
    tickets: tuple[tuple[int, tuple[CatalogEntry, ...]], ...]
    """Each with its entries."""

    @property
    def kinds(self) -> set[str]:
        """Of its entries."""
        return {type(entry).__name__ for _, entries in self.tickets for entry in entries}


def takes_the_key(request: Request) -> bool:
    """A campaign's own transaction."""
    said = request.said
    puts = said.success if isinstance(said, Transaction) else ()
    return any(each.request_put and each.request_put.key == LEADER for each in puts)


@dataclass(slots=True)
class CatalogBook:
    """I know what was done, in its order."""

    store: EtcdStore
    oracles: Oracles
    image: CatalogImage = field(default_factory=lambda: CatalogImage(0))
    """The fold of all that was done."""
    entries: list[CatalogEntry] = field(default_factory=list)
    stored: set[tuple[str, int, int]] = field(default_factory=set)
    """(process, term, ticket) of each."""
    terms: dict[int, str] = field(default_factory=dict)
    """Who led in it."""
    asked_to_go: set[tuple[RunName, Step]] = field(default_factory=set)
    """Steps that a person had a leader delete, which may have been deposed before that was done."""
    done: set[Sent] = field(default_factory=set)
    newest: dict[int, int] = field(default_factory=dict)
    """Ticket of each term."""

    def request_done(self, request: Request, answer: object) -> None:
        """etcd did it, whatever becomes of its answer."""
        sent = request.mark
        if not isinstance(answer, TransactionDone) or not isinstance(request.said, Transaction):
            return
        puts = [each.request_put.key for each in request.said.success if each.request_put]
        if isinstance(sent, Sent) and answer.succeeded and SEQUENCE in puts:
            self._done(sent)

    def _done(self, sent: Sent) -> None:
        self._check_fence(sent)
        if sent in self.done:
            return  # What that did to the keys is compared with all that should be there.
        self.done.add(sent)
        for ticket, entries in sent.tickets:
            self._check_order(sent, ticket)
            self.stored.add((sent.who, sent.term, ticket))
            self.entries.extend(entries)
            for entry in entries:
                self.image.apply(entry)
            self.oracles.catalog_wrote(entries)

    def _check_fence(self, sent: Sent) -> None:
        """Only who has the leader's key stores anything."""
        holder = self.store.keys.get(LEADER)
        term = None if holder is None else msgspec.json.decode(holder.value, type=Leader).term
        if term != sent.term:
            raise Violation(f"P10: {sent.who} stores in term {sent.term}, {term} has the key")

    def _check_order(self, sent: Sent, ticket: int) -> None:
        newest = self.newest.get(sent.term, -1)
        if ticket < newest:
            raise Violation(f"P2: ticket {ticket} of term {sent.term} is stored after {newest}")
        self.newest[sent.term] = ticket

    def acknowledged(self, who: str, term: int, ticket: int) -> None:
        """A writer says that a ticket of its own is stored."""
        if (who, term, ticket) not in self.stored:
            raise Violation(f"P2: {who} acknowledges ticket {ticket} of term {term}, not stored")

    def begins(self, who: str, image: CatalogImage) -> None:
        """A term, with what it has found."""
        if image.term in self.terms:
            other = self.terms[image.term]
            raise Violation(f"P10: {who} leads in term {image.term}, so did {other}")
        if self.terms and image.term <= max(self.terms):
            raise Violation(f"P10: {who} leads in term {image.term}, after {max(self.terms)}")
        self.terms[image.term] = who
        self._compare(f"{who} begins term {image.term} with", image)
        self.oracles.coordinator_started(image)

    def check_keys(self) -> None:
        """What etcd has now is all that was done."""
        names = ((SPACE.name(key), kv.value) for key, kv in self.store.keys.items())
        pairs = [
            (name, value) for name, value in names
            if name not in NOT_FOLDED and not name.startswith(keys.COORDINATORS)
        ]  # fmt: skip
        self._compare("etcd has", load(0, pairs))

    def _compare(self, what: str, image: CatalogImage) -> None:
        found, known = deepcopy(image), deepcopy(self.image)
        found.term = known.term = 0
        if found != known:
            differ = [
                name for name, each in CatalogImage.__dataclass_fields__.items()
                if each.compare and getattr(found, name) != getattr(known, name)
            ]  # fmt: skip
            raise Violation(f"P1: {what} other {', '.join(differ)} than was stored")


class WatchedCatalog(EtcdCatalog):
    """The writer, with somebody who looks on."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._by_ticket: dict[int, tuple[CatalogEntry, ...]] = {}
        self._sent: Sent | None = None

    def start(
        self, on_durable: Callable[[int], None], on_failed: Callable[[CkptError], None]
    ) -> None:
        process = running()

        def durable(ticket: int) -> None:
            process.book.acknowledged(process.life, self._fence.term, ticket)
            on_durable(ticket)

        super().start(durable, on_failed)

    def submit(self, persist: Persist) -> None:
        self._by_ticket[persist.ticket] = persist.entries
        super().submit(persist)

    def _gather(self) -> Batch:
        batch = super()._gather()
        tickets = tuple((each, self._by_ticket[each]) for each in batch.tickets)
        self._sent = Sent(running().life, self._fence.term, tickets)
        return batch

    async def _store(self, writes: Writes) -> None:
        process = running()
        process.client.mark = self._sent
        try:
            await super()._store(writes)
        finally:
            process.client.mark = self._sent = None
