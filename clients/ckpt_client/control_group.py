"""How much memory does this process's control group leave? The kernel kills who takes more.

A batch system gives each job a group below the host's root, of either version of control groups,
and any group above it may have a limit as well. A container may see its own as the root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

_PROCESS: Final = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """Of one group that has a limit."""

    limit_bytes: int
    used_bytes: int
    """Without what the kernel takes back first, such as pages of files."""

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)


@dataclass(frozen=True, slots=True)
class _Names:
    """Files of a group, by version."""

    limit: str
    used: str
    taken_back: tuple[str, ...]
    """Lines of its `memory.stat`, groups below it included: pages of files, and what the kernel
    knows of them where that is counted."""


_ONE: Final = _Names(
    limit="memory.limit_in_bytes",
    used="memory.usage_in_bytes",
    taken_back=("total_active_file", "total_inactive_file"),
)
_TWO: Final = _Names(
    limit="memory.max",
    used="memory.current",
    taken_back=("active_file", "inactive_file", "slab_reclaimable"),
)


def limited_groups(process: Path = _PROCESS) -> list[GroupMemory]:
    """The process's own group and those above it, as far as they can be seen and have a limit.

    process: its directory in /proc.
    """
    own = _paths(process / "cgroup")
    found: list[GroupMemory] = []
    for root, mounted, names in _mounts(process / "mountinfo"):
        path = own.get(names.limit)
        if path is None:
            continue
        # From elsewhere a path does not begin with the root of what is mounted here.
        below = path.relative_to(root) if path.is_relative_to(root) else PurePosixPath()
        folder = mounted / below
        for each in (folder, *(above for above in folder.parents if above.is_relative_to(mounted))):
            group = _read(each, names)
            if group is not None:
                found.append(group)
    return found


def _paths(file: Path) -> Mapping[str, PurePosixPath]:
    """Where the process is: path in the hierarchy that counts memory, by the name of its limit."""
    found = {}
    for line in _lines(file):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found[_TWO.limit] = PurePosixPath(path)
        elif "memory" in controllers.split(","):
            found[_ONE.limit] = PurePosixPath(path)
    return found


def _mounts(file: Path) -> Iterator[tuple[str, Path, _Names]]:
    """Root within its hierarchy, and place, of each mounted one that may count memory."""
    for line in _lines(file):
        place, _, kind = line.partition(" - ")
        _, _, _, root, mounted, *_ = place.split(" ")
        system, _, options = kind.split(" ", 2)
        if system == "cgroup2":
            yield root, Path(mounted), _TWO
        elif system == "cgroup" and "memory" in options.split(","):
            yield root, Path(mounted), _ONE


def _read(folder: Path, names: _Names) -> GroupMemory | None:
    """None without a limit: in version 2 its file is missing or says `max`."""
    try:
        limit, used = int((folder / names.limit).read_text()), (folder / names.used).read_text()
        stat = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat"))
        pages = sum(int(stat.get(name, "0")) for name in names.taken_back)
        return GroupMemory(limit, int(used) - pages)
    except (OSError, ValueError):
        return None


def _lines(file: Path) -> list[str]:
    """None of a file that is not there."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
