"""Give a checkpoint a name, such as `best`; take it away; or list the names of a run.

A name belongs to one step of its run: given to another, it moves there. RUN@NAME stands for
RUN@STEP in show, cat, diff, verify and export. A step with a name neither expires nor is evicted;
`ckpt rm` deletes it with its names. Only `ckpt rollback` gives names such as aside-300: removing
one brings its step back or, if the step was saved again since, drops the earlier save.
"""

from __future__ import annotations

import argparse

from ckpt.base.errors import Refused
from ckpt.base.ids import Step
from ckpt.protocol.coordinator.reading.answers import NameView
from ckpt_client import labels
from ckpt_client.cli.cluster import conversation, parse_which
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.meant import no_run
from ckpt_client.cli.output import Output

EXAMPLE = "ckpt tag llama/7b@12500 best\nckpt tag llama/7b\nckpt tag llama/7b best --remove"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="RUN[@STEP]", help="which one; RUN lists its names")
    parser.add_argument("names", nargs="*", metavar="NAME", help="what it is called from now on")
    parser.add_argument("--remove", action="store_true", help="take these names of RUN away")


def run(arguments: argparse.Namespace, output: Output) -> int:
    names = tuple(arguments.names)
    run_name, which = parse_which(arguments.checkpoint)
    if arguments.remove and not names:
        raise Refused("no name is given", hint=f"its names: ckpt tag {run_name}")
    if names and which is None and not arguments.remove:
        hint = f"ckpt tag {run_name}@STEP {' '.join(names)}"
        raise Refused(f"{arguments.checkpoint!r} names no step", hint=hint)
    with conversation(arguments, output) as talk:
        step, generation = (None, None) if which is None else talk.which(run_name, which)[1:]
        if arguments.remove:
            _check_are_of(step, names, labels.names_of(talk.control, run_name))
            labels.untag(talk.control, run_name, names)
        elif names and step is not None:
            labels.tag(talk.control, run_name, step, names, generation)
        known = labels.names_of(talk.control, run_name).values()
        if not known and not talk.steps(run_name):
            raise no_run(run_name, talk.runs())
    found = [view for view in known if names or step in (None, view.step)]
    output.document({"run": run_name, "names": found})
    if found:
        output.table(("name", ">step"), [(view.name, str(view.step)) for view in found])
    else:
        output.line(f"{run_name} has no names")
    return ExitCode.OK


def _check_are_of(step: Step | None, names: tuple[str, ...], known: dict[str, NameView]) -> None:
    """Raises Refused when one names another step than was said."""
    for name in names:
        if step is not None and name in known and known[name].step != step:
            raise Refused(f"{name!r} names step {known[name].step}, not {step}")
