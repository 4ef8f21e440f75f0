"""A store's stagers: one for each rank that saves through it, which is nearly always one rank."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Final

from ckpt.base.errors import CkptError, Refused
from ckpt.base.ids import RunName, Step
from ckpt.base.units import KiB, format_bytes
from ckpt.format.messages.saving import ReplicaPolicy
from ckpt_client.connection import Connection
from ckpt_client.environment import RankPlace, next_save_number
from ckpt_client.save.beside import Beside
from ckpt_client.save.copying import Copier
from ckpt_client.save.links.parked_stagers import find_stager, park
from ckpt_client.save.links.stager_link import StagerLink
from ckpt_client.save.packing import PackingPlan, PackingPlanner
from ckpt_client.save.staging import Staging
from ckpt_client.settings import Settings

LEAVE_S: Final = 10.0
"""A save that is not copied by then waits for memory, or for a stager that is stopped: it ends with
its store."""
PREPARED_MORE_BYTES: Final = 64 * KiB
"""Of staging memory, than the state that was prepared needs."""


class Stagers:
    """I lay states out, and start a rank's stager with its first save. Thread safe."""

    def __init__(self, connection: Connection, settings: Settings) -> None:
        self._connection = connection
        self._settings = settings
        self.lock = threading.RLock()
        """Guards all that follows. Hold it to copy and hand over a save ahead of other threads'."""
        self.links: dict[RankPlace, StagerLink] = {}
        self.beside = Beside()
        """Saves that are staged beside the training. What follows in time comes after them."""
        #: Of the state that was saved last, through this store.
        self._planner = PackingPlanner()
        #: From `park` on no save begins.
        self._parked = False

    def pack(
        self,
        state: object,
        place: RankPlace,
        *,
        replicated: bool = False,
        keep_form: bool = True,
    ) -> PackingPlan:
        """Take a state apart and lay it out; nothing is copied.

        keep_form: as `PackingPlanner.plan` takes it.
        Raises Refused naming the path of what cannot be stored.
        """
        policy = ReplicaPolicy(self._settings.replicas)
        packing = self._planner.plan(
            state,
            place.rank,
            place.world_size,
            policy,
            replicated=replicated,
            keep_form=keep_form,
        )
        half_bytes = packing.layout.half_bytes
        if half_bytes > self._settings.arena_bytes_max:
            raise Refused(
                f"this rank's state needs {format_bytes(half_bytes)} of staging memory, "
                f"the cap is {format_bytes(self._settings.arena_bytes_max)}",
                hint="raise arena_bytes_max",
            )
        return packing

    def prepare(self, place: RankPlace, packing: PackingPlan, copier: Copier) -> None:
        """Start that rank's stager and make its memory ready for saves like this one. Raises
        NoSpace, Unavailable, Aborted, and Refused when parked.
        """
        layout = packing.layout
        # Other values of the state, what an adapter adds to it, and other ranks' names move the
        # layout's end a little.
        half_bytes = layout.half_bytes + len(layout.declaration) + PREPARED_MORE_BYTES
        with self.lock:
            self._connection.ensure_cluster()
            link = self._link(place)
        link.prepare(min(half_bytes, self._settings.arena_bytes_max), packing, copier)

    def staging(
        self,
        run: RunName,
        step: Step,
        place: RankPlace,
        packing: PackingPlan,
        metrics: dict[str, float],
    ) -> Staging:
        """The next save of that rank, not copied yet. Raises Unavailable, Refused when parked."""
        with self.lock:
            self._connection.ensure_cluster()
            asked = time.monotonic()
            fresh = place not in self.links or not self.links[place].alive
            link = self._link(place)
            start_s = time.monotonic() - asked if fresh else 0.0
            number = next_save_number()
            return Staging(
                link, run, step, place, number, self._settings, start_s, packing, metrics
            )

    def refuse(self, run: RunName, step: Step, place: RankPlace, why: str) -> None:
        """That rank does not save the step. Raises Unavailable, Refused when parked."""
        self.beside.drain()
        with self.lock:
            self._connection.ensure_cluster()
            self._link(place).refuse(next_save_number(), run, step, why)

    def raise_unheard(self) -> None:
        """Raise the error of an earlier save that nobody has heard of, once, and warn of what
        commits have said.
        """
        with self.lock:
            for link in self.links.values():
                error = link.take_error()
                if error is not None:
                    raise error
                for save in link.take_warned():
                    save.warn()

    def last_duration_s(self, run: RunName) -> float | None:
        """How many seconds the run's last save of this process took, from its call to its commit;
        None when none is known to be committed.
        """
        with self.lock:
            known = [link.last_duration_s(run) for link in self.links.values()]
        return max((one for one in known if one is not None), default=None)

    def wait(self, deadline_s: float | None) -> int:
        """Wait until no save is under way. Returns how many still are at the deadline, a time of
        `time.monotonic`.
        """
        if not self.beside.drain(_left_s(deadline_s)):
            return 1
        late = 0
        for link in self.links.values():
            left = _left_s(deadline_s)
            # A stager's end is the end of its saves: they say so.
            with suppress(CkptError):
                if not _wait_idle(link, left):
                    late += link.pending_count
        return late

    def park(self) -> None:
        """Let go of all: they finish what was handed over, and the next store finds them."""
        self._parked = True
        # What is copied is handed over, and no accelerator copies into memory that is let go.
        if not self.beside.drain(LEAVE_S):
            for link in self.links.values():
                link.give_up()
        self.beside.close()
        while self.links:
            _, link = self.links.popitem()
            park(link)

    def _link(self, place: RankPlace) -> StagerLink:
        """The rank's stager; when there is none, or when it was killed, that of the store which
        this process closed last, else a new one.
        """
        if self._parked:
            raise Refused("this store is closed")
        known = self.links.get(place)
        if known is not None and known.alive:
            return known
        if known is not None:
            known.close()
        link = self.links[place] = find_stager(self._connection, self._settings, place)
        return link


def _left_s(deadline_s: float | None) -> float | None:
    return None if deadline_s is None else max(0.0, deadline_s - time.monotonic())


def _wait_idle(link: StagerLink, timeout_s: float | None) -> bool:
    """Until none of its saves is under way; False when time is up first."""
    return link.wait_until(lambda: link.pending_count == 0, timeout_s)
