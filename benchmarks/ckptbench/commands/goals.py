"""`ckptbench burst | restore`: the runs that the goals are stated for, as jobs like any other.

They take every flag of a job; what is not given is what the goals are stated for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ckpt.base.errors import Refused
from ckptbench.commands.run import finish, main, reserved_words
from ckptbench.job import fio
from ckptbench.job.flags import CommandLine, parse_flags
from ckptbench.job.grammar import Section, Setting
from ckptbench.job.jobs import JobList, build_jobs
from ckptbench.job.options import find_option

COMMON: Final = "numjobs=4 size=256Mi code=4+2 targets=6 loops=9 roofline baseline"
PRESETS: Final = {
    "burst": (
        ("null", "rw=save sink=null warmups=2"),
        ("disk", "rw=save sink=disk warmups=2 stonewall"),
    ),
    "restore": (("restore", "rw=degraded"),),
}


def goal_jobs(program: str, argv: Sequence[str]) -> JobList:
    """The preset's jobs, with the flags above their settings. Raises Refused."""
    line = parse_flags(argv, reserved_words(os.environ))
    return build_jobs([_sections(program, line)], line.everywhere, line.tool.get("section", []))


def run_preset(program: str, argv: Sequence[str]) -> int:
    """The exit code."""
    line = parse_flags(argv, reserved_words(os.environ))
    if {"help", "version"} & line.tool.keys() or line.cmdhelp is not None:
        return main(argv)
    return finish(goal_jobs(program, argv), [_sections(program, line)], line)


def _sections(program: str, line: CommandLine) -> list[Section]:
    """Without the settings that flags take the place of. Raises Refused."""
    if line.files or line.sections:
        raise Refused(f"ckptbench {program} takes flags only", hint="name a job file without it")
    sections = [
        Section(name, settings_of(f"{COMMON} {text}", program), program)
        for name, text in PRESETS[program]
    ]
    given = {find_option(one.key) for one in fio.kept(line.everywhere)}
    return [
        replace(one, settings=tuple(s for s in one.settings if find_option(s.key) not in given))
        for one in sections
    ]


def settings_of(text: str, where: str) -> tuple[Setting, ...]:
    """Of words with blanks between: `rw=save loops=5 baseline`."""
    pairs = [one.partition("=") for one in text.split()]
    return tuple(Setting(key, value if mark else None, where) for key, mark, value in pairs)
