"""What a URL or a path of the filesystem means.

    ckpt://HOST:PORT/RUN/STEP/FILE       a coordinator; several as HOST:PORT,HOST:PORT
    ckpt+local:///DIR/RUN/STEP/FILE      one machine; DIR is the longest prefix with a cluster.toml

Inside, a path is RUN/STEP/FILE. STEP is the first segment that is a number, alone or after `step`,
`step-` or `step_`; the path's first segment is never STEP. RUN is all before it, FILE all after it.
A path without such a segment is a loose file, a checkpoint of its own: its run is the whole path,
its step is 0.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.ids import RunName, Step, check_run_name, check_step
from ckpt.format.members import check_member_name
from ckpt_client.local.cluster import CLUSTER_NAME

REMOTE: Final = "ckpt"
LOCAL: Final = "ckpt+local"
_STEP: Final = re.compile(r"(?:step[-_]?)?([0-9]+)\Z", re.ASCII)
_FORMS: Final = {
    REMOTE: "ckpt://HOST:PORT/RUN/STEP/FILE",
    LOCAL: "ckpt+local:///DIR/RUN/STEP/FILE",
}
_HEADS: Final = {
    # What pathlib.Path makes of a URL is taken too: it folds the slashes.
    protocol: re.compile(rf"{re.escape(protocol)}:/+")
    for protocol in _FORMS
}


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a file belongs."""

    run: RunName
    step: Step
    name: str
    """Below the run, as ckpt.format.members has it."""
    loose: bool
    """A checkpoint of its own."""

    @property
    def folder(self) -> str:
        """The step's path as it was spelled; of a loose file its own."""
        return self.run if self.loose else f"{self.run}/{self.name.partition('/')[0]}"

    @property
    def base(self) -> str:
        """The name in the step's folder."""
        return self.name if self.loose else self.name.partition("/")[2]


def is_url(protocol: str, path: str) -> bool:
    """Whether it begins with the protocol."""
    return _HEADS[protocol].match(path) is not None


def without_head(protocol: str, url: str) -> str:
    """What stands after `ckpt://`. Raises Refused for a query."""
    head = _HEADS[protocol].match(url)
    assert head is not None
    rest = url[head.end() :]
    if "?" in rest:
        hint = (
            "options count when the cluster is made: `ckptd local DIR`"
            if protocol == LOCAL
            else "name the coordinator alone"
        )
        raise Refused(f"{url!r}: a file's URL takes no query, it is {_FORMS[protocol]}", hint=hint)
    return rest


def split_remote(url: str) -> tuple[str, str]:
    """(HOST:PORT, path); of several coordinators (HOST:PORT,HOST:PORT, path). Raises Refused."""
    authority, _, path = without_head(REMOTE, url).partition("/")
    for part in authority.split(","):
        host, colon, port = part.rpartition(":")
        if not (host and colon and port.isascii() and port.isdigit()):
            raise Refused(f"{url!r} names no coordinator, the form is {_FORMS[REMOTE]}")
    return authority, clean(path)


def split_local(url: str) -> tuple[str, str]:
    """(DIR, path). Raises Refused when no prefix of the path is a cluster's directory."""
    segments = [part for part in without_head(LOCAL, url).split("/") if part]
    for count in range(len(segments), 0, -1):
        directory = "/" + "/".join(segments[:count])
        if os.path.isfile(os.path.join(directory, CLUSTER_NAME)):
            return directory, clean("/".join(segments[count:]))
    raise Refused(
        f"{url!r}: no directory in it holds a {CLUSTER_NAME}, the form is {_FORMS[LOCAL]}",
        hint="make the cluster first: `ckptd local DIR`",
    )


def clean(path: str) -> str:
    """Without empty segments and slashes around it."""
    return "/".join(part for part in path.split("/") if part)


def spot_of(path: str) -> Spot:
    """Where a file of that path belongs. Raises Refused for a step's own path and for bad names."""
    segments = path.split("/")
    found = step_of(path)
    if found is None:
        run = check_run_name(path)
        return Spot(run, Step(0), check_member_name(segments[-1]), loose=True)
    position, step = found
    if position == len(segments) - 1:
        raise Refused(
            f"{path!r} is a step, not a file in it",
            hint="the first number in a path is its step: RUN/STEP/FILE; so Zarr's numbered chunks "
            "go below a step",
        )
    run = check_run_name("/".join(segments[:position]))
    return Spot(run, step, check_member_name("/".join(segments[position:])), loose=False)


def step_of(path: str) -> tuple[int, Step] | None:
    """(position of the segment that is the step, the step), if there is one."""
    for position, segment in enumerate(path.split("/")):
        match = _STEP.match(segment)
        if match is not None and position > 0:
            return position, check_step(int(match[1]))
    return None


def run_of(path: str) -> str:
    """The run of a path that lies in a step, else the whole path."""
    found = step_of(path)
    return path if found is None else "/".join(path.split("/")[: found[0]])


def text_of(path: object) -> str:
    """A path as text; refuses what is none."""
    if isinstance(path, str):
        return path
    if isinstance(path, Path | os.PathLike):
        return os.fspath(path)
    raise Refused(f"{path!r} is no path")
