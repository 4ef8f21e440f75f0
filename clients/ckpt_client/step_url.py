"""Where one checkpoint lies, as one text: what frameworks pass about as a checkpoint's name.

    ckpt://HOST:PORT/RUN/STEP          ckpt+local:///DIR/RUN/STEP
    RUN/STEP                           in the store that $CKPT_STORE names

Without STEP the newest is meant; RUN@STEP, as commands write it, is taken as well. The grammar is
the filesystem's (`ckpt_client.fs.paths`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from ckpt.base.errors import Refused
from ckpt.base.ids import RunName, Step, check_run_name, check_step
from ckpt_client.fs import paths

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
    if paths.is_url(paths.LOCAL, text):
        directory, path = paths.split_local(text)
        return _with_run(text, f"ckpt+local://{quote(directory)}", path)
    if paths.is_url(paths.REMOTE, text):
        address, path = paths.split_remote(text)
        return _with_run(text, f"ckpt://{address}", path)
    if "://" in text:
        raise Refused(
            f"{text} is the URL of no store of ckpt's",
            hint=f"{_HINT}; `ckptd drain --to URL` copies what is committed into an object store",
        )
    if "?" in text:
        raise Refused(f"{text!r}: a checkpoint's name takes no query", hint=_HINT)
    return _with_run(text, None, paths.clean(text))


def _with_run(text: str, store: str | None, path: str) -> StepUrl:
    if not path:
        raise Refused(f"{text!r} names no run", hint=_HINT)
    run, at, number = path.rpartition("@")
    if at and number.isascii() and number.isdigit():
        return StepUrl(store, check_run_name(run), check_step(int(number)))
    found = paths.step_of(path)
    if found is None:
        return StepUrl(store, check_run_name(path), None)
    position, step = found
    segments = path.split("/")
    if position != len(segments) - 1:
        raise Refused(f"{text!r} names a file of a step, not a step", hint=_HINT)
    return StepUrl(store, check_run_name("/".join(segments[:position])), step)
