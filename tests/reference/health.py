"""The blocks of the page of health checks: one of them all, and one for each."""

from __future__ import annotations

import re
from typing import Final

from ckpt.protocol.coordinator.reading.checks import CHECKS, DEGRADED_CODE, WARNING, CheckKind
from tests.reference.blocks import listing, table

_NAME: Final = re.compile(r"\b[A-Z]+_[A-Z_]+\b")


def health_blocks() -> dict[str, str]:
    """By name; `checks` is the table of all."""
    rows = [
        (_linked(name), kind.severity, str(kind.exit_code), kind.means)
        for name, kind in CHECKS.items()
    ]
    summary = table(("check", "severity", "exit code", "while it stands"), rows)
    return {"checks": summary} | {name: _section(kind) for name, kind in CHECKS.items()}


def _section(kind: CheckKind) -> str:
    strict = f", {DEGRADED_CODE} with `--check`" if kind.severity == WARNING else ""
    strict *= kind.exit_code != DEGRADED_CODE
    return listing(
        (
            f"**Severity:** {kind.severity}; `ckpt status` exits with {kind.exit_code}{strict}.",
            f"**Means:** {_text(kind.means)}.",
            f"**Cause:** {_text(kind.cause)}.",
            f"**Do:** {_text(kind.mend)}.",
            f"**Goes:** {_text(kind.clears)}.",
        )
    )


def _text(text: str) -> str:
    """Names of other checks are links."""
    return _NAME.sub(lambda match: _linked(match[0]), text)


def _linked(name: str) -> str:
    return f"[{name}](#{name.lower()})" if name in CHECKS else name
