"""What is wrong now, why, and what mends it: the health checks that a coordinator can make.

Each names its cause as far as it is seen from here, and the command that mends it. Who knows more,
as the command line does of a local cluster's processes, gives a better one: `targets` says which
targets have to be started for the check to go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from ckpt.base.errors import CkptError
from ckpt.base.ids import RunName, TargetId
from ckpt.base.shell_words import at_host, quoted
from ckpt.base.units import US_PER_S, counted, format_seconds
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import Rot
from ckpt.protocol.coordinator.catalog import RowState, TargetStanding
from ckpt.protocol.coordinator.cluster.candidates import few_domains
from ckpt.protocol.coordinator.cluster.claims import WRONG_NAME, Claim
from ckpt.protocol.coordinator.cluster.devices import (
    OWN_HOLD,
    DeviceSpace,
    device_spaces,
    devices_text,
)
from ckpt.protocol.coordinator.cluster.membership import Membership, Target, TargetState
from ckpt.protocol.coordinator.cluster.upgrading import FINISH, Upgrading
from ckpt.protocol.coordinator.cluster.vouching import CatalogStanding, Vouching
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.draining import DrainQueue
from ckpt.protocol.coordinator.keeping.evicting import Evictor, dated
from ckpt.protocol.coordinator.keeping.retaining import Retaining
from ckpt.protocol.coordinator.policy import CoordinatorPolicy
from ckpt.protocol.coordinator.reading.answers import Check, StoreStatus
from ckpt.protocol.coordinator.reading.checks import (
    START_WORKER,
    check,
    checkpoints,
    connections_full,
    new_target,
)
from ckpt.protocol.coordinator.reading.drain_views import drain_checks
from ckpt.protocol.coordinator.reading.repair_views import repaired, unserved_moves, worker
from ckpt.protocol.coordinator.reading.scrub_views import late_check
from ckpt.protocol.coordinator.reading.stored import stores_alone
from ckpt.protocol.coordinator.repairing.survey import Survey
from ckpt.protocol.coordinator.repairing.tasks import Repairs

START_THEM = "start them on their hosts; where one runs, its log says why it is not here"
REPLACE_THEM = "bring the old directories back; when they are gone for good: replace them"
SAVED_AGAIN = "the next save has all of its own, then drop"
TOMBSTONE = DocumentKind.TOMBSTONE.value
NAMED_MAX = 3
"""Most checkpoints that one message names."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Work that goes on beside saves and loads, until it is done."""

    repairs: Repairs
    upgrading: Upgrading
    drains: DrainQueue


class Health:
    """I look; I change nothing."""

    def __init__(
        self, members: Membership, checkpoints: Checkpoints, policy: CoordinatorPolicy,
        vouching: Vouching, evictor: Evictor, retaining: Retaining, upkeep: Upkeep,
    ) -> None:  # fmt: skip
        self.upgrading = upkeep.upgrading
        self._vouching = vouching
        self._members = members
        self._checkpoints = checkpoints
        self._code, self._rule = policy.code, policy.spread
        self._marks = policy.fill
        self._evictor = evictor
        self._retaining = retaining
        self._repairs = upkeep.repairs
        self._drains = upkeep.drains

    def problem(self) -> CkptError | None:
        """Why nobody is served now; None while requests are served."""
        return self._vouching.problem()

    def checks(
        self, stores: Sequence[StoreStatus], survey: Survey, address: str, now_us: int
    ) -> Iterator[Check]:
        """All checks that stand now. `address`: of the coordinators, as a word of a command."""
        yield from self._catalog(address)
        away = [t for t in self._members.all() if t.state is TargetState.DOWN]
        down = [target for target in away if target.standing is not TargetStanding.OUT]
        gone = [target for target in down if not self._members.replacing(target.id)]
        if gone:
            text = f"down: {', '.join(_away(target, now_us) for target in gone)}"
            ids = [target.id for target in gone]
            yield check("TARGET_DOWN", text, START_THEM, self._start(ids, address, ""), ids)
        served = {target.id for target in self._members.live()}
        yield from (_claim_check(each, each.target in served) for each in self._members.claims())
        yield from map(_device_check, self._members.failing())
        yield from self._rot(address, now_us)
        yield from map(late_check, [t for t in self._members.live() if t.scrub and t.scrub.late_s])
        # An old catalog's targets are not counted, and a new one beside them mends nothing.
        if self._vouching.standing is not CatalogStanding.OLD:
            yield from self._too_few(down, address)
        full = [t for t in self._members.live() if t.counters.get("connections_full")]
        yield from map(_full_check, full)
        yield from self._filling(address)
        yield from self._lost()
        yield from self._redundancy(survey, address, now_us)
        yield from self._paused()
        yield from self._moves(address)
        yield from self._unfinished()
        yield from drain_checks(stores, address)
        yield from _unsaid_checks(self._retaining.lost())

    def _catalog(self, address: str) -> Iterator[Check]:
        """Why nobody is served yet, or ever from this catalog."""
        problem = self._vouching.problem()
        if problem is None:
            return
        if self._vouching.learns_addresses() and self._vouching.standing is CatalogStanding.OLD:
            remedy = "wait some seconds until its targets have come, and look again"
            yield check("CATALOG_UNPROVED", problem.message, remedy, "ckpt status")
            return
        if self._vouching.standing is CatalogStanding.OLD:
            remedy, command = "make it again from what the targets hold", self._vouching.remedy()
            if command.startswith("ckpt catalog rebuild ") and "etcd://" not in command:
                remedy = f"end this coordinator, {remedy}, and start it again"
            yield check("CATALOG_OLD", problem.message, remedy, command)
            return
        if self._vouching.is_new:
            yield check("CATALOG_UNPROVED", problem.message, self._vouching.new_remedy())
            return
        away = [t.id for t in self._members.all() if t.state is not TargetState.LIVE]
        # Before others have come nobody knows what their old directories are needed for.
        unclaimed = [id for id in away if not self._members.replacing(id)]
        bring_back = self._bring_back(unclaimed or away, address, " --force")
        yield check("CATALOG_UNPROVED", problem.message, *bring_back)

    def _start(self, ids: Sequence[TargetId], address: str, flag: str) -> str:
        """What brings these targets back, each on its host."""
        lines = []
        for id in ids:
            target = self._members.targets[id]
            if self._members.replacing(id):
                lines.append(f"ckpt target replace {quoted(id)}{flag}")
                continue
            where, domain = quoted(target.directory), quoted(str(target.domain))
            listens = quoted(target.address) if target.address else "HOST:PORT"
            # By name and at its address: a mount point without its disk joins as no other target.
            lines.append(
                f"ckptd target --id {quoted(id)} --directory {where} --coordinator {address}"
                f" --listen {listens} --domain {domain}"
            )
        return "; ".join(lines)

    def _bring_back(
        self, ids: Sequence[TargetId], address: str, flag: str = ""
    ) -> tuple[str, str, list[TargetId]]:
        """Remedy, command, and those of them that a start brings back, and not a word. `flag` of
        those for which a word does.
        """
        unclaimed = [id for id in ids if not self._members.replacing(id)]
        remedy = REPLACE_THEM if ids and not unclaimed else START_THEM
        return remedy, self._start(ids, address, flag), unclaimed

    def _too_few(self, down: Sequence[Target], address: str) -> Iterator[Check]:
        failing = self._members.failing()
        well = [t for t in self._members.live() if t.stays and not t.is_failing]
        are_enough = len(well) >= self._code.floor
        domains = few_domains(well, self._code.floor, self._rule) if are_enough else ""
        if are_enough and not domains:
            return
        resort = f"; {', '.join(t.id for t in failing)} only as a last resort" if failing else ""
        text = (
            f"{counted(len(well), 'target', 'is', 'are')} live and well{domains}, "
            f"a save needs {self._code.floor} for {self._code}"
            f"{self._members.leaving_text()}"
        )
        if down:
            ids = [target.id for target in down]
            yield check("TOO_FEW_TARGETS", text + resort, *self._bring_back(ids, address))
        elif failing:
            remedy = "mend the devices that fail (DEVICE_FAILING), or add targets"
            command = _device_check(failing[0]).command
            yield check("TOO_FEW_TARGETS", text + resort, remedy, command, ())
        else:
            command = new_target(address)
            remedy = "add targets, each with a directory"
            if domains:
                level = self._rule.level
                remedy = f"add targets in other {level}s, or start those with the right --domain"
            if self._members.leaving_text():
                remedy += ", or take those back that are drained or out (ckpt target undrain, in)"
            yield check("TOO_FEW_TARGETS", text, remedy, command)

    def _filling(self, address: str) -> Iterator[Check]:
        """Devices that are full, and that soon will be, the fullest first."""
        spaces = device_spaces(self._members.live())
        spaces.sort(key=lambda device: device.taken, reverse=True)
        shut = [each for each in spaces if each.is_shut]
        rest = [each for each in spaces if not each.is_shut]
        full = [each for each in rest if self._taken(each) >= self._marks.full]
        near = [each for each in rest if self._marks.near <= self._taken(each) < self._marks.full]
        for name, found in (("TARGET_FULL", shut + full), ("TARGET_NEARFULL", near)):
            if found:
                yield check(name, devices_text(found), *self._make_room(found, address))

    def _taken(self, device: DeviceSpace) -> float:
        """What goes by itself, since an object store has it, counts as free: beside a store a tier
        is as full as its watermarks allow, and well.
        """
        if device.taken < self._marks.near:
            return device.taken
        return device.taken - self._evictor.may_free(device.domain) / device.usable_bytes

    def _make_room(self, devices: Sequence[DeviceSpace], address: str) -> tuple[str, str]:
        """Remedy and command; no command removes the files of others, or raises a quota."""
        if devices[0].remedy_by_hand:
            return devices[0].remedy_by_hand, ""
        oldest = self._oldest_on({id for device in devices for id in device.targets})
        if oldest is None:
            remedy = "the newest step of each run holds it: add targets, each with a directory"
            return remedy, new_target(address)
        remedy = f"{OWN_HOLD}; the oldest that is not the newest of its run"
        return remedy, f"ckpt rm {_step(oldest)}"

    def _oldest_on(self, targets: Set[TargetId]) -> KeptCheckpoint | None:
        """The oldest commit there whose removal frees space, and that no restart would want."""
        found = [
            (at_s, one.id, one)
            for run in self._checkpoints.runs()
            for at_s, one in dated(self._checkpoints.of_line(run, RowState.COMMITTED))[:-1]
            if not (one.users or one.is_kept) and not targets.isdisjoint(one.targets)
        ]
        return min(found, default=(0.0, None, None))[2]

    def _lost(self) -> Iterator[Check]:
        damaged = [c for c in self._checkpoints.all() if c.state is RowState.DAMAGED]
        stored = [one for one in damaged if stores_alone(self._drains, one)]
        lost = [one for one in damaged if one not in stored]
        if stored:
            count = f"{len(stored)} checkpoint{'s are' if len(stored) > 1 else ' is'}"
            where = stores_alone(self._drains, stored[-1])[0]
            text = f"{count} lost in the tier and whole in an object store: {_some(stored)}"
            text += f", in {where} ({stored[-1].reason})"
            remedy = "loads read it there; save it again into the tier, when its run does not save"
            yield check("CHECKPOINT_STORED", text, remedy, "ckpt fetch --lost")
        if lost:
            text = f"damaged beyond repair: {_some(lost)}"
            remedy = "no object store is known that has it: let it go"
            yield check("CHECKPOINT_LOST", text, remedy, f"ckpt rm {_step(lost[-1])}")

    def _redundancy(self, survey: Survey, address: str, now_us: int) -> Iterator[Check]:
        unreadable, degraded = survey.unreadable, survey.degraded
        if unreadable:
            text = f"{checkpoints(unreadable, 'is', 'are')} out of reach: {_some(unreadable)}"
            remedy = "their columns are not on their targets, which are up: see what is left"
            command = f"ckpt verify {_step(unreadable[-1])}"
            yield self._with_away(
                "CHECKPOINT_UNREACHABLE", text, unreadable, address, remedy, command
            )
        if degraded:
            columns = survey.columns_missing
            missing = _missing(columns, survey.documents_missing)
            lack = f"less redundancy ({missing}): {_some(degraded)}"
            text = f"{checkpoints(degraded, 'has', 'have')} {lack}"
            text += self._waiting_text()
            remedy, command = repaired(self._repairs, columns > 0, address, now_us) or (
                # The oldest; `ckpt rm` removes the only one of a run only with --force.
                f"{SAVED_AGAIN} these", f"ckpt rm {_step(degraded[0])}",
            )  # fmt: skip
            yield self._with_away("REDUNDANCY_LOW", text, degraded, address, remedy, command)

    def _rot(self, address: str, now_us: int) -> Iterator[Check]:
        """One for all, with the command for the first. Nobody can do more for a deletion than
        wait.
        """
        scrubbed = [(target, target.scrub) for target in self._members.live() if target.scrub]
        named_by = [(target, one) for target, report in scrubbed for one in report.rot]
        found = [each for each in named_by if each[1].damage.kind != TOMBSTONE]
        if not found:
            return
        count = sum(report.rot_count for _, report in scrubbed) - len(named_by) + len(found)
        named = "; ".join(_rot_text(target, one) for target, one in found[:NAMED_MAX])
        parts = (
            "1 part of files at rest is" if count == 1 else f"{count} parts of files at rest are"
        )
        id = found[0][1].checkpoint
        of_columns = any(one.rank is not None for _, one in found)
        remedy, command = repaired(self._repairs, of_columns, address, now_us) or (
            f"{SAVED_AGAIN} this one", f"ckpt rm {quoted(f'{id.run}@{id.step}')}",
        )  # fmt: skip
        remedy = f"what reads it takes parity or another copy; {remedy}"
        yield check("ROT", f"{parts} damaged: {named}", remedy, command)

    def _waiting_text(self) -> str:
        """Why one of them is not made again now; empty when nothing is known against it."""
        for payload, why in sorted(self._repairs.counts.problems.items()):
            return f"; {payload} waits: {why}"
        for checkpoint, why in sorted(self._repairs.documents.problems.items()):
            return f"; {checkpoint}: {why}"
        return ""

    def _paused(self) -> Iterator[Check]:
        """Said also while nothing is due: who paused it may have forgotten."""
        if not self._repairs.ruling.is_paused:
            return
        due = [one for one in self._repairs.waiting() if not one.is_move]
        columns = sum(len(one.columns) for one in due)
        text = "repair is paused, and nothing is to be made again now"
        if due:
            verb = "column is" if columns == 1 else "columns are"
            text = f"repair is paused, and {columns} {verb} to be made again"
            text += f": {', '.join(str(one.payload) for one in due[:NAMED_MAX])}"
        yield check("REPAIR_PAUSED", text, "let it go on", "ckpt repair resume")

    def _moves(self, address: str) -> Iterator[Check]:
        """Nothing is lost while they wait, so no other check names what is missing."""
        if moves := unserved_moves(self._repairs, self._members):
            text = f"no repair worker is heard: {moves}"
            yield check("MOVES_STOPPED", text, START_WORKER, worker(address))

    def _unfinished(self) -> Iterator[Check]:
        if self.upgrading.is_finished:
            return
        text = "an earlier version made this cluster: no column moves, and no target leaves"
        standing = [*self.upgrading.against(), *self.upgrading.away()]
        if standing:
            text += f"; {'; '.join(standing)}"
            remedy = "upgrade these, then finish it"
        else:
            remedy = "finish it: earlier versions are not let in any more"
        yield check("UPGRADE_UNFINISHED", text, remedy, FINISH)

    def _with_away(
        self, name: str, text: str, harmed: Sequence[KeptCheckpoint], address: str, remedy: str,
        command: str,
    ) -> Check:  # fmt: skip
        """The advice is to start what is down; where all are up, `remedy` and `command`."""
        away = {id for each in harmed for id in self._checkpoints.unreachable(each)}
        if not away and any(self._lacks_records(each) for each in harmed):
            away = {t.id for t in self._members.all() if t.state is TargetState.DOWN}
        known = sorted(away & {target.id for target in self._members.all()})
        if known:
            verb = "is" if len(known) == 1 else "are"
            text = f"{text}; on {', '.join(known)}, which {verb} down"
            if name == "REDUNDANCY_LOW":
                text += self._from_then_on()
            return check(name, text, *self._bring_back(known, address))
        return check(name, text, remedy, command)

    def _from_then_on(self) -> str:
        """That the columns of who is down come back by themselves, and when (`Lacking`)."""
        after_us = self._repairs.after_us
        if after_us is None:
            return ""
        after = format_seconds(after_us / US_PER_S)
        text = f"; repair makes them again on others once that lasts for {after}"
        return f"{text}, at once where no more may be lost"

    def _lacks_records(self, checkpoint: KeptCheckpoint) -> bool:
        """Nothing says where they were put: any target that is down may have one."""
        return len(self._checkpoints.record_copies(checkpoint)) < checkpoint.document_copies


def _missing(columns: int, documents: int) -> str:
    texts = [f"{columns} column{'s' * (columns != 1)}"] if columns else []
    if documents:
        texts.append(f"{documents} cop{'y' if documents == 1 else 'ies'} of index or record")
    return f"{', '.join(texts)} missing"


def _away(target: Target, now_us: int) -> str:
    """Its name, and how it went."""
    if target.silent_since_us is not None:
        silent_s = (now_us - target.silent_since_us) / US_PER_S
        return f"{target.id} (silent for {silent_s:.0f} s: it hangs or is stopped)"
    return f"{target.id} (not connected)"


def _claim_check(claim: Claim, is_served: bool) -> Check:
    text, end = f"{claim.why}: {claim.where}", at_host(claim.address, f"kill {claim.pid}")
    if claim.is_removed:
        return check("TARGET_REMOVED", text, "end its process, and start it no more", end)
    if not claim.replaces:
        return check("DIRECTORY_COPIED", text, "end the process on the copy", end)
    if is_served:
        return check("DIRECTORY_UNKNOWN", text, WRONG_NAME, end)
    remedy = "bring the old directory back; when it is gone for good: replace it"
    command = f"ckpt target replace {quoted(claim.target)}"
    return check("DIRECTORY_UNKNOWN", text, remedy, command)


def _device_check(target: Target) -> Check:
    errors = ", ".join(f"{kind} {count}" for kind, count in target.device.errors.items() if count)
    text = f"{target.id}: {target.device.latest} (since it began: {errors})"
    where = f"{target.directory} on {target.domain.host}"
    remedy = f"mend {where}; it is tried again by itself, at once when its target starts again"
    return check("DEVICE_FAILING", text, remedy, at_host(target.address, f"kill {target.pid}"))


def _rot_text(target: Target, rot: Rot) -> str:
    of = rot.damage.kind if rot.rank is None else f"column {rot.column} of rank {rot.rank}"
    return f"{target.id}: {rot.damage.region} of {of} of {rot.checkpoint} ({rot.damage.why})"


def _full_check(target: Target) -> Check:
    limit = target.counters.get("descriptor_limit", 0)
    text = f"target {target.id} has no room for trainers and readers (descriptor limit {limit})"
    return connections_full(text, target.pid, target.address)


def _unsaid_checks(runs: Sequence[RunName]) -> Iterator[Check]:
    if runs:
        named = ", ".join(runs[:NAMED_MAX])
        count = f"{len(runs)} run{'s' * (len(runs) != 1)}"
        text = f"the catalog was made again, nothing of {count} expires: {named}"
        remedy = "say again what stays (ckpt keep RUN --last N); --none: what the cluster keeps"
        yield check("RETENTION_UNSAID", text, remedy, f"ckpt keep {quoted(runs[0])} --none")


def _step(checkpoint: KeptCheckpoint) -> str:
    return quoted(f"{checkpoint.id.run}@{checkpoint.id.step}")


def _some(checkpoints: Sequence[KeptCheckpoint]) -> str:
    return ", ".join(str(each.id) for each in checkpoints[-NAMED_MAX:])
