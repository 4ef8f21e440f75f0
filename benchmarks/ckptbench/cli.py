"""`ckptbench`: which command is it, and what does its end mean?

Exit codes: 0; 1 when a checkpoint failed, bytes differ or do not add up, a figure is above its
bound (and with --strict when a goal is missed or a rule broken), or the report could not be
written; 2 for options that make no sense,
or no job; else that of the error that ended the run; 130 when interrupted, 141 when nobody reads
its output.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final

from ckpt.aio.inherited import answered
from ckpt.base.errors import CkptError
from ckptbench.commands import agent, compare, gpu, growth, plan, repair, roofline, run
from ckptbench.commands.goals import run_preset

INTERRUPTED: Final = 130
COMMANDS: Final[dict[str, Callable[[Sequence[str]], int]]] = {
    "burst": lambda argv: run_preset("burst", argv),
    "restore": lambda argv: run_preset("restore", argv),
    "roofline": roofline.main,
    "growth": growth.main,
    "gpu": gpu.main,
    "repair": repair.main,
    "compare": compare.main,
    "plan": plan.main,
    "agent": agent.main,
}
"""Everything else is a job file, a verb or a flag."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, _interrupt)
    command = COMMANDS.get(words[0]) if words else None

    def asked() -> int:
        return command(words[1:]) if command is not None else run.main(words)

    try:
        return answered("ckptbench", asked)
    except CkptError as error:
        print(f"ckptbench: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("ckptbench: interrupted; everything that it started is gone", file=sys.stderr)
        return INTERRUPTED


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
