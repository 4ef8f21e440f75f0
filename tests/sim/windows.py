"""Windows: the moments between two durable steps of a node, where a strike can be aimed.

A step is something that outlives the process: a write, a sync, a rename, a removal, a transaction
of the catalog; and, behind them, the word that tells of it. Each is named by what it is of and by
what it is, and follows on the step whose completion caused it:

    target       fragment -> trailer -> header -> length -> sync -> rename -> directory -> told
    coordinator  asked -> durable -> told -> later

`asked` stands before the first one, `later` behind the word when it has arrived. A window is passed
when the second step is about to happen; whoever is struck there has done the first and not the
second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ckpt.base.limits import PAGE_BYTES
from ckpt.format.messages import Message
from ckpt.format.messages.targets import (
    DocumentStored,
    DropColumn,
    DropGeneration,
    Dropped,
    PutDocument,
)
from ckpt.format.messages.writing import ColumnSealed
from ckpt.protocol.coordinator.catalog import CatalogReached, Persist
from ckpt.protocol.events import Received
from ckpt.protocol.target.disk_events import (
    DiskAction,
    DiskDone,
    RemoveFile,
    RenameFile,
    SyncDirectory,
    SyncFile,
    TruncateFile,
    WriteAt,
)
from ckpt.protocol.target.machine import TargetEvent
from tests.sim.network import Network, Node

ASKED, TOLD, LATER = "asked", "told", "later"
COLUMN, DROP, TERM, NOTE = "column", "drop", "term", "note"
DOCUMENTS = ("index", "record", "labels", "tombstone")
TELLS: dict[type[Message], tuple[str, ...]] = {
    ColumnSealed: (COLUMN,), DocumentStored: DOCUMENTS, Dropped: (DROP,),
}  # fmt: skip
"""What a target says when a step of this kind has happened."""
SILENT = frozenset({TERM, NOTE})
"""Nobody is told of these: the target goes on by itself."""


class Window(NamedTuple):
    """Between two steps of one thing."""

    of: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.of}: {self.before} -> {self.after}"


@dataclass(slots=True, eq=False)
class Aim:
    """Strike when this window is passed for the `passes`-th time from now, whichever node it is."""

    window: Window
    passes: int
    strike: Callable[[Node], bool]
    """Says whether it found somebody; else it waits for the next time."""
    struck: bool = False


class Windows:
    """I am told of every window of a world, and strike in those that somebody aims at."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._aims: list[Aim] = []

    def aim(self, aim: Aim) -> None:
        self._aims.append(aim)

    def clear(self) -> None:
        """Nobody aims any more."""
        self._aims.clear()

    def passed(self, window: Window, node: Node) -> bool:
        """The second step is about to happen; True when the node was struck down and must not."""
        for aim in [each for each in self._aims if each.window == window]:
            aim.passes -= 1
            if aim.passes <= 0 and aim.strike(node):
                aim.struck = True
                self._aims.remove(aim)
        return not node.up

    def told(self, of: str, node: Node) -> None:
        """A word has left; the last window is passed when it has arrived."""
        if not self._aims:
            return
        network, weather = self._network, self._network.weather
        arrived_us = weather.latency_us + weather.jitter_us + 1
        born = network.incarnation(node)

        def later() -> None:
            if node.up and network.incarnation(node) == born:
                self.passed(Window(of, TOLD, LATER), node)

        network.clock.after(arrived_us, later)


def kind_of(persist: Persist) -> str:
    """What a transaction of the catalog is of: its first entry, besides the note of how far it
    came.
    """
    names = (type(entry).__name__ for entry in persist.entries if type(entry) is not CatalogReached)
    return next(names, CatalogReached.__name__)


class TargetSteps:
    """I name the durable steps of one boot of a target."""

    __slots__ = ("_document_of", "_windows")

    def __init__(self) -> None:
        #: Disk operation -> the window that ends with it.
        self._windows: dict[int, Window] = {}
        #: Aside file -> which document it becomes.
        self._document_of: dict[str, str] = {}

    def issued(self, action: DiskAction, cause: TargetEvent) -> None:
        """The machine wants this done next."""
        named = self._named(action, cause)
        if named is not None:
            of, step = named
            known = self._caused_by(cause)
            before = known.after if known is not None and known.of == of else ASKED
            self._windows[action.op] = Window(of, before, step)

    def of(self, op: int) -> Window | None:
        """What is passed when this operation is done; None of what is nobody's step."""
        return self._windows.get(op)

    def behind(self, op: int) -> Window | None:
        """What is passed when it is done, where nobody is told of it."""
        done = self._windows.get(op)
        if done is None or done.of not in SILENT or done.after != "directory":
            return None
        return Window(done.of, done.after, LATER)

    def telling(self, message: Message, cause: TargetEvent) -> Window | None:
        """What is passed when this is said because of that; None of what tells of no step."""
        known = self._caused_by(cause)
        if known is None or known.of not in TELLS[type(message)]:
            return None
        return Window(known.of, known.after, TOLD)

    def _caused_by(self, cause: TargetEvent) -> Window | None:
        return self._windows.get(cause.op) if type(cause) is DiskDone else None

    def _named(self, action: DiskAction, cause: TargetEvent) -> tuple[str, str] | None:
        match action:
            case RemoveFile(file=file):
                dropped = file.startswith(("columns/", "documents/"))
                return (DROP, "removed") if dropped and self._is_drop(cause) else None
            case SyncDirectory(directory=directory):
                known = self._caused_by(cause)
                if known is None:
                    return None
                return known.of, directory if known.of == DROP else "directory"
            case RenameFile(old=file):
                step = "rename"
            case SyncFile(file=file):
                step = "sync"
            case TruncateFile(file=file):
                step = "length"
            case WriteAt(file=file):
                if type(cause) is Received and type(cause.message) is PutDocument:
                    self._document_of[file] = cause.message.kind.value
                step = self._write(action, cause)
            case _:
                return None
        of = self._of_file(file)
        return None if of is None else (of, step)

    def _is_drop(self, cause: TargetEvent) -> bool:
        """A drop may have waited for a seal, and goes on when that has ended."""
        if type(cause) is Received:
            return type(cause.message) in (DropGeneration, DropColumn)
        return type(cause) is DiskDone

    def _write(self, action: WriteAt, cause: TargetEvent) -> str:
        if action.file.startswith("staging/reservation-"):
            if action.keeps_bulk:
                return "fragment"
            return "trailer" if action.offset else "header"
        if type(cause) is Received or len(action.data) != PAGE_BYTES:
            return "write"
        return "last page" if action.offset else "first page"

    def _of_file(self, file: str) -> str | None:
        folder, _, name = file.partition("/")
        kind = name.partition("-")[0] if folder == "staging" else ""
        kinds = {"reservation": COLUMN, "term": TERM, "catalog": NOTE}
        return self._document_of.get(file) if kind == "document" else kinds.get(kind)
