"""The pages of reference that programs can write: `python -m tests.reference` writes them into
docs; tests/test_reference.py holds them to the code.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ckpt.base import errors
from tests.pages import ROOT

COMMANDS: Final = ROOT / "docs" / "commands.md"
ERRORS: Final = ROOT / "docs" / "errors.md"
LINE_LENGTH_MAX: Final = 100
COMMON: Final = ("-h", "--store", "--json", "--timeout", "--debug", "--config", "--print-config")
"""Options that the page explains once."""

_HEAD: Final = """# Commands and options

For whoever looks up a command or an option: what each is for, in the words of its `--help`.

Every `ckpt` command takes `--store URL` (or `$CKPT_STORE`), `--timeout SECONDS`, `--json` and
`--debug`. Every option of a daemon is also a key of its TOML file (`--config FILE`) and a variable,
`CKPT_TARGET__POOL_BYTES` for `--pool-bytes`; `--print-config` shows what is in force.
[Operations](operations.md) shows most of them at work, and has the exit codes.
"""
_ERRORS_HEAD: Final = """# Errors

For whoever handles an error, in Python, in a script or in a log: what it means, and whether the
same call may succeed later. All are in `ckpt`, and derive from `ckpt.CkptError`. *code* stands in
`--json` and in logs, *exit* is the exit code of the command that it ends.

| class | code | exit | try again | means |
|---|---|---|---|---|
"""


def commands_page() -> str:
    """All commands of `ckpt` and `ckptd`, a section each."""
    parts = [_HEAD]
    for program in ("ckpt", "ckptd"):
        for verb, _ in _listed(_help(program)):
            parts.append("\n".join(_section(program, verb)))
    return "\n".join(parts)


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
    return _ERRORS_HEAD + "".join(rows)


def _first_paragraph(kind: type) -> str:
    return " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())


def _help(*words: str) -> str:
    """Wide, so that no help of an option is cut into lines."""
    program = Path(sys.executable).with_name(words[0])
    return subprocess.run(
        [program, *words[1:], "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"COLUMNS": "1000", "NO_COLOR": "1"},
    ).stdout


def _listed(text: str) -> list[tuple[str, str]]:
    """(name, meaning) of the rows below `commands:` or `programs:`."""
    return _rows(text, "commands") + _rows(text, "programs")


def _rows(text: str, title: str) -> list[tuple[str, str]]:
    block = re.search(rf"^{title}:\n((?:  .*\n)+)", text, re.MULTILINE)
    if block is None:
        return []
    joined = re.sub(r"\n {20,}", "  ", block[1])  # A long option's help is in the next line.
    rows = (re.split(r" {2,}", line.strip(), maxsplit=1) for line in joined.splitlines())
    return [(row[0], row[1] if len(row) > 1 else "") for row in rows]


def _section(program: str, verb: str) -> Iterator[str]:
    text = _help(program, verb)
    about, *_ = re.split(r"^\w[\w ]*:\n", text.partition("\n\n")[2], flags=re.MULTILINE)
    yield f"## {program} {verb}\n"
    yield from _described(about.strip())
    rows = [*_rows(text, "positional arguments"), *_rows(text, "options")]
    shown = [row for row in rows if not row[0].startswith(COMMON)]
    if shown:
        yield "| | |\n|---|---|"
        yield from (f"| `{_cell(name)}` | {_cell(meaning)} |" for name, meaning in shown)
        yield ""
    if example := re.search(r"^examples?:\n((?:  .*\n)+)", text, re.MULTILINE):
        yield "```\n" + re.sub(r"^  ", "", example[1], flags=re.MULTILINE) + "```\n"


def _described(about: str) -> Iterator[str]:
    """Prose as it stands; a block that is laid out stays so."""
    for part in about.split("\n\n"):
        laid_out = re.search(r"\S {2,}\S|\n ", part)
        yield f"```\n{part}\n```\n" if laid_out else textwrap.fill(part, LINE_LENGTH_MAX) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    COMMANDS.write_text(commands_page())
    ERRORS.write_text(errors_page())
