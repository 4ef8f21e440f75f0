"""`ckptd target | coordinator | local`: which daemon this process is.

Each is imported when it is asked for, and Ctrl-C meanwhile ends it as Ctrl-C later does.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from ckpt.base.errors import CkptError

INTERRUPTED_CODE: Final = 128 + signal.SIGINT
PROGRAMS: Final = {
    "target": ("ckptd.target.daemon", "serve one storage device or directory"),
    "coordinator": ("ckptd.coordinator.daemon", "plan saves, commit checkpoints, keep the catalog"),
    "drain": ("ckptd.drain.daemon", "copy committed checkpoints to object stores"),
    "repair": ("ckptd.repair.daemon", "make lost columns again"),
    "local": ("ckptd.local.supervisor", "run a whole cluster of this machine under one process"),
    "rebuild-catalog": (
        "ckptd.catalog.rebuild",
        "make a lost catalog again from the targets alone",
    ),
    "backup-catalog": (
        "ckptd.catalog.backup",
        "copy the catalog of a coordinator that does not run",
    ),
    "copy-catalog": ("ckptd.catalog.copying", "copy a catalog from a file into etcd, or back"),
}
"""Name -> the module that has its `main`, and what it does."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, that of the error (see `ckpt.base.errors`), or 130 for a Ctrl-C."""
    # Some C modules crash when Ctrl-C cuts their import. It waits until the program is imported.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    given = list(sys.argv[1:] if argv is None else argv)
    program = given[0] if given else ""
    name = f"ckptd {program}" if program in PROGRAMS else "ckptd"
    try:
        return _main(name, program, given)
    except KeyboardInterrupt:
        # Before it was ready: from then on a daemon takes it as SIGTERM.
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED_CODE


def load(program: str) -> Callable[[Sequence[str]], int | None]:
    """Import what a program needs; returns its `main`. Raises NotInstalled."""
    from ckpt.base.extras import needing

    with needing(f"ckptd {program}"):
        main = importlib.import_module(PROGRAMS[program][0]).main
    return cast(Callable[[Sequence[str]], int | None], main)


def _main(name: str, program: str, given: Sequence[str]) -> int:
    from ckpt.aio.collector import end_uncollected
    from ckpt.aio.descriptors import raise_limit
    from ckpt.aio.inherited import (
        answered,
        complain,
        hear_signals,
        keep_exit_code,
        open_missing_streams,
    )
    from ckpt.aio.private import keep_private
    from ckpt.base.errors import CkptError

    end_uncollected()
    open_missing_streams()
    keep_exit_code()
    keep_private()
    # numpy's thread pool would be started with the daemon, and never used.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    raise_limit()

    def run() -> int:
        if program not in PROGRAMS:
            return _explain(given)
        start = load(program)
        hear_signals()
        return start(given[1:]) or 0

    try:
        return answered(name, run)
    except CkptError as error:
        complain(_complaint(name, error, as_json="--json" in given))
        return error.exit_code


def _complaint(program: str, error: CkptError, *, as_json: bool) -> str:
    """Why it did not start, in one line, the last of its log; as JSON like the errors of
    `ckpt … --json`.
    """
    if not as_json:
        return " ".join(f"{program}: {error}".split("\n"))
    import json

    line = {
        "message_type": "exit_error",
        "code": error.exit_code,
        "message": error.message,
        "hint": error.hint,
    }
    return json.dumps(line)


def _explain(given: Sequence[str]) -> int:
    """--help, --version, or a complaint."""
    lines = "\n".join(f"  {name:<16} {text}" for name, (_, text) in PROGRAMS.items())
    # Nothing that each of many targets should import at its start.
    import argparse

    from ckpt.aio.inherited import hear_signals
    from ckpt.native.version import version_line
    from ckptd.config import Parser

    parser = Parser(
        prog="ckptd",
        usage="ckptd PROGRAM [options]",
        description="The daemons of ckpt.",
        epilog=f"programs:\n{lines}\n\nexample:\n  ckptd target --help\n\n"
        "`ckptd PROGRAM --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "program", choices=sorted(PROGRAMS), metavar="PROGRAM", help=argparse.SUPPRESS
    )
    parser.add_argument("--version", action="version", version=version_line("ckptd"))
    hear_signals()
    parser.parse_args(given)
    return 2


if __name__ == "__main__":
    sys.exit(main())
