"""The pages of reference, as far as programs can write them: `python -m tests.reference` does, and
tests/test_reference.py holds them to the code.

Some are the code's as a whole; in others a person writes around blocks that are (`blocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.pages import ROOT
from tests.reference.blocks import filled
from tests.reference.commands import commands_page
from tests.reference.configuration import configuration_blocks
from tests.reference.errors import errors_page
from tests.reference.facts import facts_blocks
from tests.reference.health import health_blocks
from tests.reference.metrics import metrics_blocks

DOCS: Final = ROOT / "docs"
WHOLE: Final[Mapping[Path, Callable[[], str]]] = {
    DOCS / "commands.md": commands_page,
    DOCS / "errors.md": errors_page,
}
IN_PART: Final[Mapping[Path, Callable[[], Mapping[str, str]]]] = {
    DOCS / "ARCHITECTURE.md": facts_blocks,
    DOCS / "configuration.md": configuration_blocks,
    DOCS / "health.md": health_blocks,
    DOCS / "metrics.md": metrics_blocks,
}


def written(page: Path) -> str:
    """The page as it ought to be."""
    if page in WHOLE:
        return WHOLE[page]()
    return filled(page.read_text(), IN_PART[page]())
