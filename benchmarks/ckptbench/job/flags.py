"""What does a command line say? Every option is a flag, as in fio; the rest is about the tool.

Flags before the first `--name` count for all jobs and override every other setting. `--name=X`
opens a job, `--name=global` opens settings for the jobs after it. A first word that is a verb
(`ckptbench save --size=1g`) opens a job of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ckpt.base.errors import Refused
from ckptbench.job import fio
from ckptbench.job.grammar import Section, Setting, Words
from ckptbench.job.options import MISSING_VERBS, NAMES, TABLE, VERBS, find_option

COMMAND_LINE: Final = "command line"
TOOL_FLAGS: Final = {
    "section": ("NAME", "run only this section; may be repeated"),
    "output-format": ("WORDS", "normal, json, json+; several with commas"),
    "output": ("FILE", "write the report to it"),
    "status-interval": ("TIME", "print progress so often: 10 is seconds, or 2m, 1h"),
    "plot": ("FILE", "draw the burst: FILE.svg, FILE.html, or FILE.png with matplotlib"),
    "hosts": ("HOST[:PORT],…", "that run `ckptbench agent`; they have the same secret file"),
    "secret-file": ("FILE", "of the agents"),
}
"""Name -> what its value is, and what it does."""
TOOL_SWITCHES: Final = {
    "showcmd": "print the job file as a command line, and end",
    "parse-only": "check everything and end",
    "strict": "a missed goal or rule, or a broken rule of a preset, makes the exit code 1",
    "version": "print the version and end",
    "help": "this text",
}
SHORT: Final = {"-h": "--help", "-v": "--version"}
"""As fio has them."""


@dataclass(slots=True)
class CommandLine:
    """A command line, taken apart; nothing is judged but its form."""

    files: list[str] = field(default_factory=list)
    everywhere: list[Setting] = field(default_factory=list)
    """Settings before the first `--name`."""
    sections: list[Section] = field(default_factory=list)
    tool: dict[str, list[str]] = field(default_factory=dict)
    cmdhelp: str | None = None
    """An option, or empty for all of them."""

    def last(self, flag: str, default: str = "") -> str:
        """The last value of a flag of the tool."""
        return self.tool.get(flag, [default])[-1]


def parse_flags(argv: Sequence[str], words: Words) -> CommandLine:
    """Raises Refused for a flag that nobody knows or that lacks its value."""
    found = CommandLine()
    left = list(argv)
    if left and left[0] in {**VERBS, **MISSING_VERBS}:
        verb = left.pop(0)
        left[:0] = [f"--name={verb}", f"--rw={verb}"]
    while left:
        word = left.pop(0)
        word = SHORT.get(word, word)
        if not word.startswith("--"):
            found.files.append(word)
            continue
        name, mark, value = word[2:].partition("=")
        if name == "cmdhelp":
            found.cmdhelp = value
        elif name in TOOL_SWITCHES and mark:
            raise Refused(f"--{name} takes no value", hint=f"write --{name}, or leave it out")
        elif name in TOOL_SWITCHES:
            found.tool.setdefault(name, []).append("1")
        else:
            _take(found, name, value if mark else None, left, words)
    return found


def _take(found: CommandLine, name: str, value: str | None, left: list[str], words: Words) -> None:
    """A flag with a value: of the tool, `--name`, or of a job."""
    spelled = name if name in NAMES else name.replace("-", "_")
    of_tool = name in TOOL_FLAGS or name == "name"
    needs = of_tool or _needs_value(spelled)
    if value is None and needs:
        if not left:
            raise Refused(f"--{name} needs a value")
        value = left.pop(0)
    if name == "name":
        assert value is not None
        found.sections.append(Section(value, (), COMMAND_LINE))
    elif of_tool:
        assert value is not None
        found.tool.setdefault(name, []).append(value)
    else:
        text = None if value is None else words.expand(value)
        setting = Setting(spelled, text, COMMAND_LINE)
        if found.sections:
            last = found.sections[-1]
            found.sections[-1] = Section(last.name, (*last.settings, setting), last.where)
        else:
            found.everywhere.append(setting)


def _needs_value(name: str) -> bool:
    if name in fio.PASSED_OVER:
        return name not in fio.SWITCHES
    return TABLE[find_option(name)].kind.empty is None
