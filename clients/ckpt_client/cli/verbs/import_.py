"""Take in weights from another program.

safetensors  a directory as Hugging Face has them, or one file
npz          numpy's archive
dcp          a directory of torch.distributed.checkpoint; needs torch, and --allow-pickle, since
             its metadata is one. Values that are no tensors are left out
zarr         a group that any Zarr writer made, by path or URL

Without --to they are saved into the cluster as RUN@STEP, by one rank: the staging memory holds all
of them for that time. With --to they go straight into an object store in the drained format, an
array at a time; `ckpt.load("URL/RUN@STEP")` reads them there. What a killed import left there is
finished by the next one of the same bytes; where others are, it is refused. The state is a flat
dict of arrays that are the same for all ranks: any number of ranks loads them, whole or in parts.

Files that somebody writes or cuts meanwhile are not taken in (11), and nothing is left of them: no
checkpoint is half old, half new. Of a Zarr group by URL nobody can see that.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

from ckpt.base.errors import Refused
from ckpt.base.ids import RunName, Step
from ckpt.base.units import counted, format_bytes, format_seconds
from ckpt.format.dtypes import dtype_of
from ckpt.format.tree import path_text
from ckpt_client.cli.cluster import parse_checkpoint
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.given import given_place
from ckpt_client.cli.output import Output
from ckpt_client.exchange.arrays import Incoming, byte_count
from ckpt_client.exchange.incoming import FORMATS, guess_format, incoming
from ckpt_client.exchange.incoming_source import IncomingSource
from ckpt_client.exchange.seen_file import ChangedMeanwhile

EXAMPLE = "ckpt import ./llama-7b llama/pretrained@0"
COMMIT_TIMEOUT_S = 3600.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "place", metavar="PLACE", type=given_place, help="a directory, a file or a Zarr URL"
    )
    parser.add_argument("checkpoint", metavar="RUN@STEP", help="what to save it as")
    parser.add_argument("--format", choices=FORMATS, help="its format [found out from PLACE]")
    parser.add_argument(
        "--allow-pickle",
        action="store_true",
        help="dcp: let torch unpickle the metadata, which may run whatever its writer put there",
    )
    parser.add_argument(
        "--to", metavar="URL", help="write to this object store instead of the cluster"
    )
    parser.add_argument(
        "--portable-dtypes", action="store_true", help="--to: bfloat16 and float8 as integers"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    run_name, step = parse_checkpoint(arguments.checkpoint)
    kind = arguments.format or guess_format(arguments.place)
    if kind == "dcp" and not arguments.allow_pickle:
        raise Refused(
            f"{arguments.place}: a DCP directory's metadata is a pickle, which may run any code",
            hint="--allow-pickle, if you trust who wrote it",
        )
    arrays = incoming(arguments.place, kind)
    begun_s = time.monotonic()
    with output.waiting(f"importing {arguments.place}"):
        if arguments.to:
            _write(arguments, IncomingSource(arrays, run_name, step, kind))
        else:
            _save(arguments, arrays, run_name, step)
    seconds = time.monotonic() - begun_s
    size = sum(map(byte_count, arrays))
    where = arguments.to or "the cluster"
    output.document(
        {
            "run": run_name,
            "step": step,
            "format": kind,
            "to": where,
            "arrays": len(arrays),
            "bytes": size,
            "took_s": seconds,
        }
    )
    output.line(
        f"imported {counted(len(arrays), 'array')}, {format_bytes(size)}, as {run_name}@{step} "
        f"into {where} in {format_seconds(seconds)}"
    )
    return ExitCode.OK


def _save(
    arguments: argparse.Namespace, arrays: Sequence[Incoming], run_name: RunName, step: Step
) -> None:
    from ckpt_client.exchange.incoming_copier import IncomingCopier
    from ckpt_client.load.contents import shape_alone
    from ckpt_client.store import open as open_store

    state = {array.name: shape_alone(array.shape, dtype_of(array.dtype)) for array in arrays}
    by_path = {path_text((array.name,)): array for array in arrays}
    with open_store(arguments.store) as store:
        turn = store.turn(run_name, step, rank=0, world_size=1)
        with turn:
            packing = turn.lay_out(state, replicated=True, keep_form=False)
            incoming_arrays = tuple([by_path[name] for name in packing.layout.names])
            turn.take(replace(packing, arrays=incoming_arrays))
        turn.stage(IncomingCopier()).wait(COMMIT_TIMEOUT_S)


def _write(arguments: argparse.Namespace, source: IncomingSource) -> None:
    from ckpt.objects.leftovers import delete_unfinished
    from ckpt.objects.planning import WriteOptions
    from ckpt.objects.sinks.stores import open_sink
    from ckpt.objects.stored_steps import stored_generations
    from ckpt.objects.writer import WriteLimits, write_checkpoint

    options = WriteOptions(portable=arguments.portable_dtypes)
    sink = open_sink(arguments.to)
    run_name, step, generation = source.header.key
    for found in stored_generations(sink, run_name):
        if found[0] == step and found[1] > generation:
            raise Refused(
                f"{arguments.to} has {run_name}@{step} of a cluster, which readers would be given",
                hint="name another step, or another store",
            )
    try:
        write_checkpoint(sink, source, options, WriteLimits())
    except ChangedMeanwhile:
        # Nobody can finish it: those bytes are gone.
        delete_unfinished(sink, run_name, step, generation)
        raise
    finally:
        source.close()
