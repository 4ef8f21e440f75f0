"""Columns go from full devices to empty ones: what people say of it, and what they hear."""

from __future__ import annotations

from msgspec import Struct


class BalanceTargets(Struct, frozen=True, gc=False):
    """Balance until all devices are about equally full; repeated while that goes on, it changes
    nothing.
    """

    dry_run: bool = False
    """Begin nothing."""
    stop: bool = False
    """Leave what is not moved yet where it is. Devices that are too full still shed columns by
    themselves.
    """


class DeviceShare(Struct, frozen=True, gc=False):
    """How full a device is."""

    device: str
    """POWER/RACK/HOST/DEVICE."""
    targets: tuple[str, ...]
    used_bytes: int
    """Used by anybody."""
    total_bytes: int


class TargetsBalanced(Struct, frozen=True, gc=False):
    """The answer to BalanceTargets: its progress."""

    running: bool
    bytes_left: int
    """About how much is to be moved."""
    columns_moved: int
    """Columns moved since this balance began, or by the last one."""
    bytes_moved: int
    left_s: float | None
    """Seconds left at the present rate; None while nobody can say."""
    devices: tuple[DeviceShare, ...]
    """All devices, the fullest first."""
