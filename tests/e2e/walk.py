"""A program: interrupt a call at its n-th line, for every STRIDE-th n until it ends by itself, and
look after each whether the process goes on as if nothing had been.

    python -m tests.e2e.walk URL KIND HOW FIRST STRIDE [FILE...]

KIND is a key of CALLS. HOW is `ctrl-c`, or `handler`: a signal's handler saves by itself there.
With FILEs, such as `turn.py`, only their lines count. Says what was wrong, and at the end how many
moments there were. A hang ends it with all threads' stacks.
"""

from __future__ import annotations

import faulthandler
import linecache
import logging
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np

import ckpt

if TYPE_CHECKING:
    from _typeshed import TraceFunction

ROOT = Path(ckpt.__file__).parent.parent
OURS = tuple(f"{ROOT / folder}/" for folder in ("ckpt", "clients"))
FILES = tuple(f"/{name}" for name in sys.argv[6:]) or ("",)
WAIT_S = 20.0
HANG_S = 60.0
STORE = ckpt.open(sys.argv[1], stager_idle_s=5)


def state(step: int) -> dict[str, object]:
    return {"a": np.full(1 << 12, step), "b": step}


def save(step: int) -> None:
    STORE.save("walk", step, state(step)).wait(WAIT_S)


def overlap(step: int) -> None:
    saved = STORE.save("walk", step, state(step), staging="overlap")
    saved.staged.wait(WAIT_S)
    saved.wait(WAIT_S)


def load(step: int) -> None:
    check(STORE.load("walk", step - 1), step - 1)


def session(step: int) -> None:
    with ckpt.open(sys.argv[1], stager_idle_s=5) as store:
        store.save("walk", step, state(step)).wait(WAIT_S)


def torch_save(step: int) -> None:
    import ckpt_torch

    ckpt_torch.save(tensors(step), checkpoint_id=f"walk/{step}", store=STORE)


def torch_overlap(step: int) -> None:
    import ckpt_torch

    future = ckpt_torch.async_save(
        tensors(step), checkpoint_id=f"walk/{step}", store=STORE, staging="overlap"
    )
    future.staged.wait(WAIT_S)
    future.result(WAIT_S)


def torch_load(step: int) -> None:
    import ckpt_torch

    found = tensors(0)
    ckpt_torch.load(found, checkpoint_id=f"walk/{step - 1}", store=STORE)
    check(found, step - 1)


def tensors(step: int) -> dict[str, object]:
    import torch

    return {"a": torch.full((1 << 12,), step), "b": step}


CALLS: dict[str, Callable[[int], None]] = {
    one.__name__: one
    for one in (save, overlap, load, session, torch_save, torch_overlap, torch_load)
}


def check(found: object, step: int) -> None:
    assert isinstance(found, dict)
    assert found["b"] == step, (found["b"], step)
    assert bool((found["a"] == step).all()), "of another step, or torn"


class Walk:
    """I call the same thing again and again, and strike one line later each time."""

    def __init__(self, call: Callable[[int], None], saves: Callable[[int], None]) -> None:
        """saves: in the same way, undisturbed."""
        self._call, self._saves = call, saves
        self._step = 1
        self._line = self._strike_at = 0
        self._where = ""
        self.refused = self.inner = self.bad = self.moments = self.heard = 0
        saves(1)
        logging.getLogger("ckpt.preemption").addFilter(self._heard)

    def strike(self, at: int) -> bool:
        """At that line of the call; False when it came to its end before."""
        self._step += 1
        self._line, self._strike_at, self._where = 0, at, ""
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        sys.settrace(self._traced)
        try:
            self._call(self._step)
        except (KeyboardInterrupt, ckpt.Refused) as error:
            if isinstance(error, ckpt.Refused) and "handler" not in str(error):
                self._wrong(f"{error!r}")
        except BaseException as error:
            self._wrong(repr(error))
        finally:
            sys.settrace(None)
        if self._where:
            self.moments += 1
            self._look()
        return bool(self._where)

    def handle(self, *_: object) -> None:
        """Save in a signal's handler."""
        self.inner += 1
        try:
            STORE.save("inner", self.inner, state(self.inner))
        except ckpt.Refused:
            self.refused += 1
            raise

    def _look(self) -> None:
        """The next save is made, it is whole, and so is the one that was interrupted, if it is."""
        for _ in range(2):  # As many as there are halves: one that is lost is missed soon.
            self._step += 1
            try:
                self._saves(self._step)
                check(STORE.load("walk", self._step), self._step)
            except BaseException as error:
                self._wrong(f"next: {error!r}")
        for step in {one.step for one in STORE.steps("walk")} & {self._step - 2}:
            check(STORE.load("walk", step), step)

    def _heard(self, record: logging.LogRecord) -> bool:
        self.heard += record.levelno == logging.ERROR
        return False

    def _wrong(self, what: str) -> None:
        self.bad += 1
        say(f"BAD at line {self._strike_at}, {self._where}: {what}")

    def _traced(self, frame: FrameType, _event: str, _argument: object) -> TraceFunction | None:
        file = frame.f_code.co_filename
        return self._at_line if file.startswith(OURS) and file.endswith(FILES) else None

    def _at_line(self, frame: FrameType, event: str, _argument: object) -> TraceFunction | None:
        if event == "line" and not leaves_with(frame):
            self._line += 1
            if self._line == self._strike_at:
                code = frame.f_code
                self._where = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self._at_line


def leaves_with(frame: FrameType) -> bool:
    """A `with` is left in one step of the interpreter: a signal's handler runs before or after."""
    code, number = frame.f_code, frame.f_lineno
    line = linecache.getline(code.co_filename, number).lstrip()
    starts = [start for start, _, where in code.co_lines() if where == number]
    return line.startswith("with ") and frame.f_lasti > min(starts)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    kind, how, first, stride = sys.argv[2:6]
    warnings.simplefilter("ignore")
    # After `overlap` another thread takes the locks, too.
    saves = torch_save if kind.startswith("torch") else overlap if kind == "overlap" else save
    walk = Walk(CALLS[kind], saves)
    if how == "handler":
        signal.signal(signal.SIGINT, walk.handle)
    at = int(first)
    while walk.strike(at):
        at += int(stride)
    faulthandler.cancel_dump_traceback_later()
    say(
        f"{walk.moments} moments, {walk.bad} bad; {walk.inner} saves in handlers, "
        f"{walk.refused} refused, {walk.heard} of them logged"
    )
    with suppress(ckpt.CkptError):
        STORE.close(WAIT_S)


if __name__ == "__main__":
    main()
