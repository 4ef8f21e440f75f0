"""`CkptStager`: DCP's AsyncStager whose staging memory is the store's arena, so bytes move once.

    writer = CkptWriter(f"{url}/{step}")
    response = dcp.async_save(state, storage_writer=writer, async_stager=CkptStager(writer))

`stage` copies the whole state into the arena and hands it to the stager process; what DCP's thread
plans afterwards names the same tensors, and copies nothing. For THREAD mode: torch copies a state
dict for DCP's own process, whatever the stager did.
"""

from __future__ import annotations

import io
import time
from concurrent.futures import Future

import torch
import torch.distributed as dist
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from ckpt.aio.threads import run_beside
from ckpt.base.errors import Refused
from ckpt.format.tree import Key, SequenceIndex, below
from ckpt_client.save.staged import Staged, staged_already
from ckpt_torch.boxes import is_tensor
from ckpt_torch.dcp_names import MARK_VERSION, Tree, pack_pickle, pack_value, put
from ckpt_torch.dcp_writer import CkptWriter
from ckpt_torch.place import find_who
from ckpt_torch.saving import refusing_together, stage
from ckpt_torch.tree import MARK_KEY, check_depth, not_pickled

StateDict = dict[str, object]


class CkptStager:
    """I copy a state for one writer. The writer's path must be known before the save begins.

    process_group: the group in which ranks talk while they stage, in the caller's thread: any group
        of the save's ranks that no other thread uses meanwhile. None is the default group.
    staging: `overlap` as in `ckpt_torch.async_save`: `stage` returns before the state is copied;
        `synchronize_staging`, or the future, says when it is. `ckpt_torch.guard()` waits by itself.
    """

    _synchronize_after_execute = False

    def __init__(
        self,
        writer: CkptWriter,
        *,
        process_group: dist.ProcessGroup | None = None,
        staging: str = "copy",
    ) -> None:
        self._writer = writer
        self._group = process_group
        self._staging = staging
        #: Of the last save.
        self._staged = staged_already()

    @property
    def should_synchronize_after_execute(self) -> bool:
        """False: the future of `stage` says when the state may be changed."""
        return self._synchronize_after_execute

    def stage(self, state_dict: StateDict) -> Future[StateDict]:
        """Copy the state. You may change it once the future is done: on return, unless staging is
        `overlap`.

        The dict that the future gives is for planning only: its tensors are the caller's own.
        Raises Refused, with its path, for what cannot be stored, on all ranks.
        """
        begun_s = time.monotonic()
        who = find_who(self._group, no_dist=False)
        with refusing_together(None, who):
            step = self._writer.step_to_save()
            turn = step.turn(who.rank, who.world_size, begun_s)
        with refusing_together(turn, who):
            nested = _nested(state_dict, self._writer.allow_pickle)
        state = {str(key): child for key, child in nested.items()}
        staged_save = stage(
            turn, step.store, state, who,
            check_finite=self._writer.check_finite, metrics=self._writer.metrics,
            staging=self._staging, planned=True,
        )  # fmt: skip
        self._writer.adopt(staged_save)
        self._staged = staged_save.staged
        return _done_after(self._staged, state_dict)

    def synchronize_staging(self) -> None:
        """Wait until the state may be changed."""
        self._staged.wait()

    def close(self) -> None:
        """Does nothing: the arena belongs to the store."""


def _done_after(staged: Staged, state_dict: StateDict) -> Future[StateDict]:
    """DCP plans the dict once it is done; what ended the staging is the save's to raise."""
    future: Future[StateDict] = Future()

    def wait() -> None:
        staged.wait()
        future.set_result(state_dict)

    if staged.done:
        wait()
    else:
        run_beside(wait)
    return future


def _nested(state_dict: StateDict, allow_pickle: bool) -> Tree:
    """The state under the names that DCP's own planner gives."""
    check_depth(state_dict, naming=_below)
    flat, paths = flatten_state_dict(state_dict)
    tree: Tree = {MARK_KEY: MARK_VERSION}
    for fqn, leaf in flat.items():
        put(tree, paths[fqn], leaf if is_tensor(leaf) else _packed(fqn, leaf, allow_pickle))
    return tree


def _below(name: str, step: Key | SequenceIndex) -> str:
    """DCP takes any key, as text."""
    return below(name, step if isinstance(step, SequenceIndex) else str(step))


def _packed(fqn: str, leaf: object, allow_pickle: bool) -> object:
    stream = io.BytesIO()
    try:
        torch.save(leaf, stream)
    except Exception as error:  # Whatever its own `__reduce__` raises.
        why = not_pickled(leaf, error)
        raise Refused(f"{fqn}: {why.message}", hint=why.hint) from None
    packed = pack_value(stream)
    if packed is not None:
        return packed
    if not allow_pickle:
        raise Refused(f"{fqn}: not plain data", hint="allow_pickle keeps it as a pickle")
    return pack_pickle(stream)
