"""The page of commands: what `--help` of each says, of `ckpt` and `ckptd`."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

from ckpt_client.cli.main import main
from tests.reference.blocks import LINE_LENGTH_MAX

COMMON: Final = (
    "-h",
    "--store",
    "--json",
    "--timeout",
    "--debug",
    "--config",
    "--print-config",
    "--print-toml",
)
"""Options that the page explains once."""

_HEAD: Final = """# Commands and options

For whoever looks up a command or an option: what each is for, in the words of its `--help`.

Every `ckpt` command takes `--store URL` (or `$CKPT_STORE`), `--timeout TIME`, `--json` and
`--debug`. RUN@STEP may also be a URL that names the store as well: `ckpt+local:///DIR/RUN/STEP`,
`ckpt://HOST:PORT/RUN/STEP`. Every option of a daemon is also a key of its TOML file (`--config
FILE`) and a variable, `CKPT_TARGET__POOL_BYTES` for `--pool-bytes`; `--print-config` shows what is
in force, and `--print-toml` (or `ckpt init`) prints a file with every key to start from.
[Operations](operations.md) shows most of them at work, and has the exit codes.
"""


def commands_page() -> str:
    """All commands of `ckpt` and `ckptd`, a section each."""
    parts = [_HEAD]
    for program in ("ckpt", "ckptd"):
        for verb, _ in _listed(_help(program)):
            parts.append("\n".join(_section(program, verb)))
    return "\n".join(parts)


def _help(*words: str) -> str:
    """Wide, so that no help of an option is cut into lines.

    `ckpt` says it in this process: an interpreter for each of its commands costs ten times as much.
    """
    program, *rest = words
    wide = {"COLUMNS": "1000", "NO_COLOR": "1"}
    if program == "ckpt":
        return _said_here([*rest, "--help"], wide)
    return subprocess.run(
        [Path(sys.executable).with_name(program), *rest, "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | wide,
    ).stdout


def _said_here(arguments: list[str], environ: dict[str, str]) -> str:
    before = dict(os.environ)
    os.environ.update(environ)
    out = io.StringIO()
    try:
        with redirect_stdout(out):
            code: object = main(arguments)
    except SystemExit as end:
        code = end.code
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert not code, f"ckpt {arguments} ends with {code}"
    return out.getvalue()


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
        # An option that is cut at its hyphen would be two words of the page.
        text = textwrap.fill(part, LINE_LENGTH_MAX, break_on_hyphens=False)
        yield f"```\n{part}\n```\n" if laid_out else f"{text}\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
