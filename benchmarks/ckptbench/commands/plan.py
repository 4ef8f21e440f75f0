"""`ckptbench plan`: the interval, bandwidth, capacity and targets that a job needs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from ckpt.base.errors import Refused
from ckpt.erasure.code import Code
from ckptbench.job.values import ValueKind, ratio_kind, size_kind, time_kind
from ckptbench.plan import PlanRequest, make_plan, model_bytes, plan_text

T = TypeVar("T")


def main(argv: Sequence[str]) -> int:
    """The exit code."""
    options = _parser().parse_args(argv)
    if (options.model is None) == (options.bytes is None):
        raise Refused("give --model= or --bytes=", hint="--model=llama3-405b")
    size = options.bytes if options.model is None else model_bytes(options.model)
    request = PlanRequest(
        checkpoint_bytes=size,
        gpus=options.gpus,
        mtbf_s=options.mtbf,
        target_rate=options.target_rate,
        code=Code.parse(options.code),
        copy_rate=options.copy_rate,
        restart_s=options.restart,
        target_bytes=options.target_bytes,
        keep=options.keep,
        busy=float(options.busy),
        targets=options.targets,
    )
    found = make_plan(request)
    print(msgspec.json.format(msgspec.json.encode(found)).decode() if options.json
          else plan_text(request, found))  # fmt: skip
    return 0


def _typed(kind: ValueKind[T]) -> Callable[[str], T]:
    """Its reader for argparse, which shows of a ValueError the function's name alone."""

    def read(text: str) -> T:
        try:
            return kind.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None

    return read


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="ckptbench plan",
        description="How often to save (Young, Daly), and which tier that takes.",
        epilog="example:\n  ckptbench plan --model=llama3-405b --gpus=16384 --mtbf=3h "
        "--target-rate=3GB",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    seconds, size = _typed(time_kind("s")), _typed(size_kind(least=1))
    found.add_argument("--model", metavar="NAME", help="llama3-8b, -70b, -405b or -1t")
    found.add_argument(
        "--bytes", type=size, metavar="BYTES", help="of a checkpoint, in place of --model"
    )
    found.add_argument("--gpus", type=int, required=True, metavar="COUNT", help="ranks of the job")
    found.add_argument(
        "--mtbf", type=seconds, required=True, metavar="TIME", help="of the whole job: 3h"
    )
    found.add_argument(
        "--target-rate", type=size, required=True, metavar="BYTES/S", help="of one target: 3GB"
    )
    found.add_argument("--code", default="4+2", metavar="K+M", help="erasure code [4+2]")
    found.add_argument("--copy-rate", type=size, default=5 * 10**9, metavar="BYTES/S",
                       help="of a rank's copy to host memory [5GB]")  # fmt: skip
    found.add_argument("--restart", type=seconds, default=120.0, metavar="TIME",
                       help="until a restarted job begins to load [120s]")  # fmt: skip
    found.add_argument("--target-bytes", type=size, default=4 << 40, metavar="BYTES",
                       help="of one target [4TiB]")  # fmt: skip
    found.add_argument("--keep", type=int, default=3, metavar="STEPS", help="in the tier [3]")
    found.add_argument("--busy", type=_typed(ratio_kind()), default=0.5, metavar="RATIO",
                       help="part of an interval that a burst may take [1/2]")  # fmt: skip
    found.add_argument("--targets", type=int, default=0, metavar="COUNT",
                       help="that there are; 0: as few as needed [0]")  # fmt: skip
    found.add_argument("--json", action="store_true", help="print JSON")
    return found
