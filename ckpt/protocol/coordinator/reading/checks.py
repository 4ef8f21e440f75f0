"""Every health check there is: what it means, what mends it, and how `ckpt status` ends with it.

The table of docs/operations.md is this one, and a test proves each entry: it brings the check
about, runs the command that it names, and sees it go. So a check without a cause and a command that
mends it does not pass. Nothing of the coordinator is imported here, because the command line names
checks as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ckpt.base.limits import DESCRIPTORS_REMEDY
from ckpt.protocol.coordinator.reading.answers import Check

WARNING: Final = "warning"
ERROR: Final = "error"
OK_CODE: Final = 0
DEGRADED_CODE: Final = 3
LOST_CODE: Final = 4
TRY_LATER_CODE: Final = 75
DESCRIPTORS_ENOUGH: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CheckKind:
    """What is the same of a check whenever it stands."""

    severity: str
    exit_code: int
    """Of `ckpt status` while it stands alone; with --check a warning's is 3."""
    cause: str
    """In one sentence."""
    mend: str
    """What to do, with the command in backticks."""


START: Final = (
    "start them: `ckptd target …`; in a local cluster `ckpt target release ID` of one that is held,"
    " `kill -CONT PID` of one that is stopped, else `ckpt local stop DIR && ckpt ls`"
)
CHECKS: Final[Mapping[str, CheckKind]] = {
    "TARGET_DOWN": CheckKind(
        WARNING, OK_CODE, "a target's connection ended, or it was silent for a lease", START
    ),
    "DIRECTORY_UNKNOWN": CheckKind(
        WARNING,
        OK_CODE,
        "a process presents another directory under a target's name: it was emptied, or put in the"
        " place of the old one; it is not taken in",
        "bring the old directory back and start its target; when it is gone for good"
        " `ckpt target replace ID`: then saves use the new one, and what the old one held is gone",
    ),
    "DIRECTORY_COPIED": CheckKind(
        WARNING,
        OK_CODE,
        "a process presents a copy of a target's directory, under its name or another one, while"
        " the target is there; it is not taken in",
        "`kill PID` on its host; a target that is to be added begins with an empty directory",
    ),
    "DEVICE_FAILING": CheckKind(
        WARNING,
        OK_CODE,
        "a device refused write after write, or read after read; it gets no new columns while"
        " others will do, what it holds is read",
        "mend what the cause names; the target finds out by itself within 5 minutes, at once when"
        " it is started again: `kill PID`, and `ckptd target …` where no supervisor does that",
    ),
    "TOO_FEW_TARGETS": CheckKind(
        ERROR, DEGRADED_CODE, "fewer targets are live and well than a save needs; saves fail", START
    ),
    "CONNECTIONS_FULL": CheckKind(
        ERROR,
        DEGRADED_CODE,
        "the coordinator, or a target, has no free descriptor, or as many connections as it may:"
        " trainers and readers are turned away",
        "`prlimit --pid PID --nofile=N:N` as root, at once; for good `LimitNOFILE=` of its service;"
        " it takes the hard limit by itself when it starts",
    ),
    "REDUNDANCY_LOW": CheckKind(
        WARNING,
        OK_CODE,
        "columns of checkpoints are on targets that are down, or are gone from their targets",
        "the same as for TARGET_DOWN; columns that are gone do not come back: the next save has all"
        " of its own, then `ckpt rm RUN@STEP`",
    ),
    "CHECKPOINT_UNREACHABLE": CheckKind(
        ERROR,
        DEGRADED_CODE,
        "more columns than parity covers are on targets that are down, or are not on their targets",
        "the same as for TARGET_DOWN; where all targets are up `ckpt verify RUN@STEP` settles"
        " whether it is lost",
    ),
    "CHECKPOINT_LOST": CheckKind(
        ERROR,
        LOST_CODE,
        "more columns than parity covers are proved to be damaged or gone",
        "`ckpt fetch RUN@STEP` where an object store has it, else `ckpt rm RUN@STEP`",
    ),
    "DRAIN_FAILING": CheckKind(
        WARNING,
        OK_CODE,
        "the last checkpoint for an object store failed, or a worker cannot use the store (bucket,"
        " credentials, no answer), maybe never could",
        "mend what the cause names, it is tried again by itself; when the store is no more, end its"
        " `ckptd drain` and `ckpt drain forget URL`",
    ),
    "DRAIN_STOPPED": CheckKind(
        WARNING,
        OK_CODE,
        "checkpoints wait for an object store, and no worker has served it for a minute",
        "`ckptd drain --to URL …`; when the store is no more `ckpt drain forget URL`",
    ),
    "NOT_RUNNING": CheckKind(
        WARNING, DEGRADED_CODE, "a local cluster rests", "the next open starts it, or `ckpt ls`"
    ),
    "COORDINATOR_DOWN": CheckKind(
        ERROR,
        TRY_LATER_CODE,
        "a local cluster's supervisor is there, its coordinator does not answer: stopped, hanging,"
        " or ended, as on a full disk",
        "`kill -CONT PID` of one that is stopped, `kill -KILL PID` of one that hangs; room on its"
        " disk; else `ckpt local stop DIR && ckpt ls`",
    ),
    "CATALOG_OLD": CheckKind(
        ERROR,
        LOST_CODE,
        "a target proves that another catalog was newer: this one was removed, emptied or put back;"
        " nobody is served",
        "`ckpt local stop DIR && ckpt catalog rebuild DIR`, on other machines"
        " `ckpt catalog rebuild DIR --targets 'HOST:PORT …'`",
    ),
    "CATALOG_UNPROVED": CheckKind(
        ERROR,
        TRY_LATER_CODE,
        "too few targets are there to vouch that the catalog is the newest; nobody is served yet",
        "the same as for TARGET_DOWN; when they are gone for good, rebuild the catalog as for"
        " CATALOG_OLD",
    ),
    "CATALOG_CORRUPT": CheckKind(
        ERROR,
        LOST_CODE,
        "a local cluster's coordinator cannot read its catalog",
        "`ckpt local stop DIR && ckpt catalog rebuild DIR`",
    ),
}


def check(
    name: str, message: str, remedy: str, command: str = "", targets: Sequence[str] = ()
) -> Check:
    """One that stands now, of CHECKS."""
    return Check(name, CHECKS[name].severity, message, remedy, command, tuple(targets))


def connections_full(message: str, pid: int) -> Check:
    """A daemon turns peers away."""
    command = f"prlimit --pid {pid} --nofile={DESCRIPTORS_ENOUGH}:{DESCRIPTORS_ENOUGH}"
    return check("CONNECTIONS_FULL", message, DESCRIPTORS_REMEDY, command)


def exit_code(checks: Sequence[Check], *, strict: bool) -> int:
    """How `ckpt status` ends: by the worst of them. `strict`: a warning is 3 as well."""
    codes = {_exit_code(each) for each in checks}
    if strict and checks:
        codes.add(DEGRADED_CODE)
    order = (LOST_CODE, TRY_LATER_CODE, DEGRADED_CODE)
    return next((code for code in order if code in codes), OK_CODE)


def _exit_code(each: Check) -> int:
    """Also of one that only a newer coordinator knows."""
    kind = CHECKS.get(each.name)
    if kind is not None:
        return kind.exit_code
    return DEGRADED_CODE if each.severity == ERROR else OK_CODE


def quoted(word: str) -> str:
    """As a shell takes it for one word."""
    plain = word.isascii() and all(letter.isalnum() or letter in "@%+=:,./-_" for letter in word)
    return word if plain and word else "'" + word.replace("'", "'\"'\"'") + "'"
