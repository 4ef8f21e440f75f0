"""Train a small language model, lose storage and trainers, resume, and compare.

A cluster of this machine loses two targets inside a save, then all trainers; the
run goes on from what is left. It must end bit for bit as a run that was never
disturbed. Exit code 0 only if every check held.
"""

from __future__ import annotations

import argparse

from ckpt_client.cli.given import given_place
from ckpt_client.cli.output import Output
from ckpt_client.demo.director import run as run_demo
from ckpt_client.demo.options import DemoOptions

EXAMPLE = "ckpt demo\nckpt demo --json --steps 40 | tail -n 1"


def configure(parser: argparse.ArgumentParser) -> None:
    defaults = DemoOptions()

    def number(flag: str, default: int, metavar: str, what: str) -> None:
        text = f"{what} [{default}]"
        parser.add_argument(flag, type=int, default=default, metavar=metavar, help=text)

    parser.add_argument(
        "--directory", metavar="DIR", type=given_place, help="work here; it must be empty"
    )
    parser.add_argument("--keep", action="store_true", help="keep the directory")
    number("--seed", defaults.seed, "NUMBER", "of the model and its data")
    number("--steps", defaults.steps, "STEPS", "of training")
    number("--save-every", defaults.save_every, "STEPS", "steps from save to save")
    number("--ranks", defaults.ranks, "COUNT", "trainer processes")
    number("--targets", defaults.targets, "COUNT", "storage targets")
    parser.add_argument(
        "--code", default=defaults.code, metavar="K+M", help=f"erasure code [{defaults.code}]"
    )
    number("--width", defaults.width, "FEATURES", "of the model, a multiple of 4")


def run(arguments: argparse.Namespace, output: Output) -> int:
    return run_demo(
        DemoOptions(
            directory=arguments.directory,
            json=output.json,
            keep=arguments.keep,
            seed=arguments.seed,
            steps=arguments.steps,
            save_every=arguments.save_every,
            ranks=arguments.ranks,
            targets=arguments.targets,
            code=arguments.code,
            width=arguments.width,
        )
    )
