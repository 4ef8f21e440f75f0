"""What is said of an upgrade: that it is finished, by a person; and what stands against that."""

from __future__ import annotations

from msgspec import Struct


class FinishUpgrade(Struct, frozen=True, gc=False):
    """From now on refuse peers that speak an older protocol than the coordinator. Idempotent."""

    dry_run: bool = False
    """Report the objections, and change nothing."""
    force: bool = False
    """Targets that are away are not waited for: each is upgraded before it comes back."""


class UpgradeNoted(Struct, frozen=True, gc=False):
    """It is finished, durably; or, of a dry run, could be finished unless something stands against
    it.
    """

    protocol: int
    """The version that is needed, or would be."""
    against: tuple[str, ...] = ()
    """Of a dry run: why the request would be refused."""
    away: tuple[str, ...] = ()
    """Of a dry run: likewise, but `force` overrules it."""
