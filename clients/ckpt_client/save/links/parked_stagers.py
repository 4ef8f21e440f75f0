"""A rank's stager: that of a store which this process has closed, else a new one.

    Store.close ──park──> on the line: a restart may read its memory, and it goes when idle
    Store.save <──find_stager── the same process, its arena warm

A loop that opens and closes a store for each step has one stager, not one for each step with an
arena of its own; one that has two stores open at once has two. A stager serves the same rank of the
same cluster again, when the store is opened alike.
"""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path
from typing import Final

from ckpt.aio.net.socketpath import runtime_directory
from ckpt_client.connection import Connection
from ckpt_client.environment import RankPlace, process_name
from ckpt_client.save.links.stager_link import StagerLink
from ckpt_client.settings import Settings
from ckpt_client.stager import wire
from ckpt_client.url import LocalUrl, RemoteUrl

#: Stagers that no open store uses, for all threads of this process. The one parked last comes
#: last; there are no more than stores were open at once. Some may have ended.
_parked: Final[list[StagerLink]] = []
#: Guards `_parked`.
_lock = threading.Lock()


def find_stager(connection: Connection, settings: Settings, place: RankPlace) -> StagerLink:
    """A stager at work for this rank. Raises Unavailable."""
    attach = _attach(connection, settings, place)
    while (stager := _taken(attach)) is not None:
        if stager.attach_again():
            return stager
    return StagerLink(attach, _log_file(connection.url, place))


def park(stager: StagerLink) -> None:
    """Let go of it; whoever sits there next finds it."""
    if not stager.park():
        return
    with _lock:
        closing = [known for known in _parked if not known.alive]
        _parked[:] = [known for known in _parked if known not in closing]
        _parked.append(stager)
    for known in closing:
        known.close()


def _taken(wanted: wire.Attach) -> StagerLink | None:
    """The newest that was started alike: its memory has what was saved last."""
    with _lock:
        for place in reversed(range(len(_parked))):
            if _parked[place].attach == wanted:
                return _parked.pop(place)
    return None


def _attach(connection: Connection, settings: Settings, place: RankPlace) -> wire.Attach:
    url = connection.url
    return wire.Attach(
        pid=os.getpid(),
        process=process_name(),
        rank=place.rank,
        world_size=place.world_size,
        key=settings.launch,
        directory=url.directory if isinstance(url, LocalUrl) else "",
        address=url.address if isinstance(url, RemoteUrl) else "",
        cluster=connection.cluster,
        secret_file=str(connection.secret_file.absolute()),
        arena_bytes_max=settings.arena_bytes_max,
        idle_s=settings.stager_idle_s,
    )


def _log_file(url: LocalUrl | RemoteUrl, place: RankPlace) -> Path:
    if isinstance(url, LocalUrl):
        directory = Path(url.directory) / "logs"
        directory.mkdir(mode=0o700, exist_ok=True)
    else:
        directory = runtime_directory()
    return directory / f"stager-{place.rank}.log"


def _close_parked() -> None:
    """The interpreter ends: a line that nobody closed would be warned of."""
    while _parked:
        _parked.pop().close()


def _forget_in_child() -> None:
    """A forked child has no stagers; another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _parked.clear()


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(_close_parked)
