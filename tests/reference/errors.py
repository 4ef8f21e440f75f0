"""The page of errors: every class of them, by what the caller may do."""

from __future__ import annotations

from typing import Final

from ckpt.base import errors

_HEAD: Final = """# Errors

For whoever handles an error, in Python, in a script or in a log: what it means, and whether the
same call may succeed later. All are in `ckpt`, and derive from `ckpt.CkptError`. *code* stands in
`--json` and in logs, *exit* is the exit code of the command that it ends.

| class | code | exit | try again | means |
|---|---|---|---|---|
"""


def errors_page() -> str:
    """All errors by what the caller may do."""
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.CkptError)
    ]
    rows = [
        f"| `{kind.__name__}` | `{kind.code}` | {kind.exit_code} |"
        f" {'yes' if kind.retryable else 'no'} | {_first_paragraph(kind)} |\n"
        for kind in kinds
    ]
    return _HEAD + "".join(rows)


def _first_paragraph(kind: type) -> str:
    return " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())
