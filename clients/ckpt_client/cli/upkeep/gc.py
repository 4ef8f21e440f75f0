"""Remove what nobody will ever read from an object store.

--multipart ends uploads that were begun and never completed: a writer that was killed leaves
them, and stores bill for them. Younger ones than --older-than are left alone: they may still be
under way. Without --yes nothing is removed, only shown.
"""

from __future__ import annotations

import argparse
import time

from ckpt.base.errors import Refused
from ckpt.base.units import format_seconds
from ckpt.objects.sinks.stores import open_sink
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output, counted

EXAMPLE = "ckpt gc --multipart s3://bucket/runs --yes"
OLDER_THAN_S = 86_400.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the object store, or a part of it")
    parser.add_argument("--multipart", action="store_true", help="uploads that never ended")
    parser.add_argument(
        "--older-than",
        type=float,
        default=OLDER_THAN_S,
        metavar="SECONDS",
        help=f"since their beginning [{OLDER_THAN_S:g}]",
    )
    parser.add_argument("--yes", action="store_true", help="remove them")


def run(arguments: argparse.Namespace, output: Output) -> int:
    if not arguments.multipart:
        raise Refused("say what shall be removed", hint="add --multipart")
    sink = open_sink(arguments.url)
    now_s = time.time()
    found = [
        upload
        for upload in sink.pending_uploads("")
        if now_s - upload.begun_s >= arguments.older_than
    ]
    if arguments.yes:
        for upload in found:
            sink.abort_upload(upload)
    output.document(
        {
            "url": arguments.url,
            "removed": arguments.yes,
            "uploads": [{"key": u.key, "upload": u.upload, "begun_at_s": u.begun_s} for u in found],
        }
    )
    for upload in found:
        output.line(f"{upload.key}  begun {format_seconds(now_s - upload.begun_s)} ago")
    what = counted(len(found), "upload")
    output.line(f"{what} ended" if arguments.yes else f"{what} would be ended; add --yes")
    return ExitCode.OK
