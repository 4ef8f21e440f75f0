"""All saves of one rank: from the half they are staged into to the coordinator's last word.

    ASKED ──half──> STAGING ──handed over──> OPENING ─planned──> SENDING
      └─ refused, skipped    └─ dropped           └─ refused         │ (certified as needed)
                                                                     │
                           ENDED <──sender stopped── STOPPING <──committed, aborted

A stager outlives its trainer and its sessions. Streams go on without a coordinator; on a new
session the launch is joined again under its known number, every open payload is resumed and
certified again.

Invariants (`check`): a half belongs to one save from GrantHalf until that save is committed or
aborted *and* the sender has stopped reading it (`may_release`); a payload is opened only when
handed over, and compared with its base where there is one, and not ahead of an earlier save of its
run (`may_open`); what it refers to is open until it is planned, and fixed from there on; it is
certified only with its table and sealed columns (`may_certify`); only the planned generation's
answers count (`plan_fits`); TrainerLeft never overtakes a payload that was handed over
(`may_report_left`), and says that the trainer has ended only when its process has.
"""

from __future__ import annotations

from ckpt.base.ids import LaunchNumber
from ckpt.format.members import NO_LAUNCH
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.launches import LaunchJoined
from ckpt.format.messages.saving import (
    AttemptAborted,
    AttemptCommitted,
    BoxesCompared,
    Certified,
    ColumnsLost,
    CompareBoxes,
    HomesRefused,
    PayloadPlanned,
    SpaceStands,
    SparesNamed,
)
from ckpt.protocol.events import (
    Buffer,
    Received,
    Send,
    Session,
    SessionClosed,
    SessionOpened,
    Ticked,
)
from ckpt.protocol.stager import events as e
from ckpt.protocol.stager import requests as requests
from ckpt.protocol.stager.records import (
    Errand,
    Launched,
    RankSave,
    SaveState,
    StagerConfig,
)
from ckpt.protocol.stager.refusals import StagerRefusals
from ckpt.protocol.stager.requests import SaverIdentity

__all__ = ["SaverIdentity", "StagerConfig", "StagerMachine"]


class StagerMachine(StagerRefusals):
    """I bring handed-over payloads to their end.

    I expect every action to be performed; time arrives in events.
    """

    # ----------------------------------------------------------------------- events

    def handle(self, event: e.StagerEvent) -> list[e.StagerAction]:
        """What to do now. Answers that fit no open question change nothing."""
        self._now_us = event.now_us
        match event:
            case Ticked() | e.DialFailed() | SessionOpened() | SessionClosed() | Received():
                self._coordinator_event(event)
            case e.PayloadSealed() | e.SparesWanted() | e.PayloadFailed() | e.PayloadStopped():
                self._sender_event(event)
            case e.BoxesFingerprinted():
                self._boxes_fingerprinted(event)
            case _:
                self._trainer_event(event)
        self._advance()
        actions, self._actions = self._actions, []
        return actions

    def _trainer_event(self, event: e.TrainerEvent) -> None:
        match event:
            case e.TrainerAttached():
                self.trainer_attached = True
                for told in self.saves.values():
                    if told.outcome is not None:
                        self._do(e.TellTrainer(told.number, told.outcome))
            case e.TrainerDetached() | e.TrainerEnded():
                self.trainer_ended |= isinstance(event, e.TrainerEnded)
                self._trainer_detached()
            case e.EndAsked():
                self._lifetime.hasten()
            case e.HalfAsked():
                self._half_asked(event)
            case e.StepRefused():
                self._step_refused(event)
            case _:
                save = self.saves.get(event.save)
                if save is not None:
                    self._save_event(save, event)

    def _save_event(self, save: RankSave, event: e.SaveEvent) -> None:
        match event:
            case e.StagingDropped() if save.state in (SaveState.ASKED, SaveState.STAGING):
                self._drop(save)
            case e.PayloadHandedOver(now_us) if save.state is SaveState.STAGING:
                save.state, save.handed = SaveState.OPENING, event
                save.opening_since_us, save.undecided = now_us, event.comparing
                self._count(save)
            case e.ReferencesFound(now_us) if save.pending and save.undecided:
                save.opening_since_us, save.undecided = now_us, False
                save.refers = event if event.homes else None
            case e.TableReady() if save.pending and save.table is None:
                save.table, save.repeats = event.table, event.repeats
            case e.OutcomeHeard() if save.outcome is not None:
                save.outcome = None
                self._forget(save)
            case _:
                return

    def _sender_event(self, event: e.SenderEvent) -> None:
        save = self._save_of(event.payload)
        if save is None:
            return
        match event:
            case e.PayloadStopped() if save.state is SaveState.STOPPING:
                self._end(save)
            case e.PayloadSealed() if save.state is SaveState.SENDING:
                # A new number: an answer to what was certified before does not answer this.
                save.sealed, save.certify = event, Errand(next(self._numbers))
            case e.SparesWanted() if save.state is SaveState.SENDING:
                save.wanted.append(event)
            case e.PayloadFailed() if save.state is SaveState.SENDING:
                save.failed, save.sealed = event, None
                if not save.ever_certified:  # Nobody can commit what was never certified.
                    self._tell(save, e.SaveFailed(event.code, event.message, event.hint))
            case _:
                return

    def _coordinator_event(self, event: e.CoordinatorEvent) -> None:
        match event:
            case SessionOpened(_, session, Role.COORDINATOR):
                self.session, self._dialing = session, False
            case SessionClosed(now_us, session) if session == self.session:
                self.session = None
                self._dial_at_us = now_us + self.config.dial_us
                for save in self.saves.values():
                    save.certified = save.comparing = None
            case e.DialFailed(now_us, gone):
                self._dialing, self._dial_at_us = False, now_us + self.config.dial_us
                self._cluster_gone = gone
            case Received(_, session, request) if session == self.session:
                self._received(request, event.message)
            case _:
                return

    # ----------------------------------------------------------------------- trainer

    def _half_asked(self, event: e.HalfAsked) -> None:
        if event.save in self.saves:
            known = self.saves[event.save]
            if known.state is SaveState.STAGING and known.half is not None:
                self._do(e.GrantHalf(event.save, known.half))
            return
        run = None if event.member else self._run(event.run)
        waiting = sum(save.state is SaveState.ASKED for save in self.saves.values())
        full = waiting > 0 or self.free_half() is None
        fenced = run.error if run is not None else None
        refusal = fenced or requests.refusal_when_full(event, full, waiting, self.config)
        if refusal is not None:
            self._do(e.RefuseSave(event.save, refusal.code, refusal.message, refusal.hint))
            return
        save = self._new_save(event)
        save.member, save.taken = event.member, event.taken

    def _step_refused(self, event: e.StepRefused) -> None:
        known = self.saves.get(event.save)
        if known is not None and known.state in (SaveState.ASKED, SaveState.STAGING):
            self._drop(known)
        if event.save in self.saves or self._run(event.run).error is not None:
            return
        save = self._new_save(event)
        save.state, save.refused, save.opening_since_us = SaveState.OPENING, event.why, event.now_us
        self._count(save)

    def _trainer_detached(self) -> None:
        self.trainer_attached = False
        for run in self.runs.values():
            run.closed = True
        for save in list(self.saves.values()):
            if save.state in (SaveState.ASKED, SaveState.STAGING):
                self._drop(save)

    # ----------------------------------------------------------------------- coordinator

    def _received(self, request: int, message: object) -> None:
        # Not `Message`: mypy would take each case from a union of all, for seconds.
        match message:
            case LaunchJoined():
                self._launch_joined(request, message)
            case PayloadPlanned():
                self._planned(request, message)
            case HomesRefused():
                self._homes_refused(request, message)
            case SpaceStands():
                self._space_stands(message)
            case SparesNamed(payload, spares):
                save = self._save_of(payload)
                if save is not None and save.wanted and request == save.spares.request:
                    self._spares_named(save, spares)
            case Certified(payload):
                save = self._save_of(payload)
                if (
                    save is not None
                    and request == save.certify.request
                    and save.certify.session == self.session
                ):
                    save.certified = save.sealed
                    if save.member:
                        self._do(e.TellCertified(save.number))
            case ColumnsLost(payload, columns, places):
                save = self._save_of(payload)
                if save is not None and save.state is SaveState.SENDING:
                    save.sealed = None  # The sender says again when it is enough.
                    self._do(e.ReopenColumns(payload, columns, places))
            case CompareBoxes(payload, boxes):
                save = self._save_of(payload)
                if (
                    save is not None
                    and save.state is SaveState.SENDING
                    and self.session is not None
                ):
                    assert save.half is not None
                    save.comparing = (self.session, request)
                    self._do(e.ComputeBoxes(payload, save.half, boxes))
            case AttemptCommitted(info):
                for save in self._saves_at(info.checkpoint):
                    self._finish(save, e.SaveCommitted(info))
            case AttemptAborted(checkpoint, code, text, hint, after_us):
                failure = e.SaveFailed(code, text, hint, after_us)
                for save in self._saves_at(checkpoint) or self._opening(request):
                    self._note_answered(save)
                    self._finish(save, failure)
            case Failed():
                self._refused(request, message)
            case _:
                self._report("warning", "unexpected message", type(message).__name__)

    def _planned(self, request: int, plan: PayloadPlanned) -> None:
        for save in self._opening(request):
            if not self.plan_fits(save, plan):
                self._report("error", "a plan for another payload", str(plan.payload))
                continue
            save.planned_on = self.session
            self._note_answered(save)
            self._note_planned(save, plan)
            save.certify.renew()
            if save.plan is None:
                self._start(save, plan)
            elif plan.spares:
                self._do(e.AddSpares(plan.payload, None, plan.spares))

    def _homes_refused(self, request: int, message: HomesRefused) -> None:
        """Nothing was moved yet: all of it is opened, under a new number, since an answer to what
        was asked before does not answer this.
        """
        for save in self._opening(request):
            if save.refers is not None and save.plan is None:
                self._report("info", "stored whole", message.reason)
                save.refers, save.open = None, Errand(next(self._numbers))

    def _start(self, save: RankSave, plan: PayloadPlanned) -> None:
        if save.refused:  # By a coordinator that does not know the field.
            save.plan, save.state = plan, SaveState.SENDING
            save.failed = requests.refusal(save, plan, self._now_us)
            return
        launch = NO_LAUNCH if save.member else self.runs[save.run].number
        assert save.handed is not None
        assert save.half is not None
        assert launch is not None
        save.plan, save.state = plan, SaveState.SENDING
        sent_bytes, refers = save.payload_bytes, save.refers is not None
        self._do(e.StartPayload(save.number, save.half, sent_bytes, launch, plan, refers))

    def _boxes_fingerprinted(self, event: e.BoxesFingerprinted) -> None:
        save = self._save_of(event.payload)
        if save is not None and save.comparing is not None:
            session, request = save.comparing
            save.comparing = None
            self._do(Send(session, request, BoxesCompared(event.payload, event.fingerprints)))

    # ----------------------------------------------------------------------- every step

    def _advance(self) -> None:
        """Whatever has become possible: halves, questions, the end."""
        if self.exiting:
            return
        self._grant()
        if self.session is not None:
            self._ask_everything(self.session)
        elif not self._dialing and self._now_us >= self._dial_at_us:
            self._dialing = True
            self._do(e.DialCoordinator())
        self._maybe_exit()

    def _grant(self) -> None:
        for save in self.saves.values():
            if save.state is not SaveState.ASKED:
                continue
            half = self.free_half(save.taken)
            if half is not None:
                save.half, save.state = half, SaveState.STAGING
                self.halves[save.half], self.contents[save.half] = save.number, None
                self._do(e.GrantHalf(save.number, save.half))

    def _ask_everything(self, session: Session) -> None:
        for run in self.runs.values():
            if self._must_join(run) and run.errand.is_due(session, self._now_us):
                self._ask(run.errand, requests.join(self.identity, run, self._now_us))
        for save in list(self.saves.values()):
            if save.pending and save.member:
                self._ask_for_member(save, session)
            elif save.pending:
                self._ask_for(save, self.runs[save.run], session)
        for run in self.runs.values():
            if self.departure is not None and self.may_report_left(run):
                self._tell_left(run, session, self.departure)

    def _ask_for(self, save: RankSave, run: Launched, session: Session) -> None:
        """The open questions of one handed-over save."""
        if run.refused:
            assert run.error is not None, "why it was"
            self._finish(save, run.error)
            return
        if run.joined_on != session or run.number is None or not self.may_open(save):
            return
        if save.plan is None and not run.references:
            save.refers = None
        if save.planned_on != session:
            if save.open.is_due(session, self._now_us):
                nth = save.nth if run.counts else 0
                question = requests.open_payload(self.identity, run.number, save, nth)
                self._ask(save.open, question)
        else:
            self._ask_for_planned(save, run.number, session)

    def _ask_for_member(self, save: RankSave, session: Session) -> None:
        """The same for a file, which waits for no launch."""
        if save.planned_on != session:
            if save.open.is_due(session, self._now_us):
                self._ask(save.open, requests.open_member(self.identity, save))
        else:
            self._ask_for_planned(save, NO_LAUNCH, session)

    def _ask_for_planned(self, save: RankSave, launch: LaunchNumber, session: Session) -> None:
        now_us = self._now_us
        if save.failed is not None:
            if save.give_up.is_due(session, now_us):
                self._ask(save.give_up, requests.give_up(save.failed))
        else:
            if save.wanted and save.spares.is_due(session, now_us):
                self._ask(save.spares, requests.spares(save.wanted[0]))
            if self.may_certify(save) and save.certify.is_due(session, now_us):
                save.ever_certified = True
                for message, part in requests.certify(
                    self.identity, launch, save, self.config.table_part_bytes
                ):
                    self._ask(save.certify, message, part)

    def _ask(self, errand: Errand, message: Message, bulk: Buffer = b"") -> None:
        assert self.session is not None
        errand.asked(self.session, self._now_us)
        self._do(Send(self.session, errand.request, message, bulk))

    def _maybe_exit(self) -> None:
        reason = self._lifetime.reason_to_end(
            self._now_us, self.trainer_attached, self.session is not None,
            self.idle or (self.session is None and (self.hopeless or self._cluster_gone)),
        )  # fmt: skip
        if reason is not None:
            self.exiting = True
            self._leave_unwatched()
            lost = (save for save in self._pending() if not save.refused and save.outcome is None)
            self._do(e.Exit(reason, tuple((save.run, save.step) for save in lost)))
