"""Who holds the space of each device, as its targets say: columns, reservations, other files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ckpt.base.ids import Domain, TargetId
from ckpt.base.units import format_bytes
from ckpt.protocol.coordinator.cluster.membership import Target

OTHERS_HOLD: Final = "other files hold most of it: remove them, or add targets"
INODES_OUT: Final = "remove small files there (df -i counts them), or add targets"
ROOM_REFUSED: Final = "raise the quota of the user who runs the target, or add targets"
OWN_HOLD: Final = "delete steps (ckpt rm RUN@STEP) or add targets"
NAMED_MAX: Final = 3
"""Most devices that one message names."""


@dataclass(frozen=True, slots=True)
class DeviceSpace:
    """One device, with all live targets that lie there."""

    domain: Domain
    targets: tuple[TargetId, ...]
    columns_bytes: int
    """Of sealed columns and documents."""
    reserved_bytes: int
    """Held for saves under way and for the next ones."""
    other_bytes: int
    """Of files that are not these targets', as far as they take what these may use."""
    free_bytes: int
    """What its targets may still take together: the reserve is not in it."""
    usable_bytes: int
    """What they may take in all; 0 while they have not said."""
    is_out_of_inodes: bool = False
    """It takes no more files, whatever is free."""
    refuses_room: bool = False
    """It refuses space that it says is free, as a quota does."""

    @property
    def taken(self) -> float:
        """The share of it that columns and other files hold; 0 while nothing is known.

        What is reserved counts as free: it is for the saves to come, and for others of them when
        there is no other room.
        """
        if not self.usable_bytes:
            return 0.0
        # Targets of a device that is filled fast have said so at different times.
        return max(0.0, 1.0 - (self.free_bytes + self.reserved_bytes) / self.usable_bytes)

    def left_bytes(self, kept_share: float) -> int:
        """Free, without this share of all."""
        return self.free_bytes - int(kept_share * self.usable_bytes)

    @property
    def is_held_by_others(self) -> bool:
        """Whether files that are not ckpt's hold more of it than ckpt does."""
        return self.other_bytes > self.columns_bytes + self.reserved_bytes

    @property
    def is_shut(self) -> bool:
        """Whether it takes nothing more for another reason than its bytes."""
        return self.is_out_of_inodes or self.refuses_room

    @property
    def remedy_by_hand(self) -> str:
        """What only people can do who know the machine; empty where steps are to be deleted."""
        if self.is_out_of_inodes:
            return INODES_OUT
        if self.refuses_room:
            return ROOM_REFUSED
        return OTHERS_HOLD if self.is_held_by_others else ""

    def __str__(self) -> str:
        """As people read it in a check or an error."""
        shut = "; it has no inodes left for more files" if self.is_out_of_inodes else ""
        if self.refuses_room:
            shut += "; it refuses space that it says is free, as with a quota that is used up"
        return (
            f"{', '.join(self.targets)} ({self.domain}): {100 * self.taken:.0f}% taken; "
            f"ckpt's columns {format_bytes(self.columns_bytes)}, "
            f"other files {format_bytes(self.other_bytes)}, "
            f"reserved for saves {format_bytes(self.reserved_bytes)}, "
            f"{format_bytes(self.free_bytes)} free{shut}"
        )


def device_spaces(live: Iterable[Target]) -> list[DeviceSpace]:
    """Of all devices of these targets, in the order of their first ones."""
    by_device: dict[Domain, list[Target]] = {}
    for target in live:
        by_device.setdefault(target.domain, []).append(target)
    return [_space(domain, targets) for domain, targets in by_device.items()]


def has_no_inodes(target: Target) -> bool:
    """Whether its file system takes no more files: bytes that are freed there bring no room."""
    return bool(target.counters.get("inodes_out"))


def devices_text(spaces: Sequence[DeviceSpace]) -> str:
    """The first of them, each with who holds it."""
    named = "; ".join(map(str, spaces[:NAMED_MAX]))
    more = len(spaces) - NAMED_MAX
    return f"{named}; and {more} more" if more > 0 else named


def _space(domain: Domain, targets: list[Target]) -> DeviceSpace:
    columns = sum(target.bytes_used for target in targets)
    reserved = sum(target.counters.get("reserved_bytes", 0) for target in targets)
    # All of them measure the same file system: who has spoken last knows best.
    newest = max(targets, key=lambda target: target.lease_ends_us)
    shared, used = newest.device_bytes_free, newest.counters.get("device_used_bytes", 0)
    own = sum(target.counters.get("usable_bytes", 0) for target in targets)
    free = min(shared, sum(target.bytes_free for target in targets))
    # Of targets with a capacity that is what they may use, of others the device.
    usable = min(own, used + shared)
    return DeviceSpace(
        domain,
        tuple(target.id for target in targets),
        columns,
        reserved,
        # Space is promised before it is allocated, so the sum may be ahead of the device.
        other_bytes=max(0, usable - free - columns - reserved),
        free_bytes=free,
        usable_bytes=usable,
        is_out_of_inodes=any(map(has_no_inodes, targets)),
        refuses_room=any(target.counters.get("room_refused") for target in targets),
    )
