"""The faults of the matrix, each a few lines against the world;
`docs/failure_model.md` says what each means.

A fault returns the phase-independent name under which it is counted. Damage that the system cannot
be asked to survive is bounded by the scenario, not here.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.testing.disk import Fault, Keep
from tests.sim.target_node import TargetNode
from tests.sim.world import World

LONG_US = 12_000_000


def _live(world: World) -> TargetNode:
    """A target that runs; any one."""
    up = [t for t in world.targets.values() if t.up and not t.stopped]
    return world.clock.rng.choice(up or list(world.targets.values()))


def _down_for(world: World) -> int:
    """Hardly noticed, short, about a hedge, about a lease, long."""
    return world.clock.rng.choice([2_000, 50_000, 2_500_000, 4_000_000, LONG_US])


def target_killed(world: World) -> None:
    """F1: SIGKILL; what the kernel holds reaches the disk."""
    target = _live(world)
    target.crash(Keep.ALL)
    world.clock.after(_down_for(world), target.start)


def target_power_lost(world: World) -> None:
    """F10: everything unsynced is gone."""
    target = _live(world)
    target.crash(Keep.NOTHING)
    world.clock.after(_down_for(world), target.start)


def target_torn(world: World) -> None:
    """F9: any part of what was unsynced survives."""
    target = _live(world)
    target.crash(Keep.SOME)
    world.clock.after(_down_for(world), target.start)


def target_lost(world: World) -> None:
    """F21: for good, at most once in a history."""
    if any(t.lost or t.wiped for t in world.targets.values()):
        target_killed(world)
        return
    target = _live(world)
    target.crash(Keep.SOME)
    target.lost = True


def target_wiped(world: World) -> None:
    """F21: its device was replaced; it comes back empty under its own id.

    At most once, instead of a loss.
    """
    if any(t.lost or t.wiped for t in world.targets.values()) or world.rotted:
        target_killed(world)
        return
    target = _live(world)
    target.crash(Keep.SOME)
    target.wipe()
    world.clock.after(_down_for(world), target.start)


def target_stopped(world: World) -> None:
    """F2: SIGSTOP, and later SIGCONT."""
    target = _live(world)
    target.stopped = True

    def go_on() -> None:
        target.stopped = False

    world.clock.after(_down_for(world), go_on)


def target_slowed(world: World) -> None:
    """F3: 100 times slower disk, never an error."""
    target = _live(world)
    target.disk_slow = 100

    def recover() -> None:
        target.disk_slow = 1

    world.clock.after(LONG_US, recover)


def write_failed(world: World) -> None:
    """F4: EIO and a short write."""
    _live(world).disk.faults.append(Fault("write", skip=world.clock.rng.randint(0, 3)))


def sync_failed(world: World) -> None:
    """F11: EIO once from fsync; the bytes are lost though the next fsync succeeds."""
    operation = world.clock.rng.choice(["sync", "sync_directory", "rename"])
    _live(world).disk.faults.append(Fault(operation, skip=world.clock.rng.randint(0, 2)))


def disk_filled(world: World) -> None:
    """F5: no space for anything new, for a while."""
    disk = _live(world).disk
    whole = disk.bytes_total
    disk.bytes_total = whole - disk.space().bytes_free

    def emptied() -> None:
        disk.bytes_total = whole

    world.clock.after(LONG_US, emptied)


def bit_rotted(world: World) -> None:
    """F7: one bit of one sealed column, at most one column in a history, not with a lost target."""
    lost = any(t.lost or t.wiped for t in world.targets.values())
    columns = [
        (t, file) for t in world.targets.values() for file in t.disk.files()
        if file.startswith("columns/")
    ]  # fmt: skip
    if lost or world.rotted or not columns:
        return
    target, file = world.clock.rng.choice(columns)
    offset = world.clock.rng.randrange(target.disk.file_bytes(file))
    target.disk.rot(file, offset, world.clock.rng.randrange(8))
    world.rotted.append(f"{target.id}/{file}")


def coordinator_crashed(world: World) -> None:
    """F12: at any moment."""
    world.coordinator.crash()
    world.clock.after(
        world.clock.rng.choice([20_000, 1_000_000, 5_000_000]), world.restart_coordinator
    )


def coordinator_crashed_at_write(world: World) -> None:
    """F12: just around the durable write of one kind of entry."""
    world.coordinator.crash_after = world.clock.rng.choice(
        [
            "LaunchNumbered", "LaunchEntered",
            "AttemptOpened", "AttemptDecided", "AttemptCommitted", "AttemptAborted",
        ]
    )  # fmt: skip
    world.clock.after(5_000_000, world.restart_coordinator)


def trainer_killed(world: World) -> None:
    """F14: one trainer; its stager stays."""
    ranks = [r for r in world.ranks if r.trainer_alive]
    if ranks:
        world.clock.rng.choice(ranks).kill_trainer()


def stager_killed(world: World) -> None:
    """F14: one trainer with its stager and arena."""
    ranks = [r for r in world.ranks if r.up]
    if ranks:
        world.clock.rng.choice(ranks).crash()


def connections_cut(world: World) -> None:
    """F15: what was executed is not answered."""
    rng = world.clock.rng
    world.network.weather.cut = rng.choice([0.002, 0.01])
    world.clock.after(rng.randint(10_000, 300_000), lambda: _calm(world))


def frames_stuttered(world: World) -> None:
    """F16: frames arrive twice, late and after others."""
    world.network.weather.stutter = 0.1
    world.network.weather.jitter_us = 20_000
    world.clock.after(1_000_000, lambda: _calm(world))


def half_opened(world: World) -> None:
    """F17: one direction of a connection swallows everything, and the connection dies later."""
    rng = world.clock.rng
    nodes = [n for n in (world.coordinator, *world.targets.values(), *world.ranks) if n.up]
    sessions = world.network.sessions_of(rng.choice(nodes))
    if sessions:
        world.network.half_open(rng.choice(sessions), rng.choice([500_000, 6_000_000]))


def command_came_late(world: World) -> None:
    """F16: a command of an earlier coordinator arrives when a later one is in office."""
    coordinator_crashed(world)
    world.clock.after(8_000_000, world.replay_old_commands)


def bits_flipped_on_the_wire(world: World) -> None:
    """F6: a fragment arrives with another content."""
    world.network.corrupt_fragments += world.clock.rng.randint(1, 3)


def _calm(world: World) -> None:
    weather = world.network.weather
    weather.cut = weather.stutter = 0.0
    weather.jitter_us = 200


FAULTS: dict[str, Callable[[World], None]] = {
    "F1 killed": target_killed,
    "F2 stopped": target_stopped,
    "F3 slow": target_slowed,
    "F4 EIO": write_failed,
    "F5 full": disk_filled,
    "F6 wire": bits_flipped_on_the_wire,
    "F7 rot": bit_rotted,
    "F9 torn": target_torn,
    "F10 power": target_power_lost,
    "F11 fsync": sync_failed,
    "F12 coordinator": coordinator_crashed,
    "F12 at write": coordinator_crashed_at_write,
    "F14 trainer": trainer_killed,
    "F14 stager": stager_killed,
    "F15 cut": connections_cut,
    "F16 twice": frames_stuttered,
    "F16 late": command_came_late,
    "F17 half open": half_opened,
    "F21 lost": target_lost,
    "F21 wiped": target_wiped,
}
