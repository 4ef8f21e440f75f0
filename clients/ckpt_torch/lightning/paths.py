"""Lightning's paths are names of generations: given when they are committed, taken away with them.

    save(path) ──> the generation has the name; what had it before is deleted if it has no other
    link(path, to) ──> what has the name `to` has the other one too; else as above
    remove(path) ──> likewise deleted if it has no other

All of it happens in this order in a thread of its own, so that the training never waits for it.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread
from typing import Final

from ckpt.aio.threads import start_thread
from ckpt.base.errors import NotFound, Refused
from ckpt.format.documents.labels import check_name
from ckpt_client.save.handle import Commit
from ckpt_client.store import CLOSE_TIMEOUT_S, Store
from ckpt_client.warn import warn

FilePath = str | os.PathLike[str]
_Turn = tuple[Future[None], Callable[[], None]]
_STEP: Final = re.compile(r"step[=_-]?([0-9]+)")
_LAST: Final = re.compile(r"(?<![a-zA-Z])last(?![a-zA-Z])")
NAMES_SHOWN_MAX: Final = 8


def name_of(path: FilePath) -> str:
    """The name that a path is: absolute, a URL as it stands. Raises Refused for what is none."""
    return check_name(absolute(path))


def absolute(path: FilePath) -> str:
    """The same for any path."""
    text = os.fspath(path)
    return text.rstrip("/") if "://" in text else os.path.abspath(text)


def find(store: Store, run: str, path: FilePath) -> int | str | None:
    """What to load of a run for a path: a name, else the step of its number, else the newest, None.

    A path that was not saved as it stands may be the end of one that was, or a link to it. What has
    no name at all, as a trainer that was killed may leave it, is found by `step=NUMBER`; `last` is
    then the newest, and so it is when a rollback has set aside what was called so. Raises Refused
    when several end so, NotFound.
    """
    text = os.fspath(path).rstrip("/")
    last_part = text.rpartition("/")[2]
    is_last = _LAST.search(last_part) is not None
    known = store.names(run, aside=not is_last)
    for name in (name_of(text), os.path.realpath(text)):
        if name in known:
            return name
    ends = [name for name in known if name.endswith("/" + os.path.normpath(text).lstrip("./"))]
    if len(ends) == 1:
        return ends[0]
    if ends:
        shown = ", ".join(ends[:NAMES_SHOWN_MAX])
        raise Refused(f"{text} may be each of {len(ends)}", hint=f"name one whole: {shown}")
    found = _STEP.search(last_part) or re.fullmatch(r"([0-9]+)", last_part)
    if found is not None:
        return int(found[1])
    if is_last:
        return None
    shown = ", ".join(list(known)[-NAMES_SHOWN_MAX:]) or "it has none"
    raise NotFound(f"{text} is no checkpoint of run {run!r}", hint=f"its names: {shown}")


class Paths:
    """I name what is saved in a run, and remove by name, one after the other."""

    def __init__(self) -> None:
        #: What my thread does, in this order; None ends it. Made with the thread by the first use.
        self._turns: SimpleQueue[_Turn | None] | None = None
        self._pid = os.getpid()
        #: What was begun and is not known to be done, oldest first.
        self._pending: list[Future[None]] = []
        #: The steps of saves that may have no name yet, and when they have.
        self._naming: dict[int, Future[None]] = {}
        #: What a path is once the last that was begun with it is done: taken, or free.
        self._coming: dict[str, tuple[Future[None], bool]] = {}

    def __reduce__(self) -> tuple[type[Paths], tuple[()]]:
        """Who is sent to another process has done nothing there yet."""
        return Paths, ()

    def wait_named(self, step: int) -> None:
        """Wait until earlier saves of this step have their names: the next save of the step would
        replace one without a name.
        """
        naming = self._naming.get(step)
        if naming is not None:
            wait([naming])

    def is_taken(self, store: Store, run: str, path: str) -> bool:
        """Whether a save of the run has this path, or will get it. Raises Unavailable."""
        coming = self._coming.get(path)
        if coming is not None and not coming[0].done():
            return coming[1]
        return path in store.names(run)

    def name(self, store: Store, path: str, step: int, commit: Future[Commit]) -> None:
        """Name a save once it is committed. One that fails gets no name; whoever waits for it gets
        the error.
        """

        def name() -> None:
            wait([commit])
            # Not `commit.exception()`, which would say that somebody has heard of it.
            if Future.exception(commit) is None:
                saved = Future.result(commit)
                store.tag(saved.run, saved.step, path, generation=saved.generation, replace=True)

        self._naming = {one: done for one, done in self._naming.items() if not done.done()}
        self._naming[step] = self._submit(name, path, taken=True)

    def link(self, store: Store, run: str, path: str, to: str) -> None:
        """Give another path to what `to` names, once all that was begun is done."""

        def link() -> None:
            store.tag(run, store.names(run)[to], path, replace=True)

        self._submit(link, path, taken=True)

    def remove(self, store: Store, run: str, path: str) -> None:
        """Remove the path, and what it names if nothing else names it."""
        self._submit(lambda: store.untag(run, path, delete=True), path, taken=False)

    def _submit(self, work: Callable[[], None], path: str, *, taken: bool) -> Future[None]:
        if self._turns is None:
            turns: SimpleQueue[_Turn | None] = SimpleQueue()
            # A thread that is waited for would hold the process for as long as a cluster is away.
            start_thread(Thread(target=_work, args=(turns,), name="ckpt-paths", daemon=True))
            self._turns = turns
            # After the store's own, so that this one runs before it: the last one is the first.
            atexit.register(self._finish)
        self._pending = [one for one in self._pending if not (one.done() and not one.exception())]
        done: Future[None] = Future()
        self._pending.append(done)
        self._coming = {one: turn for one, turn in self._coming.items() if not turn[0].done()}
        self._coming[path] = done, taken
        self._turns.put((done, work))
        return done

    def _finish(self) -> None:
        """The interpreter ends, and nobody has waited: as long as the store waits for its saves."""
        if os.getpid() != self._pid:  # A forked child has no such thread.
            return
        late = wait(self._pending, CLOSE_TIMEOUT_S).not_done
        if late:
            warn(f"{len(late)} changes of Lightning's paths were not made: see ckpt ls")

    def wait(self) -> None:
        """Wait until all of it is done. Raises the first error."""
        while self._pending:
            wait(self._pending[:1])
            self._pending.pop(0).result()

    def close(self) -> None:
        """End the thread; call it after `wait`."""
        if self._turns is not None:
            self._turns.put(None)
            self._turns = None
            atexit.unregister(self._finish)


def _work(turns: SimpleQueue[_Turn | None]) -> None:
    while (turn := turns.get()) is not None:
        done, work = turn
        try:
            work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)
