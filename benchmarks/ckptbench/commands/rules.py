"""`ckptbench rules`: is the tier as fast as it is meant to be? All of it in one run."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.extras import install_command
from ckptbench.commands.goals import settings_of
from ckptbench.commands.run import finish, reserved_words
from ckptbench.commands.run import main as run_main
from ckptbench.engines import PACKAGES
from ckptbench.figures import JudgedRule
from ckptbench.job import fio
from ckptbench.job.flags import CommandLine, parse_flags
from ckptbench.job.grammar import Section
from ckptbench.job.jobs import build_jobs, resolve
from ckptbench.job.options import find_option
from ckptbench.results import JobResult
from ckptbench.rules.judge import RULES, SpeedRule, judge, rules_of
from ckptbench.rules.sections import RANKS, SIZE, section_texts

SHAPE: Final = ("numjobs", "size")
"""Of a usual job; those of the others follow from it."""
FLAGS: Final = (*SHAPE, "loops", "warmups", "directory", "cell", "quick", "verify")
"""Options of a job that leave the rules what they are."""


def main(argv: Sequence[str]) -> int:
    """The exit code; with --strict 1 where a rule is missed, or has no figure."""
    line = parse_flags(argv, reserved_words(os.environ))
    if {"help", "version"} & line.tool.keys() or line.cmdhelp is not None:
        return run_main(argv)
    sections, line = _shaped(line)
    chosen = line.tool.get("section", [])
    skipped = {} if chosen else _lacking(sections)
    there = [one for one in sections if one.name not in skipped]
    jobs = build_jobs([there], line.everywhere, chosen)
    rules = rules_of(chosen or [one.name for one in sections])
    if not rules:
        raise Refused(f"no rule is of --section={chosen[0]} alone", hint=_fitting(chosen[0]))
    _tell_skipped(rules, skipped)

    def judged(found: Sequence[JobResult]) -> tuple[JudgedRule, ...]:
        return judge(rules, found, skipped)

    return finish(jobs, [there], line, judged)


def _shaped(line: CommandLine) -> tuple[list[Section], CommandLine]:
    """The sections for the ranks and bytes that the flags ask for; the flags without these. Raises
    Refused for a flag that would make a rule another one.
    """
    if line.files or line.sections:
        raise Refused("ckptbench rules takes flags only", hint="name a job file without it")
    given = fio.kept(line.everywhere)
    for one in given:
        if find_option(one.key) not in FLAGS:
            hint = f"it takes {', '.join(f'--{name}' for name in FLAGS)}"
            raise Refused(f"the rules themselves say what --{one.key} is", hint=hint)
    options = resolve(given)
    names = {find_option(one.key) for one in given}
    sections = []
    for name, text in section_texts(options.numjobs or RANKS, options.size or SIZE):
        settings = settings_of(text, "rules")
        kept = tuple(one for one in settings if one.key in SHAPE or one.key not in names)
        sections.append(Section(name, kept, "rules"))
    everywhere = [one for one in line.everywhere if one.key not in SHAPE]
    return sections, replace(line, everywhere=everywhere)


def _lacking(sections: Sequence[Section]) -> dict[str, str]:
    """Section -> which package of its engine is not installed."""
    found = {}
    for one in sections:
        for package in PACKAGES.get(resolve(one.settings).ioengine, ()):
            if importlib.util.find_spec(package) is None:
                found[one.name] = f"{package} is not installed"
    return found


def _fitting(section: str) -> str:
    """How a rule that has this section is run."""
    rule = next(one for one in RULES if section in one.sections)
    return " ".join([rule.name, "takes", *(f"--section={name}" for name in rule.sections)])


def _tell_skipped(rules: Sequence[SpeedRule], skipped: dict[str, str]) -> None:
    for why in dict.fromkeys(skipped.values()):
        lost = [
            rule.name for rule in rules if any(skipped.get(one) == why for one in rule.sections)
        ]
        text = f"{why}: SKIPPED: {'; '.join(lost)} ({install_command('bench')})"
        print(f"ckptbench: {text}", file=sys.stderr)
