"""How a drain worker of the world reads the tier: it resolves one checkpoint, which pins it, reads
the index, then payloads when they are wanted, with the reader's real machine from real targets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from ckpt.base.errors import CkptError, Unavailable
from ckpt.base.ids import CheckpointId, PayloadId, TargetId
from ckpt.format.documents.record import CommitRecord
from ckpt.format.index.pages import IndexPayload
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Role
from ckpt.format.messages.loading import Resolve
from ckpt.format.messages.saving import CommitInfo
from ckpt.protocol.events import Send, Session
from ckpt.protocol.reader import events as re
from tests.sim.clockwork import Clockwork
from tests.sim.network import Network, Node
from tests.sim.oracles import Oracles
from tests.sim.reader_node import ReaderNode

HARMED = (re.RangeErased, re.RangesBroken, re.ManifestWrong, re.AskRefused)
"""What a column says that is not as it was written."""


OPEN_US = 30_000_000
"""As a tier source waits for the coordinator's answer and the index."""


class Owner(Protocol):
    """The worker that reads."""

    @property
    def name(self) -> str: ...

    def pinned(self, id: CheckpointId) -> None:
        """It is held against deletion, and its index is read."""

    def not_pinned(self, error: CkptError) -> None:
        """It cannot be read, or is not held any more."""


class Tally:
    """What readers of a world met, all together."""

    def __init__(self) -> None:
        self.asked: Counter[TargetId] = Counter()
        """Questions to each target."""
        self.harmed = 0
        """Answers that tell of damage."""
        self.lost = 0
        """Columns whose target went away."""
        self.misplaced: set[str] = set()
        """Payloads of which a column holds pages of another one."""


class TierReader(ReaderNode):
    """I read one checkpoint's payloads, one by one, and hold its pin until I am closed."""

    def __init__(
        self, clock: Clockwork, network: Network, oracles: Oracles, coordinator: Node,
        target_of: Callable[[TargetId], Node], owner: Owner, id: CheckpointId, tally: Tally,
        *, for_repair: bool = False,
    ) -> None:  # fmt: skip
        """`for_repair`: also when it is deleted and others refer to it."""
        super().__init__(clock, network, oracles, coordinator, target_of, id.run, 0)
        self.name = f"{owner.name} reader"
        self.id = id
        self.payloads: dict[int, bytes] = {}
        """Read and verified, by rank."""
        self._owner, self._tally = owner, tally
        self._for_repair = for_repair
        self.role = Role.DRAIN if for_repair else Role.READER
        self._entries: dict[int, IndexPayload] | None = None
        #: Rank -> who wants its payload.
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def start(self) -> None:
        super().start()
        self._clock.after(OPEN_US, self._give_up)

    def _give_up(self) -> None:
        if self._entries is None:
            self._end("unavailable")

    def entry(self, rank: int) -> IndexPayload:
        """As the index has it, once that is read."""
        assert self._entries is not None
        return self._entries[rank]

    @property
    def record(self) -> CommitRecord:
        """Of what is read, once that is resolved."""
        assert self._record is not None
        return self._record

    def close(self) -> None:
        """Nothing is read or held any more, and nobody told."""
        self._waiting.clear()
        self._finish("closed")

    def fetch(self, ranks: set[int], then: Callable[[], None]) -> None:
        """Read these payloads, unless I have them, and go on."""
        left = sorted(ranks - self.payloads.keys())
        if not left:
            then()
            return
        rank = left[0]
        first = rank not in self._waiting
        self._waiting.setdefault(rank, []).append(lambda: self.fetch(ranks, then))
        if first:
            assert self._entries is not None
            self._begin(self._entries[rank])

    def _ask_coordinator(self, session: Session) -> None:
        self._coordinator_session = session
        resolve = Resolve(self.id.run, self.id.step)
        if self._for_repair:
            resolve = replace(resolve, only=self.id.generation, for_repair=True)
        self._network.send(Send(session, next(self._requests), resolve))

    def _dial_coordinator(self) -> None:
        self._network.dial(
            self, self._coordinator, Role.READER, Role.COORDINATOR,
            failed=lambda: self._end("unavailable"), opened=self._ask_coordinator,
        )  # fmt: skip

    def session_closed(self, session: Session) -> None:
        if session == self._coordinator_session:
            self._end("unavailable")  # The pin is lost.
            return
        super().session_closed(session)

    def _resolved(self, info: CommitInfo, record: bytes) -> None:
        if info.checkpoint != self.id:
            self._end("unavailable")
            return
        super()._resolved(info, record)

    def _next_index_copy(self) -> None:
        if self._entries is None:
            super()._next_index_copy()

    def _wanted(self, payloads: tuple[IndexPayload, ...]) -> tuple[IndexPayload, ...]:
        """None yet."""
        if self._entries is None:
            self._entries = {int(payload.rank): payload for payload in payloads}
            self._clock.after(0, self._open)
        return ()

    def _open(self) -> None:
        if self.up:
            self._owner.pinned(self.id)

    def _feed(self, id: PayloadId, event: re.ReaderEvent) -> None:
        self._tally.harmed += isinstance(event, HARMED)
        self._tally.lost += isinstance(event, re.ColumnLost)
        super()._feed(id, event)

    def _send_to(self, target: TargetId, request: int, message: Message) -> None:
        self._tally.asked[target] += 1
        super()._send_to(target, request, message)

    def _completed(self, id: PayloadId) -> None:
        memory = bytes(self._readings[id].memory)
        self._oracles.bytes_were_read(id, memory)
        self.payloads[id.rank] = memory
        for then in self._waiting.pop(id.rank, []):
            then()

    def _conclude(self) -> None:
        """Not before my owner closes me."""

    def _end(self, outcome: str) -> None:
        if self.up:
            self._finish(outcome)
            self._owner.not_pinned(Unavailable(f"{self.id} cannot be read: {outcome}"))

    def _finish(self, outcome: str) -> None:
        super()._end(outcome)
