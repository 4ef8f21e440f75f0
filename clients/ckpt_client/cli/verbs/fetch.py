"""Bring a checkpoint back from an object store into the cluster, before the ranks start again.

RUN@STEP is looked for in $CKPT_DURABLE and in the stores that this cluster drains to; a URL names
the store. A step that is lost in the tier is replaced, one that can be read there stays.

Every rank's tree is read from the store, verified, and saved as that rank of a new launch; when
all are committed, RUN@STEP is in the tier as its ranks left it. One rank's tree is in memory at a
time, and the staging memory holds all of them until the commit. A launch that is still saving this
run is fenced: fetch when it has ended.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import suppress

from ckpt.base.errors import Busy, NotFound
from ckpt.base.units import format_seconds
from ckpt.objects.reader import StoredCheckpoint, open_stored
from ckpt.objects.sinks.stores import open_sink
from ckpt_client.cli.cluster import Conversation, conversation, parse_checkpoint
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output, counted
from ckpt_client.load.from_store import open_url
from ckpt_client.save.again import save_again
from ckpt_client.store import open as open_store

EXAMPLE = "ckpt fetch llama/7b@12500"
COMMIT_TIMEOUT_S = 3600.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint",
        metavar="RUN@STEP",
        help="which one, or its URL STORE/RUN@STEP: there the newest without @STEP",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    begun_s = time.monotonic()
    with conversation(arguments, output) as talk:
        stored = _opened(arguments.checkpoint, talk)
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
                for save in save_again(stored, store):
                    save.wait(COMMIT_TIMEOUT_S)
    finally:
        stored.close()
    seconds = time.monotonic() - begun_s
    document = {"run": name, "step": step, "ranks": header.world_size, "fetched": not held}
    output.document(document)
    ranks = counted(header.world_size, "rank")
    output.line(f"{name}@{step} of {ranks} is in the tier, after {format_seconds(seconds)}")
    return ExitCode.OK


def _opened(text: str, talk: Conversation) -> StoredCheckpoint:
    """Raises NotFound when no store has it, Refused, Corrupt, Unavailable."""
    if "://" in text:
        return open_url(text)
    run_name, step = parse_checkpoint(text)
    stores = [os.environ.get("CKPT_DURABLE", ""), *(store.url for store in talk.status().stores)]
    for url in filter(None, dict.fromkeys(stores)):
        with suppress(NotFound):
            return open_stored(open_sink(url), run_name, step)
    named = ", ".join(filter(None, stores)) or "no object store is known here"
    raise NotFound(f"{text} is in no object store: {named}", hint="ckpt fetch URL/RUN@STEP")
