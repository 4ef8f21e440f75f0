"""Columns go from full devices to empty ones: what people say of it, and what they hear."""

from __future__ import annotations

from msgspec import Struct


class BalanceTargets(Struct, frozen=True, gc=False):
    """Until all devices are about as full; said again while that goes on, it changes nothing."""

    dry_run: bool = False
    """Nothing is begun."""
    stop: bool = False
    """What is not moved yet stays where it is. By itself, what is too full still sheds columns."""


class DeviceShare(Struct, frozen=True, gc=False):
    """How full a device is."""

    device: str
    """POWER/RACK/HOST/DEVICE."""
    targets: tuple[str, ...]
    used_bytes: int
    """By whomever."""
    total_bytes: int


class TargetsBalanced(Struct, frozen=True, gc=False):
    """To BalanceTargets: how far it is."""

    running: bool
    bytes_left: int
    """About so much is to be moved."""
    columns_moved: int
    """Since this balance began, or of the last one."""
    bytes_moved: int
    left_s: float | None
    """At the rate of what is made again now; None while nobody can say."""
    devices: tuple[DeviceShare, ...]
    """The fullest first."""
