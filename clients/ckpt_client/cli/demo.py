"""Train a small language model on a cluster of this machine, lose two targets inside a save and then all
trainers, resume from what is left, and compare with a run that was never disturbed.

Exit code 0 only if every check held.
"""

from __future__ import annotations

import argparse

from ckpt_client.cli.output import Output

EXAMPLE = "ckpt demo\nckpt demo --json --steps 40 | tail -n 1 | jq .checks"

_NUMBERS = ("seed", "steps", "save_every", "ranks", "targets", "width")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--directory", metavar="DIR", help="work here; it must be empty")
    parser.add_argument("--keep", action="store_true", help="keep the directory")
    parser.add_argument("--seed", type=int, metavar="N", help="of the model and its data")
    parser.add_argument("--steps", type=int, metavar="N", help="of training")
    parser.add_argument("--save-every", type=int, metavar="N", help="steps between two saves")
    parser.add_argument("--ranks", type=int, metavar="N", help="trainer processes")
    parser.add_argument("--targets", type=int, metavar="N", help="storage targets")
    parser.add_argument("--code", metavar="K+M", help="erasure code")
    parser.add_argument("--width", type=int, metavar="N", help="of the model")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ckpt_client.demo.director import DemoOptions
    from ckpt_client.demo.director import run as run_demo

    # What was not said is the demo's own default, spelled there alone.
    numbers: dict[str, int] = {
        name: value for name in _NUMBERS if (value := getattr(arguments, name)) is not None
    }
    texts: dict[str, str] = {} if arguments.code is None else {"code": arguments.code}
    options = DemoOptions(
        directory=arguments.directory, json=output.json, keep=arguments.keep, **numbers, **texts
    )
    return run_demo(options)
