"""Wait until an object store has all that is saved, or forget a store that is gone for good.

wait [URL]   until what is committed or being saved now is drained to URL, or to every object store.
             What is saved later is not waited for. For the end of a job, before its machines go.
             Exit code 75: a store cannot be opened, or no `ckptd drain` has served it for a minute.
forget URL   nothing is drained to URL any more: retention and eviction no longer wait for it.
             What lies there stays. Refused while a `ckptd drain` serves it.

How far each store is: ckpt status.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Final

from ckpt.base.errors import NotFound, Refused, Unavailable
from ckpt.base.shell_words import quoted
from ckpt.base.units import counted, format_bytes, format_seconds
from ckpt.protocol.coordinator.reading.answers import StatusView, StoreStatus
from ckpt_client.cli.cluster import conversation
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output
from ckpt_client.cli.upkeep.waiting import LOOK_S, RECORD_S

EXAMPLE = "ckpt drain wait\nckpt drain wait s3://bucket/runs\nckpt drain forget s3://bucket/runs"
UNSERVED_S: Final = 60.0
"""A worker that starts again takes less."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("wait", "forget"), help="what to do")
    parser.add_argument(
        "url", metavar="URL", nargs="?", help="the object store, as ckpt status names it"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.action == "wait":
        return _wait(arguments, output)
    if arguments.url is None:
        raise Refused("no object store is named", hint="ckpt drain forget s3://bucket/runs")
    with conversation(arguments, output) as talk:
        talk.forget_store(arguments.url)
    output.document({"url": arguments.url, "forgotten": True})
    output.line(f"nothing is drained to {arguments.url} any more; what lies there stays")
    return ExitCode.OK


def _wait(arguments: argparse.Namespace, output: Output) -> int:
    """Ctrl-C ends the waiting, not the drain."""
    begun_s = time.monotonic()
    with conversation(arguments, output) as talk:
        view = talk.status()
        stores, awaited = _stores(view, arguments.url), Awaited(view)
        with output.waiting("draining", lambda: _text(stores)):
            said_s = time.monotonic()
            while awaited.is_left(view, stores):
                if time.monotonic() - said_s >= RECORD_S:
                    said_s = time.monotonic()
                    output.record("progress", {"stores": stores})
                time.sleep(LOOK_S)
                view = talk.status()
                stores = _stores(view, arguments.url)
    output.record("summary", {"stores": stores, "took_s": time.monotonic() - begun_s})
    for store in stores:
        last = f", {store.last} as the last" if store.last else ""
        output.line(f"{store.url} has all that was saved{last}")
    return ExitCode.OK


class Awaited:
    """I know what is waited for: what was committed, or being saved, at the first look."""

    def __init__(self, view: StatusView) -> None:
        self._saving = _saves(view)
        #: When the last of it was committed, by the coordinator's clock, as the times that it is
        #: compared with; None while some of it is being saved.
        self._last_s: float | None = None

    def is_left(self, view: StatusView, stores: Sequence[StoreStatus]) -> bool:
        """Whether a store still needs some of it. Raises Unavailable where nobody brings it."""
        if self._last_s is None:
            if self._saving & _saves(view):
                return True
            self._last_s = max((run.committed_at_s for run in view.runs), default=0.0)
        return still_need(stores, self._last_s)


def _saves(view: StatusView) -> set[tuple[str, int, str]]:
    """Those under way."""
    return {(one.run, one.step, one.generation) for one in view.attempts}


def _stores(view: StatusView, url: str | None) -> list[StoreStatus]:
    """Those that are meant. Raises NotFound."""
    found = [store for store in view.stores if url in (None, store.url)]
    if not found:
        known = ", ".join(store.url for store in view.stores)
        what = "no object store is known" if url is None else f"object store {url} is not known"
        hint = (
            f"known are {known}" if known else "start a worker: ckptd drain --to s3://bucket/runs"
        )
        raise NotFound(what, hint=hint)
    return found


def still_need(stores: Sequence[StoreStatus], last_s: float) -> bool:
    """Whether one still needs something that was committed by then (Unix time). Raises Unavailable
    where nobody brings it.
    """
    for store in stores:
        if store.state == "unreached":
            raise Unavailable(f"{store.url} cannot be opened: {store.error}")
        if store.backlog and store.oldest_undrained_at_s <= last_s:
            if not store.workers and store.unserved_s >= UNSERVED_S:
                text = f"{_left(store)} for {store.url}, and no worker serves it"
                raise Unavailable(text, hint=f"start one: ckptd drain --to {quoted(store.url)}")
            return True
    return False


def _left(store: StoreStatus) -> str:
    return f"{counted(store.backlog, 'checkpoint')} ({format_bytes(store.backlog_bytes)}) left"


def _text(stores: Sequence[StoreStatus]) -> str:
    """How far they are, for whoever waits."""
    texts = []
    for store in stores:
        if store.backlog:
            ends = f", about {format_seconds(store.end_in_s)}" if store.end_in_s else ""
            error = f"; {store.error}" if store.error else ""
            texts.append(f"{_left(store)} for {store.url}{ends}{error}")
    return "; ".join(texts)
