"""What do `--help` and `--cmdhelp` say? Made from the table of options."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from ckpt.base.units import exact_bytes
from ckptbench.job import fio
from ckptbench.job.flags import TOOL_FLAGS, TOOL_SWITCHES
from ckptbench.job.options import DEFAULTS, TABLE, VERBS, find_option
from ckptbench.job.values import ValueKind

HELP_COLUMNS: Final = 100
HEAD = """\
usage: ckptbench JOB.fio [FLAGS]          run a job file
       ckptbench VERB [FLAGS]             one job: {verbs}
       ckptbench burst | restore          the goals' own runs; --showcmd shows them as flags
       ckptbench rules                    every rule for the tier's speed in one run, as a table
       ckptbench roofline --help          what each stage costs alone, and the bounds that follow
       ckptbench gpu --help               a save on an accelerator, beside a plain copy and DCP
       ckptbench repair --help            lost targets made again, and saves beside that
       ckptbench growth --help            does cost grow faster than bytes, ranks, targets, tensors?
       ckptbench compare A.json B.json    two reports, with confidence intervals
       ckptbench plan --help              interval, bandwidth and targets for a model
       ckptbench agent --help             lets another host's ckptbench run ranks here

Every option of a job is also a flag: --size=1Gi --numjobs=4. Ki Mi Gi are binary, KB MB GB decimal,
bare letters binary (fio by default takes Ki for decimal and KB for binary). --cmdhelp lists all
options, --cmdhelp=OPTION explains one. Words of fio without meaning here are named and passed over.
"""
TAIL = """\
exit codes: 0 all jobs ran and everything adds up; 1 a checkpoint failed, bytes differ, a figure is
above its bound (with --strict: a goal or rule was missed, or broken); 2 options that make no sense,
or no job; 3, 4, 10 to 13, 75 the error of the store that ended the run, as `ckpt` gives them; 130
interrupted, after a report of what was measured; 141 nobody reads its output

example:
  ckptbench save --numjobs=4 --size=256Mi --loops=5 --warmups=2 --output-format=json+
"""


def help_text() -> str:
    """The whole of `--help`."""
    flags = {f"{name}={metavar}": text for name, (metavar, text) in TOOL_FLAGS.items()}
    lines = [f"  --{name:<22} {text}" for name, text in (flags | TOOL_SWITCHES).items()]
    return "\n".join([HEAD.format(verbs=" | ".join(VERBS)), *lines, "", TAIL])


def command_help(word: str) -> str:
    """One option as fio explains it, or all of them in a line each. Raises Refused."""
    if word in ("", "all"):
        lines = [f"{name:<26}: {one.help}" for name, one in TABLE.items()]
        return "\n".join([*lines, *_of_fio()])
    if word in fio.PASSED_OVER:
        return f"{word:>20}: of fio, passed over: {fio.PASSED_OVER[word]}"
    return "\n".join(_explain(find_option(word)))


def _of_fio() -> Iterator[str]:
    """What is taken from a fio user's job file without being an option."""
    text = f"of fio, passed over: {', '.join(fio.PASSED_OVER)}"
    yield from ("", *textwrap.wrap(text, HELP_COLUMNS, break_on_hyphens=False))


def _explain(name: str) -> Iterator[str]:
    found = TABLE[name]
    yield f"{name:>20}: {found.help}"
    for alias in found.aliases:
        yield f"{'alias':>20}: {alias}"
    yield f"{'type':>20}: {found.kind.name}"
    yield f"{'default':>20}: {_default(DEFAULTS[name], found.kind)}"
    for number, (word, meaning) in enumerate(found.kind.choices.items()):
        yield f"{'valid values' if number == 0 else '':>20}: {word:<12} {meaning}"


def _default(value: object, kind: ValueKind[object]) -> str:
    """As it would be given; where it could not be, nothing is the default."""
    shown = "" if value == "" else _shown(value, is_bytes=kind.is_bytes)
    try:
        kind.read(shown)
    except ValueError:
        return "no default"
    return shown or "no default"


def _shown(value: object, *, is_bytes: bool) -> str:
    match value:
        case 0.0 | 0 | False:
            return "0"
        case bool():
            return "1"
        case tuple() if all(isinstance(one, float) for one in value):
            return ":".join(f"{one:g}" for one in value)
        case tuple():
            ends = dict.fromkeys(value)
            return "-".join(exact_bytes(one) if is_bytes else str(one) for one in ends)
        case int() if is_bytes:
            return exact_bytes(value)
        case Fraction():
            return str(value)
        case _:
            return str(value)
