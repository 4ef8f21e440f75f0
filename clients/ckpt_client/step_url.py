"""Where one checkpoint lies, as one text: what frameworks pass about as a checkpoint's name.

    ckpt://HOST:PORT/RUN/STEP          ckpt+local:///DIR/RUN/STEP
    RUN/STEP                           in the store that $CKPT_STORE names

RUN may have several parts; STEP is a number, also written step-NUMBER. Without STEP the newest is
meant. DIR is the longest part that holds a cluster. These texts carry no query: frameworks append
to them, and take `?` for a pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.ids import RunName, Step, check_run_name, check_step
from ckpt_client.local import CLUSTER_NAME

LOCAL: Final = "ckpt+local:"
REMOTE: Final = "ckpt:"
_STEP: Final = re.compile(r"(?:step[-_])?([0-9]{1,19})")
_HINT: Final = "write ckpt://HOST:PORT/RUN/STEP, ckpt+local:///DIR/RUN/STEP, or RUN/STEP"


@dataclass(frozen=True, slots=True)
class StepUrl:
    """A checkpoint's place."""

    store: str | None
    """The store's URL; None for the one that $CKPT_STORE names."""
    run: RunName
    step: Step | None
    """None is the newest."""


def parse_step_url(text: str) -> StepUrl:
    """The parts of a checkpoint's name. Raises Refused saying how to write it."""
    if "?" in text:
        raise Refused(f"{text} carries a query, a checkpoint's name cannot", hint=_HINT)
    if text.startswith(LOCAL):
        directory, rest = _split_local("/" + text.removeprefix(LOCAL).lstrip("/"))
        return _with_run(text, f"ckpt+local://{directory}", rest)
    if text.startswith(REMOTE):
        address, _, rest = text.removeprefix(REMOTE).lstrip("/").partition("/")
        return _with_run(text, f"ckpt://{address}", rest)
    return _with_run(text, None, text)


def _with_run(text: str, store: str | None, rest: str) -> StepUrl:
    parts = [part for part in rest.split("/") if part]
    found = _STEP.fullmatch(parts[-1]) if len(parts) > 1 else None
    if found:
        parts.pop()
    if not parts:
        raise Refused(f"{text!r} names no run", hint=_HINT)
    step = check_step(int(found[1])) if found else None
    return StepUrl(store, check_run_name("/".join(parts)), step)


def _split_local(path: str) -> tuple[str, str]:
    """The cluster's directory and what is behind it."""
    for directory in PurePosixPath(path).parents:
        if (Path(directory) / CLUSTER_NAME).is_file():
            return str(directory), path.removeprefix(str(directory)).lstrip("/")
    raise Refused(
        f"no directory of {path} holds a cluster",
        hint="make it with `ckptd local DIR`, then write ckpt+local:///DIR/RUN/STEP",
    )
