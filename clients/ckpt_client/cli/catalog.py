"""Make a lost catalog again from the targets alone, and list what does not come back.

DIR is a local cluster's directory, or that of a coordinator (then name the
running targets with --targets). Nothing may run on that catalog meanwhile. An
old catalog is kept beside the new one; targets are only read. Exit code 3: some
target did not answer.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from ckpt.base.errors import ERROR_OF_EXIT, CkptError, Refused
from ckpt_client.cli.cluster import TARGETS_FOLDER, check_idle, read_made
from ckpt_client.cli.exits import Exit
from ckpt_client.cli.local import cluster_directory
from ckpt_client.cli.output import Output, Tone, counted
from ckpt_client.detach import child_environment
from ckpt_client.local import CLUSTER_NAME

EXAMPLE = (
    "ckpt catalog rebuild /scratch/burst\n"
    "ckpt catalog rebuild /var/lib/ckpt --targets '10.0.0.2:7071 10.0.0.3:7071'"
)

PROGRAM: Final = ("-P", "-m", "ckptd.cli", "rebuild-catalog")


class RefusedGeneration(msgspec.Struct, frozen=True):
    """A generation that does not come back."""

    checkpoint: str
    reason: str


class RebuiltCatalog(msgspec.Struct, frozen=True):
    """What `ckptd rebuild-catalog` prints."""

    catalog: str
    cluster: str
    term: int
    committed: tuple[str, ...]
    refused: tuple[RefusedGeneration, ...]
    unreachable: tuple[str, ...]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("rebuild",), help="what to do")
    parser.add_argument(
        "directories", nargs="*", metavar="DIR", help="of the catalog; else that of --store"
    )
    parser.add_argument(
        "--targets", metavar="ADDRESSES", help="HOST:PORT of each running target, by spaces"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    named: list[str | None] = list(arguments.directories) or [None]
    paths = [_owner(cluster_directory(name, arguments.store)) for name in named]
    directories = list(dict.fromkeys(paths))
    if arguments.targets and len(directories) > 1:
        raise Refused("--targets names the targets of one catalog", hint="give one DIR")
    for directory in directories:
        if not arguments.targets:
            read_made(directory)
        check_idle(directory)
    found = []
    for directory in directories:
        with output.waiting(f"rebuilding the catalog in {directory}"):
            found.append(_rebuild(directory, arguments.targets))
    output.document({"catalogs": found})
    for each in found:
        _print(each, output)
    return Exit.DEGRADED if any(each.unreachable for each in found) else Exit.OK


def _owner(directory: Path) -> Path:
    """The cluster's directory, where one of its targets' directories was given."""
    above = directory.parent
    if above.name == TARGETS_FOLDER and (above.parent / CLUSTER_NAME).exists():
        return above.parent
    return directory


def _rebuild(directory: Path, targets: str | None) -> RebuiltCatalog:
    """Raises the error that the daemon's program ended with."""
    arguments = ["--directory", str(directory)]
    if targets:
        arguments += ["--targets", targets]
    process = subprocess.Popen(
        [sys.executable, *PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment(),
    )
    try:
        told, errors = process.communicate()
    except BaseException:
        process.terminate()  # It may have heard no Ctrl-C; it leaves no half a catalog.
        process.communicate()
        raise
    if process.returncode not in (Exit.OK, Exit.DEGRADED):
        lines = errors.decode(errors="replace").strip().splitlines()
        said = lines[-1] if lines else f"ended with status {process.returncode}"
        kind = ERROR_OF_EXIT.get(process.returncode, CkptError)
        raise kind(said.removeprefix("ckptd rebuild-catalog: "))
    return msgspec.json.decode(told, type=RebuiltCatalog)


def _print(found: RebuiltCatalog, output: Output) -> None:
    output.line(f"{found.catalog}: cluster {found.cluster}, term {found.term}")
    output.line(f"  {counted(len(found.committed), 'checkpoint')} committed")
    for checkpoint in found.committed:
        output.line(f"    {checkpoint}")
    if found.refused:
        output.line(output.tone(f"  {len(found.refused)} not brought back", Tone.WARN))
        for each in found.refused:
            output.line(f"    {each.checkpoint}: {each.reason}")
    for text in found.unreachable:
        output.line(output.tone(f"  did not answer: {text}", Tone.BAD))
