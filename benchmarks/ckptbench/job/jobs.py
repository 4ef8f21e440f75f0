"""Which jobs follow from sections, and what is wrong with them? Nothing is started before that.

A job is a section with all its settings: those of the global sections above it, its own, and the
flags that count everywhere, in this order; the last one stands.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ckpt.base.errors import Refused
from ckpt.erasure.code import Code
from ckptbench import models
from ckptbench.faults import words as fault_words
from ckptbench.job import fio
from ckptbench.job.grammar import Section, Setting
from ckptbench.job.options import (
    DEFAULTS,
    DIRECT_ENGINES,
    STORE_VERBS,
    TABLE,
    JobOptions,
    find_option,
)

MLPERF_LOOPS: Final = 10
MLPERF_THINK_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Job:
    """One section, ready to run."""

    name: str
    group: int
    """Jobs of one group run at the same time; the next group waits for them."""
    options: JobOptions
    given: Mapping[str, str]
    """What the section itself says, as text: fio's "job options"."""

    @property
    def saves(self) -> bool:
        return self.options.rw in ("save", "mixed", "drain", "aside")

    @property
    def loads(self) -> bool:
        """Whether something must have been saved before it begins."""
        return self.options.rw not in ("save", "drain", "aside")


@dataclass(frozen=True, slots=True)
class JobList:
    """Everything that one call of the tool is to run."""

    jobs: tuple[Job, ...]
    shared: Mapping[str, str]
    """Settings of the global sections, as text."""
    passed_over: tuple[str, ...] = ()
    """Options of fio that they say and that have no meaning here."""

    @property
    def groups(self) -> list[list[Job]]:
        """Jobs that run at the same time, group after group."""
        found: dict[int, list[Job]] = {}
        for job in self.jobs:
            found.setdefault(job.group, []).append(job)
        return list(found.values())


def build_jobs(
    files: Sequence[Sequence[Section]],
    everywhere: Sequence[Setting],
    chosen: Sequence[str] = (),
) -> JobList:
    """Jobs of all files (a file waits for the one before it), or of the chosen sections.

    Options of fio without a meaning here are passed over. Raises Refused for an unknown option, a
    value that cannot be, options that do not fit together.
    """
    passed_over = fio.passed_over([*_used(files, chosen), *everywhere])
    files = [[replace(one, settings=fio.kept(one.settings)) for one in file] for file in files]
    everywhere = fio.kept(everywhere)
    jobs: list[Job] = []
    shared: dict[str, str] = {}
    for sections in files:
        above: list[Setting] = []
        first = True
        for section in sections:
            if section.is_global:
                above += section.settings
                shared |= _texts(section.settings)
                continue
            if chosen and section.name not in chosen:
                continue
            for expanded in _presets(section, above, everywhere):
                settings = [*above, *expanded.settings, *everywhere]
                options = resolve(settings)
                begins = first or options.stonewall or options.new_group
                last = jobs[-1].group if jobs else -1
                jobs.append(Job(expanded.name, last + begins, options, _texts(expanded.settings)))
                check_job(jobs[-1], expanded.where)
                first = False
    missing = [name for name in chosen if name not in {job.name for job in jobs}]
    if missing:
        there = [one.name for sections in files for one in sections if not one.is_global]
        hint = f"there are: {', '.join(there)}" if there else "name a job file that has it"
        raise Refused(f"no section is called {missing[0]!r}", hint=hint)
    if not jobs:
        raise Refused("no job is defined", hint="name a job file, or a verb: ckptbench save")
    return JobList(tuple(jobs), shared | _texts(everywhere), passed_over)


def resolve(settings: Iterable[Setting]) -> JobOptions:
    """The values of the settings, the last of each. Raises Refused naming the place."""
    values: dict[str, object] = {}
    for setting in settings:
        try:
            name = find_option(setting.key)
        except Refused as error:
            raise Refused(f"{setting.where}: {error.message}", hint=error.hint) from None
        values[name] = _value(setting, name)
    make: Callable[..., JobOptions] = JobOptions
    return make(**values)


def check_job(job: Job, where: str) -> None:
    """Whether its options fit together. Raises Refused naming the place."""
    for problem, hint in _problems(job):
        raise Refused(f"{where}: [{job.name}]: {problem}", hint=hint)


def show_command(
    files: Sequence[Sequence[Section]], everywhere: Sequence[Setting], program: str = "ckptbench"
) -> list[str]:
    """One command line for each file, which means the same."""
    lines = []
    for sections in files:
        words = [program, *(_flag(one) for one in everywhere)]
        for section in sections:
            words.append(f"--name={section.name}")
            words += [_flag(one) for one in section.settings]
        lines.append(shlex.join(words))
    return lines


# --------------------------------------------------------------------------- inside


def _used(files: Sequence[Sequence[Section]], chosen: Sequence[str]) -> Iterable[Setting]:
    """What the sections say that count when these are chosen."""
    for sections in files:
        for one in sections:
            if one.is_global or not chosen or one.name in chosen:
                yield from one.settings


def _value(setting: Setting, name: str) -> object:
    kind = TABLE[name].kind
    if setting.value is None:
        if kind.empty is None:
            raise Refused(f"{setting.where}: {setting.key} needs a value: {kind.name}")
        return kind.empty
    try:
        # fio's scripts write `option=` for what is to stay as it is.
        return kind.read(setting.value) if setting.value else DEFAULTS[name]
    except ValueError as error:
        raise Refused(
            f"{setting.where}: {setting.key}={setting.value}: {error}",
            hint=f"ckptbench --cmdhelp={name}",
        ) from None


def _presets(
    section: Section, above: Sequence[Setting], everywhere: Sequence[Setting]
) -> list[Section]:
    """The section, or the phases that its preset makes of it."""
    if resolve([*above, *section.settings, *everywhere]).preset != "mlperf":
        return [section]
    common = [one for one in section.settings if find_option(one.key) not in ("rw", "stonewall")]
    reader = [] if any(one.key == "reader" for one in [*above, *common]) else [("reader", "rotate")]
    phases: list[tuple[str, list[tuple[str, str]]]] = [
        ("write", [("rw", "save"), ("end_fsync", "1"), ("thinktime", f"{MLPERF_THINK_S:g}s")]),
        ("read", [("rw", "load"), ("stonewall", "1"), ("invalidate", "1"), *reader]),
    ]
    found = []
    for name, rules in phases:
        rules = [("loops", str(MLPERF_LOOPS)), *rules]
        given = {find_option(one.key) for one in common}
        settings = [Setting(key, value, section.where) for key, value in rules if key not in given]
        found.append(Section(f"{section.name}-{name}", (*settings, *common), section.where))
    return found


def _problems(job: Job) -> Iterable[tuple[str, str]]:
    """(what is wrong, what to do) of options that do not fit together."""
    options = job.options
    if not options.size and not options.model:
        yield "the state has no size", "give size= or model="
    if options.size and options.model:
        yield "size= and model= are both given", "leave one out"
    if options.preset and not options.model:
        yield f"preset={options.preset} needs model=", "model=llama3-8b scale=1/1000"
    if options.time_based and not options.runtime:
        yield "time_based needs runtime=", "runtime=60s"
    if options.size % 4096:
        yield f"size={options.size} is not whole pages of 4096 bytes", ""
    if options.model:
        count = models.find(options.model).ranks
        if options.ranks > count:
            yield f"{options.model} has {count} ranks, not {options.ranks}", ""
    if options.ioengine == "ckpt" and not options.url:
        code = Code.parse(options.code)
        if options.targets < code.n:
            yield f"code {code} needs {code.n} targets, not {options.targets}", ""
    if options.rw == "degraded" and options.ioengine != "ckpt":
        yield f"{options.ioengine} has no parity: rw=degraded needs ioengine=ckpt", ""
    if options.direct and options.ioengine not in DIRECT_ENGINES:
        yield f"{options.ioengine} cannot write past the page cache: direct is ioengine=posix's", ""
    if options.direct and options.ioengine == "posix" and options.rw == "reshard":
        yield "boxes begin anywhere in a file, which O_DIRECT cannot read", "leave direct out"
    if options.rw in STORE_VERBS and (options.ioengine != "ckpt" or options.url):
        yield f"rw={options.rw} needs the cluster of ioengine=ckpt that the run itself starts", ""
    if options.ckpt_mode == "torch" and options.rw in STORE_VERBS:
        yield f"rw={options.rw} is ckpt_mode=default's", "leave ckpt_mode out"
    if options.sink == "null" and options.rw != "save":
        yield "sink=null keeps no bytes to load", "sink=disk"
    if options.fault:
        if options.ioengine != "ckpt" or options.url:
            yield "fault= needs the targets of ioengine=ckpt that the run itself starts", ""
        fault_words.parse_faults(options.fault, options.targets)


def _texts(settings: Iterable[Setting]) -> dict[str, str]:
    return {one.key: "1" if one.value is None else one.value for one in settings}


def _flag(setting: Setting) -> str:
    return f"--{setting.key}" if setting.value is None else f"--{setting.key}={setting.value}"
