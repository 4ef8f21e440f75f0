"""From what a small world begins: a checkpoint that a real save has committed, on real disks."""

from __future__ import annotations

from functools import lru_cache

from ckpt.erasure.code import Code
from tests.explore.clients import Saver
from tests.explore.world import Beginning, World


@lru_cache(maxsize=16)
def committed(code: str = "1+1", targets: int = 3) -> Beginning:
    """One step of one rank, all of whose columns are there; nobody is about to do anything."""
    names = [f"t{number}" for number in range(targets)]
    world = World(Beginning(Code.parse(code), {name: {} for name in names}))
    world.start()
    saver = Saver(len(names) + 1, world)
    world.add(saver)
    saver.start()
    world.run_dry()
    assert saver.committed is not None
    world.kill("saver")
    for _ in range(4):
        world.tick()
        world.run_dry()
    world.kill("coordinator")
    for name in names:
        world.kill(name)
    return Beginning(
        Code.parse(code), {name: _files(world, name) for name in names},
        tuple(world.coordinator.durable), world.coordinator.term,
    )  # fmt: skip


def _files(world: World, name: str) -> dict[str, bytes]:
    """Less what was standing by for the next save."""
    disk = world.targets[name].disk
    kept = (file for file in disk.files() if not file.startswith("staging/"))
    return {file: disk.durable(file) or b"" for file in kept}
