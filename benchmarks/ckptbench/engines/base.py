"""What every engine and every storage offers, and where the files of a step lie."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self, runtime_checkable

from ckpt.base.errors import CkptError, NoSpace, Unavailable
from ckptbench.job.options import JobOptions
from ckptbench.workload import Array, State, StatePlan, TensorRange

ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""In the environment of ranks: the engine is measured, not a library's pool."""
_DEVICES: Final = "--xla_force_host_platform_device_count=1"
_NO_SPACE: Final = os.strerror(errno.ENOSPC)
KEEP_STEPS: Final = 2
"""So many steps stay; older ones are removed outside the clock, as training jobs do."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """Who a rank is and what it works with; travels to its process as JSON."""

    engine: str
    rank: int
    world_size: int
    state: StatePlan
    run: str
    launch: str
    """What all ranks of one start share and no other start has."""
    url: str
    """The storage's place: a URL, or a directory."""
    settings: dict[str, str] = field(default_factory=dict)
    """What the engine's options say."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a finished save is known to be."""

    slowest_target: str = ""
    columns_missing: int = 0
    fault_in_s: float = 0.0
    """What only a first save pays."""
    stored_bytes: int = 0
    """0: as many as were saved."""


@dataclass(frozen=True, slots=True)
class LoadedState:
    """What a load brought back."""

    arrays: Mapping[str, Array]
    source: str = ""
    rebuilt_bytes: int = 0
    """Decoded from parity."""


class Engine(Protocol):
    """One rank's side. Raises CkptError or OSError when the storage fails."""

    def save(self, step: int, state: State) -> None:
        """Returns when training may go on: that is the stall."""

    def wait(self) -> Done:
        """Returns when the save is as durable as the storage says."""

    def load(self, step: int, rank: int) -> LoadedState:
        """Load what `rank` saved."""

    def tidy(self) -> None:
        """Remove what is left of older steps; outside the clock."""

    def close(self) -> None:
        """Let everything go."""


@runtime_checkable
class Preparing(Protocol):
    """An engine whose library has arrays of its own: a training holds its state as these."""

    def prepare(self, state: State) -> None:
        """Make them of a state that was just filled; outside the clock."""


@runtime_checkable
class Readying(Protocol):
    """An engine that can be made ready for its first save."""

    def make_ready(self, state: State) -> None:
        """Before it, when the job says `prepare`; outside the clock."""


@runtime_checkable
class Resharding(Protocol):
    """An engine that can read parts of what several ranks saved."""

    def load_boxes(self, step: int, boxes: Sequence[TensorRange]) -> LoadedState:
        """These ranges of the global tensors."""


@runtime_checkable
class Storing(Protocol):
    """An engine beside whose storage there is an object store: `settings["durable"]`."""

    def fetch(self, step: int) -> None:
        """What all ranks saved, from the object store into the storage, as durable as a save."""

    def load_stored(self, step: int, rank: int) -> LoadedState:
        """What `rank` saved, from the object store alone."""


class Storage(Protocol):
    """The run's side: entered before ranks start, left when they are gone."""

    def durability(self, options: JobOptions) -> str:
        """What a save with these options is worth when it is done, for people."""

    @property
    def url(self) -> str:
        """For EnginePlan."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment for rank processes."""

    @property
    def log_directory(self) -> Path:
        """Where ranks may leave what they say."""

    def stages(self) -> dict[str, list[int]]:
        """Processes besides the ranks that work for a save, by what they do."""

    def files(self) -> list[Path]:
        """What holds the saved bytes on this host, to be dropped from the page cache."""

    def forget_readers(self) -> None:
        """End what would let a load be warm: memory of processes that saved."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def rank_environment() -> dict[str, str]:
    """Of ranks beside whose storage nothing runs. For JAX a rank is one device on a CPU, whatever
    this shell says; of XLA's flags the last one counts.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}".strip()
    return dict(os.environ) | ONE_THREAD | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


def engine_settings(options: JobOptions) -> dict[str, str]:
    """What the options tell an engine, as text."""
    return {
        "bs": str(options.bs),
        "direct": str(int(options.direct)),
        "end_fsync": str(int(options.end_fsync)),
        "ckpt_mode": options.ckpt_mode,
        "staging": options.staging,
        "prepare": str(int(options.prepare)),
        "dcp_mode": options.dcp_mode,
        "orbax_mode": options.orbax_mode,
    }


def step_directory(plan: EnginePlan, step: int) -> Path:
    """Where a step lies; made when it is not there."""
    path = Path(plan.url) / plan.run.replace("/", "_") / f"step-{step}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def rank_file(plan: EnginePlan, step: int, rank: int, suffix: str) -> Path:
    """The file of one rank at a step."""
    return step_directory(plan, step) / f"rank-{rank}.{suffix}"


def sync_file(path: Path) -> None:
    """The file and its name."""
    for one in (path, path.parent):
        _sync(one)


def sync_tree(path: Path) -> None:
    """Every file and directory below, and its own name."""
    for one in (*path.rglob("*"), path, path.parent):
        _sync(one)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_old(path: Path) -> None:
    """A file of an older step, when it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def as_ckpt_error(error: Exception) -> CkptError:
    """What a device, a file system or an engine's library raised, as an error of ours.

    A full disk is NoSpace in whatever way a library says it: torch wraps the kernel's error
    or keeps its text alone.
    """
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        if not isinstance(cause, Exception):
            break
        causes.append(cause)
    if any(getattr(one, "errno", 0) == errno.ENOSPC or _NO_SPACE in str(one) for one in causes):
        where = next((one.filename for one in causes if isinstance(one, OSError)), None)
        return NoSpace(
            f"{where or 'the device'}: {_NO_SPACE}",
            hint="a smaller size= or numjobs=, or a directory= on a larger device",
        )
    if isinstance(error, OSError):
        return Unavailable(f"{error.filename or 'the device'}: {error.strerror or error}")
    lines = [line for line in str(error).splitlines() if line.strip()]
    return CkptError(f"{type(error).__name__}: {lines[-1] if lines else 'it says nothing'}")
