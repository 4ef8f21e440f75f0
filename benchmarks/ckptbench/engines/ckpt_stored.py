"""`ioengine=ckpt` with an object store beside the tier: `ckpt fetch`, and a load from there."""

from __future__ import annotations

from ckpt.base.ids import Rank, check_run_name, check_step
from ckpt.objects.reader import StoredCheckpoint, open_stored
from ckpt.objects.sinks.stores import open_sink
from ckpt_client.load.reading import load_tree
from ckpt_client.load.stored_reading import StoredReading
from ckpt_client.save.again import save_again
from ckptbench.engines.base import LoadedState
from ckptbench.engines.ckpt import TIMEOUT_S, CkptEngine, filled, wanted
from ckptbench.workload import rank_boxes


class StoringCkptEngine(CkptEngine):
    """See Storing. My place in the object store is `settings["durable"]`."""

    def fetch(self, step: int) -> None:
        stored = self._open_stored(step)
        try:
            for save in save_again(stored, self.store):
                save.wait(TIMEOUT_S)
        finally:
            stored.close()

    def load_stored(self, step: int, rank: int) -> LoadedState:
        plan, reading = self.plan, StoredReading(self._open_stored(step))
        like = wanted(rank_boxes(plan.state, rank))
        try:
            tree = load_tree(reading, Rank(rank), plan.world_size, like)
        finally:
            reading.close()
        return LoadedState(filled(tree), "object store")

    def _open_stored(self, step: int) -> StoredCheckpoint:
        run = check_run_name(self.plan.run)
        return open_stored(open_sink(self.plan.settings["durable"]), run, check_step(step))
