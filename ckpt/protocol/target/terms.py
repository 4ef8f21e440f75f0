"""The term that a target obeys is made durable before it obeys: one at a time, the newest last.

persist --written--> durable, or the next one that was offered meanwhile
        `- refused by the disk: written over in place where it is full; else said to my owner
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.protocol.target.core import Core
from ckpt.protocol.target.disk_events import FULL_ERRNOS, DiskFailed
from ckpt.protocol.target.notes.needs import Needs
from ckpt.protocol.target.space import Reservations
from ckpt.protocol.target.term import overwrite_steps, remove_steps, term_steps


class Terms:
    """I write terms. `ended` hears of each that nothing newer has overtaken, and of failures."""

    def __init__(
        self, core: Core, reservations: Reservations, needs: Needs,
        ended: Callable[[int, DiskFailed | None], None],
    ) -> None:  # fmt: skip
        self.durable = 0
        """The highest that is durable here."""
        self.process = b""
        """The coordinator whose term that is; empty when it did not say."""
        self.pending: int | None = None
        """A higher one that is being written."""
        self._core = core
        self._reservations = reservations
        self._needs = needs
        self._ended = ended
        #: Whose the pending term is.
        self._process_pending = b""
        #: What it says one has to speak here.
        self._protocol = 0

    def load(self, term: int, process: bytes) -> None:
        """What a start finds."""
        self.durable, self.process = term, process

    @property
    def highest(self) -> int:
        """That was seen, whether or not it is durable."""
        return max(self.durable, self.pending or 0)

    def is_anothers(self, process: bytes) -> bool:
        """Whether the highest term is another coordinator's."""
        known = self.process if self.pending is None else self._process_pending
        return bool(known and process) and known != process

    def persist(self, term: int, process: bytes, protocol: int) -> None:
        """One at a time: a lower term must never be the last that is written."""
        self._protocol = protocol
        writing = self.pending is not None
        self.pending, self._process_pending = term, process
        if not writing:
            self._write(term, process)

    def _write(self, term: int, process: bytes) -> None:
        named, aside, third = (self._reservations.new_file("term") for _ in range(3))
        protocol = self._protocol
        needed = self._needs.steps(protocol, third)
        # Who has never noted a coordinator has no files to write over.
        may_overwrite = bool(process and self.process and not needed)

        def written(failure: DiskFailed | None) -> None:
            nonlocal may_overwrite
            if failure is not None:
                self._core.chain(remove_steps(named, aside, third), lambda _: None)
                if may_overwrite and failure.errno_name in FULL_ERRNOS:
                    may_overwrite = False
                    self._core.chain(overwrite_steps(term, process), written)
                    return
            self._written(term, process, protocol, failure)

        self._core.chain(needed + term_steps(term, process, named, aside), written)

    def _written(
        self, term: int, process: bytes, protocol: int, failure: DiskFailed | None
    ) -> None:
        newest, self.pending = self.pending, None
        if failure is not None:
            self._ended(term, failure)
            return
        self.durable, self.process = term, process
        self._needs.kept(protocol)
        if newest is not None and newest > term:
            self.persist(newest, self._process_pending, self._protocol)
        else:
            self._ended(term, None)
