"""What every part of the coordinator writes with: outgoing messages, durable entries,
open questions, and facts for other parts.

The desk turns callbacks into the machine's actions and matches answers to questions. A question to
a peer whose session ends is answered with Failed("unavailable"); a question is never forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from ckpt.base.errors import CkptError, NoSpace
from ckpt.base.ids import CatalogPosition
from ckpt.base.units import US_PER_S
from ckpt.format.messages import Message
from ckpt.format.messages.hello import PROTOCOL_VERSION, Failed
from ckpt.format.messages.reading import DocumentData
from ckpt.format.messages.targets import Attested, DocumentStored, MapKept
from ckpt.format.messages.versions import since
from ckpt.protocol.coordinator.catalog import CatalogEntry, CatalogReached, Persist
from ckpt.protocol.coordinator.facts import Fact
from ckpt.protocol.events import Buffer, CloseSession, Report, Send, Session

NO_ANSWER: Final = Failed("unavailable", "no answer in time")
"""The answer to a question whose patience is over: this very object, so that nobody takes it for
the peer's own word.
"""

FIRST_QUESTION: Final = 1 << 32
"""My questions have numbers from this on: above every one that a peer chooses for its own requests
on the same session.
"""

LATE_ANSWERS: Final = (Failed, DocumentStored, DocumentData, Attested, MapKept)
"""What a target may still answer when nobody waits for it any more: of each question that is asked
with patience, but Reserved, which is given back.
"""


class WorkLeft(Struct, frozen=True):
    """Give me a Worked once other events, if there are any, were handled."""


class Worked(Struct, frozen=True):
    """Nothing else happened: go on with what takes long."""

    now_us: int


Action = Send | CloseSession | Report | Persist | WorkLeft
Reply = Callable[[Message, Buffer], None]
Then = Callable[[], None]


def nothing() -> None:
    """A `then` for which nothing follows."""


SomeFact = TypeVar("SomeFact", bound=Fact)
Hearer = Callable[[Fact], None]


class _Question(Struct, frozen=True):
    session: Session
    reply: Reply
    due_us: int | None
    """When silence counts; None for ever (the session's end still answers)."""
    late: Then | None
    """What to do when it is due and still open; None gives the question up as failed."""


class Desk:
    """I collect actions while one event is handled, and remember what I asked.

    `take()` hands the actions over.
    """

    def __init__(self) -> None:
        self.now_us = 0
        #: What `take` hands over next.
        self._actions: list[Action] = []
        #: Open questions by the request number that I gave them; no number is given twice.
        self._questions: dict[int, _Question] = {}
        #: Their numbers, by whom I asked.
        self._asked: dict[Session, dict[int, None]] = {}
        self._next_request = FIRST_QUESTION
        #: What to do when each Persist is acknowledged, by its ticket.
        self._tickets: dict[int, Then] = {}
        self._next_ticket = 1
        #: Slices of what takes long, in their order.
        self._work: deque[Then] = deque()
        #: A WorkLeft stands for all of them.
        self._is_work_asked = False
        self.speaks: dict[Session, int] = {}
        """Which version of the protocol, of each session whose peer speaks less than we do.
        Upgrading keeps it."""
        self.needs = 0
        """What one has to speak in this cluster, durably."""
        #: Under which entries are written; None before the targets vouched for the catalog.
        self._term: int | None = None
        self.position: CatalogPosition | None = None
        """How far the catalog is durable; None before that."""
        self.full: NoSpace | None = None
        """Why the catalog accepts nothing more for now; what it was given waits."""
        self.no_moves: CkptError | None = None
        """Why no column may move to another target for now, and no target leave. Upgrading
        sets it.
        """
        self.hearers: dict[type[object], tuple[Hearer, ...]] = {}
        """Of each fact, in the order in which they hear it. The machine fills it in."""

    def take(self) -> list[Action]:
        """The actions since the last call."""
        actions, self._actions = self._actions, []
        return actions

    # ----------------------------------------------------------------------- among the parts

    def hear(self, fact: type[SomeFact], *hearers: Callable[[SomeFact], None]) -> None:
        """Let these hear of such facts from now on."""
        assert fact not in self.hearers, f"{fact.__name__} has its line in the table already"
        self.hearers[fact] = cast(tuple[Hearer, ...], hearers)

    def tell(self, fact: Fact) -> None:
        """Announce a fact: all who hear of it have acted on return; what they raise is raised."""
        for hearer in self.hearers[type(fact)]:
            hearer(fact)

    # ----------------------------------------------------------------------- writing

    def send(self, session: Session, request: int, message: Message, bulk: Buffer = b"") -> None:
        """Queue a reply or a push (request 0). What the peer does not know is never said to it."""
        if self.knows(session, message):
            self._actions.append(Send(session, request, message, bulk))

    def knows(self, session: Session, message: Message) -> bool:
        """Whether the peer's version of the protocol has such a message."""
        return since(message) <= self.speaks.get(session, PROTOCOL_VERSION)

    def fail(self, session: Session, request: int, error: CkptError) -> None:
        """Queue an error as the answer."""
        after = error.retry_after_s
        after_us = round(after * US_PER_S) if after is not None else None
        self.send(session, request, Failed(error.code, error.message, error.hint, after_us))

    def report(self, level: str, text: str, **fields: str | int | float) -> None:
        """Queue a log line."""
        self._actions.append(Report(level, text, tuple(fields.items())))

    def close(self, session: Session, reason: str) -> None:
        """Cut a peer off."""
        self._actions.append(CloseSession(session, reason))

    def ask(
        self,
        session: Session,
        message: Message,
        reply: Reply,
        bulk: Buffer = b"",
        *,
        patience_us: int | None = None,
        late: Then | None = None,
    ) -> int:
        """Send a question; `reply` runs exactly once, with the answer or with Failed; soon, where
        the peer does not know such a question.

        Past its patience a question is given up as failed, or, with `late`, goes on: `late` runs
        once. Its number is returned.
        """
        request = self._next_request
        self._next_request += 1
        due_us = None if patience_us is None else self.now_us + patience_us
        if not self.knows(session, message):
            due_us, late = self.now_us, None
        self._questions[request] = _Question(session, reply, due_us, late)
        self._asked.setdefault(session, {})[request] = None
        self.send(session, request, message, bulk)
        return request

    def hasten(self, request: int, due_us: int) -> None:
        """Let a question's patience end at that time, if not sooner; one that is answered or late
        stays as it is.
        """
        question = self._questions.get(request)
        if question is not None and question.due_us is not None:
            due_us = min(due_us, question.due_us)
            self._questions[request] = replace(question, due_us=due_us)

    def persist(self, entries: tuple[CatalogEntry, ...], then: Then) -> None:
        """Make entries durable; `then` runs after they are.

        Nothing that depends on them may run before.
        """
        ticket = self._next_ticket
        self._next_ticket += 1
        self._tickets[ticket] = then
        if self._term is not None:
            entries = (*entries, CatalogReached(CatalogPosition(self._term, ticket)))
        self._actions.append(Persist(ticket, entries))

    def later(self, then: Then) -> None:
        """Run `then` after whatever has come in by then, so that long work lets others have their
        turn.
        """
        self._work.append(then)
        self._ask_for_work()

    def work(self) -> None:
        """Do one slice of long work."""
        self._is_work_asked = False
        self._work.popleft()()
        if self._work:
            self._ask_for_work()

    def _ask_for_work(self) -> None:
        if not self._is_work_asked:
            self._is_work_asked = True
            self._actions.append(WorkLeft())

    def check_room(self) -> None:
        """Check that there is room, before something that begins with an entry. Raises NoSpace
        while the catalog is full.
        """
        if self.full is not None:
            raise NoSpace(self.full.message, hint=self.full.hint)

    def vouched(self, term: int) -> None:
        """Let each ticket note from now on how far the catalog has come; this one is the first."""
        self._term = term
        self.persist((), lambda: None)

    # ----------------------------------------------------------------------- reading

    def answered(self, session: Session, request: int, message: Message, bulk: Buffer) -> bool:
        """True when this frame answered one of my questions.

        A late or foreign number answers nothing.
        """
        question = self._questions.get(request)
        if question is None or question.session != session:
            return False
        self._close(request)
        question.reply(message, bulk)
        return True

    def persisted(self, ticket: int) -> None:
        """Note that the entries of a ticket are durable."""
        if self._term is not None:
            self.position = CatalogPosition(self._term, ticket)
        then = self._tickets.pop(ticket, None)
        if then is not None:
            then()

    @property
    def awaits(self) -> bool:
        """Whether somebody owes an answer in time, or an entry is not durable yet."""
        owed = (question.due_us is not None for question in self._questions.values())
        return bool(self._tickets or self._work) or any(owed)

    def excuse(self, gap_us: int) -> None:
        """Excuse all who owe an answer: nobody could have answered for so long."""
        self._questions = {
            request: replace(question, due_us=question.due_us + gap_us)
            if question.due_us is not None
            else question
            for request, question in self._questions.items()
        }

    def tick(self) -> None:
        """Fail questions that are silent for too long; a late answer finds no question."""
        due = [
            request
            for request, question in self._questions.items()
            if question.due_us is not None and question.due_us <= self.now_us
        ]
        lates: list[Then] = []
        for request in due:
            question = self._questions[request]
            if question.late is not None:
                lates.append(question.late)
                self._questions[request] = replace(question, due_us=None)
        for late in lates:
            late()
        silent = [request for request in due if self._is_overdue(request)]
        self._give_up(silent, NO_ANSWER)

    def _is_overdue(self, request: int) -> bool:
        question = self._questions.get(request)
        return question is not None and question.due_us is not None

    def lost(self, session: Session) -> None:
        """Answer every open question of a session that ended."""
        failure = Failed("unavailable", "the connection ended before the answer")
        self._give_up(list(self._asked.get(session, ())), failure)

    def _give_up(self, requests: list[int], failure: Failed) -> None:
        for request in requests:
            question = self._close(request)
            if question is not None:
                question.reply(failure, b"")

    def _close(self, request: int) -> _Question | None:
        question = self._questions.pop(request, None)
        if question is not None:
            asked = self._asked[question.session]
            del asked[request]
            if not asked:
                del self._asked[question.session]
        return question
