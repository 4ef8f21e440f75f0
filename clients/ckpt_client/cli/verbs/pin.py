"""Pin a checkpoint, or unpin it: a pinned one neither expires nor can be evicted or deleted.

The pin is on the newest generation of the step, or on the one that has the name; a later save of
the same step leaves it there. `ckpt unpin RUN@STEP` unpins all generations. A checkpoint with a
name (`ckpt tag`) is kept likewise, but can be deleted by hand.
"""

from __future__ import annotations

import argparse

from ckpt_client import labels
from ckpt_client.cli.cluster import conversation, parse_which
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output

EXAMPLE = "ckpt pin llama/7b@12500\nckpt unpin llama/7b@12500"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="RUN@STEP", help="which one, or RUN@NAME")


def run(arguments: argparse.Namespace, output: Output) -> int:
    pinned: bool = arguments.verb == "pin"
    wanted = parse_which(arguments.checkpoint)
    with conversation(arguments, output) as talk:
        run_name, step, generation = talk.which(*wanted)
        change = labels.pin if pinned else labels.unpin
        change(talk.control, run_name, step, generation)
    output.document({"run": run_name, "step": step, "pinned": pinned})
    end = "stays until it is unpinned" if pinned else "is pinned no more"
    output.line(f"{run_name}@{step} {end}")
    return ExitCode.OK
