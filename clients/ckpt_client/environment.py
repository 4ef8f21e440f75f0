"""Who am I: rank, world size and launch key, from arguments or from what launchers
leave in the environment.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.ids import Rank, whole_number
from ckpt.base.limits import WORLD_SIZE_MAX

LAUNCH_KEY_BYTES_MAX: Final = 4096
"""In UTF-8."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """This process's seat in its launch."""

    rank: Rank
    world_size: int


@dataclass(frozen=True, slots=True)
class _Family:
    """The variables of one launcher.

    Any of `sizes` may carry the world size, the first one set counts.
    """

    rank: str
    sizes: tuple[str, ...]


#: In the order of trust: what a script sets itself stands before what a launcher sets for it.
_FAMILIES: Final = (
    _Family("RANK", ("WORLD_SIZE",)),
    _Family("SLURM_PROCID", ("SLURM_NTASKS", "SLURM_NPROCS")),
    _Family("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    _Family("PALS_RANKID", ("PALS_SIZE", "PMI_SIZE")),
    _Family("PMI_RANK", ("PMI_SIZE",)),
)


def find_place(
    rank: int | None = None,
    world_size: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> RankPlace:
    """Arguments, else the first launcher whose variables are set, else rank 0 of 1.

    Raises Refused when one of rank and world size is known without the other, or when they do not
    fit.
    """
    if rank is not None or world_size is not None:
        return _from_arguments(rank, world_size)
    for family in _FAMILIES:
        size_name = next((name for name in family.sizes if environ.get(name)), None)
        rank_text = environ.get(family.rank)
        if not rank_text and size_name is None:
            continue
        if not rank_text and family.rank == "PALS_RANKID":
            continue  # PMI_SIZE alone is judged with PMI_RANK, its own partner.
        if not rank_text:
            raise Refused(
                f"{size_name} is set but {family.rank} is not: the rank would be a guess",
                hint="pass rank= and world_size=",
            )
        if size_name is None:
            raise Refused(
                f"{family.rank} is set but {family.sizes[0]} is not: "
                "the world size would be a guess",
                hint="pass rank= and world_size=",
            )
        return _checked(
            _number(family.rank, rank_text),
            _number(size_name, environ[size_name]),
            f"{family.rank}, {size_name}",
        )
    return RankPlace(Rank(0), 1)


def find_saver(rank: int | None = None, world_size: int | None = None) -> RankPlace:
    """`find_place`, of a rank that saves. Raises Refused as well where nothing names a rank, and
    torch.distributed has several, as under torch.multiprocessing.spawn: each would save as rank 0
    of 1, in the place of the others.
    """
    place = find_place(rank, world_size)
    dist = sys.modules.get("torch.distributed")
    if rank is None and place.world_size == 1 and dist is not None and dist.is_available():
        size = dist.get_world_size() if dist.is_initialized() else 1
        if size > 1:
            raise Refused(
                f"torch.distributed has {size} ranks, but RANK and WORLD_SIZE are not set: the "
                "rank would be a guess",
                hint="pass rank= and world_size=; rank=0, world_size=1 if this rank saves alone",
            )
    return place


def find_launch_key(
    launch: str | None = None, environ: Mapping[str, str] = os.environ
) -> str | None:
    """What all ranks of this start of the job share and no other start has;
    None when nothing says so.
    """
    if launch is not None:
        if not isinstance(launch, str):
            raise Refused(f"launch={launch!r} is no text", hint="str() of it is")
        if not launch:
            raise Refused("launch= is empty: leave it out, or name this start of the run")
        _check_key(launch)
        return launch
    elastic = environ.get("TORCHELASTIC_RUN_ID")
    restart = _start_of_torchrun(environ)
    # torchrun's default id is the word "none", the same for every start: it names nothing.
    if elastic and elastic != "none":
        return f"torchelastic:{elastic}:{restart}"
    slurm = environ.get("SLURM_JOB_ID")
    if slurm:
        # Two job steps of one allocation are two starts.
        step = environ.get("SLURM_STEP_ID", "")
        return f"slurm:{slurm}:{environ.get('SLURM_RESTART_COUNT', '0')}:{step}:{restart}"
    for name in ("PALS_APID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"):
        value = environ.get(name)
        if value:
            return f"{name.lower()}:{value}:{restart}"
    return None


def _start_of_torchrun(environ: Mapping[str, str]) -> str:
    """What its starts under one id differ by, as far as it says: how often the ranks were started
    again, which each node counts for itself, and where they meet. Of several nodes that alone names
    the start, if rank 0 opens a port for each; agents that open it for their ranks keep theirs.
    """
    count = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if "TORCHELASTIC_RUN_ID" not in environ or not host or not port:
        return count
    is_of_start = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "False"
    if is_of_start and environ.get("GROUP_WORLD_SIZE", "1") != "1":
        return f"{host}:{port}"
    return f"{count}:{host}:{port}"


def _check_key(launch: str) -> None:
    """It goes to the stager in one packet, and to the coordinator."""
    try:
        length = len(launch.encode())
    except UnicodeEncodeError:
        raise Refused(f"launch={launch!r} is not valid Unicode") from None
    if length > LAUNCH_KEY_BYTES_MAX:
        raise Refused(f"launch= of {length} bytes: 1 to {LAUNCH_KEY_BYTES_MAX} are allowed")


@dataclass(slots=True)
class _Process:
    """This process's incarnation, and the numbers of its saves."""

    name: str
    saves: Iterator[int]


#: This process by its number. Any thread adds it.
_processes: Final[dict[int, _Process]] = {}


def process_name() -> str:
    """`HOST/PID/random`, one for the life of this process; a forked child gets its own."""
    return _this_process().name


def next_save_number() -> int:
    """From 1, ascending, over all stores and threads of this process."""
    return next(_this_process().saves)


def _this_process() -> _Process:
    pid = os.getpid()
    known = _processes.get(pid)
    if known is None:
        # Several threads may be the first: the interpreter lets one of their entries in. A lock
        # would stay locked in a child that is forked meanwhile.
        name = f"{socket.gethostname()}/{pid}/{secrets.token_hex(8)}"
        known = _processes.setdefault(pid, _Process(name, count(1)))
    return known


# A child may get the number of a process that it descends from, and that has ended.
os.register_at_fork(after_in_child=_processes.clear)


def _from_arguments(rank: int | None, world_size: int | None) -> RankPlace:
    if rank is None:
        raise Refused("world_size= was given without rank=")
    if world_size is None:
        raise Refused("rank= was given without world_size=")
    numbers = whole_number(rank), whole_number(world_size)
    if numbers[0] is None or numbers[1] is None:
        raise Refused(f"rank={rank!r}, world_size={world_size!r}: two integers are needed")
    return _checked(numbers[0], numbers[1], "rank=, world_size=")


def _checked(rank: int, world_size: int, source: str) -> RankPlace:
    if not 1 <= world_size <= WORLD_SIZE_MAX:
        raise Refused(f"world size {world_size} ({source}): 1 to {WORLD_SIZE_MAX} are allowed")
    if not 0 <= rank < world_size:
        raise Refused(f"rank {rank} does not fit world size {world_size} ({source})")
    return RankPlace(Rank(rank), world_size)


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise Refused(f"{name}={text!r} is not a number")
    return int(text)
