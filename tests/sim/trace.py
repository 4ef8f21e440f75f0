"""Who says what in one seed: `python -m tests.sim.trace 7 --of rank0`.

Without --history it is one save of one step that nobody disturbs; with it all that the campaign
does with that seed, to be read where a promise broke. docs/contributing.md shows a trace.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

from ckpt.protocol.events import Send
from tests.sim.scenario import run_history, settle, world_of
from tests.sim.whole_world import whole
from tests.sim.world import World

STEP = 10
PAYLOAD_BYTES = 4096


class Said(NamedTuple):
    """One frame, when it was sent."""

    at_us: int
    speaker: str
    hearer: str
    message: str


def listen(world: World, of: str = "") -> list[Said]:
    """What is said from now on, to or by a node with `of` in its name; the list grows."""
    network, heard = world.network, []
    deliver: Callable[[Send], None] = network.send

    def send(action: Send) -> None:
        if ends := network.ends_of(action.session):
            speaker, hearer = ends
            if of in speaker or of in hearer:
                name = type(action.message).__name__
                heard.append(Said(world.clock.now_us, speaker, hearer, name))
        deliver(action)

    network.send = send  # type: ignore[method-assign]
    return heard


def lines(heard: list[Said]) -> Iterator[str]:
    """A line for each row of equal messages, with its milliseconds since the first of all."""
    begun_us = heard[0].at_us if heard else 0
    for (speaker, hearer, message), row in groupby(heard, key=lambda said: said[1:]):
        all_of_row = list(row)
        times = f" x {len(all_of_row)}" if len(all_of_row) > 1 else ""
        after_ms = (all_of_row[0].at_us - begun_us) / 1000
        yield f"{after_ms:8.1f}  {speaker} -> {hearer}: {message}{times}"


def undisturbed(seed: int, of: str = "") -> list[Said]:
    """A launch of all ranks that saves one step."""
    world = world_of(seed)
    world.start()
    heard = listen(world, of)
    settle(world, world.launch((STEP,), 0, PAYLOAD_BYTES))
    return heard


def main() -> int:
    """0, or 1 when the history breaks a promise: its trace ends there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--of", default="", metavar="NAME", help="only what such nodes hear or say")
    parser.add_argument("--history", action="store_true", help="as the campaign runs that seed")
    options = parser.parse_args()
    broken: Exception | None = None
    if options.history:
        world = whole(options.seed)
        heard = listen(world, options.of)
        try:
            run_history(world, aiming=True)
        except Exception as error:
            broken = error
    else:
        heard = undisturbed(options.seed, options.of)
    sys.stdout.writelines(line + "\n" for line in lines(heard))
    if broken is not None:
        sys.stdout.write(f"{type(broken).__name__}: {broken}\n")
    return 1 if broken is not None else 0


if __name__ == "__main__":
    raise SystemExit(main())
