"""Set which steps of a run stay: those that any of the rules keeps, and always the newest.

RUN alone shows its rules. New rules replace all earlier ones. They act at once, at every commit,
and as time passes; look with --dry-run first. --none removes them: then the cluster's `keep` counts
again. If --best is the only rule, it also keeps steps that were saved without the metric. Steps
with a name (`ckpt tag`) or a pin always stay. A catalog that is made again from the targets has no
rules: until you set them again, all steps of every run that it finds stay.
"""

from __future__ import annotations

import argparse

from ckpt.base.errors import Refused
from ckpt.base.ids import check_run_name
from ckpt.base.units import counted, parse_age
from ckpt.format.messages.keeping import ALL_STAYS, Retention, check_retention
from ckpt.protocol.coordinator.reading.answers import RetentionView
from ckpt_client import retention
from ckpt_client.cli.cluster import conversation
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output
from ckpt_client.cli.upkeep.gc import print_verdicts

EXAMPLE = (
    "ckpt keep llama/7b --last 5 --every 1000 --best loss:min:3 --age 7d --dry-run\n"
    "ckpt keep llama/7b\n"
    "ckpt keep llama/7b --none"
)

SOURCES = {
    "run": "its own rules",
    "cluster": "the cluster's rule",
    "lost": "its rules are lost with an earlier catalog, say them again",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_name", metavar="RUN", help="which run")
    parser.add_argument("--last", type=int, metavar="COUNT", help="keep so many newest steps")
    parser.add_argument(
        "--every", type=int, metavar="STEPS", help="keep steps whose number this divides"
    )
    parser.add_argument(
        "--best", metavar="METRIC:min|max:COUNT", help="keep so many with the best values"
    )
    parser.add_argument("--age", metavar="TIME", help="keep steps committed since: 7d, 12h")
    parser.add_argument("--none", action="store_true", help="remove the run's own rules")
    parser.add_argument("--dry-run", action="store_true", help="change nothing, show what would go")


def run(arguments: argparse.Namespace, output: Output) -> int:
    name = check_run_name(arguments.run_name)
    rules = _rules(arguments)
    if arguments.none and rules is not None:
        raise Refused("--none excludes rules", hint="give one or the other")
    changes = arguments.none or rules is not None
    with conversation(arguments, output) as talk:
        before = retention.would_stay(talk.control, name, rules) if changes else None
        if before is not None and not arguments.dry_run:
            retention.say(talk.control, name, rules)
        view = before or retention.stays(talk.control, name)
    output.document(view)
    _print(view, output, changes=changes, tries=arguments.dry_run)
    if arguments.dry_run:
        print_verdicts([view], output)
    return ExitCode.OK


def _rules(arguments: argparse.Namespace) -> Retention | None:
    """None when there is none in the command."""
    found = Retention(
        arguments.last,
        arguments.every,
        None if arguments.best is None else retention.parse_best(arguments.best),
        None if arguments.age is None else parse_age(arguments.age),
    )
    return None if found == ALL_STAYS else check_retention(found)


def _print(view: RetentionView, output: Output, *, changes: bool, tries: bool) -> None:
    """`tries`: the reasons follow, and nothing is changed."""
    keeps = "would keep" if changes and tries else "keeps"
    output.line(f"{view.run} {keeps} {view.text} ({SOURCES[view.source]})")
    going = sum(not one.stays for one in view.steps)
    verb = "goes" if going == 1 else "go"
    why = "" if changes or tries or not going else f"; why: ckpt gc {view.run} --dry-run"
    output.line(f"{len(view.steps) - going} stay, {counted(going, 'checkpoint')} {verb}{why}")
    if not view.steps:
        output.line(f"{view.run} has no checkpoints yet; ckpt ls shows which runs have")
