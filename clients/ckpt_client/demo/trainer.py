"""One rank of the demo: `python -m ckpt_client.demo.trainer PLAN`, a TrainerPlan in JSON.

Data parallel with a sharded optimizer (ZeRO-1): each rank computes the gradient of its part of the
batch, adds up its quarter of all gradients, moves its quarter of the parameters with its quarter of
Adam's moments, and sends the moved quarter to the others. With a store it loads the newest
checkpoint first, and saves every few steps without waiting for any of them.
"""

from __future__ import annotations

import hashlib
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

import ckpt
from ckpt.aio.collector import end_uncollected
from ckpt_client.demo.adam import AdamRates, Floats32, Moments, take_step
from ckpt_client.demo.corpus import draw_batch, read_corpus
from ckpt_client.demo.mesh import Mesh
from ckpt_client.demo.model import (
    ModelShape,
    initialize,
    loss_and_gradient,
    name_views,
)
from ckpt_client.demo.words import (
    RUN_NAME,
    Finished,
    Resumed,
    SaveHeld,
    SaveReturned,
    Started,
    StepDone,
    TrainerPlan,
    Word,
    encode_word,
)

SEQUENCES_PER_RANK: Final = 4
RATES: Final = AdamRates()


@dataclass(slots=True)
class Training:
    """Everything that a rank must get back in order to go on with the same bits."""

    step: int
    """Steps that are done."""
    flat: Floats32
    """All parameters, padded to a multiple of the world size."""
    moments: Moments
    """Of this rank's slice of `flat`."""
    random: np.random.Generator
    """Where this rank's next batch comes from."""
    losses: list[float]
    """Mean over all ranks, by step."""
    own_losses: list[float]


class Trainer:
    """I train one rank's part. I own neither the mesh nor the store."""

    def __init__(self, plan: TrainerPlan, mesh: Mesh) -> None:
        self._plan = plan
        self._mesh = mesh
        self._shape = ModelShape(width=plan.width)
        self._corpus = read_corpus()
        length = -(-self._shape.parameter_count // plan.world_size) * plan.world_size
        self._slice = mesh.slice_of(length, plan.rank)
        part = length // plan.world_size
        self.training = Training(
            step=0,
            flat=np.zeros(length, np.float32),
            moments=Moments(np.zeros(part, np.float32), np.zeros(part, np.float32)),
            random=np.random.default_rng([plan.seed, plan.rank]),
            losses=[],
            own_losses=[],
        )
        self._parameters = name_views(self._shape, self.training.flat)
        initialize(self._shape, self._parameters, np.random.default_rng(plan.seed))
        self._gradient = np.zeros(length, np.float32)
        self._gradients = name_views(self._shape, self._gradient)

    def take_step(self) -> float:
        """One step of all ranks together; returns the mean loss."""
        training = self.training
        inputs, targets = draw_batch(
            self._corpus, training.random, SEQUENCES_PER_RANK, self._shape.context
        )
        own = loss_and_gradient(self._shape, self._parameters, self._gradients, inputs, targets)
        total = self._mesh.scatter_sum(self._gradient)
        total *= np.float32(1.0 / self._plan.world_size)
        training.step += 1
        take_step(RATES, training.flat[self._slice], total, training.moments, training.step)
        self._mesh.gather(training.flat)
        training.own_losses.append(own)
        training.losses.append(self._mesh.mean(own))
        return training.losses[-1]

    def state(self) -> dict[str, object]:
        """What is saved: parameters once, moments as parts of one vector, the rest by rank."""
        training = self.training
        return {
            "parameters": ckpt.Replicated(dict(self._parameters)),
            "adam": {
                "mean": self._shard(training.moments.mean),
                "square": self._shard(training.moments.square),
            },
            "step": training.step,
            "random": training.random.bit_generator.state,
            "losses": np.array(training.losses),
            "own_losses": np.array(training.own_losses),
        }

    def restore(self, state: Mapping[str, object]) -> None:
        """Go back to what `state` gave. The arrays of `state` are copied."""
        training = self.training
        parameters = cast(Mapping[str, Floats32], state["parameters"])
        for name, view in self._parameters.items():
            view[...] = parameters[name]
        adam = cast(Mapping[str, ckpt.Shard], state["adam"])
        training.moments.mean[...] = cast(Floats32, adam["mean"].array)
        training.moments.square[...] = cast(Floats32, adam["square"].array)
        training.step = cast(int, state["step"])
        training.random.bit_generator.state = cast(Mapping[str, object], state["random"])
        training.losses[:] = cast(NDArray[np.float64], state["losses"]).tolist()
        training.own_losses[:] = cast(NDArray[np.float64], state["own_losses"]).tolist()

    def finish(self) -> Finished:
        """What must be equal in two runs."""
        training = self.training
        moments = training.moments
        return Finished(
            parameters=_digest(training.flat),
            moments=_digest(moments.mean, moments.square),
            losses=[each.hex() for each in training.losses],
            own_losses=[each.hex() for each in training.own_losses],
        )

    def _shard(self, part: Floats32) -> ckpt.Shard:
        return ckpt.Shard(part, self.training.flat.shape, (self._slice.start,))


def train(plan: TrainerPlan, mesh: Mesh, store: ckpt.Store | None) -> None:
    """The whole run of one rank, from where the newest checkpoint stands."""
    trainer = Trainer(plan, mesh)
    if store is not None:
        _resume(plan, store, trainer)
        store.prepare(trainer.state(), rank=plan.rank, world_size=plan.world_size).result()
    _say(Started(trainer.training.step))
    while trainer.training.step < plan.steps:
        loss = trainer.take_step()
        step = trainer.training.step
        _say(StepDone(step, loss))
        if store is not None and (step % plan.save_every == 0 or step == plan.steps):
            if 0 < plan.hold_from <= step:
                _hold(step)
            save = store.save(
                RUN_NAME, step, trainer.state(), rank=plan.rank, world_size=plan.world_size
            )
            _say(SaveReturned(step, save.staged_bytes, save.stall_s, save.fault_in_s))
    if store is not None:
        store.close()  # Waits for what is under way, and raises what went wrong with it.
    _say(trainer.finish())


def _resume(plan: TrainerPlan, store: ckpt.Store, trainer: Trainer) -> None:
    begun = time.monotonic()
    try:
        checkpoint = store.resolve(RUN_NAME, rank=plan.rank, world_size=plan.world_size)
    except ckpt.NotFound:
        return  # The first launch.
    with checkpoint:
        trainer.restore(cast(Mapping[str, object], checkpoint.load()))
        reads = checkpoint.statistics
        _say(
            Resumed(
                step=checkpoint.step,
                bytes=sum(sum(read.bytes_by_target.values()) for read in reads),
                rebuilt_bytes=sum(read.rebuilt_bytes for read in reads),
                seconds=time.monotonic() - begun,
                source=checkpoint.source,
                redundancy=str(checkpoint.redundancy),
            )
        )


def _hold(step: int) -> None:
    """Wait until whoever started us has a line for us. Raises EOFError when it is gone."""
    _say(SaveHeld(step))
    if not sys.stdin.buffer.readline():
        raise EOFError("nobody is left who could let the save begin")


def _digest(*arrays: NDArray[np.float32]) -> str:
    total = hashlib.sha256()
    for array in arrays:
        total.update(array.data.cast("B"))
    return total.hexdigest()


def _say(word: Word) -> None:
    sys.stdout.buffer.write(encode_word(word))
    sys.stdout.buffer.flush()


def main() -> None:
    """Read the plan, train, leave."""
    end_uncollected()
    plan = msgspec.json.decode(sys.argv[1], type=TrainerPlan)
    with ExitStack() as stack:
        sockets = {
            peer: stack.enter_context(socket.socket(fileno=number))
            for peer, number in plan.peers.items()
        }
        mesh = Mesh(plan.rank, sockets)
        store = None
        if plan.url:
            store = stack.enter_context(ckpt.open(plan.url, launch=plan.launch))
        train(plan, mesh, store)


if __name__ == "__main__":
    main()
