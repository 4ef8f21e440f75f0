"""What befalls one target, until somebody undoes it."""

from __future__ import annotations

from tests.sim.target_node import TargetNode


def nothing(_target: TargetNode) -> None:
    """It is well."""


def kill(target: TargetNode) -> None:
    target.crash()


def stop(target: TargetNode) -> None:
    target.stopped = True


def slow_down(target: TargetNode) -> None:
    """100 times slower than it was."""
    target.disk_slow *= 100
