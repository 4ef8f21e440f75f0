"""What must be true of a catalog that several coordinators write, seen from etcd's side: what is
done there, by whom, and what each of them says of it.

    a ticket is durable for who wrote it     once a transaction of its own term did it: P2
    the keys                                 are the fold of all that was done: P1, P10
    a term                                   begins with that, and is nobody else's: P10
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

from ckpt.base.errors import CkptError
from ckpt.protocol.coordinator.catalog import CatalogEntry, CatalogImage, Persist
from ckptd.catalog.etcd import keys
from ckptd.catalog.etcd.catalog import Batch, EtcdCatalog
from ckptd.catalog.etcd.fence import Fence
from ckptd.catalog.etcd.folding import Writes
from ckptd.catalog.etcd.loading import load
from ckptd.catalog.etcd.words import Transaction, TransactionDone
from tests.sim.leading.client import URL
from tests.sim.leading.cluster import Request
from tests.sim.leading.effects import running
from tests.sim.leading.store import EtcdStore
from tests.sim.oracles import Oracles, Violation

SPACE = keys.KeySpace(URL.prefix)
SEQUENCE = SPACE.full(keys.SEQUENCE)
NOT_FOLDED = (keys.META, keys.LEADER, keys.TERM, keys.SEQUENCE)


@dataclass(slots=True, eq=False)
class Sent:
    """Tickets that one transaction is to store."""

    who: str
    term: int
    tickets: tuple[tuple[int, tuple[CatalogEntry, ...]], ...]

    @property
    def kinds(self) -> set[str]:
        """Of its entries."""
        return {type(entry).__name__ for _, entries in self.tickets for entry in entries}


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
    done: list[Sent] = field(default_factory=list)
    under_way: dict[str, Sent] = field(default_factory=dict)
    """By process: what it has not heard of yet."""
    taken: int = 0

    def request_done(self, request: Request, answer: object) -> None:
        """etcd did it, whatever becomes of its answer."""
        sent = request.mark
        if not isinstance(answer, TransactionDone) or not isinstance(request.said, Transaction):
            return
        puts = [each.request_put.key for each in request.said.success if each.request_put]
        if isinstance(sent, Sent) and answer.succeeded and SEQUENCE in puts:
            self._done(sent)

    def _done(self, sent: Sent) -> None:
        self.done.append(sent)
        for ticket, entries in sent.tickets:
            self.stored.add((sent.who, sent.term, ticket))
            self.entries.extend(entries)
            for entry in entries:
                self.image.apply(entry)
            self.oracles.catalog_wrote(entries)

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
                name for name in CatalogImage.__dataclass_fields__
                if getattr(found, name) != getattr(known, name)
            ]  # fmt: skip
            raise Violation(f"P1: {what} other {', '.join(differ)} than was stored")


class WatchedCatalog(EtcdCatalog):
    """The writer, with somebody who looks on."""

    def __init__(self, space, fence: Fence, *arguments: object) -> None:  # type: ignore[no-untyped-def]
        super().__init__(space, fence, *arguments)  # type: ignore[arg-type]
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
