"""Which cluster does a command talk to? --store or $CKPT_STORE, opened as `ckpt.open` does.

A local cluster that does not run is started by whoever has to read, but never made: a mistyped
directory is an error here.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from ckpt.aio.process_identity import process_state
from ckpt.aio.secret import find_secret_file
from ckpt.base.errors import Busy, CkptError, Corrupt, NotFound, Refused
from ckpt.base.ids import Generation, RunName, Step, TargetId, check_run_name, check_step
from ckpt.format.documents.labels import check_name
from ckpt.format.messages.asking import (
    Answer,
    Ask,
    ChangeTarget,
    DeleteStep,
    ReplaceTarget,
    StepDeleted,
    StepDown,
    SteppedDown,
    TargetChanged,
    TargetReplaced,
)
from ckpt.format.messages.balancing import BalanceTargets, TargetsBalanced
from ckpt.format.messages.drains import DrainNoted, ForgetStore
from ckpt.format.messages.hello import MOVES_VERSION, PROTOCOL_VERSION, Role
from ckpt.format.messages.repairs import RepairSet, SetRepair
from ckpt.format.messages.upgrading import FinishUpgrade, UpgradeNoted
from ckpt.protocol.coordinator.reading.answers import (
    RunView,
    ShowView,
    StatusView,
    StepView,
    UpgradeView,
)
from ckpt.protocol.coordinator.reading.coordinator_answers import CoordinatorsView
from ckpt.protocol.coordinator.reading.repair_answers import RepairView
from ckpt_client import labels
from ckpt_client.cli.meant import no_run
from ckpt_client.cli.output import Output
from ckpt_client.control import Control
from ckpt_client.local.cluster import (
    CLUSTER_NAME,
    is_supervised,
    not_ours,
    of_another_host,
    opened_cluster,
    what_makes_one,
)
from ckpt_client.locate import READY_NAME, Locator
from ckpt_client.url import LocalUrl, RemoteUrl, parse_url

HOLD_NAME: Final = "held"
"""A file with this name in a target's directory keeps the supervisor from starting it."""
READY_POLL_S: Final = 0.05

View = TypeVar("View")


class ReadyTarget(msgspec.Struct, frozen=True):
    """A child of the local supervisor."""

    id: str
    directory: str
    pid: int | None = None
    """Only while it serves."""
    address: str | None = None


class LocalReady(msgspec.Struct, frozen=True):
    """DIR/ready.json, which is there while the supervisor serves."""

    address: str
    pid: int
    http: str = ""
    coordinator_pid: int | None = None
    coordinator_exit: int | None = None
    """How it ended, while it does not serve."""
    targets: tuple[ReadyTarget, ...] = ()


class CatalogCopy(msgspec.Struct, frozen=True):
    """A copy of a catalog, once it is complete."""

    path: str
    cluster: str
    bytes: int


class LocalMade(msgspec.Struct, frozen=True):
    """The fields of DIR/cluster.toml that commands need."""

    cluster: str
    host: str
    targets: int
    code: str
    linger_s: float
    restart: str = "always"


_ready_decoder = msgspec.json.Decoder(LocalReady)


class Conversation:
    """I ask one coordinator. Every answer is the JSON of
    `ckpt.protocol.coordinator.reading.answers`.
    """

    def __init__(self, url: LocalUrl | RemoteUrl, control: Control, timeout_s: float) -> None:
        self.url = url
        self.control = control
        self.timeout_s = timeout_s

    @property
    def address(self) -> str:
        """HOST:PORT of the coordinator that answers."""
        return self.control.server

    def status(self) -> StatusView:
        return self._ask(StatusView, "status")

    def runs(self) -> list[RunView]:
        return self._ask(list[RunView], "runs")

    def steps(self, run: RunName) -> list[StepView]:
        """The run's steps, ascending; none for a run that never committed."""
        return self._ask(list[StepView], "steps", run)

    def newest(self, run: RunName) -> Step:
        """The step that a load without a number gets, or the last known step if there is none.
        Raises NotFound for a run that never committed.
        """
        steps = self.steps(run)
        if not steps:
            raise no_run(run, self.runs())
        return Step(next((view.step for view in steps if view.newest), steps[-1].step))

    def which(
        self, run: RunName, step: Step | str | None
    ) -> tuple[RunName, Step, Generation | None]:
        """Resolve what `parse_which` has read: a name to the generation that has it, a number to
        the step's newest generation (None). Raises NotFound.
        """
        if step is None:
            return run, self.newest(run), None
        if isinstance(step, int):
            return run, step, None
        return run, *labels.named(self.control, run, step)

    def show(self, run: RunName, step: Step, generation: Generation | None = None) -> ShowView:
        """All that the coordinator knows of a step. Raises NotFound; Refused by a coordinator of an
        earlier version, which shows only the newest generation.
        """
        view = self._ask(ShowView, "show", run, step, generation)
        shown = view.generations[-1].generation
        if generation is not None and shown != str(generation):
            raise Refused(
                f"the coordinator tells of {run}@{step}#{shown} alone, not of {generation}",
                hint="it is of an earlier version: restart it with this one",
            )
        return view

    def delete(self, run: RunName, step: Step) -> StepDeleted:
        """Delete a step. Returns the bytes that are freed, and those that stay for later steps.
        Raises NotFound.
        """
        message = DeleteStep(run, step)
        answer, _ = self.control.call(message, StepDeleted, timeout_s=self.timeout_s)
        return answer

    def back_up(self) -> CatalogCopy:
        """Copy the catalog, on the coordinator's host. Raises the reason when it is not to be
        trusted.
        """
        return self._ask(CatalogCopy, "backup")

    def forget_store(self, url: str) -> None:
        """Stop draining to this store. Raises NotFound, Busy while a worker serves it."""
        self.control.call(ForgetStore(url), DrainNoted, timeout_s=self.timeout_s)

    def replace_target(self, id: TargetId, incarnation: bytes, *, force: bool) -> TargetReplaced:
        """Make the directory that asks for the target's place this target. Raises NotFound when
        none asks, Refused when several do and none is named, or something could be read no more,
        Busy while the target is live.
        """
        message = ReplaceTarget(id, incarnation, force=force)
        answer, _ = self.control.call(message, TargetReplaced, timeout_s=self.timeout_s)
        return answer

    def change_target(
        self, id: TargetId, standing: str, *, force: bool, dry_run: bool
    ) -> TargetChanged:
        """Set a target's standing. Raises NotFound, Refused with the obstacles, Busy for a target
        that is to be removed and still serves.
        """
        message = ChangeTarget(id, standing, force=force, dry_run=dry_run)
        answer, _ = self.control.call(message, TargetChanged, timeout_s=self.timeout_s)
        return answer

    def balance_targets(self, *, dry_run: bool, stop: bool) -> TargetsBalanced:
        """Start or stop a balance; returns its progress. Raises Refused when there is nothing to
        balance, or nothing can be moved.
        """
        message = BalanceTargets(dry_run=dry_run, stop=stop)
        answer, _ = self.control.call(message, TargetsBalanced, timeout_s=self.timeout_s)
        return answer

    def repair(self) -> RepairView:
        """What lacks columns, and what repair has done. Raises Refused where the coordinator has no
        repair.
        """
        return self._ask(RepairView, "repair")

    def set_repair(self, message: SetRepair) -> None:
        """Change the limits of repair; they are durable on return. Raises Refused for an invalid
        limit.
        """
        self.control.call(message, RepairSet, timeout_s=self.timeout_s)

    def upgrade(self) -> UpgradeView:
        """Which version every process speaks. Raises Refused by a coordinator of an earlier
        version.
        """
        try:
            return self._ask(UpgradeView, "upgrade")
        except Refused:
            spoken = self.control.protocol
            if spoken >= MOVES_VERSION:
                raise
            raise Refused(
                f"the coordinator speaks protocol {spoken}, which knows of no upgrade",
                hint=f"upgrade it first: protocol {PROTOCOL_VERSION} is spoken here",
            ) from None

    def finish_upgrade(self, *, dry_run: bool, force: bool) -> UpgradeNoted:
        """Finish the upgrade: durable on return, unless it is a dry run. Raises Refused, which
        names the processes that stand against it.
        """
        message = FinishUpgrade(dry_run=dry_run, force=force)
        answer, _ = self.control.call(message, UpgradeNoted, timeout_s=self.timeout_s)
        return answer

    def coordinators(self) -> CoordinatorsView:
        """The coordinators: which one leads, which stand by."""
        return self._ask(CoordinatorsView, "coordinators")

    def step_down(self, id: str = "") -> SteppedDown:
        """Let another coordinator lead. Raises NotFound when `id` does not lead, Refused when none
        stands by.
        """
        answer, _ = self.control.call(StepDown(id), SteppedDown, timeout_s=self.timeout_s)
        return answer

    def _ask(
        self,
        kind: type[View],
        what: str,
        run: RunName | None = None,
        step: Step | None = None,
        generation: Generation | None = None,
    ) -> View:
        message = Ask(what, run, step, generation)
        _, bulk = self.control.call(message, Answer, timeout_s=self.timeout_s)
        return msgspec.json.decode(bulk, type=kind)


@contextmanager
def conversation(arguments: argparse.Namespace, output: Output) -> Iterator[Conversation]:
    """Ask the named store's coordinator; starts a local cluster that is stopped, as `ckpt.open`
    does.
    """
    url = parse_url(arguments.store)
    timeout_s: float = arguments.timeout
    match url:
        case LocalUrl():
            directory = Path(url.directory)
            made = read_made(directory)
            rests = not is_supervised(directory)
            what = f"starting the cluster in {directory}" if rests else f"asking {directory}"
            with output.waiting(what), opened_cluster(url, timeout_s) as cluster:
                control = Control(
                    Locator(str(directory), ""), cluster.secret_file, None, Role.ADMIN
                )
                talk = _greeted(Conversation(url, control, timeout_s))
            if rests:
                rest = f"it stops after {made.linger_s:g} s of rest"
                output.note(f"started the cluster in {directory}; {rest}")
        case RemoteUrl():
            control = Control(Locator("", url.address), find_secret_file(), None, Role.ADMIN)
            with output.waiting(f"asking {url.address}"):
                talk = _greeted(Conversation(url, control, timeout_s))
    try:
        yield talk
    finally:
        control.close()


def named_local(arguments: argparse.Namespace, command: str) -> Path:
    """DIR of the local cluster that --store names. Raises Refused for another store, NotFound."""
    url = parse_url(arguments.store)
    if not isinstance(url, LocalUrl):
        raise Refused(
            f"{command} works on a cluster of this machine, not on {url.address}",
            hint="name it with --store ckpt+local:///DIR",
        )
    directory = Path(url.directory)
    read_made(directory)
    return directory


def read_made(directory: Path) -> LocalMade:
    """What DIR was made as.

    Raises NotFound when no cluster was ever made there, Refused when another host made it, Corrupt.
    """
    path = directory / CLUSTER_NAME
    try:
        made = msgspec.toml.decode(path.read_bytes(), type=LocalMade)
    except (FileNotFoundError, NotADirectoryError):
        said = f"there is no cluster in {directory}: it has no {CLUSTER_NAME}"
        raise NotFound(said, hint=what_makes_one(directory)) from None
    except PermissionError as error:
        raise not_ours(directory, error) from None
    except OSError as error:
        raise CkptError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise Corrupt(f"{path} does not parse: {error}") from None
    if made.host != socket.gethostname():
        raise of_another_host(directory, made.host)
    return made


def read_local_ready(directory: Path) -> LocalReady | None:
    """None while the supervisor does not serve."""
    try:
        return _ready_decoder.decode((directory / READY_NAME).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None


def wait_local_ready(directory: Path, timeout_s: float) -> LocalReady | None:
    """The ready file; waits for a supervisor that is just starting. None if it does not come in
    time.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        ready = read_local_ready(directory)
        if ready is not None or not is_supervised(directory) or time.monotonic() >= deadline_s:
            return ready
        time.sleep(READY_POLL_S)


def check_idle(directory: Path) -> None:
    """Raises Busy while a supervisor holds DIR."""
    if is_supervised(directory):
        raise Busy(
            f"the cluster in {directory} is running",
            hint=f"stop it first: ckpt local stop {directory}",
        )


def parse_checkpoint(text: str) -> tuple[RunName, Step]:
    """RUN@STEP. Raises Refused."""
    run, at, step = text.rpartition("@")
    if not (at and step.isascii() and step.isdigit()):
        raise Refused(f"{text!r} is not of the form RUN@STEP", hint="such as llama/7b@12500")
    return check_run_name(run), check_step(int(step))


def parse_which(text: str) -> tuple[RunName, Step | str | None]:
    """RUN@STEP, RUN@NAME, or RUN alone for its newest step (None). Raises Refused."""
    run, at, which = text.partition("@")
    if not at:
        return check_run_name(run), None
    if which.isascii() and which.isdigit():
        return check_run_name(run), check_step(int(which))
    return check_run_name(run), check_name(which)


def is_running(pid: int | None) -> bool:
    """Whether there is such a process; one that has ended and waits for its parent does not
    count.
    """
    return process_state(pid) != ""


def allocated_bytes(directory: Path) -> int:
    """Bytes that the files under it occupy on the device."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:  # Gone meanwhile.
                continue
    return total


def _greeted(talk: Conversation) -> Conversation:
    """One question, so that a wrong address or secret fails before anything else is done."""
    try:
        talk.status()
    except BaseException:
        talk.control.close()
        raise
    return talk
