"""Write a configuration file for each daemon: every key, what it means, its unit and its default.

DIR/coordinator.toml, DIR/target.toml, DIR/drain.toml, DIR/repair.toml and DIR/local.toml, or those
of the daemons that are named. A file that is already there is never touched.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from ckpt.aio.durable import is_there
from ckpt.base.errors import Refused
from ckpt.base.near import did_you_mean
from ckpt_client.cli.daemons import printed_by
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.given import given_place
from ckpt_client.cli.output import Output

EXAMPLE = "ckpt init /etc/ckpt coordinator target"

DAEMONS: Final = ("coordinator", "target", "drain", "repair", "local")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", type=given_place, help="for the files; made when missing"
    )
    parser.add_argument(
        "daemons", nargs="*", metavar="DAEMON", help=f"{', '.join(DAEMONS)} [all of them]"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    directory = Path(arguments.directory).absolute()
    daemons = dict.fromkeys(arguments.daemons or DAEMONS)
    paths = {daemon: directory / f"{daemon}.toml" for daemon in map(_known, daemons)}
    if there := [str(path) for path in paths.values() if is_there(path)]:
        raise Refused(
            f"{', '.join(there)}: already there", hint="move it away, or name another DIR"
        )
    _make(directory)
    texts = {path: printed_by(daemon, ["--print-toml"]) for daemon, path in paths.items()}
    _write(texts)
    output.document({"files": [{"daemon": name, "path": str(at)} for name, at in paths.items()]})
    for daemon, path in paths.items():
        output.line(f"{path}: edit it, then ckptd {daemon} --config {path}")
    return ExitCode.OK


def _known(daemon: str) -> str:
    if daemon not in DAEMONS:
        known = f"known are {', '.join(DAEMONS)}"
        raise Refused(f"no daemon is called {daemon!r}", hint=did_you_mean(daemon, DAEMONS, known))
    return daemon


def _make(directory: Path) -> None:
    """The daemons that print the files take seconds: what cannot be written is said before."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"cannot make the folder {directory}: {error.strerror}") from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise Refused(f"cannot write into {directory}: it is not writable for this user")


def _write(texts: dict[Path, bytes]) -> None:
    for path, text in texts.items():
        try:
            with path.open("xb") as file:
                file.write(text)
        except OSError as error:
            raise Refused(f"cannot write {path}: {error.strerror}") from None
