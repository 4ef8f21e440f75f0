"""What a program of `ckptd` prints, and the error that it ends with: the command's own."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.base.errors import ERROR_OF_EXIT, CkptError
from ckpt_client.cli.exits import ExitCode
from ckpt_client.local.children import PIPE, end_children, start_child
from ckpt_client.local.detach import child_environment


def printed_by(program: str, arguments: Sequence[str]) -> bytes:
    """The stdout of `ckptd PROGRAM ARGUMENTS`. Raises the error that it ended with."""
    process = start_child(
        ["-m", "ckptd.cli", program, *arguments], environment=child_environment(), stderr=PIPE
    )
    try:
        printed, errors = process.communicate()
    finally:
        # A Ctrl-C reached us alone; it leaves no half a catalog.
        end_children([process])
    if process.returncode not in (ExitCode.OK, ExitCode.DEGRADED):
        lines = errors.decode(errors="replace").strip().splitlines()
        said = lines[-1] if lines else f"ended with status {process.returncode}"
        kind = ERROR_OF_EXIT.get(process.returncode, CkptError)
        raise kind(said.removeprefix(f"ckptd {program}: "))
    return printed
