"""`ckptbench JOB.fio …` and `ckptbench VERB …`: run jobs and report them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ckpt.aio.secret import find_secret_file, read_secret
from ckpt.base.errors import CkptError, Refused
from ckpt.base.near import did_you_mean
from ckpt.base.printable import printable, printable_json
from ckpt.native.version import version_line
from ckptbench import proc
from ckptbench.checks import find_goals
from ckptbench.cli import COMMANDS
from ckptbench.commands.progress import Progress
from ckptbench.figures import JudgedRule
from ckptbench.hosts.remote import Hosts, parse_hosts
from ckptbench.job.flags import CommandLine, parse_flags
from ckptbench.job.grammar import Section, Words, parse_file
from ckptbench.job.guide import command_help, help_text
from ckptbench.job.jobs import JobList, build_jobs, show_command
from ckptbench.job.options import VERBS
from ckptbench.job.values import time_kind
from ckptbench.rank import RankPlan
from ckptbench.ranks import RankGroup, Ranks
from ckptbench.report.bandwidth_log import write_logs
from ckptbench.report.bars import bars
from ckptbench.report.document import encode, run_document
from ckptbench.report.mlperf import submissions
from ckptbench.report.plot import check_plot, write_plot
from ckptbench.report.rules_text import rule_lines
from ckptbench.report.text import run_text
from ckptbench.results import JobResult, RunResult
from ckptbench.roofline import core_count
from ckptbench.run.session import Interrupted, check_all, may_isolate, run_jobs
from ckptbench.run.shelf import Context

NO_JOB: Final = 2
"""The exit code where none is named: a script whose variable is empty has measured nothing."""
FORMATS: Final = ("normal", "json", "json+")

Judge = Callable[[Sequence[JobResult]], tuple[JudgedRule, ...]]


def main(argv: Sequence[str]) -> int:
    """The exit code. Raises CkptError for what is refused or does not come up."""
    words = reserved_words(os.environ)
    line = parse_flags(argv, words)
    if not argv:
        print(help_text(), file=sys.stderr)
        return NO_JOB
    if "help" in line.tool:
        print(help_text())
        return 0
    if "version" in line.tool:
        print(version_line("ckptbench"))
        return 0
    if line.cmdhelp is not None:
        print(command_help(line.cmdhelp))
        return 0
    files = [parse_file(path, _read, words) for path in line.files]
    files += [line.sections] if line.sections else []
    jobs = build_jobs(files, line.everywhere, line.tool.get("section", []))
    return finish(jobs, files, line)


def no_rules(_jobs: Sequence[JobResult]) -> tuple[JudgedRule, ...]:
    """Jobs of anybody have goals of their own, no rules between them."""
    return ()


def finish(
    jobs: JobList,
    files: Sequence[Sequence[Section]],
    line: CommandLine,
    judge: Judge = no_rules,
) -> int:
    """Run the jobs of these files, or only show or check them, as the command line says; the exit
    code.

    judge: what rules say of the jobs together. Raises CkptError for what is refused or does not
    come up.
    """
    show_passed_over(jobs.passed_over)
    if "showcmd" in line.tool:
        print("\n".join(show_command(files, line.everywhere)))
        return 0
    return 0 if "parse-only" in line.tool else execute(jobs, line, judge)


def show_passed_over(names: Sequence[str]) -> None:
    """A line of what stands in the job and was not used."""
    if names:
        text = f"of fio, without meaning here, passed over: {', '.join(names)}"
        print(f"ckptbench: {text} (--cmdhelp=OPTION says why)", file=sys.stderr)


def execute(jobs: JobList, line: CommandLine, judge: Judge = no_rules) -> int:
    """Run them and write the reports that the command line asks for; the exit code."""
    formats = _formats(line)
    addresses = parse_hosts(line.last("hosts"))
    isolated = may_isolate(jobs) and not addresses and proc.isolate_loopback()
    check_all(jobs, isolated=isolated, hosts=max(1, len(addresses)))
    logs = {job.name: job.options.write_bw_log for job in jobs.jobs}
    for name, path in (("--output", line.last("output")), *_named_logs(logs)):
        _check_place(name, path)
    if line.last("plot"):
        check_plot(Path(line.last("plot")))
    interval_s = _interval(line)
    progress = Progress(interval_s, as_json="normal" not in formats)
    with progress, contextlib.ExitStack() as stack:
        context = Context(isolated, local_ranks, 1, progress.note, on_begun=progress.begin)
        if addresses:
            named = line.last("secret-file")
            secret = read_secret(find_secret_file(named=Path(named) if named else None))
            hosts = stack.enter_context(Hosts(addresses, secret))
            context = Context(
                False, hosts.make_ranks, len(addresses), progress.note, addresses,
                hosts.start_skew_s(), progress.begin,
            )  # fmt: skip
        found, end = _measured(jobs, context)
    found = replace(found, rules=judge(found.jobs))
    _report(found, formats, line)
    write_logs(found, logs)
    if end is not None:
        raise end
    return exit_code(found, strict="strict" in line.tool)


def _measured(jobs: JobList, context: Context) -> tuple[RunResult, Interrupted | None]:
    """What was measured, also until Ctrl-C."""
    try:
        return run_jobs(jobs, context), None
    except Interrupted as end:
        return end.found, end


def exit_code(found: RunResult, *, strict: bool = False) -> int:
    """That of the job that failed worst; strict: 1 for a missed goal, or rule where the run has
    some, and a preset's broken rule.
    """
    code = max((job.exit_code for job in found.jobs), default=0)
    if code or not strict:
        return code
    if found.rules:
        return int(not all(one.passes for one in found.rules))
    met = all(goal.met for job in found.jobs for goal in find_goals(job))
    return int(not (met and all(one.is_valid for one in submissions(found))))


def reserved_words(environment: Mapping[str, str]) -> Words:
    """What `$`-words stand for on this machine."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Words(
        environment,
        {
            "ncpus": str(core_count()),
            "mb_memory": str(pages >> 20),
            "pagesize": str(os.sysconf("SC_PAGE_SIZE")),
        },
    )


def local_ranks(
    plans: Sequence[RankPlan], environment: Mapping[str, str], log_directory: Path
) -> RankGroup:
    """Ranks as processes of this host."""
    return Ranks(plans, environment, log_directory)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "not text"
        # A verb that is nearly right is taken for a file.
        hint = did_you_mean(path, (*VERBS, *COMMANDS))
        raise Refused(f"cannot read the job file {path}: {cause}", hint=hint) from None


def _formats(line: CommandLine) -> list[str]:
    wanted = line.last("output-format", "normal").split(",")
    for one in wanted:
        if one not in FORMATS:
            raise Refused(f"--output-format={one}: not one of {', '.join(FORMATS)}")
    return wanted


def _interval(line: CommandLine) -> float:
    text = line.last("status-interval", "0")
    try:
        return time_kind("s").read(text)
    except ValueError as error:
        raise Refused(f"--status-interval={text}: {error}") from None


def _report(found: RunResult, formats: Sequence[str], line: CommandLine) -> None:
    parts = []
    if "normal" in formats:
        texts = [run_text(found), *(bars(job) for job in found.jobs)]
        texts.append("\n".join(rule_lines(found.rules)))
        parts += [printable(text, keep="\n") for text in texts]
    if "json" in formats or "json+" in formats:
        parts.append(printable_json(encode(run_document(found, plus="json+" in formats))))
    text = "\n".join(part for part in parts if part) + "\n"
    path = line.last("output")
    failure = _written(path, text) if path else None
    if failure or not path:
        sys.stdout.write(text)
        sys.stdout.flush()
    if failure:
        raise CkptError(f"cannot write {path}: {failure}", hint="the report is on stdout instead")
    if line.last("plot"):
        write_plot(found, Path(line.last("plot")))


def _written(path: str, text: str) -> str:
    """Why it cannot be written; empty once it is."""
    try:
        Path(path).write_text(text)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _named_logs(logs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for job, prefix in logs.items():
        yield f"[{job}]: write_bw_log", prefix


def _check_place(name: str, path: str) -> None:
    """Before anything is measured. Raises Refused where no such file can be made."""
    if path and not Path(path).absolute().parent.is_dir():
        raise Refused(f"{name}={path}: there is no such directory")
    if path and Path(path).is_dir():
        raise Refused(f"{name}={path}: that is a directory")
