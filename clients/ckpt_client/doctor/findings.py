"""What does it mean that a probe found this? Pure functions: what was measured -> a finding.

OK: a training will not notice. WARN: it runs, with less than it should have. FAIL: it does not
start, or its saves fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ckpt.base.errors import CkptError, NotFound
from ckpt.base.units import counted, format_bytes, format_seconds
from ckpt.erasure.code import Code
from ckpt.format.column import file_bytes, manifest_bytes_bound
from ckpt.format.layout import Layout
from ckpt.protocol.coordinator.reading.answers import Check
from ckpt_client.cli.exits import ExitCode

ANSWER_S: Final = 1.0
"""A coordinator that takes longer is far away or overloaded."""
AHEAD_S: Final = 2.0
"""Clocks that are kept by NTP are closer."""
OPEN_FILES_SPARE: Final = 256
"""Descriptors that a trainer has open besides its sessions to targets: data, libraries, logs."""
HALVES: Final = 2
"""Halves of a rank's arena: one is filled while the other is sent."""
MEMORY_SPARE: Final = 0.9
"""Share of the free memory: a process that takes more is killed when something else grows."""


class Level(Enum):
    """How bad a finding is."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    level: Level
    message: str
    """What was found, and what it means."""
    remedy: str = ""
    """The next step; empty when all is well."""
    code: int = ExitCode.FAILED
    """The exit code, should it be a failure."""


@dataclass(frozen=True, slots=True)
class TargetReach:
    """How a target was reached from here."""

    target: str
    address: str
    seconds: float
    error: str = ""
    """Why not; empty when the handshake was done."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a training will save."""

    state_bytes: int
    """Of one checkpoint; 0 when it is not said."""
    ranks: int
    ranks_here: int
    saves: int

    @property
    def rank_bytes(self) -> int:
        return -(-self.state_bytes // self.ranks)


def failed(name: str, error: CkptError) -> Finding:
    """What could not be probed at all."""
    return Finding(name, Level.FAIL, error.message, error.hint, error.exit_code)


def judge_coordinator(address: str, seconds: float, protocol: int, ours: int) -> Finding:
    """How soon it answered, and in which version of the protocol."""
    text = f"{address} answers in {format_seconds(seconds)}, speaks protocol {protocol}"
    if seconds > ANSWER_S:
        text += f": more than {ANSWER_S:g} s, each save and load waits for it"
        return Finding(
            "coordinator", Level.WARN, text, "look at its host's load, and at the network"
        )
    if protocol < ours:
        text += f", this client {ours}: what came with later versions is not used"
        return Finding("coordinator", Level.WARN, text, "upgrade the cluster")
    return Finding("coordinator", Level.OK, text)


def judge_missing(error: NotFound) -> Finding:
    """A local cluster that nobody made yet is no fault: the first open makes it."""
    return Finding(
        "coordinator", Level.WARN, f"{error.message}; the first ckpt.open makes one", error.hint
    )


def judge_targets(reaches: Sequence[TargetReach], code: Code) -> Finding:
    """Whether enough targets are reached for whole stripes."""
    missed = [one for one in reaches if one.error]
    count = len(reaches) - len(missed)
    text = f"{count} of {len(reaches)} reached from here"
    if not missed:
        slowest = max(reaches, key=lambda one: one.seconds, default=None)
        if slowest is not None:
            text += f", the slowest, {slowest.target}, in {format_seconds(slowest.seconds)}"
        if count >= code.n:
            return Finding("targets", Level.OK, text)
    listed = "; ".join(
        f"{one.target} at {one.address or 'no address'}: {one.error}" for one in missed
    )
    remedy = (
        "`ckpt status` says which of them the coordinator hears; a live one is cut off from here"
    )
    if count < code.n:
        text += f", code {code} needs {code.n}"
        told = f"{text}: {listed}" if listed else text
        return Finding("targets", Level.FAIL, told, remedy if missed else "start more targets",
                       ExitCode.TRY_LATER)  # fmt: skip
    return Finding("targets", Level.WARN, f"{text}: {listed}; saves go to the others", remedy)


def judge_clock(now_s: float, newest_commit_s: float, *, is_same_host: bool) -> Finding:
    """Safety needs no clock (P12), but ages and logs do. The coordinator's clock is known only by
    its newest commit, which cannot lie in the future.
    """
    if is_same_host:
        return Finding("clock", Level.OK, "the cluster is on this host: one clock")
    ahead_s = newest_commit_s - now_s
    if ahead_s > AHEAD_S:
        text = f"this host's clock is at least {format_seconds(ahead_s)} late: the newest commit"
        return Finding("clock", Level.WARN, f"{text} lies ahead of it", "start NTP on both hosts")
    if not newest_commit_s:
        return Finding("clock", Level.OK, "nothing is committed yet to compare it with")
    return Finding("clock", Level.OK, "no commit lies ahead of it")


def stored_bytes(need: Need, code: Code) -> int:
    """What one column of one rank's payload takes on its target."""
    layout = Layout.plan(code, need.rank_bytes)
    return file_bytes(layout, manifest_bytes_bound(layout))


def judge_room(
    need: Need, code: Code, free: Mapping[str, int], devices: Sequence[tuple[Sequence[str], int]]
) -> Finding:
    """Whether the saves fit.

    free: of each target that is live; devices: their targets, and what is free on each.
    """
    total = sum(size for _, size in devices)
    if not need.state_bytes:
        text = f"{format_bytes(total)} free on {counted(len(free), 'target')}"
        return Finding("room", Level.OK, f"{text}; --state-bytes says how much is needed")
    column = stored_bytes(need, code)
    payloads = need.ranks * need.saves
    wanted = column * payloads * code.n
    fits = sum(
        min(size // column, sum(min(free[id] // column, payloads) for id in ids))
        for ids, size in devices
    )
    saves, ranks = counted(need.saves, "save"), counted(need.ranks, "rank")
    what = f"for {saves} of {format_bytes(need.state_bytes)} by {ranks}"
    text = (
        f"{what} {format_bytes(wanted)} are needed with code {code}, {format_bytes(total)} are free"
    )
    if fits >= payloads * code.n:
        return Finding("room", Level.OK, text)
    remedy = "`ckpt rm` old steps, set keep=, drain and evict, or add targets"
    return Finding("room", Level.FAIL, f"{text} where columns may go", remedy, ExitCode.NO_SPACE)


def judge_open_files(soft: int, hard: int, targets: int) -> Finding:
    """A stager has a session to each target."""
    needed = targets + OPEN_FILES_SPARE
    text = f"{soft} may be open, about {needed} are needed with {targets} targets"
    if soft >= needed:
        return Finding("open files", Level.OK, text)
    if hard >= needed:
        return Finding("open files", Level.WARN, text, f"ulimit -n {needed} ahead of the training")
    remedy = f"ulimit -Hn {needed}, LimitNOFILE= of the service or the job"
    return Finding("open files", Level.FAIL, text, remedy)


def judge_locked_memory(soft: int | None) -> Finding:
    """soft: None without a limit. Nothing of ckpt locks memory; CUDA's driver locks the arenas, and
    does not count them against this limit.
    """
    limit = "unlimited" if soft is None else format_bytes(soft)
    text = f"{limit}; ckpt locks none; a GPU's driver locks arenas, by CUDA beside this limit"
    return Finding("locked memory", Level.OK, text)


def judge_memory(need: Need, free_bytes: int, total_bytes: int) -> Finding:
    """Whether the arenas of this host's ranks fit: both halves stay in memory for good."""
    if not need.state_bytes:
        text = f"{format_bytes(free_bytes)} free for arenas"
        return Finding("memory", Level.OK, f"{text}; --state-bytes says how much is needed")
    half = need.rank_bytes
    wanted = HALVES * half * need.ranks_here
    ranks = counted(need.ranks_here, "rank")
    text = f"{format_bytes(wanted)} are needed for {ranks} here, two halves of their state"
    text += f", {format_bytes(free_bytes)} are free"
    remedy = "fewer ranks on a host, or more memory for the job (its cgroup counts)"
    if half > total_bytes // HALVES:
        remedy += "; arena_bytes_max= is half of the memory unless it is given"
    if wanted > free_bytes:
        return Finding("memory", Level.FAIL, text, remedy, ExitCode.NO_SPACE)
    if wanted > free_bytes * MEMORY_SPARE:
        return Finding("memory", Level.WARN, f"{text}: little is left for what else grows", remedy)
    return Finding("memory", Level.OK, text)


def judge_sockets(directory: str, free_bytes: int | None, error: str = "") -> Finding:
    """Where stagers put their sockets and logs. Arenas are memory without a name: not /dev/shm."""
    if error:
        remedy = "set XDG_RUNTIME_DIR or TMPDIR to a folder of this user"
        return Finding("sockets", Level.FAIL, f"{directory}: {error}", remedy)
    if free_bytes is not None and free_bytes <= 0:
        remedy = "make room there, or set XDG_RUNTIME_DIR or TMPDIR"
        return Finding("sockets", Level.FAIL, f"{directory} is full", remedy, ExitCode.NO_SPACE)
    return Finding("sockets", Level.OK, f"{directory} can be written")


def judge_health(check: Check) -> Finding:
    """A health check that stands now."""
    level = Level.FAIL if check.severity == "error" else Level.WARN
    remedy = f"{check.remedy}: {check.command}" if check.command else check.remedy
    return Finding(check.name, level, check.message, remedy)


def exit_code(findings: Sequence[Finding]) -> int:
    """0 when all is well, 3 with warnings alone, else that of the first failure."""
    for one in findings:
        if one.level is Level.FAIL:
            return one.code
    warned = any(one.level is Level.WARN for one in findings)
    return ExitCode.DEGRADED if warned else ExitCode.OK
