"""One rank that saves as often as it is told: `python -m tests.soak.saver URL RUN RANK WORLD_SIZE`.

Each line on standard input is the last step to save; each step is waited for, some are loaded, and
their sizes differ. The answer is one line of JSON: the ids of this process and of its stager. It
ends with its standard input.
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np

import ckpt

STATE_BYTES_MIN = 20_000
STATE_BYTES_MAX = 5_000_000
"""More than a half of the arena has at first."""
LOAD_EVERY = 20
WAIT_S = 60.0


def state_of(rank: int, step: int) -> dict[str, object]:
    """Another size at every step: no save is quite of the form of the last one."""
    chance = np.random.default_rng((rank, step))
    content = chance.bytes(int(chance.integers(STATE_BYTES_MIN, STATE_BYTES_MAX)))
    return {"a": np.frombuffer(content, np.uint8), "step": step}


def main() -> None:
    url, run, rank, world_size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    step = 0
    with ckpt.open(url, launch="many") as store:
        for line in sys.stdin:
            while step < int(line):
                step += 1
                state = state_of(rank, step)
                store.save(run, step, state, rank=rank, world_size=world_size).wait(WAIT_S)
                del state
                if step % LOAD_EVERY == 0:
                    store.load(run, step, rank=rank, world_size=world_size)
            (stager,) = [link.pid for link in store._stagers.links.values()]
            sys.stdout.write(json.dumps({f"rank {rank}": os.getpid(), f"stager {rank}": stager}))
            sys.stdout.write("\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
