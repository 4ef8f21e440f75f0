"""A real local cluster under test: who runs in it, what it says, and signals to its processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ckpt.base.limits import PAGE_BYTES
from ckpt.format.checksum import xxh3_128
from ckpt.protocol.coordinator.reading.answers import StatusView, TargetView
from ckpt_client.control import Control
from ckpt_client.locate import Locator
from tests.client.clikit import Ended, run
from tests.waiting import ASKED_S, wait_until

OPTIONS = "targets=7&code=4+2"
TARGETS = tuple(f"t{number}" for number in range(7))


def runs(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in ("Z", "X")
    except OSError:
        return False


class Cluster:
    """I know one directory's processes by their own ids, and signal only those."""

    def __init__(self, directory: Path, options: str) -> None:
        self.directory = directory
        self.url = f"ckpt+local://{directory}?{options}"

    # ----------------------------------------------------------------------- looking

    def ready(self) -> dict[str, object]:
        """The supervisor's ready file."""
        document: dict[str, object] = json.loads((self.directory / "ready.json").read_text())
        return document

    @property
    def coordinator_pid(self) -> int:
        pid = self.ready()["coordinator_pid"]
        assert isinstance(pid, int)
        return pid

    def status(self) -> StatusView:
        """What `ckpt status` shows."""
        control = Control(Locator(str(self.directory), ""), self.directory / "secret", None)
        try:
            return msgspec.json.decode(control.ask("status"), type=StatusView)
        finally:
            control.close()

    def targets(self) -> dict[str, TargetView]:
        return {target.id: target for target in self.status().targets}

    def pid_of(self, target: str) -> int:
        pid = self.targets()[target].pid
        assert pid is not None, f"{target} does not run"
        return pid

    def live(self) -> set[str]:
        return {id for id, target in self.targets().items() if target.state == "live"}

    def columns_of(self, run: str) -> dict[str, list[Path]]:
        """The sealed column files of a run, by target."""
        prefix = xxh3_128(run.encode()).hex()
        folders = {id: self.directory / "targets" / id / "columns" for id in TARGETS}
        return {id: sorted(folder.glob(f"{prefix}-*")) for id, folder in folders.items()}

    def indexes_of(self, run: str, step: int) -> dict[str, Path]:
        """The copies of a step's index, by target."""
        pattern = f"index-{xxh3_128(run.encode()).hex()}-{step}-*"
        folders = {id: self.directory / "targets" / id / "documents" for id in TARGETS}
        return {id: file for id, folder in folders.items() for file in folder.glob(pattern)}

    # ----------------------------------------------------------------------- harming

    def kill(self, *targets: str) -> None:
        """SIGKILL, not to be started again before `heal`; returns when the coordinator knows."""
        for id in targets:
            (self.directory / "targets" / id / "held").touch()
            with suppress(ProcessLookupError):
                os.kill(self.pid_of(id), signal.SIGKILL)
        known = f"{targets} are known to be dead"
        wait_until(lambda: not self.live() & set(targets), known, poll_s=ASKED_S)

    def heal(self) -> None:
        """All targets run and are live."""
        for id in TARGETS:
            (self.directory / "targets" / id / "held").unlink(missing_ok=True)
        wait_until(lambda: self.live() == set(TARGETS), "all targets are live", poll_s=ASKED_S)

    @contextmanager
    def stopped(self, pid: int) -> Iterator[None]:
        """SIGSTOP for as long as the block lasts."""
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def flip(self, column: Path, fragment_offset: int) -> None:
        """One byte of a column's fragments at rest becomes another."""
        with column.open("r+b", buffering=0) as file:
            file.seek(PAGE_BYTES + fragment_offset)
            (byte,) = file.read(1)
            file.seek(PAGE_BYTES + fragment_offset)
            file.write(bytes([byte ^ 0xFF]))
            os.fsync(file.fileno())

    # ----------------------------------------------------------------------- ending

    def stop(self) -> Ended:
        """`ckpt local stop`, as a person would."""
        return command("local", "stop", str(self.directory))


def command(*arguments: str, codes: tuple[int, ...] = (0,)) -> Ended:
    """The command in this process; it must end with one of the codes."""
    ended = run(*arguments, environ=dict(os.environ))
    assert ended.code in codes, ended.err
    return ended
