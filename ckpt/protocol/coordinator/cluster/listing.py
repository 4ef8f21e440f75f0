"""What lies on a target? It says so when it has registered, page by page.

    asked --a page, not the last--> asked for what comes after it
          --the last one-----------> listed: only then does it count
          --no list, or not its own--> cut off; it dials again

A page of thousands of generations has one proof, over all of it, as the target signs what it seals:
one of another boot or another cluster is no word of this target. A target of an earlier version
gives one for each column; those that do not hold are passed over.
"""

from __future__ import annotations

import hmac
from typing import Protocol

from ckpt.base.errors import Refused
from ckpt.base.ids import BootId, CheckpointId, Generation, Step, TargetId
from ckpt.format.messages import Message
from ckpt.format.messages.targets import (
    ColumnsListed,
    DocumentSummary,
    HoldingsListed,
    ListColumns,
    ListHoldings,
    decode_holdings,
)
from ckpt.protocol.coordinator.cluster.holdings import HeldDocuments, ProvedColumns
from ckpt.protocol.coordinator.desk import Desk, Then
from ckpt.protocol.events import Buffer, Session
from ckpt.protocol.proofs import check_proof, holdings_mac, proof_key


class ListedTarget(Protocol):
    """A target, as far as it is listed."""

    id: TargetId
    boot: BootId
    session: Session | None
    proved: ProvedColumns
    documents: HeldDocuments


class Lister:
    """I ask targets what they hold, and fill in what they have proved and which documents they
    have.
    """

    def __init__(self, desk: Desk, *, cluster: str, secret: bytes) -> None:
        self._desk = desk
        self._cluster = cluster
        self._secret = secret

    def list_all(self, target: ListedTarget, then: Then) -> None:
        """`then` runs once all is known; never where the session ends before."""
        self._ask(target, "", then)

    def _ask(self, target: ListedTarget, after: str, then: Then) -> None:
        session, boot = target.session, target.boot
        assert session is not None
        question: ListHoldings | ListColumns = ListHoldings(after)
        if not self._desk.knows(session, question):
            question = ListColumns(after)

        def answered(message: Message, bulk: Buffer) -> None:
            if (target.session, target.boot) != (session, boot):
                return
            cursor = self._take(target, after, message, bulk)
            if cursor is None:
                self._desk.close(session, f"target {target.id} cannot list its columns")
            elif cursor:
                self._ask(target, cursor, then)
            else:
                then()

        self._desk.ask(session, question, answered)

    def _take(self, target: ListedTarget, after: str, message: Message, bulk: Buffer) -> str | None:
        """After which name the next page begins, empty at the end; None: it is no list."""
        match message:
            case ColumnsListed():
                for proof in message.columns:
                    is_its_own = proof.boot == target.boot
                    if is_its_own and check_proof(proof, self._cluster, self._secret):
                        target.proved.add(proof)
                for document in message.documents:
                    target.documents.add(document)
                return message.cursor
            case HoldingsListed() if self._is_of(target, after, message, bulk):
                return message.cursor if _put(target, bulk) else None
        return None

    def _is_of(
        self, target: ListedTarget, after: str, message: HoldingsListed, page: Buffer
    ) -> bool:
        """Whether this boot of it has signed the page."""
        key = proof_key(self._secret, target.id, target.boot)
        mac = holdings_mac(key, self._cluster, after, page)
        return message.boot == target.boot and hmac.compare_digest(mac, message.mac)


def _put(target: ListedTarget, bulk: Buffer) -> bool:
    """False: it is no page."""
    try:
        page = decode_holdings(bulk)
    except Refused:
        return False
    for one in page.generations:
        generation = Generation(one.term, one.counter)
        id = CheckpointId(page.runs[one.run], Step(one.step), generation)
        if one.columns:
            target.proved.add_listed(id, one.columns)
        for kind, size, digest in one.documents:
            target.documents.add(DocumentSummary(kind, id, size, digest))
    return True
