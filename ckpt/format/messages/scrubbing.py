"""How people ask a target to read all that it keeps, and what came of it."""

from __future__ import annotations

from msgspec import Struct

from ckpt.format.messages.targets import ScrubReport


class AskScrub(Struct, frozen=True, gc=False):
    """How far is the scrub?"""

    begin: bool = False
    """Begin a pass now; one that is under way begins again."""


class ScrubState(Struct, frozen=True, gc=False):
    """The answer."""

    report: ScrubReport
    is_running: bool
    """A pass is under way, whoever wanted it."""
    is_asked: bool
    """Somebody asked for it: it does not rest until its files are due."""
    is_aside: bool
    """It waits while columns are written or read."""
    files_left: int
    """Of the pass; 0 when it is over."""
    bytes_left: int
    files: int
    """That were here when it began."""
    bytes: int
