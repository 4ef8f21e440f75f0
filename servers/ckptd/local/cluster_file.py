"""What was DIR made as? `cluster.toml`: written by the first `ckptd local`, obeyed by every later.
docs/configuration.md shows one, made of the fields below.
"""

from __future__ import annotations

import json
import os
import secrets
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from ckpt.aio.durable import is_there, write_aside
from ckpt.aio.local_targets import TARGETS_MAX
from ckpt.base.errors import CkptError, Corrupt, NotFound, Refused
from ckpt.base.limits import BLOCK_BYTES, CELL_BYTES_MAX
from ckpt.erasure.code import Code
from ckptd.directory import CLUSTER_FILE_NAME, CLUSTER_ID_NAME
from ckptd.local.children import RestartPolicy

TARGETS_DEFAULT: Final = 7
LINGER_DEFAULT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What the caller asked for; None where it did not say."""

    targets: int | None = None
    code: str | None = None
    keep: int | None = None
    restart: str | None = None
    linger_s: float | None = None
    capacity_bytes: int | None = None
    pretend_domains: bool | None = None
    cell_bytes: int | None = None
    unprotected: bool | None = None


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The file's fields, checked. Bytes and seconds as the names say."""

    cluster: str
    """The cluster's id, in every handshake and every file."""
    host: str
    """DIR is refused on another one."""
    device: str
    """MAJOR:MINOR of the device of DIR, when it was made."""
    targets: int
    """How many it was made with, each with a directory below DIR/targets."""
    code: str
    """K+M, the erasure code: K + M columns of a payload, of which any K give it back."""
    keep: int
    """Newest committed steps of a run to keep; 0 keeps all."""
    restart: str
    """Whether targets that have exited are started again: "always" or "never"."""
    linger_s: float
    """One that an open has started stops after so long without a client."""
    capacity_bytes: int
    """Space of all targets together; 0 is what the device has."""
    pretend_domains: bool
    """Whether placement and reports treat each target as a device of its own."""
    cell_bytes: int
    """Size of one fragment; 0 is what the coordinator takes by itself."""
    unprotected: bool
    """Whether a code without parity (M = 0) was asked for."""
    created_by: str
    """The program that made DIR."""

    def __post_init__(self) -> None:
        code = Code.parse(self.code)
        _require(1 <= self.targets <= TARGETS_MAX, f"targets={self.targets}: 1 to {TARGETS_MAX}")
        _require(
            code.n <= self.targets,
            f"code={code} needs {code.n} targets, there are {self.targets}",
        )
        _require(
            code.m > 0 or self.unprotected,
            f"code={code} survives no loss at all; say unprotected=1 if that is meant",
        )
        _require(self.keep >= 0, f"keep={self.keep} is negative")
        _require(
            self.restart in {policy.value for policy in RestartPolicy},
            f"restart={self.restart}: always or never",
        )
        _require(self.linger_s >= 0, f"linger={self.linger_s} is negative")
        _require(self.capacity_bytes >= 0, f"capacity={self.capacity_bytes} is negative")
        _require(
            0 <= self.cell_bytes <= CELL_BYTES_MAX and self.cell_bytes % BLOCK_BYTES == 0,
            f"cell={self.cell_bytes}: 0, or a multiple of {BLOCK_BYTES} up to {CELL_BYTES_MAX}",
        )

    @property
    def first_ids(self) -> tuple[str, ...]:
        """`t0` .. in order, without those that were added later."""
        return tuple(f"t{number}" for number in range(self.targets))

    def domain(self, target: str, device: str) -> str:
        """POWER/RACK/HOST/DEVICE of one target on `device`."""
        return f"local/local/{self.host}/{f'dev-{target}' if self.pretend_domains else device}"


def code_for_targets(targets: int) -> str:
    """The code when none is asked for: 4+2 from 6 targets, 2+1 from 3, 1+1 from 2, else 1+0."""
    return "4+2" if targets >= 6 else "2+1" if targets >= 3 else "1+1" if targets == 2 else "1+0"


def device_of(directory: Path) -> str:
    """MAJOR:MINOR of the device that the directory lies on."""
    number = directory.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def load_or_create(
    directory: Path, options: ClusterOptions, host: str, created_by: str
) -> ClusterFile:
    """DIR's cluster, made now if DIR has none. The caller holds DIR's lock.

    Raises Refused when the options contradict the file (naming both), when DIR belongs to another
    host or has lost its file, or when the options make no cluster; Corrupt when it does not parse.
    """
    path = directory / CLUSTER_FILE_NAME
    if is_there(path):
        found = read_cluster(path)
        if found.host != host:
            raise Refused(
                f"{directory} belongs to host {found.host}, this is {host}",
                hint="targets on one machine serve that machine alone; if this one was renamed or"
                f' has got the disk, say host = "{host}" in {path}',
            )
        for each in fields(ClusterOptions):
            asked, kept = getattr(options, each.name), getattr(found, each.name)
            # Leave to go unprotected is no property of a cluster that has parity.
            if asked is not None and asked != kept and each.name != "unprotected":
                raise Refused(
                    f"{each.name}={asked} contradicts {each.name}={kept} in {path}",
                    hint="options count only when DIR is made; leave it out, or use another DIR",
                )
        return found
    _check_unmade(directory)
    made = _made(directory, options, host, created_by)
    write_aside(path, _to_toml(made).encode())
    return made


def _check_unmade(directory: Path) -> None:
    """Raises Refused where a cluster's file was lost: another one would begin among its targets,
    with an id that these refuse.
    """
    known = directory / CLUSTER_ID_NAME
    if not is_there(known):
        return
    kept = known.read_text(errors="replace").strip()
    raise Refused(
        f"{directory / CLUSTER_FILE_NAME} is gone, and {directory} is of cluster {kept}",
        hint=f'put it back, with cluster = "{kept}"; docs/configuration.md shows one',
    )


def read_cluster(path: Path) -> ClusterFile:
    """Parse one `cluster.toml`, unknown keys apart. Corrupt when one is missing or mistyped,
    NotFound when there is no such file.
    """
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"there is no cluster in {path.parent}: {path} is not there") from None
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Corrupt(f"{path} does not parse: {error}") from None
    try:
        document = tomllib.loads(text)
        values = {}
        for each in fields(ClusterFile):
            if each.name not in document:
                raise ValueError(f"{each.name} is missing")
            value = document[each.name]
            if each.type == "float" and type(value) is int:
                value = float(value)
            if type(value).__name__ != each.type:
                raise TypeError(f"{each.name} is not of type {each.type}")
            values[each.name] = value
        return ClusterFile(**values)
    except (ValueError, TypeError, CkptError) as error:
        raise Corrupt(f"{path} does not parse: {error}") from error


def _made(directory: Path, options: ClusterOptions, host: str, created_by: str) -> ClusterFile:
    least = TARGETS_DEFAULT if options.code is None else Code.parse(options.code).n
    targets = max(TARGETS_DEFAULT, least) if options.targets is None else options.targets
    code = code_for_targets(targets) if options.code is None else str(Code.parse(options.code))
    return ClusterFile(
        cluster=secrets.token_hex(8),
        host=host,
        device=device_of(directory),
        targets=targets,
        code=code,
        keep=options.keep or 0,
        restart=options.restart or RestartPolicy.ALWAYS.value,
        linger_s=LINGER_DEFAULT_S if options.linger_s is None else options.linger_s,
        capacity_bytes=options.capacity_bytes or 0,
        pretend_domains=bool(options.pretend_domains),
        cell_bytes=options.cell_bytes or 0,
        # One target alone cannot be protected; whoever makes it is warned instead of refused.
        unprotected=bool(options.unprotected) or (options.code is None and code == "1+0"),
        created_by=created_by,
    )


def _to_toml(cluster: ClusterFile) -> str:
    lines = []
    for each in fields(cluster):
        value = getattr(cluster, each.name)
        # JSON's strings, numbers and booleans are TOML's while no character is escaped in pairs.
        lines.append(f"{each.name} = {json.dumps(value, ensure_ascii=False)}\n")
    return "".join(lines)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise Refused(message)
