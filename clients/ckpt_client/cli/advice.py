"""What mends a local cluster? The coordinator's advice, made exact by what this machine knows:
which processes run, are stopped or held, and what a coordinator that is gone said last.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from ckpt.aio.process_identity import process_state
from ckpt.base.errors import Corrupt
from ckpt.base.shell_words import quoted
from ckpt.base.units import MiB, format_bytes
from ckpt.protocol.coordinator.reading.answers import Check
from ckpt.protocol.coordinator.reading.checks import check
from ckpt.protocol.coordinator.reading.local_advice import on_one_machine
from ckpt_client.local.cluster import last_line

ROOM_BYTES_MIN: Final = MiB
"""With less free space the catalog cannot grow."""
SAID_MAX: Final = 300
"""So much of a log's last line is shown."""
_STOPPED: Final = "Tt"


@dataclass(frozen=True, slots=True)
class TargetProcess:
    """A target of the cluster, as its supervisor and its directory know it."""

    id: str
    pid: int | None
    """None when none runs."""
    held: bool


class Local:
    """I know DIR, whether its supervisor starts targets again, and its targets."""

    def __init__(
        self, directory: Path, *, restarts: bool, targets: Sequence[TargetProcess]
    ) -> None:
        self._directory = directory
        self._restarts = restarts
        self._targets = {target.id: target for target in targets}
        self._anew = f"ckpt local stop {quoted(str(directory))} && ckpt ls"

    def advise(self, found: Check) -> Check:
        """The same check, with the next step that fits this cluster."""
        if found.name == "DEVICE_FAILING" and not self._restarts:
            return replace(found, command=self._anew)
        local = on_one_machine(found, str(self._directory))
        if local != found:
            return local
        known = [self._targets[id] for id in found.targets if id in self._targets]
        if not known:
            return found
        mends = [self._mend(target) for target in known]
        remedy = "; ".join(text for text, _ in mends)
        # Each once, and the one that restarts everything at the end.
        named = dict.fromkeys(line for _, line in mends if line)
        commands = sorted(named, key=lambda c: c == self._anew)
        return replace(found, remedy=remedy, command=" && ".join(commands))

    def coordinator_down(self, reason: str, pid: int | None) -> Check:
        """The supervisor runs, but its coordinator does not answer."""
        log = self._log("coordinator")
        text = f"{reason}; it said last: {last_line(log)}" if pid is None else reason
        state = process_state(pid)
        if state and state in _STOPPED:
            remedy, command = f"its process {pid} is stopped: let it go on", f"kill -CONT {pid}"
        elif room := _room_hint(self._directory):
            remedy, command = room, ""
        elif state:
            remedy = (
                f"its process {pid} hangs: end it, and its supervisor starts another; see {log}"
            )
            command = f"kill -KILL {pid}"
        else:
            remedy, command = f"start it again; see {log}", self._anew
        return check("COORDINATOR_DOWN", text, remedy, command)

    def catalog_corrupt(self) -> Check:
        """The coordinator ended because it could not read its catalog."""
        said = last_line(self._log("coordinator")).removeprefix("ckptd coordinator: ")
        where = quoted(str(self._directory))
        command = f"ckpt local stop {where} && ckpt catalog rebuild {where}"
        remedy = "make it again from the targets, which know all that was committed"
        return check("CATALOG_CORRUPT", said.partition(";")[0], remedy, command)

    def _mend(self, target: TargetProcess) -> tuple[str, str]:
        """For one that is not live: why, and what brings it back."""
        state = process_state(target.pid)
        if state and state in _STOPPED:
            return f"{target.id} is stopped: let it go on", f"kill -CONT {target.pid}"
        if state:
            log = self._log(target.id)
            text = f"{target.id} runs and is not taken in ({log} says why): start it again"
            return text, f"kill -KILL {target.pid}" if self._restarts else self._anew
        if target.held:
            return f"{target.id} is held: release it", f"ckpt target release {target.id}"
        said = last_line(self._log(target.id))[:SAID_MAX]
        if self._restarts:
            return f"{target.id} does not start: {said}; mend that: it is tried again by itself", ""
        return f"{target.id} has ended: {said}", self._anew

    def _log(self, name: str) -> Path:
        return self._directory / "logs" / f"{name}.log"


def is_corrupt(exit_code: int | None) -> bool:
    """Whether a coordinator that ended in this way could not read its catalog."""
    return exit_code == Corrupt.exit_code


def _room_hint(directory: Path) -> str:
    """Empty while the catalog's disk has room: without any the coordinator ends until there is."""
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    if free >= ROOM_BYTES_MIN:
        return ""
    return f"make room: the disk of {directory} has {format_bytes(free)} left; it goes on by itself"
