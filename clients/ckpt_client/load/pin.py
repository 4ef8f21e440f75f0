"""A resolved generation that is held against deletion, its homes with it, and its index.

The coordinator's session keeps the pin; when the session is lost, so may be the generation.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Self

from msgspec.structs import replace

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import CkptError, Lost
from ckpt.base.ids import CheckpointId, Generation, PayloadId, RunName, Step
from ckpt.base.printable import printable
from ckpt.base.units import US_PER_S
from ckpt.format.documents.record import CommitRecord, decode_record
from ckpt.format.index.reader import IndexReader
from ckpt.format.messages.hello import Role
from ckpt.format.messages.loading import (
    ConfirmLoad,
    DamageJudged,
    LoadBegan,
    LoadConfirmed,
    ReleasePin,
    Resolve,
    Resolved,
)
from ckpt.plan.reads import PayloadKey
from ckpt.protocol.handshake import Caller
from ckpt.protocol.losses import loss_text
from ckpt.transfer.damage import have_judged, judging
from ckpt.transfer.moves import ask_moves
from ckpt.transfer.payload_finder import PayloadFinder
from ckpt_client.load import load_counts
from ckpt_client.load.reader_context import ReaderContext
from ckpt_client.load.together.meeting import ANSWER_SLACK_S, Meeting, ask_shared, wire_of
from ckpt_client.wait_notice import WaitNotice
from ckpt_client.warn import warn

_log = logging.getLogger("ckpt.restore")


class Pinned:
    """I hold a resolved generation: the coordinator's session whose pin keeps it, and its index."""

    def __init__(self, context: ReaderContext, question: Resolve, timeout_s: float) -> None:
        self.context = context
        self.question = question
        self.timeout_s = timeout_s
        self.resolved: Resolved
        self.record: CommitRecord
        self.session_count = 0
        """Sessions with the coordinator that were opened; each one's end lets its pins go."""
        self._rpc: RpcClient | None = None
        #: `session_count` when `resolved` was pinned.
        self._pin_session = 0
        self._finder: PayloadFinder | None = None
        #: What the coordinator has confirmed that all ranks of the launch load, for good.
        self._confirmed: CheckpointId | None = None
        try:
            self.resolve()
        except BaseException:
            self.close()
            raise

    @classmethod
    def of_step(
        cls, context: ReaderContext, run: RunName, step: Step, only: Generation | None,
        timeout_s: float,
    ) -> Self:  # fmt: skip
        """That step's newest generation, or `only` that one, for a reader of no launch."""
        question = Resolve(run, step, timeout_us=int(timeout_s * US_PER_S), only=only)
        return cls(context, question, timeout_s)

    @property
    def shared(self) -> bool:
        """Whether other ranks load what this one does."""
        asked = self.question
        return asked.launch is not None and (asked.world_size or 1) > 1

    def resolve(self, step: Step | None = None, *, away: bool = False) -> None:
        """Ask which generation it is, or for that step's; warns about steps that were passed
        over.

        away: the tier was asked in vain; of the same generation, stores are named at once.
        """
        rpc = self._connection()
        question = self.question
        if step is not None:
            question = replace(question, step=step, launch=None, turn=0)
        if (
            self._confirmed is not None
            and question.launch is not None
            and question.step is not None
        ):
            question = replace(question, only=self._confirmed.generation)
        if away:
            question = replace(question, away=True, timeout_us=0, fallback=False)
        patience_s = question.timeout_us / US_PER_S + ANSWER_SLACK_S
        waiting = WaitNotice(
            f"the load of {question.run} waits for the coordinator at {rpc.address}"
        )
        reply, bulk = rpc.ask(
            question, Resolved, timeout_s=patience_s, look=lambda: waiting.say(rpc.trouble)
        )
        found = reply.info.checkpoint
        if question.only is not None and found.generation != question.only:
            wanted = f"{question.run}@{question.step}#{question.only}"
            raise Lost(f"{wanted} is deleted or lost, {found} is another")
        self._close_finder()
        self.resolved, self.record = reply, decode_record(bulk)
        self._pin_session = self.session_count
        if reply.skipped:
            text = f"{reply.info.checkpoint} is loaded instead of: {'; '.join(reply.skipped)}"
            warn(text)

    @property
    def pin_lost(self) -> bool:
        """Whether the session that held the pin has ended: the generation may have been deleted
        since.
        """
        return self._pin_session != self.session_count

    @property
    def cut_off(self) -> bool:
        """The coordinator was lost since it was resolved, and perhaps the targets with it, as when
        a local cluster is killed: they may be elsewhere by now."""
        return self.pin_lost or self._rpc is None or self._rpc.peer is None

    def resolve_past(self, error: CkptError) -> DamageJudged:
        """Report damage to a payload or an index, to have it examined: once it is proved, the
        coordinator names another generation, or another place of this one.
        """
        before = self.resolved.info.checkpoint
        _log.warning(printable(f"damage: {error.message}; asking the coordinator to judge"))
        judged = self.judge(error)
        if judged.proved:
            self.resolve()
            found = self.resolved.info.checkpoint
            if found != before:
                text = f"{loss_text(before, judged.reason)}; {found} is loaded"
                warn(text)
        return judged

    def judge(self, error: CkptError) -> DamageJudged:
        """What the coordinator finds about damage. Raises as `have_judged`."""
        return have_judged(self._connection(), self.resolved.info.checkpoint, error)

    def judging_index(self) -> AbstractContextManager[None]:
        """An index that cannot be read within is examined: Lost is raised when its loss is
        proved.
        """
        return judging(self._connection(), self.resolved.info.checkpoint)

    def resolve_moved(self, payload: PayloadId) -> bool:
        """Resolve the same generation again. Returns whether columns of that payload have moved
        since. Raises as `resolve`, `PayloadFinder.find`.
        """
        before = self.resolved.info.checkpoint
        home = payload.checkpoint.generation if payload.checkpoint != before else None
        key = PayloadKey(home, payload.rank)
        known = self.finder.find(key).columns
        self.resolve(None if self.shared else before.step)
        same = self.resolved.info.checkpoint == before
        return not same or self.finder.find(key).columns != known

    def begin(self) -> None:
        """Announce that reading begins, so that ranks that finish earlier wait for this one."""
        asked = self.question
        if self._is_confirmed:
            return
        if self.shared and asked.launch is not None and asked.rank is not None:
            began = LoadBegan(asked.run, asked.launch, asked.rank, asked.turn, asked.step)
            self._connection().tell(began)

    def confirm(self) -> str:
        """Ask whether all ranks of the launch load this generation, for good: empty when they do,
        else why not. Waits for ranks that are loading, for at most `timeout_s`.
        """
        asked = self.question
        if self._is_confirmed or not self.shared or asked.launch is None or asked.rank is None:
            return ""
        checkpoint = self.resolved.info.checkpoint
        message = ConfirmLoad(
            asked.run, asked.launch, asked.rank, asked.turn, checkpoint,
            int(self.timeout_s * US_PER_S), asked.step,
        )  # fmt: skip
        patience_s = self.timeout_s + ANSWER_SLACK_S
        reply, _ = self._connection().ask(message, LoadConfirmed, timeout_s=patience_s)
        if not reply.superseded:
            self._confirmed = checkpoint
            step = checkpoint.step
            key = (self.context.cluster, asked.run, asked.launch, asked.rank, step)
            is_counted = asked.step is not None
            load_counts.confirmed(key, asked.turn if is_counted else load_counts.next_load(key))
        return reply.superseded

    @property
    def _is_confirmed(self) -> bool:
        return self._confirmed == self.resolved.info.checkpoint

    def meeting(self) -> Meeting:
        """Where this reader meets others of the same generation: in the session of its pin."""
        return Meeting(
            share=lambda message, bulk: ask_shared(
                self._connection(), message, bulk, self.timeout_s
            ),
            wire=lambda: wire_of(self._rpc),
            address=self._connection().server,
            secret=self.context.secret,
            cluster=self.record.cluster,
            name=self.context.name,
            timeout_s=self.timeout_s,
        )

    @property
    def index(self) -> IndexReader:
        """The generation's index, fetched once."""
        return self.finder.index

    @property
    def finder(self) -> PayloadFinder:
        """Finds its payloads, and those of its homes, until it is resolved again."""
        if self._finder is None:
            self._finder = PayloadFinder(
                self.resolved,
                self.record,
                partial(ask_moves, self._connection()),
                secret=self.context.secret,
                name=self.context.name,
                timeout_s=self.timeout_s,
                avoid=self.context.avoid,
            )
        return self._finder

    def close(self) -> None:
        """Let the generation go. Idempotent; also called by the finalizer."""
        self._close_finder()
        rpc, self._rpc = self._rpc, None
        if rpc is not None:
            if hasattr(self, "resolved"):
                with suppress(CkptError):  # A forked child ends: the pin is its parent's.
                    rpc.tell(ReleasePin(self.resolved.pin))
            rpc.close()

    def _close_finder(self) -> None:
        finder, self._finder = self._finder, None
        if finder is not None:
            finder.close()

    def _connection(self) -> RpcClient:
        address = self.context.address()
        if self._rpc is None:
            counter = weakref.WeakMethod(self._opened)
            self._rpc = RpcClient(
                address,
                Caller(
                    self.context.secret,
                    Role.READER,
                    self.context.name,
                    cluster=self.context.cluster,
                ),
                on_opened=lambda _peer: _call(counter),
                locate=self.context.address,
            )
        return self._rpc

    def _opened(self) -> None:
        self.session_count += 1


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    target = method()
    if target is not None:
        target()
