"""Copy the catalog (backup, copy), or make a lost one from what targets hold (rebuild, restore).

DIR is a local cluster's directory, or that of a coordinator (then name the running targets with
--targets; to back it up while it runs, name its coordinator with --store, and no DIR). Nothing may
run on the catalog while it is made again. The old catalog is kept beside the new one; targets are
only read. restore takes from a backup what no target knows, such as what was drained where; it
never returns the catalog to an older state. Exit code 3: some target did not answer. For
coordinators with --catalog name that etcd://... in the place of DIR, and --targets; its prefix has
no catalog (else 2): choose another one.

copy FROM TO takes a catalog from a coordinator's directory into etcd, or back:
one of both is DIR, the other the etcd://... of --catalog. TO has none before
(else 2), and no coordinator works on either (else 11). What it is copied from
stays as it is; only one of both may be used from then on.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Final

import msgspec

from ckpt.aio.durable import is_there, make_directories
from ckpt.aio.local_targets import TARGETS_FOLDER
from ckpt.base.errors import NoSpace, NotFound, Refused
from ckpt.base.system_errors import system_error
from ckpt.base.units import counted, format_bytes
from ckpt_client.cli.cluster import (
    CatalogCopy,
    check_idle,
    conversation,
    read_made,
)
from ckpt_client.cli.daemons import printed_by
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.given import given_place
from ckpt_client.cli.output import Output
from ckpt_client.cli.tables import Tone
from ckpt_client.cli.upkeep.local import cluster_directory
from ckpt_client.exchange.whole_file import WholeFile
from ckpt_client.local.cluster import CLUSTER_NAME, is_supervised
from ckpt_client.url import LocalUrl, parse_url

EXAMPLE = (
    "ckpt catalog rebuild /scratch/burst\n"
    "ckpt catalog rebuild /var/lib/ckpt --targets '10.0.0.2:7071 10.0.0.3:7071'\n"
    "ckpt catalog rebuild etcd://127.0.0.1:2379/ckpt/again --targets '10.0.0.2:7071'\n"
    "ckpt catalog backup --to /backup/catalog.sqlite\n"
    "ckpt catalog restore /scratch/burst --from /backup/catalog.sqlite\n"
    "ckpt catalog copy /var/lib/ckpt 'etcd://10.0.0.4:2379/ckpt/prod?ca=/etc/ckpt/etcd-ca.pem'"
)

REBUILD: Final = "rebuild-catalog"
BACKUP: Final = "backup-catalog"
COPY: Final = "copy-catalog"
ETCD: Final = "etcd://"
CATALOG: Final = "catalog.sqlite"
"""The file of a coordinator's catalog; SQLite's own stand beside it, their names begin with it."""
LOCK: Final = "coordinator.lock"
"""In each coordinator's directory."""
SQLITE: Final = b"SQLite format 3\0"
APPLICATION_ID: Final = 0x636B7074
"""Of a catalog among SQLite's files."""
_ID_AT: Final = 68
"""Where it stands in one."""


class RefusedGeneration(msgspec.Struct, frozen=True):
    """A generation that is not in the rebuilt catalog."""

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
    left_out: tuple[str, ...] = ()
    retention_unsaid: tuple[str, ...] = ()
    """Runs whose rules were lost: all of their steps stay until somebody sets rules."""


class CopiedCatalog(msgspec.Struct, frozen=True):
    """What `ckptd copy-catalog` prints."""

    source: str
    destination: str
    cluster: str
    term: int
    committed: int
    """How many checkpoints it has."""
    outdated: str
    """Why another catalog is newer; empty when none is known to be."""
    next: tuple[str, ...]
    """The next steps for whoever copied it."""


def configure(parser: argparse.ArgumentParser) -> None:
    actions = ("rebuild", "backup", "restore", "copy")
    parser.add_argument("action", choices=actions, help="what to do")
    parser.add_argument(
        "directories", nargs="*", metavar="DIR", type=given_place,
        help="of the catalog; else that of --store. copy: FROM TO, one of which is etcd://...",
    )  # fmt: skip
    parser.add_argument(
        "--targets",
        metavar="ADDRESSES",
        help="HOST:PORT of each running target, with spaces between",
    )

    parser.add_argument(
        "--to",
        metavar="FILE",
        type=given_place,
        help="backup: where to; else a file in DIR/backups",
    )
    parser.add_argument(
        "--from",
        dest="backup",
        metavar="FILE",
        type=given_place,
        help="restore: a copy that backup made",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.action == "backup":
        return _back_up(arguments, output)
    if arguments.action == "copy":
        return _copy(arguments, output)
    return _make_again(arguments, output)


def _make_again(arguments: argparse.Namespace, output: Output) -> int:
    if (arguments.action == "restore") is not bool(arguments.backup):
        raise Refused("restore needs --from FILE, and only restore takes it")
    named: list[str | None] = list(arguments.directories) or [None]
    in_etcd = [name for name in named if name is not None and name.startswith(ETCD)]
    paths = [
        _owner(cluster_directory(name, arguments.store)) for name in named if name not in in_etcd
    ]
    places: list[Path | str] = [*dict.fromkeys(paths), *dict.fromkeys(in_etcd)]
    if (arguments.targets or arguments.backup or in_etcd) and len(places) > 1:
        raise Refused("--targets and --from are of one catalog", hint="give one DIR")
    if in_etcd and not arguments.targets:
        raise Refused(
            "a catalog in etcd is made again from targets that run", hint="name them: --targets"
        )
    for directory in dict.fromkeys(paths):
        if not arguments.targets:
            _check_made(directory)
        check_idle(directory)
    found = []
    for place in places:
        with output.waiting(f"rebuilding the catalog in {place}"):
            found.append(_rebuild(place, arguments.targets, arguments.backup))
    output.document({"catalogs": found})
    for place, each in zip(places, found, strict=True):
        _print(place, each, output)
    return ExitCode.DEGRADED if any(each.unreachable for each in found) else ExitCode.OK


def _check_made(directory: Path) -> None:
    """As `read_made`; whoever lost a coordinator's directory hears what makes its catalog again."""
    try:
        read_made(directory)
    except NotFound as error:
        raise NotFound(
            error.message,
            hint="of a coordinator's directory, name the targets that run: "
            "--targets 'HOST:PORT HOST:PORT'",
        ) from None


def _back_up(arguments: argparse.Namespace, output: Output) -> int:
    """Asked of the coordinator while it runs, else read from its directory."""
    if len(arguments.directories) > 1:
        raise Refused("one catalog is copied at a time", hint="give one DIR")
    if arguments.to:
        _check_place(Path(arguments.to))
    directory = _directory_of_backup(arguments)
    if directory is None or is_supervised(directory):
        if directory is not None:
            arguments.store = f"ckpt+local://{directory}"
        with conversation(arguments, output) as talk:
            copy = talk.back_up()
        if arguments.to:
            copy = _moved(copy, Path(arguments.to))
    else:
        told = ["--directory", str(directory)]
        told += ["--to", arguments.to] if arguments.to else []
        copy = msgspec.json.decode(printed_by(BACKUP, told), type=CatalogCopy)
    output.document(copy)
    output.line(f"{copy.path}: cluster {copy.cluster}, {format_bytes(copy.bytes)}")
    return ExitCode.OK


def _check_place(to: Path) -> None:
    """Raises Refused for what is there and is no earlier copy: a copy takes its place whatever it
    is. With a catalog's own file its coordinator would go on in one without a name, and the next
    one begin with the copy.
    """
    place = to.resolve()
    if place.name.startswith(CATALOG) and is_there(place.parent / LOCK):
        raise Refused(f"{to} is the catalog of a coordinator itself", hint="name another file")
    try:
        if not is_there(place) or (place.is_file() and _is_copy(place)):
            return
    except OSError as error:
        raise Refused(f"cannot write {to}: {error.strerror}") from None
    raise Refused(f"{to} is no copy of a catalog", hint="name another file, or remove that one")


def _is_copy(place: Path) -> bool:
    """Or an empty file."""
    with place.open("rb") as file:
        header = file.read(_ID_AT + 4)
    id = int.from_bytes(header[_ID_AT:], "big")
    return not header or (header.startswith(SQLITE) and id == APPLICATION_ID)


def _directory_of_backup(arguments: argparse.Namespace) -> Path | None:
    """None for a coordinator that --store names by its address."""
    if arguments.directories:
        return _owner(cluster_directory(arguments.directories[0], arguments.store))
    url = parse_url(arguments.store)
    return Path(url.directory) if isinstance(url, LocalUrl) else None


def _moved(copy: CatalogCopy, to: Path) -> CatalogCopy:
    """From where the coordinator put it, when that is on this machine."""
    source = Path(copy.path)
    try:
        same = source.stat().st_size == copy.bytes
    except OSError:
        same = False
    if not same:
        raise Refused(
            f"the copy is {copy.path} on the coordinator's host, which this machine does not see",
            hint="fetch it from there, or run this there",
        )
    try:
        make_directories(to.absolute().parent, 0o700)
        with WholeFile(to.absolute(), 0o600) as file:
            file.write(source.read_bytes())
            file.complete()
        source.unlink()
    except OSError as error:
        said = f"the copy is {source}, and cannot be written to {to}"
        known = system_error(said, error)
        refused = Refused(f"{said}: {error.strerror}", hint="name another file")
        raise (known if isinstance(known, NoSpace) else refused) from None
    return CatalogCopy(str(to.absolute()), copy.cluster, copy.bytes)


def _copy(arguments: argparse.Namespace, output: Output) -> int:
    if len(arguments.directories) != 2 or arguments.targets or arguments.backup or arguments.to:
        raise Refused("copy takes FROM and TO alone", hint="one is DIR, the other etcd://...")
    source, destination = (_place(named) for named in arguments.directories)
    with output.waiting(f"copying the catalog in {source} to {destination}"):
        printed = printed_by(COPY, ["--source", source, "--destination", destination])
    copied = msgspec.json.decode(printed, type=CopiedCatalog)
    output.document(copied)
    checkpoints = counted(copied.committed, "committed checkpoint")
    output.line(f"{destination}: cluster {copied.cluster}, term {copied.term}, {checkpoints}")
    if copied.outdated:
        output.line(output.tone(f"  it is no longer the newest: {copied.outdated}", Tone.BAD))
    for step in copied.next:
        output.line(f"  next: {step}")
    output.line(f"  {source} is as it was: use only one of both from now on")
    return ExitCode.OK


def _place(named: str) -> str:
    """An etcd's URL as it is, else the directory of a catalog on which no supervisor works."""
    if named.startswith(ETCD):
        return named
    directory = _owner(cluster_directory(named, None))
    check_idle(directory)
    return str(directory)


def _owner(directory: Path) -> Path:
    """The cluster's directory, where one of its targets' directories was given."""
    above = directory.parent
    if above.name == TARGETS_FOLDER and is_there(above.parent / CLUSTER_NAME):
        return above.parent
    return directory


def _rebuild(place: Path | str, targets: str | None, backup: str | None) -> RebuiltCatalog:
    """`place`: a directory, or an etcd's URL."""
    arguments = ["--directory" if isinstance(place, Path) else "--catalog", str(place)]
    if targets:
        arguments += ["--targets", targets]
    if backup:
        arguments += ["--backup", backup]
    return msgspec.json.decode(printed_by(REBUILD, arguments), type=RebuiltCatalog)


def _print(place: Path | str, found: RebuiltCatalog, output: Output) -> None:
    output.line(f"{found.catalog}: cluster {found.cluster}, term {found.term}")
    output.line(f"  {counted(len(found.committed), 'checkpoint')} committed")
    for checkpoint in found.committed:
        output.line(f"    {checkpoint}")
    if found.refused:
        output.line(output.tone(f"  {len(found.refused)} not brought back", Tone.WARN))
        for each in found.refused:
            output.line(f"    {each.checkpoint}: {each.reason}")
    if found.retention_unsaid:
        runs = ", ".join(found.retention_unsaid)
        output.line(f"  all stays until you say again what shall (ckpt keep RUN …): {runs}")
    for text in found.left_out:
        output.line(f"  not heard: {text}")
    for text in found.unreachable:
        output.line(output.tone(f"  did not answer: {text}", Tone.BAD))
    if isinstance(place, str):
        output.line(f"  next: start the coordinators with --catalog {shlex.quote(place)}")
