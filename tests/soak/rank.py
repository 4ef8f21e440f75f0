"""One rank of a soak: `python -m tests.soak.rank PLAN`.

Saves without pause until its standard input ends.

It says on standard output, one JSON line each, where it began, what committed and what failed. An
error that a save may honestly have (Aborted, Unavailable, …) is told and the rank goes on; any
other ends it.
"""

from __future__ import annotations

import json
import random
import select
import sys
import threading
from dataclasses import dataclass
from typing import Final

import msgspec

import ckpt
from ckpt.base.errors import Aborted, Busy, Corrupt, Fenced, NoSpace, Unavailable
from tests.soak.states import check_own, state_of

RUN: Final = "soak/kill at random"
HONEST: Final = (Aborted, Unavailable, Busy, NoSpace, Corrupt)
TRIES: Final = 3
RESUME_TRIES: Final = 20
WAIT_S: Final = 60.0
MENDS_S: Final = 1.0
"""Between two tries while the catalog waits for its operator."""
_never = threading.Event()


class Plan(msgspec.Struct, frozen=True):
    """What the job tells a rank."""

    url: str
    rank: int
    world_size: int
    launch: int
    seed: int
    pause_s: float
    """Longest time between two saves."""


def say(event: str, **words: object) -> None:
    """One line for the job's log."""
    sys.stdout.write(json.dumps({"event": event, **words}) + "\n")
    sys.stdout.flush()


def refuse_damage(error: ckpt.CkptError) -> None:
    """Of what may be corrupt only a lost catalog is honest: its operator is about to mend it."""
    if isinstance(error, Corrupt) and "the catalog is older than its targets" not in str(error):
        raise error


def told_to_end() -> bool:
    """Standard input has ended."""
    return bool(select.select([sys.stdin], [], [], 0.0)[0])


@dataclass(slots=True)
class Rank:
    """I save one step after the other into an open store."""

    plan: Plan
    store: ckpt.Store
    random: random.Random

    def run(self) -> None:
        """From behind the newest checkpoint until told to end."""
        step = self.resume() + 1
        while not told_to_end():
            save = self.save(step)
            if save is not None and self.random.random() < 0.25:
                self.hear(save)
            step += 1
            _never.wait(self.random.random() * self.plan.pause_s)

    def resume(self) -> int:
        """The step that this launch goes on from, compared; 0 when there is none."""
        plan = self.plan
        for attempt in range(RESUME_TRIES):
            try:
                checkpoint = self.store.resolve(RUN, rank=plan.rank, world_size=plan.world_size)
            except ckpt.NotFound:
                say("resumed", step=0, generation="", by=0, source="")
                return 0
            except (Unavailable, Corrupt) as error:
                self.tell_away(error, attempt)
                continue
            with checkpoint:
                try:
                    state = checkpoint.load()
                except (Unavailable, Corrupt) as error:
                    self.tell_away(error, attempt)
                    continue
                by = check_own(state, plan.seed, plan.rank, checkpoint.step)
                generation, source = str(checkpoint.generation), checkpoint.source
                say("resumed", step=checkpoint.step, generation=generation, by=by, source=source)
                return checkpoint.step
        raise Unavailable("the newest checkpoint stays out of reach")

    def save(self, step: int) -> ckpt.Save | None:
        """The background's errors are told by the next save, which then was not staged:
        try it again. While an operator mends the catalog nobody goes on: who failed at once would
        be a thousand steps ahead of a peer whose save waits.
        """
        plan = self.plan
        state = state_of(plan.seed, plan.launch, plan.rank, step)
        tries = 0
        while tries < TRIES and not told_to_end():
            try:
                return self.store.save(RUN, step, state, rank=plan.rank, world_size=plan.world_size)
            except HONEST as error:
                self.tell(step, error)
                if isinstance(error, Corrupt):
                    _never.wait(MENDS_S)
                else:
                    tries += 1
        return None

    def hear(self, save: ckpt.Save) -> None:
        try:
            commit = save.wait(WAIT_S)
        except HONEST as error:
            self.tell(save.step, error)
        else:
            generation = str(commit.generation)
            say("committed", step=commit.step, generation=generation, commit_s=commit.commit_s)

    def tell_away(self, error: ckpt.CkptError, attempt: int) -> None:
        refuse_damage(error)
        say("unavailable", text=str(error), attempt=attempt)
        if isinstance(error, Corrupt):
            _never.wait(MENDS_S)

    def tell(self, step: int, error: ckpt.CkptError) -> None:
        if isinstance(error, Fenced):
            raise error  # Nobody else saves this run.
        refuse_damage(error)
        say("failed", step=step, code=error.code, text=str(error))


def opened(plan: Plan) -> ckpt.Store:
    """The store, once an operator has mended the catalog."""
    launch = f"soak {plan.launch}"
    while True:
        try:
            return ckpt.open(plan.url, launch=launch, stager_idle_s=5.0, start_timeout_s=60.0)
        except Corrupt as error:
            refuse_damage(error)
            if told_to_end():
                raise
            say("unavailable", text=str(error))
            _never.wait(MENDS_S)


def main() -> None:
    """Read the plan, save, leave."""
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    rank_random = random.Random(f"{plan.seed} {plan.launch} {plan.rank}")
    store = opened(plan)
    rank = Rank(plan, store, rank_random)
    rank.run()
    for _ in range(TRIES):
        try:
            store.close()
        except HONEST as error:
            rank.tell(0, error)
    say("ended")


if __name__ == "__main__":
    main()
