"""What does a target tell Prometheus of itself? What the coordinator tells of it, by the same
names, and what only its own node knows: its device, memory, syncs, and peers that it cut off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from ckpt.format.messages.targets import DEVICE_ERROR_KINDS
from ckpt.protocol.target.counters import LEVELS, Counters
from ckptd.http.exposition import Family, Histogram, Kind
from ckptd.option_words import docstrings

if TYPE_CHECKING:
    from ckpt.aio.net.serving.server_limits import ServerStatistics
    from ckpt.protocol.target.machine import TargetMachine
    from ckpt.protocol.target.space import Space

SYNC_BOUNDS_S: Final = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
CUTS: Final = ("malformed", "unauthorized", "timeout", "silent", "unread", "evicted")
"""Why a peer is cut off; fields of ServerStatistics."""


def family_of_counter(name: str) -> Family:
    """The empty family of one of a target's counters, which its renewals also carry."""
    # A later version's targets may count what is unknown here.
    meaning = _meanings().get(name, "Of one target.")
    if name in LEVELS:
        return Family(f"ckpt_target_{name}", Kind.GAUGE, meaning)
    total = f"ckpt_target_{name.removesuffix('_total')}_total"
    return Family(total, Kind.COUNTER, meaning)


@cache
def _meanings() -> Mapping[str, str]:
    return docstrings(Counters)


def device_families() -> tuple[Family, Family]:
    """The empty families of what devices refuse, and of which fail, for `add_device`."""
    return (
        Family(
            "ckpt_target_device_failing",
            Kind.GAUGE,
            "1 while the device fails: it gets no new columns.",
        ),
        Family(
            "ckpt_target_device_errors_total",
            Kind.COUNTER,
            "Errors of the device since the target started, by kind; a full one is no failure.",
        ),
    )


def add_device(
    families: tuple[Family, Family], target: str, errors: Mapping[str, int], *, failing: bool
) -> None:
    """One target's."""
    fails, refused = families
    fails.add(int(failing), target=target)
    for kind in DEVICE_ERROR_KINDS:
        refused.add(errors.get(kind, 0), target=target, kind=kind)


def build_info(version: str) -> Family:
    """What runs here."""
    return Family("ckpt_build_info", Kind.GAUGE, "Version, always 1.").add(1, version=version)


def target_families(
    *,
    version: str,
    machine: TargetMachine,
    statistics: ServerStatistics,
    sync_s: Histogram,
    pools: Mapping[str, tuple[int, int]],
) -> Iterator[Family]:
    """All there are, from memory; one without a sample as well. `pools`: name to (bytes in use,
    bytes in all).
    """
    target = machine.target
    yield build_info(version)
    yield from _columns(machine, target)
    yield from _device(machine, target)
    yield from _space(machine.space, machine.bytes_used, target)
    yield from _pools(pools, target)
    yield from _peers(statistics, target)
    yield Family(
        "ckpt_target_fsync_seconds",
        Kind.HISTOGRAM,
        "Time that a sync of a file or directory took.",
        histograms=[((("target", target),), sync_s)],
    )


def _columns(machine: TargetMachine, target: str) -> Iterator[Family]:
    up = Family(
        "ckpt_target_up", Kind.GAUGE, "1 while the target is registered with the coordinator."
    )
    yield up.add(int(machine.registered), target=target)
    columns = Family("ckpt_target_columns", Kind.GAUGE, "Sealed columns on the target.")
    yield columns.add(machine.column_count, target=target)
    for name, value in sorted(machine.counters.items()):
        yield family_of_counter(name).add(value, target=target)
    by_reason = Family(
        "ckpt_target_columns_refused_by_reason_total",
        Kind.COUNTER,
        "Refused columns, by the code of the error.",
    )
    for reason, count in sorted(machine.refusals.items()):
        by_reason.add(count, target=target, reason=reason)
    yield by_reason


def _device(machine: TargetMachine, target: str) -> tuple[Family, Family]:
    families = device_families()
    device = machine.device
    add_device(families, target, device.errors, failing=device.is_failing)
    return families


def _space(space: Space, bytes_used: int, target: str) -> Iterator[Family]:
    device = Family(
        "ckpt_target_device_bytes", Kind.GAUGE, "Size and free space of the file system."
    )
    device.add(space.bytes_total, target=target, state="total")
    yield device.add(space.bytes_free, target=target, state="free")
    own = Family(
        "ckpt_target_capacity_bytes",
        Kind.GAUGE,
        "The target's space: columns and documents, reserved for saves, and free.",
    )
    own.add(bytes_used, target=target, state="used")
    own.add(space.held_bytes, target=target, state="reserved")
    yield own.add(max(0, space.available), target=target, state="free")


def _pools(pools: Mapping[str, tuple[int, int]], target: str) -> Iterator[Family]:
    used = Family("ckpt_target_pool_used_bytes", Kind.GAUGE, "Buffer memory in use.")
    whole = Family("ckpt_target_pool_bytes", Kind.GAUGE, "Buffer memory in all.")
    for pool, (in_use, total) in pools.items():
        used.add(in_use, target=target, pool=pool)
        whole.add(total, target=target, pool=pool)
    yield from (used, whole)


def _peers(statistics: ServerStatistics, target: str) -> Iterator[Family]:
    sessions = Family(
        "ckpt_target_sessions", Kind.GAUGE, "Authenticated connections to the target."
    )
    yield sessions.add(statistics.sessions, target=target)
    waits = Family(
        "ckpt_target_slot_waits_total", Kind.COUNTER, "Transfers that waited for a free buffer."
    )
    yield waits.add(statistics.slot_waits, target=target)
    cuts = Family(
        "ckpt_target_peers_cut_total", Kind.COUNTER, "Peers that were cut off, by reason."
    )
    for reason in CUTS:
        cuts.add(getattr(statistics, reason), target=target, reason=reason)
    yield cuts
