"""A committed checkpoint in the tier, as a Source: pinned, read from targets, repaired on the way.

The same reader as a restore's (ckpt.transfer.payload_receiver): a slow target is hedged, a lost
column decoded, everything verified. What its homes hold is read like its own bytes: a Source has
no homes. The pin is the session's: it holds as long as this is open.

Damage beyond repair, of columns or of the index, is reported to the coordinator as a restore does:
what it proves to be lost is not asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, Self

import numpy as np

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import Corrupt
from ckpt.base.ids import Generation, Rank, RunName, Step
from ckpt.base.units import US_PER_S
from ckpt.format.documents.record import CommitRecord, decode_record
from ckpt.format.index.pages import IndexTensor
from ckpt.format.index.rows import boxes_of
from ckpt.format.messages.hello import Role
from ckpt.format.messages.loading import ReleasePin, Resolve, Resolved
from ckpt.format.table import Meaning
from ckpt.format.tree import Node, decode_tree
from ckpt.objects.documents import Header
from ckpt.objects.sinks.sink import at_once
from ckpt.objects.source import Wish
from ckpt.protocol.handshake import Caller
from ckpt.transfer.damage import judging
from ckpt.transfer.moves import ask_moves
from ckpt.transfer.payload_finder import PayloadFinder
from ckpt.transfer.payload_receiver import PayloadReceiver
from ckpt.transfer.read_job import ReceiverOptions
from ckpt.transfer.read_set import ReadSet

INDEX_TIMEOUT_S: Final = 30.0
ANSWER_SLACK_S: Final = 10.0
"""Patience beyond what the coordinator itself may wait."""


class TierSource:
    """One generation of one step, held against deletion. Close me."""

    def __init__(
        self,
        record: CommitRecord,
        finder: PayloadFinder,
        tensors: Sequence[IndexTensor],
        options: ReceiverOptions,
        rpc: RpcClient,
        held: ExitStack,
    ) -> None:
        info = record.info
        self.header = Header(
            run=info.checkpoint.run,
            step=info.checkpoint.step,
            generation=str(info.checkpoint.generation),
            cluster=record.cluster,
            launch=info.launch,
            world_size=info.world_size,
            committed_at_s=info.committed_at_s,
            source="tier",
        )
        self.metrics = info.metrics
        self._checkpoint = info.checkpoint
        self._finder = finder
        self._options = options
        self._rpc = rpc
        self._held = held
        self._tensors = tensors
        #: Kept from read to read: its connections, and the manifests that it has.
        self._receiver: PayloadReceiver | None = None

    @classmethod
    def open(
        cls,
        address: str,
        run: RunName,
        step: Step | None,
        *,
        secret: bytes,
        name: str,
        timeout_s: float = INDEX_TIMEOUT_S,
        only: Generation | None = None,
    ) -> Self:
        """Resolve and pin it; without a step the newest. With `only` it is that generation of the
        step or none.

        Raises NotFound, Unavailable, Lost, Unauthorized.
        """
        with ExitStack() as held:
            rpc = RpcClient(address, Caller(secret, Role.READER, name))
            held.callback(rpc.close)
            question = Resolve(run, step, timeout_us=int(timeout_s * US_PER_S), only=only)
            resolved, bulk = rpc.ask(question, Resolved, timeout_s=timeout_s + ANSWER_SLACK_S)
            held.callback(rpc.tell, ReleasePin(resolved.pin))
            record = decode_record(bulk)
            finder = held.enter_context(
                PayloadFinder(
                    resolved,
                    record,
                    partial(ask_moves, rpc),
                    secret=secret,
                    name=name,
                    timeout_s=timeout_s,
                )
            )
            options = ReceiverOptions(secret=secret, name=name, cluster=record.cluster)
            with judging(rpc, record.info.checkpoint):
                tensors = tuple(finder.index.tensors())
            return cls(record, finder, tensors, options, rpc, held.pop_all())

    def tensors(self) -> Sequence[IndexTensor]:
        return self._tensors

    def trees(self) -> Mapping[Rank, Node]:
        with judging(self._rpc, self._checkpoint):
            reads = ReadSet()
            documents = {}
            for payload in self._finder.index.payloads():
                document = documents[payload.rank] = np.empty(payload.document_bytes, np.uint8)
                reads.add_range(payload.rank, payload.document_offset, document)
            self._read(reads)
            return {rank: decode_tree(document.data) for rank, document in documents.items()}

    def read(self, wishes: Sequence[Wish], go_on: Callable[[], None] = at_once) -> None:
        """Raises Lost when the loss of what is needed is proved, Unavailable."""
        with judging(self._rpc, self._checkpoint):
            reads = ReadSet()
            for wish in wishes:
                own = wish.tensor.meaning is Meaning.OWN
                boxes = wish.tensor.boxes
                if own:
                    boxes = boxes_of(boxes, wish.rank) if wish.rank is not None else ()
                if not boxes:
                    raise Corrupt(f"{wish.tensor.name}: rank {wish.rank} has none")
                reads.add_box(wish.tensor, boxes, wish.offset, wish.memory)
            self._read(reads, go_on)

    def close(self) -> None:
        self._close_receiver()
        self._held.close()

    def _close_receiver(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.close()

    def _read(self, reads: ReadSet, go_on: Callable[[], None] = at_once) -> None:
        wanted = sorted(reads.landings.items(), key=lambda one: one[0].order)
        jobs = [self._finder.job(self._finder.find(key), landings) for key, landings in wanted]
        if self._receiver is None:
            self._receiver = PayloadReceiver(self._options)
        try:
            self._receiver.read([job for job in jobs if job.landings], lambda _done: go_on())
        except BaseException:
            self._close_receiver()  # It has closed itself; the next read begins again.
            raise
        reads.finish()
