"""Committed steps as directories: which there are, what files they have, and ranges of those.

A generation never changes, so its list of files is fetched once, and holds nothing. A step that is
read stays resolved and pinned while a file of it is open and HELD_S longer: files that are opened
one after another come from one generation, and nobody's retention is held up by who has read once.
Each costs a session and its thread, so of those that nobody has open the last few are kept.

Where the environment says which rank of which launch this is, all ranks of the launch read one
generation of a step (decision 0017).
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from ckpt.base.errors import Lost, NotFound
from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.format.members import NO_LAUNCH, entry_name, name_of_entry
from ckpt.protocol.coordinator.reading.answers import FilesView
from ckpt_client.connection import Connection
from ckpt_client.load.checkpoint import Checkpoint, resolve
from ckpt_client.load.contents import Contents, Want

HELD_S: Final = 30.0
IDLE_MAX: Final = 8
"""Steps that stay held while none of their files is open."""
SWEEP_S: Final = 5.0
LISTS_MAX: Final = 1024
RESOLVE_TIMEOUT_S: Final = 30.0
_views: Final = msgspec.json.Decoder(list[FilesView])

Key = tuple[RunName, Step]


@dataclass(slots=True, eq=False)
class _Held:
    """A resolved step. Its checkpoint is one thread's at a time."""

    checkpoint: Checkpoint
    names: Mapping[str, int]
    id: CheckpointId
    """Of which the names are, and every byte that is given."""
    users: int = 0
    idle_since_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class HeldStep:
    """One user's hold on a generation. Close me."""

    def __init__(self, held: _Held, released: deque[_Held]) -> None:
        self.names = held.names
        """name -> length of each file."""
        self._held: _Held | None = held
        self._released = released

    def read(self, name: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of a file, verified. Raises NotFound, Unavailable, Lost."""
        array = np.empty(end - start, np.uint8)
        self.read_into(name, start, array.data)
        return array.tobytes()

    def read_into(self, name: str, start: int, target: memoryview) -> None:
        """Fill writable bytes with those of a file from `start` on. Raises as `read`."""
        held = self._held
        assert held is not None, "not after close"
        if not target.nbytes:
            return
        want = Want(entry_name(name), np.frombuffer(target, np.uint8), (start,))

        def fill(contents: Contents) -> None:
            contents.fill([want])

        with held.lock:
            held.checkpoint.read(fill)
            found = held.checkpoint.info.checkpoint
        if found != held.id:
            raise Lost(
                f"{held.id} is not to be had any more, and {found} is another: a file that was "
                f"open would be {name} of both",
                hint="open it again",
            )

    def close(self) -> None:
        """Idempotent. Takes no lock: files are closed by finalizers too, in any thread."""
        held, self._held = self._held, None
        if held is not None:
            self._released.append(held)


class Steps:
    """I am thread safe. Close me."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        #: Guards all that follows, except that a user who is done adds to `_released` without it.
        self._lock = threading.Lock()
        #: The generation of each step that was resolved last.
        self._held: dict[Key, _Held] = {}
        #: Older generations that may still have users; `_sweep` closes those without.
        self._replaced: list[_Held] = []
        #: One entry for each user that is done, until `_sweep` counts it.
        self._released: deque[_Held] = deque()
        #: Sweeps while anything is held; None otherwise.
        self._sweeper: threading.Thread | None = None
        self._closing = threading.Event()
        #: name -> length, by generation; least recently used first, at most LISTS_MAX.
        self._lists: OrderedDict[tuple[RunName, Step, str], Mapping[str, int]] = OrderedDict()

    # ----------------------------------------------------------------------- looking

    def below(self, path: str) -> list[FilesView]:
        """Newest generations of all steps of files, of the run of that name and those below it."""
        self._connection.ensure_answers()
        return _views.decode(self._connection.control.ask("files", RunName(path) if path else None))

    def newest(self, run: RunName, step: Step) -> FilesView | None:
        """The step's newest generation, if it is one of files."""
        for view in self.below(run):
            if (view.run, view.step) == (run, step):
                return view
        return None

    def files(self, view: FilesView) -> Mapping[str, int]:
        """name -> length of a generation's files, or of a newer one that replaced it meanwhile;
        empty when the step is gone, or in a store alone that nobody has named here.
        """
        run, step = RunName(view.run), Step(view.step)
        key = (run, step, view.generation)
        with self._lock:
            known = self._lists.get(key)
            if known is not None:
                self._lists.move_to_end(key)
                return known
            held = self._held.get((run, step))
            if held is not None and str(held.id.generation) == view.generation:
                return held.names
        try:
            checkpoint, names = self._resolve(run, step)
        except (NotFound, Lost):
            return {}
        checkpoint.close()
        return names

    # ----------------------------------------------------------------------- reading

    def hold(self, run: RunName, step: Step, wanted: Generation | None) -> HeldStep:
        """The step, resolved. `wanted` None takes the generation that is held already, if any;
        else one that is held is only good if it is that one. Raises NotFound, Unavailable, Lost.
        """
        key = (run, step)
        with self._lock:
            held = self._held.get(key)
            if held is not None and wanted in (None, held.id.generation):
                return self._use(held)
        checkpoint, names = self._resolve(run, step)
        with self._lock:
            held = self._held.get(key)
            if held is not None and held.id == checkpoint.info.checkpoint:
                checkpoint.close()  # The ranks of our launch read on in what we hold.
                return self._use(held)
            self._replace(key)
            held = self._held[key] = _Held(checkpoint, names, checkpoint.info.checkpoint)
            hold = self._use(held)
            self._sweep()
            return hold

    def forget(self, run: RunName, step: Step) -> None:
        """The step was deleted here: do not hold what nobody else may read any more."""
        with self._lock:
            self._replace((run, step))
            self._sweep()

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            for held in (*self._held.values(), *self._replaced):
                held.checkpoint.close()
            self._held.clear()
            self._replaced.clear()

    def _resolve(self, run: RunName, step: Step) -> tuple[Checkpoint, Mapping[str, int]]:
        """The newest generation, or the one that ranks of our launch read, pinned until it is
        closed, and its list."""
        self._connection.ensure_answers()
        place, joined = self._connection.launch_by_environment(run)
        checkpoint = resolve(
            self._connection.reader(os.environ.get("CKPT_DURABLE", "")), run, step, rank=place.rank, world_size=place.world_size,
            joined=joined, timeout_s=RESOLVE_TIMEOUT_S, together=False,
        )  # fmt: skip
        try:
            if checkpoint.info.launch != NO_LAUNCH:
                raise NotFound(f"{run}@{step} is a checkpoint of ranks, not of files")
            names = checkpoint.read(_names)
        except BaseException:
            checkpoint.close()
            raise
        with self._lock:
            self._lists[(run, step, str(checkpoint.generation))] = names
            while len(self._lists) > LISTS_MAX:
                self._lists.popitem(last=False)
        return checkpoint, names

    # ----------------------------------------------------------------------- inside, under the lock

    def _use(self, held: _Held) -> HeldStep:
        held.users += 1
        if self._sweeper is None and not self._closing.is_set():
            self._sweeper = threading.Thread(
                target=self._sweep_until_idle, name="ckpt-held", daemon=True
            )
            try:
                self._sweeper.start()
            except RuntimeError:  # The system has no thread left: whoever reads next starts it.
                self._sweeper = None
        return HeldStep(held, self._released)

    def _replace(self, key: Key) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._replaced.append(held)

    def _sweep(self) -> None:
        """Let go of what nobody uses: replaced ones at once, others after HELD_S."""
        now = time.monotonic()
        while self._released:
            held = self._released.popleft()
            held.users -= 1
            held.idle_since_s = now
        for held in [held for held in self._replaced if not held.users]:
            self._replaced.remove(held)
            held.checkpoint.close()
        idle = sorted(
            (key for key, held in self._held.items() if not held.users),
            key=lambda key: self._held[key].idle_since_s,
        )
        surplus = len(idle) - IDLE_MAX
        for place, key in enumerate(idle):
            if place < surplus or now - self._held[key].idle_since_s >= HELD_S:
                self._held.pop(key).checkpoint.close()

    def _sweep_until_idle(self) -> None:
        """A thread's life: as long as something is held."""
        while not self._closing.wait(SWEEP_S):
            with self._lock:
                self._sweep()
                if not self._held and not self._replaced:
                    self._sweeper = None
                    return


def _names(contents: Contents) -> dict[str, int]:
    return {name_of_entry(one.name): one.global_shape[0] for one in contents.tensors()}
