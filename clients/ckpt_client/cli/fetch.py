"""Bring a checkpoint back from an object store into the cluster, before the ranks start again.

Every rank's tree is read from the store, verified, and saved as that rank of a new launch; when
all are committed, RUN@STEP is in the tier as its ranks left it. One rank's tree is in memory at a
time, and the staging memory holds all of them until the commit. A launch that is still saving this
run is fenced: fetch when it has ended.
"""

from __future__ import annotations

import argparse
import time

from ckpt.base.errors import Busy
from ckpt.base.units import format_seconds
from ckpt_client.cli.cluster import conversation
from ckpt_client.cli.exits import Exit
from ckpt_client.cli.output import Output, counted
from ckpt_client.store import open as open_store
from ckpt_client.stored import declared_tree, open_url

EXAMPLE = "ckpt fetch s3://bucket/runs/llama@12500"
COMMIT_TIMEOUT_S = 3600.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="STORE/RUN@STEP; the newest without @STEP")


def run(arguments: argparse.Namespace, output: Output) -> int:
    begun_s = time.monotonic()
    stored = open_url(arguments.url)
    try:
        header = stored.header
        name, step, _ = header.key
        with conversation(arguments, output) as talk:
            under_way = [one for one in talk.status().attempts if one.run == name]
            held = [one for one in talk.steps(name) if one.step == step and one.readable]
        if under_way:
            raise Busy(f"{name} is being saved at this moment", hint="fetch when it has ended")
        if held:
            output.note(f"{name}@{step} is in the tier already")
        else:
            with (
                output.waiting(f"fetching {name}@{step}"),
                open_store(arguments.store, launch=f"fetch {header} at {time.time_ns()}") as store,
            ):
                saves = [
                    store.save(
                        name,
                        step,
                        declared_tree(stored, rank),
                        rank=rank,
                        world_size=header.world_size,
                    )
                    for rank in sorted(stored.trees())
                ]
                for save in saves:
                    save.wait(COMMIT_TIMEOUT_S)
    finally:
        stored.close()
    seconds = time.monotonic() - begun_s
    document = {"run": name, "step": step, "ranks": header.world_size, "fetched": not held}
    output.document(document)
    ranks = counted(header.world_size, "rank")
    output.line(f"{name}@{step} of {ranks} is in the tier, after {format_seconds(seconds)}")
    return Exit.OK
