"""`ckptbench`: which command is it, and what does its end mean?

Exit codes: 0; 1 when a checkpoint failed, bytes differ or do not add up, a figure is above its
bound (and with --strict when a goal is missed or a rule broken), or the report could not be
written; 2 for options that make no sense, or no job; else that of the error that ended the run; 130
when interrupted, 143 by SIGTERM, 141 when nobody reads its output.

Only the command that was typed is imported, and Ctrl-C meanwhile ends it as Ctrl-C later does.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Final

from ckpt.aio.collector import end_uncollected
from ckpt.aio.inherited import UNWRITTEN, answered, complain, keep_exit_code, write_any_letter
from ckpt.base.errors import CkptError

SIGNAL_BASE: Final = 128


def _imported(module: str, *before: str) -> Callable[..., int]:
    """Its `main`, or `run_preset` with what goes before the words."""
    # Some C modules crash when Ctrl-C cuts their import: it waits until that is done.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        found = importlib.import_module(module)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return partial(found.run_preset, *before) if before else found.main


COMMANDS: Final[dict[str, Callable[[Sequence[str]], int]]] = {
    "burst": lambda words: _imported("ckptbench.commands.goals", "burst")(words),
    "restore": lambda words: _imported("ckptbench.commands.goals", "restore")(words),
    "rules": lambda words: _imported("ckptbench.commands.rules")(words),
    "roofline": lambda words: _imported("ckptbench.commands.roofline")(words),
    "growth": lambda words: _imported("ckptbench.commands.growth")(words),
    "gpu": lambda words: _imported("ckptbench.commands.gpu")(words),
    "repair": lambda words: _imported("ckptbench.commands.repair")(words),
    "compare": lambda words: _imported("ckptbench.commands.compare")(words),
    "plan": lambda words: _imported("ckptbench.commands.plan")(words),
    "agent": lambda words: _imported("ckptbench.commands.agent")(words),
}
"""Everything else is a job file, a verb or a flag."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    end_uncollected()
    write_any_letter()
    keep_exit_code()
    words = list(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, _interrupt)
    command = COMMANDS.get(words[0]) if words else None

    def asked() -> int:
        return (
            command(words[1:])
            if command is not None
            else _imported("ckptbench.commands.run")(words)
        )

    try:
        return answered("ckptbench", asked)
    except CkptError as error:
        complain(f"ckptbench: {error}")
        return error.exit_code
    except OSError as error:
        if error.filename is None:
            raise
        complain(f"ckptbench: {error.filename}: {error.strerror}")
        return UNWRITTEN
    except KeyboardInterrupt as end:
        complain("ckptbench: interrupted; everything that it started is gone")
        return SIGNAL_BASE + (end.args[0] if end.args else signal.SIGINT)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
