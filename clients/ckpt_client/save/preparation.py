"""Ahead of a rank's first save, and beside its training: what that save would wait for.

    prepare(state) ──laid out──> a thread: stager up ──> both halves there, mapped, locked ──> done
        save(state), at any moment: takes what is there, and waits for no more than it needs

No other process sees anything of it: no attempt begins, and no rank is asked.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future

from ckpt.aio.threads import run_beside
from ckpt_client.environment import RankPlace
from ckpt_client.save.copying import NUMPY, Copier
from ckpt_client.save.links.stagers import Stagers
from ckpt_client.save.packing import PackingPlan

_log = logging.getLogger("ckpt.save")


class Preparation:
    """I prepare one rank for its saves. For adapters; `Store.preparation` makes me."""

    def __init__(self, stagers: Stagers, place: RankPlace) -> None:
        self._stagers = stagers
        self._place = place

    def lay_out(
        self, state: object, *, replicated: bool = False, keep_form: bool = True
    ) -> PackingPlan:
        """As `SaveTurn.lay_out`; the next save of such a state finds it laid out."""
        return self._stagers.pack(state, self._place, replicated=replicated, keep_form=keep_form)

    def begin(self, packing: PackingPlan, copier: Copier = NUMPY) -> Future[None]:
        """For saves like this one, whose arrays nobody reads. See `Store.prepare`."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()

        def prepare() -> None:
            try:
                self._stagers.prepare(self._place, packing, copier)
            except BaseException as error:
                _log.warning("rank %s is not prepared for its saves: %s", self._place.rank, error)
                future.set_exception(error)
            else:
                future.set_result(None)

        run_beside(prepare)
        return future
