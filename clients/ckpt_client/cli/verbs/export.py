"""Write a checkpoint for other programs, a few MiB at a time, without a GPU.

safetensors  weights as Hugging Face stores them: model-*.safetensors and their index
npz          one numpy archive
dcp          a directory that torch.distributed.checkpoint loads; needs torch
zarr         the drained format (Zarr v3) into any object store: DEST is its URL, and the
             checkpoint goes to DEST/RUN@STEP/GENERATION

RUN@STEP is read from the cluster; a URL (s3://bucket/run@500) from an object store,
without any cluster. --prefix model exports only what lies below it in the state.

Weights of an earlier export in DEST are replaced once the new ones are all written, so both
need space there; weights that no export made are refused.

While one export writes safetensors, npz or dcp to a place, another one to it is refused (11); what
a killed one left there, `.NAME.part`, goes with the next one. A place below a file, or a file where
a directory is to be, is refused (2). An export that fails, as where no room is left (13), leaves
DEST as it was, and makes none; of zarr the parts that are done stay for the next one.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ckpt.base.errors import Refused
from ckpt.base.system_errors import system_error
from ckpt.base.units import counted, format_bytes, format_seconds
from ckpt.objects.source import Source
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.given import given_place
from ckpt_client.cli.output import Output
from ckpt_client.cli.source import opened_source

EXAMPLE = "ckpt export llama/7b@12500 --format safetensors --prefix model /scratch/llama-7b"
FORMATS = ("safetensors", "npz", "zarr", "dcp")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="RUN@STEP", help="which one, or its URL")
    parser.add_argument(
        "destination", metavar="DEST", type=given_place, help="a directory, a file or a URL"
    )
    parser.add_argument("--format", choices=FORMATS, required=True, help="what to write")
    parser.add_argument("--prefix", metavar="PATH", default="", help="only what lies below it")
    parser.add_argument(
        "--separator", metavar="TEXT", default=".", help="between the steps of a path [.]"
    )
    parser.add_argument(
        "--portable-dtypes", action="store_true", help="zarr: bfloat16 and float8 as integers"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.format == "zarr" and arguments.prefix:
        raise Refused("--format zarr writes whole checkpoints", hint="leave --prefix out")
    if arguments.destination == "-":
        raise Refused(
            "nothing is written to standard output", hint="name a file; ./- for one of that name"
        )
    with opened_source(arguments, output, arguments.checkpoint) as source:
        begun_s = time.monotonic()
        with output.waiting(f"exporting {source.header}"):
            try:
                count, size = _write(arguments, source)
            except OSError as error:
                place = error.filename or arguments.destination
                raise system_error(f"cannot write {place}", error) from None
    seconds = time.monotonic() - begun_s
    what = f"{source.header.run}@{source.header.step}"
    output.document(
        {
            "run": source.header.run,
            "step": source.header.step,
            "generation": source.header.generation,
            "format": arguments.format,
            "destination": arguments.destination,
            "arrays": count,
            "bytes": size,
            "took_s": seconds,
        }
    )
    output.line(
        f"exported {what} to {arguments.destination}: {counted(count, 'array')}, "
        f"{format_bytes(size)} in {format_seconds(seconds)}"
    )
    return ExitCode.OK


def _write(arguments: argparse.Namespace, source: Source) -> tuple[int, int]:
    """Arrays and bytes that were written."""
    if arguments.format == "zarr":
        return _write_zarr(arguments, source)
    from ckpt_client.exchange.tensors import named_arrays

    arrays = named_arrays(source, arguments.prefix, arguments.separator)
    destination = Path(arguments.destination)
    if arguments.format == "safetensors":
        from ckpt_client.exchange.safetensors_export import write_safetensors

        return len(arrays), sum(write_safetensors(source, arrays, destination))
    if arguments.format == "dcp":
        from ckpt_client.exchange.dcp_directory import write_dcp

        return len(arrays), write_dcp(source, arrays, destination)
    from ckpt_client.exchange.npz_file import write_npz

    return len(arrays), sum(write_npz(source, arrays, destination))


def _write_zarr(arguments: argparse.Namespace, source: Source) -> tuple[int, int]:
    from ckpt.objects.planning import WriteOptions
    from ckpt.objects.reader import StoredCheckpoint
    from ckpt.objects.sinks.stores import open_sink
    from ckpt.objects.writer import WriteLimits, write_checkpoint

    url = arguments.destination
    sink = open_sink(url if "://" in url else f"file://{Path(url).absolute()}")
    options = WriteOptions(portable=arguments.portable_dtypes)
    marker = write_checkpoint(sink, source, options, WriteLimits())
    written = StoredCheckpoint.open(sink, *marker.header.key)
    written.close()
    if written.manifest.portable != options.portable:
        how = "without" if options.portable else "with"
        raise Refused(
            f"{written.url} is there already, begun {how} --portable-dtypes",
            hint="name another place, or delete it first",
        )
    return len(written.tensors()), written.manifest.stored_bytes
