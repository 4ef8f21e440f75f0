"""End unfinished uploads to an object store, or show which of a run's steps stay, and why.

--multipart ends uploads to the object store URL that were begun and never completed: a
writer that was killed leaves them, and stores bill for them. Younger ones than --older-than
are left alone: they may still be under way. Without --yes nothing is removed, only shown.

--dry-run alone shows of every step of RUN, or of all runs, whether it stays under the rules
that count (`ckpt keep`, else the cluster's `keep`), and why. What goes does so by itself: at
the run's next commit, or as soon as nobody reads it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.ids import check_run_name
from ckpt.base.units import counted, format_bytes, format_seconds
from ckpt.protocol.coordinator.reading.answers import RetentionView
from ckpt_client import retention
from ckpt_client.cli.cluster import conversation
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.given import given_seconds
from ckpt_client.cli.meant import no_run
from ckpt_client.cli.output import Output

EXAMPLE = "ckpt gc llama/7b --dry-run\nckpt gc --multipart s3://bucket/runs --yes"
OLDER_THAN_S: Final = 86_400.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="RUN|URL", nargs="?", help="a run; the object store, or a part of it"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="remove nothing; show what stays, and why"
    )
    parser.add_argument(
        "--multipart", action="store_true", help="end uploads that were never completed"
    )
    parser.add_argument(
        "--older-than",
        type=given_seconds,
        default=OLDER_THAN_S,
        metavar="TIME",
        help="since their beginning: 3600, 12h, 7d [1d]",
    )
    parser.add_argument("--yes", action="store_true", help="remove them")


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.yes and arguments.dry_run:
        raise Refused("--yes and --dry-run", hint="one of them")
    if arguments.multipart:
        if arguments.what is None:
            raise Refused("no object store is named", hint="ckpt gc --multipart s3://bucket/runs")
        return _end_uploads(arguments, output)
    if not arguments.dry_run:
        hint = "--dry-run shows which steps go by themselves; --multipart URL ends uploads"
        raise Refused("say what shall be removed", hint=hint)
    with conversation(arguments, output) as talk:
        known = talk.runs()
        asked = [view.run for view in known] if arguments.what is None else [arguments.what]
        wanted = [check_run_name(name) for name in asked]
        views = [retention.stays(talk.control, name) for name in wanted]
    if arguments.what is not None and not views[0].steps:
        raise no_run(arguments.what, known)
    output.document({"runs": views})
    print_verdicts(views, output)
    return ExitCode.OK


def print_verdicts(views: Sequence[RetentionView], output: Output) -> None:
    """A line for each generation, and how much goes."""
    rows = [
        (
            view.run, str(one.step), "stays" if one.stays else "goes", format_bytes(one.bytes),
            one.reason,
        )
        for view in views
        for one in view.steps
    ]  # fmt: skip
    if rows:
        output.table(("run", ">step", "", ">size", "why"), rows)
    going = [one for view in views for one in view.steps if not one.stays]
    size = format_bytes(sum(one.bytes for one in going))
    output.line(f"{counted(len(going), 'checkpoint')} to go, {size}")


def _end_uploads(arguments: argparse.Namespace, output: Output) -> int:
    from ckpt.objects.sinks.stores import open_sink

    url: str = arguments.what
    sink = open_sink(url)
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
            "url": url,
            "removed": arguments.yes,
            "uploads": [{"key": u.key, "upload": u.upload, "begun_at_s": u.begun_s} for u in found],
        }
    )
    for upload in found:
        output.line(f"{upload.key}  begun {format_seconds(now_s - upload.begun_s)} ago")
    what = counted(len(found), "upload")
    output.line(f"{what} ended" if arguments.yes else f"{what} would be ended; add --yes")
    return ExitCode.OK
