"""What a stager knows of its saves, and each safety rule as one named function."""

from __future__ import annotations

from itertools import count

from ckpt.base.ids import CheckpointId, PayloadId, RunName
from ckpt.format.messages.launches import Departure
from ckpt.format.messages.saving import PayloadPlanned
from ckpt.protocol.events import Report, Session
from ckpt.protocol.stager import events as e
from ckpt.protocol.stager.records import (
    Errand,
    LastSave,
    Launched,
    Lifetime,
    RankSave,
    SaveState,
    StagerConfig,
)
from ckpt.protocol.stager.requests import SaverIdentity


class StagerState:
    """Everything a stager knows, and the rules it may not break. StagerMachine changes it."""

    def __init__(self, identity: SaverIdentity, config: StagerConfig | None = None) -> None:
        self.identity = identity
        self.config = config or StagerConfig()
        self.saves: dict[int, RankSave] = {}
        """Not ended saves and those whose outcome was not heard, by number, ascending."""
        self.runs: dict[RunName, Launched] = {}
        self.halves: list[int | None] = [None] * self.config.half_count
        """Which save holds each half."""
        self.contents: list[CheckpointId | None] = [None] * self.config.half_count
        """The committed generation that still lies in each half."""
        self.session: Session | None = None
        self.trainer_attached = False
        self.trainer_ended = False
        self.exiting = False
        self._numbers = count(1)
        self._dialing = False
        self._dial_at_us = 0
        self._cluster_gone = False
        self._lifetime = Lifetime(self.config)
        self._now_us = 0
        self._actions: list[e.StagerAction] = []

    # ----------------------------------------------------------------------- questions

    @property
    def idle(self) -> bool:
        """Whether no save is under way."""
        return all(save.state is SaveState.ENDED for save in self.saves.values())

    @property
    def departure(self) -> Departure | None:
        """How the trainer left; None while it is attached."""
        if self.trainer_attached:
            return None
        return Departure.ENDED if self.trainer_ended else Departure.CLOSED

    @property
    def hopeless(self) -> bool:
        """Whether nothing that is held can commit any more: all has ended, or failed before it was
        ever certified.
        """
        return all(
            save.state in (SaveState.ENDED, SaveState.STOPPING)
            or save.refused
            or (save.failed is not None and not save.ever_certified)
            for save in self.saves.values()
        )

    def committed_half(self, checkpoint: CheckpointId) -> int | None:
        """The half that still holds this committed generation and that no trainer can overwrite."""
        if self.trainer_attached or checkpoint not in self.contents:
            return None
        return self.contents.index(checkpoint)

    # ----------------------------------------------------------------------- rules

    def may_release(self, save: RankSave) -> bool:
        """A half is free when its save has committed or aborted and the sender has
        stopped reading it.
        """
        return save.state is SaveState.ENDED

    def half_is_free(self, half: int) -> bool:
        """Whether no save holds it: only then may a trainer write into it."""
        return self.halves[half] is None

    def free_half(self, taken: int | None = None) -> int | None:
        """That one if it is free, else the lowest free half."""
        free = [half for half in range(len(self.halves)) if self.half_is_free(half)]
        return taken if taken in free else next(iter(free), None)

    def may_open(self, save: RankSave) -> bool:
        """It is handed over or refused, and known to refer to homes or not; and so is each save of
        its run before it: to the coordinator, who opens a later step has gone on without the
        earlier ones that it has not opened.
        """
        before = (
            each
            for each in self.saves.values()
            if each.number < save.number and each.run == save.run and each.pending
        )
        return (
            save.pending
            and not save.undecided
            and not any(each.undecided or each.may_be_refused_homes for each in before)
        )

    def may_certify(self, save: RankSave) -> bool:
        """Sealed columns and the table are there, and the coordinator knows the
        payload on this session.
        """
        return (
            save.state is SaveState.SENDING
            and save.sealed is not None
            and save.table is not None
            and save.planned_on == self.session
            and save.certified is not save.sealed
        )

    def plan_fits(self, save: RankSave, plan: PayloadPlanned) -> bool:
        """The plan is for this very save; once a generation is known, only that one counts."""
        payload = plan.payload
        if (payload.checkpoint.run, payload.checkpoint.step) != (save.run, save.step):
            return False
        if payload.rank != self.identity.rank and not save.member:
            return False
        return save.plan is None or save.plan.payload == payload

    def may_report_left(self, run: Launched) -> bool:
        """The coordinator has heard of every payload that was handed over before
        the trainer left.
        """
        return (
            not self.trainer_attached
            and run.joined_on == self.session
            and (run.left_told_on != self.session or run.left_told is not self.departure)
            and all(s.planned_on == self.session for s in self._pending() if self._is_of(s, run))
        )

    def may_refer(self, run: RunName) -> bool:
        """Whether saves of this run may refer to homes; not joined yet, they may."""
        known = self.runs.get(run)
        return known is None or known.number is None or known.references

    # ----------------------------------------------------------------------- helpers

    def _run(self, name: RunName) -> Launched:
        """The launch that a new save of this run belongs to. The first one of another store joins
        it again, as a stager of its own would.
        """
        known = self.runs.get(name)
        if known is not None and known.closed and self._is_busy(known):
            known.open_again()
        elif known is None or known.closed:
            new = Launched(name, Errand(next(self._numbers)))
            if known is not None:
                new.space, new.stands_since_us = known.space, known.stands_since_us
            known = self.runs[name] = new
        return known

    def _is_busy(self, run: Launched) -> bool:
        return any(self._is_of(save, run) for save in self._pending())

    def _new_save(self, event: e.HalfAsked | e.StepRefused) -> RankSave:
        new = [Errand(next(self._numbers)) for _ in range(4)]
        save = RankSave(event.save, event.run, event.step, new[0], new[1], new[2], new[3])
        self.saves[event.save] = save
        return save

    @staticmethod
    def _is_of(save: RankSave, run: Launched) -> bool:
        """It is a save of the run's launch; a file is of none."""
        return save.run == run.run and not save.member

    def _pending(self) -> list[RankSave]:
        return [save for save in self.saves.values() if save.pending]

    def _save_of(self, payload: PayloadId) -> RankSave | None:
        return next((save for save in self.saves.values() if save.payload == payload), None)

    def _saves_at(self, checkpoint: CheckpointId) -> list[RankSave]:
        return [save for save in self._pending() if save.checkpoint == checkpoint]

    def _opening(self, request: int) -> list[RankSave]:
        return [save for save in self._pending() if save.open.request == request]

    def _note_answered(self, save: RankSave) -> None:
        """The coordinator has heard of this save."""
        run = self.runs.get(save.run)
        if run is None or save.member or (run.last is not None and run.last.number >= save.number):
            return
        run.last = LastSave(save.number, save.step, self._now_us)

    def _count(self, save: RankSave) -> None:
        """It is handed over or refused: the coordinator will hear of it."""
        if not save.member:
            save.nth = self.runs[save.run].tries.count(save.step)

    def _do(self, action: e.StagerAction) -> None:
        self._actions.append(action)

    def _report(self, level: str, text: str, what: str) -> None:
        self._do(Report(level, text, (("what", what),)))

    def check(self) -> None:
        """Assert the invariants of the module's head."""
        for half, holder in enumerate(self.halves):
            if holder is not None:
                assert self.saves[holder].half == half, "a half has one holder"
                assert self.contents[half] is None or self.saves[holder].state is SaveState.STOPPING
        for save in self.saves.values():
            held = save.half is not None
            holds = not save.refused and save.state not in (SaveState.ASKED, SaveState.ENDED)
            assert held == holds, "held until the end, and only what was staged"
            assert not held or self.halves[save.half or 0] == save.number
            assert (save.plan is None) or save.state not in (SaveState.ASKED, SaveState.STAGING)
            assert save.certified is None or save.ever_certified
            assert not save.undecided or save.plan is None, "compared before it is opened"
            if save.refers is not None:
                assert save.handed is not None
                assert save.refers.homes
                assert save.payload_bytes < save.handed.payload_bytes, "something is not sent"
            if save.plan is not None:
                assert self.plan_fits(save, save.plan)
                run = self.runs.get(save.run)
                assert run is None or not run.names_space_of(save.plan), "what waits is no save's"
