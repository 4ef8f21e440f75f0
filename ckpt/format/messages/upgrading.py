"""What is said of an upgrade: that it is finished, by a person; and what stands against that."""

from __future__ import annotations

from msgspec import Struct


class FinishUpgrade(Struct, frozen=True, gc=False):
    """From now on refuse peers that speak an older protocol than the coordinator. Idempotent."""

    dry_run: bool = False
    """Say what stands against it, and change nothing."""
    force: bool = False
    """Targets that are away are not waited for: each is upgraded before it comes back."""


class UpgradeNoted(Struct, frozen=True, gc=False):
    """It is finished, durably; or, of a dry run, may be where nothing stands against it."""

    protocol: int
    """What one has to speak, or would have to."""
    against: tuple[str, ...] = ()
    """Of a dry run: why it would be refused."""
    away: tuple[str, ...] = ()
    """Likewise, which `force` passes over."""
