"""Answers to questions about coordinators, from the only one: its catalog is a file on its host."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from time import time

import msgspec

from ckpt.aio.net.bulk import Bulk
from ckpt.base.errors import Refused
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, Ask, StepDown
from ckpt.format.messages.hello import Failed
from ckpt.protocol.coordinator.reading.answers import Check
from ckpt.protocol.coordinator.reading.coordinator_answers import CoordinatorRow, CoordinatorsView
from ckpt.protocol.events import Session
from ckpt.protocol.handshake import Established
from ckptd.coordinator.front import Front
from ckptd.coordinator.reception import COORDINATORS
from ckptd.http.exposition import Family


class Alone:
    """I answer questions about coordinators where there is only one: its catalog is a file."""

    def __init__(self, front: Front, catalog: str, term: int) -> None:
        self._front = front
        self._catalog = catalog
        self._term = term
        self._began_s = time()

    def answers(self, session: Session, request: int, message: Message) -> bool:
        """Answer a question about coordinators. False for messages of the machine."""
        server = self._front.server
        match message:
            case Ask(what) if what == COORDINATORS:
                server.send(session, request, Answer(), msgspec.json.encode(self._view()))
            case StepDown():
                text = "a catalog in a file has one coordinator: nobody could lead after it"
                hint = "docs/operations.md says how several share an etcd"
                server.send(session, request, Failed(Refused.code, text, hint))
            case _:
                return False
        return True

    def opened(self, session: Session, peer: Established) -> None:
        """There are no standbys to note."""

    def speaking(self) -> Mapping[str, int]:
        """There are no other coordinators, so no versions that they speak."""
        return {}

    def heard(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> bool:
        """I ask nobody, so no message is an answer for me."""
        return False

    def closed(self, session: Session) -> None:
        """I keep nothing for a session."""

    def checks(self) -> tuple[Check, ...]:
        """No health checks beyond those of the machine."""
        return ()

    def families(self) -> Iterator[Family]:
        """No metrics beyond those of the machine."""
        return iter(())

    def _view(self) -> CoordinatorsView:
        view, lived_s = self._front.view, time() - self._began_s
        row = CoordinatorRow(
            "", view.address, "leads", self._term, lived_s, os.getpid(), socket.gethostname(),
            view.http, runs_s=lived_s,
        )  # fmt: skip
        return CoordinatorsView(self._catalog, (row,), takeovers=self._term)
