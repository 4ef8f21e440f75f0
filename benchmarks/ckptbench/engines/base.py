"""What every engine offers, and what those share that write into a directory."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self, runtime_checkable

from ckpt.base.errors import Refused, Unavailable
from ckptbench.job.options import JobOptions
from ckptbench.workload import Array, Box, State, StatePlan

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
class Loaded:
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

    def load(self, step: int, rank: int) -> Loaded:
        """What `rank` saved."""

    def tidy(self) -> None:
        """Remove what is left of older steps; outside the clock."""

    def close(self) -> None:
        """Let everything go."""


@runtime_checkable
class Resharding(Protocol):
    """An engine that can read parts of what several ranks saved."""

    def load_boxes(self, step: int, boxes: Sequence[Box]) -> Loaded:
        """These ranges of the global tensors."""


class Storage(Protocol):
    """The run's side: entered before ranks start, left when they are gone."""

    def durability(self, options: JobOptions) -> str:
        """What a save with these options is worth when it is done, for people."""

    @property
    def url(self) -> str:
        """For EnginePlan."""

    @property
    def environment(self) -> dict[str, str]:
        """Of rank processes."""

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


class DirectoryStorage:
    """A fresh directory below `directory=`, removed at the end."""

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        self._directory: Path | None = None

    def durability(self, options: JobOptions) -> str:
        return file_durability(options)

    @property
    def url(self) -> str:
        return str(self.log_directory / "data")

    @property
    def environment(self) -> dict[str, str]:
        return dict(os.environ) | ONE_THREAD

    @property
    def log_directory(self) -> Path:
        assert self._directory is not None, "entered"
        return self._directory

    def stages(self) -> dict[str, list[int]]:
        return {}

    def files(self) -> list[Path]:
        return [one for one in Path(self.url).rglob("*") if one.is_file()]

    def forget_readers(self) -> None:
        """Ranks hold nothing for one another here."""

    def __enter__(self) -> Self:
        self._directory = make_directory(self._options)
        Path(self.url).mkdir()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


class ObjectStorage(DirectoryStorage):
    """Below `url=`, under a name of its own; what is written there is removed at the end."""

    def __init__(self, options: JobOptions) -> None:
        super().__init__(options)
        if not options.url:
            raise Refused(
                f"ioengine={options.ioengine} needs url=", hint="like url=s3://bucket/prefix"
            )
        self._url = f"{options.url.rstrip('/')}/ckptbench-{secrets.token_hex(4)}"

    def durability(self, options: JobOptions) -> str:
        return "what the store promises for an object that it has accepted"

    @property
    def url(self) -> str:
        return self._url

    def files(self) -> list[Path]:
        return []

    def __enter__(self) -> Self:
        self._directory = make_directory(self._options)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from ckptbench.engines.objects import remove_all

        try:
            remove_all(self._options.ioengine, self._url)
        finally:
            super().__exit__(kind, error, trace)


ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def make_directory(options: JobOptions) -> Path:
    """A temporary one on the device to measure. Raises Refused."""
    try:
        return Path(tempfile.mkdtemp(prefix="ckptbench-", dir=options.directory or None))
    except OSError as error:
        raise Refused(f"directory={options.directory}: {error.strerror}") from None


def file_durability(options: JobOptions) -> str:
    """What a file is worth when it is written as the options say."""
    if options.end_fsync:
        return "fsynced, one copy on one device"
    return "handed to the device, not fsynced" if options.direct else "page cache only"


def engine_settings(options: JobOptions) -> dict[str, str]:
    """What the options tell an engine, as text."""
    return {
        "bs": str(options.bs),
        "direct": str(int(options.direct)),
        "end_fsync": str(int(options.end_fsync)),
        "dcp_mode": options.dcp_mode,
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
    for name, flags in ((path, os.O_RDONLY), (path.parent, os.O_RDONLY | os.O_DIRECTORY)):
        descriptor = os.open(name, flags | os.O_CLOEXEC)
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


def unavailable(error: OSError) -> Unavailable:
    """A device's or file system's failure as an error of ours."""
    return Unavailable(f"{error.filename or 'the device'}: {error.strerror or error}")
