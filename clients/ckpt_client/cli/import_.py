"""Take in weights from another program: a directory of safetensors files, as Hugging Face has them.

Without --to they are saved into the cluster as RUN@STEP, by one rank: the staging memory holds all
of them for that time. With --to they go straight into an object store in the drained format, a few
MiB at a time; `ckpt.load("URL/RUN@STEP")` reads them there. The state is a flat dict of arrays.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ckpt.base.ids import RunName, Step
from ckpt.base.units import format_bytes, format_seconds
from ckpt_client.cli.cluster import parse_checkpoint
from ckpt_client.cli.exits import Exit
from ckpt_client.cli.output import Output, counted
from ckpt_client.exchange.mapped_source import MappedSource
from ckpt_client.exchange.safetensors_file import StoredArray, read_directory

EXAMPLE = "ckpt import ./llama-7b llama/pretrained@0"
COMMIT_TIMEOUT_S = 3600.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="with *.safetensors")
    parser.add_argument("checkpoint", metavar="RUN@STEP", help="what it shall be")
    parser.add_argument("--to", metavar="URL", help="an object store instead of the cluster")
    parser.add_argument(
        "--portable-dtypes", action="store_true", help="--to: bfloat16 and float8 as integers"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    run_name, step = parse_checkpoint(arguments.checkpoint)
    arrays = read_directory(arguments.directory)
    begun_s = time.monotonic()
    with output.waiting(f"importing {arguments.directory}"):
        if arguments.to:
            _write(arguments, arrays, run_name, step)
        else:
            _save(arguments, arrays, run_name, step)
    seconds = time.monotonic() - begun_s
    size = sum(array.end - array.start for array in arrays)
    where = arguments.to or "the cluster"
    output.document(
        {"run": run_name, "step": step, "to": where, "arrays": len(arrays), "bytes": size}
    )
    output.line(
        f"imported {counted(len(arrays), 'array')}, {format_bytes(size)}, as {run_name}@{step} "
        f"into {where} in {format_seconds(seconds)}"
    )
    return Exit.OK


def _save(
    arguments: argparse.Namespace, arrays: list[StoredArray], run_name: RunName, step: Step
) -> None:
    from ckpt_client.store import open as open_store

    state = {array.name: array.mapped() for array in arrays}
    with open_store(arguments.store) as store:
        store.save(run_name, step, state, rank=0, world_size=1).wait(COMMIT_TIMEOUT_S)


def _write(
    arguments: argparse.Namespace, arrays: list[StoredArray], run_name: RunName, step: Step
) -> None:
    from ckpt.objects.planning import WriteOptions
    from ckpt.objects.stores import open_sink
    from ckpt.objects.writer import WriteLimits, write_checkpoint

    source = MappedSource(arrays, run_name, step, "safetensors")
    options = WriteOptions(portable=arguments.portable_dtypes)
    write_checkpoint(open_sink(arguments.to), source, options, WriteLimits())
