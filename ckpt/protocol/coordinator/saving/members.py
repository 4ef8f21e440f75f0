"""Attempts whose payloads are files: numbered as they open, closed by a commit that names them.

    OpenPayload(member) --number durable--> planned --> certified --CommitMembers--> the Committer
                                               |            |
                                               +------------+--> dropped: given up, replaced by a
                                                                 later file of its name, its writer
                                                                 away, or not named at the commit

All files of one (run, step) that are written meanwhile meet in one attempt, whoever writes them; it
never meets that of a launch's ranks. Of two certified files of one name the later one counts: the
one with the higher number. A file belongs to its writer's session until the list is closed; when no
file is left, the attempt is aborted and its space released.

Invariants: a number is given once in a generation, also across restarts, since column files carry
it; a closed attempt has exactly the members that its commit named; nothing commits before.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from ckpt.base.errors import Aborted, CkptError, Refused, Unavailable
from ckpt.base.ids import CheckpointId, PayloadId, Rank, RunName, Step, check_run_name, check_step
from ckpt.base.limits import PAYLOAD_BYTES_MAX
from ckpt.format.members import (
    MEMBERS_MAX,
    NO_LAUNCH,
    Member,
    check_member_name,
    decode_members,
    member_of_table,
)
from ckpt.format.messages.saving import CommitMembers, OpenPayload, PayloadGivenUp
from ckpt.format.table import RankTable
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.keeping.placements import Placement
from ckpt.protocol.coordinator.saving.abandoned import STAGER_AWAY_US
from ckpt.protocol.coordinator.saving.attempts import (
    ENDED,
    Attempt,
    AttemptState,
    Payload,
)
from ckpt.protocol.coordinator.saving.committing import Committer
from ckpt.protocol.coordinator.saving.context import SavingContext
from ckpt.protocol.coordinator.saving.ending import Ending, discarded
from ckpt.protocol.coordinator.saving.opening import Opening
from ckpt.protocol.events import Buffer, Session

NUMBERS_HELD = 64
"""Member numbers made durable at once."""
RECOVERED_US = 4 * STAGER_AWAY_US
"""After a restart writers have this long to come back with files that a commit names."""
RETRY_S = 1.0
NAMES_SHOWN_MAX = 8


class Members:
    """I open, drop and close lists of files."""

    def __init__(
        self, context: SavingContext, opening: Opening, committer: Committer, ending: Ending
    ) -> None:
        self._desk = context.desk
        self._book = context.book
        self._placing = context.placing
        self._opening = opening
        self._committer = committer
        self._ending = ending

    # ----------------------------------------------------------------------- open

    def open_file(self, session: Session, request: int, message: OpenPayload) -> None:
        """Find places for a file that was closed. Raises Refused, NoSpace, or Aborted for one that
        was dropped.
        """
        _check(message)
        if message.resume is not None:
            self._resume(session, request, message, message.resume)
            return
        repeated = self._repeated(message)
        if repeated is not None:
            self._opening.answer_again(session, request, *repeated)
            return
        attempt = self.open_list(message.run, message.step)
        if attempt is None or attempt.next_number >= attempt.world_size:
            self._desk.check_room()
        if attempt is None:
            attempt = self._opening.new_attempt(
                message.run, message.step, NO_LAUNCH, None, NUMBERS_HELD
            )
            attempt.closed = False
        self._drop_replaced(attempt)
        number = attempt.next_number
        if number >= MEMBERS_MAX:
            raise Refused(f"{attempt.checkpoint} has had {number} files: commit it first")
        attempt.next_number += 1
        payload = self._opening.enter(attempt, session, replace(message, rank=Rank(number)))
        payload.request = request
        self._when_numbered(attempt, number, lambda: self._plan(attempt, payload))

    def open_list(self, run: RunName, step: Step) -> Attempt | None:
        """The attempt that takes files of this step now."""
        for attempt in self._book.of_run(run):
            if attempt.of_members and not attempt.closed and attempt.checkpoint.step == step:
                return attempt
        return None

    def _plan(self, attempt: Attempt, payload: Payload) -> None:
        if attempt.has(payload) and attempt.state not in ENDED:
            self._opening.plan(attempt, payload)

    def _when_numbered(self, attempt: Attempt, number: int, then: Callable[[], None]) -> None:
        """Once the catalog's bound is beyond the number, `then`."""
        if number < attempt.world_size:
            then()
            return
        bound = min(number + NUMBERS_HELD, MEMBERS_MAX)

        def durable() -> None:
            attempt.world_size = max(attempt.world_size, bound)
            then()

        entry = catalog.AttemptOpened(attempt.checkpoint, NO_LAUNCH, None, bound)
        self._desk.persist((entry,), durable)

    def _repeated(self, message: OpenPayload) -> tuple[Attempt, Payload] | None:
        for attempt in self._book.of_run(message.run):
            for payload in attempt.payloads.values():
                same = (payload.process, payload.save) == (message.process, message.save)
                if payload.member == message.member and same:
                    return attempt, payload
        return None

    def _resume(
        self, session: Session, request: int, message: OpenPayload, checkpoint: CheckpointId
    ) -> None:
        """A writer comes back with a file whose generation and number it knows."""
        attempt = self._book.attempts.get(checkpoint)
        if attempt is None:
            self._ending.tell_unknown(session, request, checkpoint)
            return
        payload = attempt.payloads.get(message.rank)
        if payload is None:
            # After a restart: of an open list any, of a decided one those that the index names.
            if attempt.record is not None and not attempt.placement:
                self._resume_placed(session, request, message, attempt)
                return
            named = not attempt.closed or message.rank in attempt.placement
            known = attempt.state in ENDED or (attempt.recovered and named)
            if not known or not 0 <= message.rank < attempt.world_size:
                raise discarded(PayloadId(checkpoint, message.rank))
            payload = self._opening.enter(attempt, session, message)
        if (payload.process, payload.member) != (message.process, message.member):
            raise Refused(f"{payload.id} is another file")
        self._opening.answer_again(session, request, attempt, payload)
        if payload.planned is None and attempt.state not in ENDED:
            self._desk.send(session, request, self._opening.resumed_plan(payload))

    def _resume_placed(
        self, session: Session, request: int, message: OpenPayload, attempt: Attempt
    ) -> None:
        """The same once the index of a decided one was read."""

        def found(placement: Placement | None) -> None:
            attempt.placement = attempt.placement or placement or {}
            try:
                if attempt.record is not None and not attempt.placement:
                    text = f"the index of {attempt.checkpoint} cannot be read now"
                    raise Unavailable(text, hint="start the targets that have it (ckpt status)")
                self._resume(session, request, message, attempt.checkpoint)
            except CkptError as error:
                self._desk.fail(session, request, error)

        assert attempt.record is not None
        self._placing.look(attempt.record, found)

    # ----------------------------------------------------------------------- drop

    def given_up(self, session: Session, request: int, message: PayloadGivenUp) -> bool:
        """A writer takes a file back; too late once the list is closed.

        False for a rank's payload.
        """
        attempt = self._book.attempts.get(message.payload.checkpoint)
        if attempt is None or not attempt.of_members or attempt.state in ENDED:
            return False
        payload = attempt.payloads.get(message.payload.rank)
        if payload is not None and not attempt.closed:
            self._ending.drop_file(attempt, payload)
        self._desk.fail(session, request, Aborted(message.message, hint=message.hint))
        return True

    def tick(self) -> None:
        """Drop files whose writers stay away, and with the last one the attempt."""
        now = self._desk.now_us
        for attempt in self._book.open():
            if not attempt.of_members or attempt.closed:
                continue
            for payload in list(attempt.payloads.values()):
                away = payload.away_since_us
                if away is not None and now - away >= STAGER_AWAY_US:
                    self._ending.drop_file(attempt, payload)
            # A recovered one without a writer is Ending's to abort, later.
            if not attempt.payloads and not (attempt.recovered and not self._settled(attempt)):
                text = f"{attempt.checkpoint}: nobody is left who writes files of it"
                self._ending.abort(attempt, Aborted(text, hint="write them again"))

    def _drop_replaced(self, attempt: Attempt) -> None:
        newest = _newest(attempt)
        for payload in list(attempt.payloads.values()):
            if payload.certified and newest[payload.member] is not payload:
                self._ending.drop_file(attempt, payload)

    # ----------------------------------------------------------------------- close

    def listed(self, run: RunName, step: Step) -> tuple[CheckpointId | None, tuple[Member, ...]]:
        """The certified files of the open list, by name; None when there is no open list."""
        attempt = self.open_list(run, step)
        if attempt is None:
            return None, ()
        members = [_member(payload) for payload in _newest(attempt).values()]
        return attempt.checkpoint, tuple(sorted(members))

    def commit(self, session: Session, request: int, message: CommitMembers, bulk: Buffer) -> None:
        """Close the list. Answered at the attempt's end; raises Refused and changes nothing when a
        member is missing or differs, Unavailable while writers may still come back with it.
        """
        attempt = self._book.attempts.get(message.checkpoint)
        if attempt is None:
            self._ending.tell_unknown(session, request, message.checkpoint)
            return
        if not attempt.of_members:
            raise Refused(f"{message.checkpoint} is a checkpoint of ranks, not of files")
        if message.launch is not None:
            attempt.written_by.add(message.launch)
        if attempt.state in (AttemptState.COMMITTED, AttemptState.ABORTED):
            self._ending.tell_asker(attempt, session, request)
            return
        wanted = decode_members(bulk)
        if not wanted:
            raise Refused(f"{message.checkpoint}: a commit without files")
        if attempt.state is not AttemptState.ABORTING and not _is_on_its_way(attempt):
            if message.alone:
                _check_alone(attempt, wanted)
            self._close(attempt, wanted)
        attempt.askers.append((session, request))
        self._committer.proceed(attempt)

    def _close(self, attempt: Attempt, wanted: tuple[Member, ...]) -> None:
        chosen = self._chosen(attempt, wanted)
        if attempt.closed:
            if {p.id.rank for p in chosen} != set(attempt.payloads):
                raise Refused(f"{attempt.checkpoint} is being committed with other files")
            return
        for payload in list(attempt.payloads.values()):
            if not any(payload is one for one in chosen):
                self._ending.drop_file(attempt, payload)
        attempt.world_size = 1 + max(payload.id.rank for payload in chosen)
        attempt.closed = True

    def _chosen(self, attempt: Attempt, wanted: tuple[Member, ...]) -> list[Payload]:
        newest = _newest(attempt)
        missing = [member.name for member in wanted if member.name not in newest]
        if missing and attempt.recovered and not self._settled(attempt):
            raise Unavailable(
                f"{attempt.checkpoint}: {_shown(missing)} did not come back after the "
                "coordinator's restart",
                retry_after_s=RETRY_S,
            )
        differing = [
            member.name
            for member in wanted
            if member.name in newest and _member(newest[member.name]) != member
        ]
        problems = [f"{_shown(missing)} missing"] if missing else []
        problems += [f"{_shown(differing)} written again since"] if differing else []
        if problems:
            raise Refused(
                f"{attempt.checkpoint} cannot be committed: {'; '.join(problems)}",
                hint="write what is named, then commit again",
            )
        return [newest[member.name] for member in wanted]

    def _settled(self, attempt: Attempt) -> bool:
        return self._desk.now_us - attempt.opened_us >= RECOVERED_US


def _check(message: OpenPayload) -> None:
    check_run_name(message.run)
    check_step(message.step)
    check_member_name(message.member)
    if not 0 < message.payload_bytes <= PAYLOAD_BYTES_MAX:
        raise Refused(f"payload of {message.payload_bytes} bytes is out of bounds")
    if message.launch != NO_LAUNCH:
        raise Refused(f"{message.member}: a file belongs to no launch")
    if message.homes:
        raise Refused(f"{message.member}: a file refers to no earlier bytes")


def _check_alone(attempt: Attempt, wanted: tuple[Member, ...]) -> None:
    named = {member.name for member in wanted}
    others = sorted({p.member for p in attempt.payloads.values()} - named)
    if others:
        raise Refused(
            f"{attempt.checkpoint}: {_shown(others)} of the same step wait for their own commit",
            hint="write all files of a step in one transaction",
        )


def _is_on_its_way(attempt: Attempt) -> bool:
    """Nothing can be changed any more; a recovered one does not even know its files."""
    return attempt.closed and attempt.state is not AttemptState.OPEN


def _newest(attempt: Attempt) -> dict[str, Payload]:
    """Of each name the certified file with the highest number."""
    certified = [p for _, p in sorted(attempt.payloads.items()) if p.certified]
    return {payload.member: payload for payload in certified}


def _member(payload: Payload) -> Member:
    assert isinstance(payload.table, RankTable), "it is certified"
    member = member_of_table(payload.member, payload.id.rank, payload.table)
    assert member is not None, "checked when it was certified"
    return member


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + more
