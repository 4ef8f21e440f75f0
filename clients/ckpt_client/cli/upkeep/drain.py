"""Forget an object store that is gone for good, so that nothing waits for it any more.

forget URL   nothing is drained to URL any more: retention and eviction no longer wait for it.
             What lies there stays. Refused while a `ckptd drain` serves it.

How far each store is: ckpt status.
"""

from __future__ import annotations

import argparse

from ckpt_client.cli.cluster import conversation
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output

EXAMPLE = "ckpt drain forget s3://bucket/runs"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("forget",), help="what to do")
    parser.add_argument("url", metavar="URL", help="the object store, as ckpt status names it")


def run(arguments: argparse.Namespace, output: Output) -> int:
    with conversation(arguments, output) as talk:
        talk.forget_store(arguments.url)
    output.document({"url": arguments.url, "forgotten": True})
    output.line(f"nothing is drained to {arguments.url} any more; what lies there stays")
    return ExitCode.OK
