"""A directory becomes another target of a local cluster, or why it may not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ckpt.aio.durable import is_there
from ckpt.aio.local_targets import (
    TARGETS_FOLDER,
    TARGETS_MAX,
    next_number,
    number_of,
    target_ids,
)
from ckpt.aio.private import make_private_directory
from ckpt.base.errors import CkptError, Refused

HARMLESS: Final = frozenset({"lost+found"})
"""What an empty file system has."""


@dataclass(frozen=True, slots=True)
class LocalPlaces:
    """Where the targets of the cluster in `directory` lie; `made`: so many from the start."""

    directory: Path
    made: int

    def place(self, id: str) -> Path:
        """A directory, or a link to one."""
        return self.directory / TARGETS_FOLDER / id

    @property
    def ids(self) -> tuple[str, ...]:
        return target_ids(self.directory, self.made)

    def add(self, wanted: Path | None, id: str | None, *, force: bool) -> str:
        """Add a target in `wanted`, or below DIR, which its supervisor starts; returns its id.
        Raises Refused, CkptError.
        """
        id = self._free_id(id)
        if wanted is not None:
            wanted = Path(os.path.abspath(wanted))
            self._check_unused(wanted)
        if not force:
            self._check_device(wanted or self.directory)
        try:
            self._make(id, wanted)
        except FileExistsError:
            raise Refused(
                f"somebody else has just added {id}", hint="run the command again"
            ) from None
        except OSError as error:
            raise CkptError(f"cannot add {wanted or self.place(id)}: {error.strerror}") from None
        return id

    def _make(self, id: str, wanted: Path | None) -> None:
        make_private_directory(self.directory / TARGETS_FOLDER)
        if wanted is None:
            self.place(id).mkdir(mode=0o700)
        else:
            make_private_directory(wanted)
            self.place(id).symlink_to(wanted.resolve())

    def _free_id(self, id: str | None) -> str:
        if len(self.ids) >= TARGETS_MAX:
            raise Refused(f"a local cluster has {TARGETS_MAX} targets at most")
        following = next_number(self.directory, self.made)
        if id is None:
            return f"t{following}"
        number = number_of(id)
        if number is None:
            raise Refused(f"{id!r} is no name of a local target", hint=f"t{following} is free")
        if number < following:
            was = "is" if id in self.ids else "was"
            raise Refused(f"{id} {was} a target of this cluster", hint=f"t{following} is free")
        return id

    def _check_unused(self, wanted: Path) -> None:
        if is_there(wanted) and not wanted.is_dir():
            raise Refused(f"{wanted} is no directory")
        for id in self.ids:
            if self.place(id).resolve() == wanted.resolve():
                raise Refused(f"{wanted} is target {id} already")
        try:
            held = sorted(set(os.listdir(wanted)) - HARMLESS) if is_there(wanted) else []
        except OSError as error:
            raise CkptError(f"cannot read {wanted}: {error.strerror}") from None
        if held:
            raise Refused(
                f"{wanted} is in use: it has {held[0]}", hint="a target begins with an empty one"
            )

    def _check_device(self, wanted: Path) -> None:
        device = _device_of(wanted)
        for id in self.ids:
            place = self.place(id)
            if is_there(place) and _device_of(place) == device:
                raise Refused(
                    f"{wanted} is on the device of target {id}: no room is won, and both are lost"
                    " together",
                    hint="name a directory on another device, or use --force",
                )


def _device_of(path: Path) -> int:
    """Of the nearest directory that is there."""
    nearest = next(each for each in (path, *path.parents) if is_there(each))
    return nearest.stat().st_dev
