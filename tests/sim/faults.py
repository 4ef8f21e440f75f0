"""The faults of the matrix, each a few lines against the world;
`docs/failure_model.md` says what each means.

A fault that finds nothing to strike (no rank alive, no column to rot) answers None, and the history
takes another. Else it answers how to tell whether it struck: some strike at once, others wait for a
write, a frame or a command, and may wait in vain. Damage that the system cannot be asked to survive
is bounded by the scenario, not here.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.testing.disk import Fault, Keep
from tests.sim.aimed import LONG_US, catalog_windows, down_for, kill_coordinator
from tests.sim.struck import Strike
from tests.sim.target_node import TargetNode
from tests.sim.windows import Aim
from tests.sim.world import World

LATE_US = 500_000


def _at_once() -> bool:
    return True


def _live(world: World) -> TargetNode | None:
    """A target that runs; any one."""
    up = [t for t in world.targets.values() if t.up and not t.stopped]
    return world.clock.rng.choice(up) if up else None


def _crash(world: World, keep: Keep) -> Strike | None:
    target = _live(world)
    if target is None:
        return None
    target.crash(keep)
    world.clock.after(down_for(world), target.start)
    return _at_once


def target_killed(world: World) -> Strike | None:
    """F1: SIGKILL; what the kernel holds reaches the disk."""
    return _crash(world, Keep.ALL)


def target_power_lost(world: World) -> Strike | None:
    """F10: everything unsynced is gone."""
    return _crash(world, Keep.NOTHING)


def target_torn(world: World) -> Strike | None:
    """F9: any part of what was unsynced survives."""
    return _crash(world, Keep.SOME)


def host_killed(world: World) -> Strike | None:
    """F22: all targets of a host at once, where two share one; they come back together."""
    running = [t for t in world.targets.values() if t.up and not t.stopped]
    hosts = sorted({t.domain.host for t in running})
    if len(hosts) < 2:
        return None
    host, keep = world.clock.rng.choice(hosts), world.clock.rng.choice(list(Keep))
    down_us = down_for(world)
    for target in running:
        if target.domain.host == host:
            target.crash(keep)
            world.clock.after(down_us, target.start)
    return _at_once


def target_lost(world: World) -> Strike | None:
    """F21: for good, at most once in a history; not with a column that has rotted where that may be
    one too many: nobody would say any more that all must be read.
    """
    target = _live(world)
    many = world.rotted and world.coordinator.machine.policy.code.m < 2
    if target is None or many or any(t.lost or t.wiped for t in world.targets.values()):
        return None
    target.crash(Keep.SOME)
    target.lost = True
    return _at_once


def target_wiped(world: World) -> Strike | None:
    """F21: its device was replaced; it comes back empty under its own id.

    At most once, instead of a loss.
    """
    target = _live(world)
    harmed = world.rotted or any(t.lost or t.wiped for t in world.targets.values())
    if target is None or harmed:
        return None
    target.crash(Keep.SOME)
    target.wipe()
    world.clock.after(down_for(world), target.start)
    return _at_once


def target_stopped(world: World) -> Strike | None:
    """F2: SIGSTOP, and later SIGCONT."""
    target = _live(world)
    if target is None:
        return None
    target.stopped = True

    def go_on() -> None:
        target.stopped = False

    world.clock.after(down_for(world), go_on)
    return _at_once


def target_slowed(world: World) -> Strike | None:
    """F3: 100 times slower disk, never an error."""
    target = _live(world)
    if target is None or target.disk_slow > 1:
        return None
    target.disk_slow = 100

    def recover() -> None:
        target.disk_slow = 1

    world.clock.after(LONG_US, recover)
    return _at_once


def _fail_disk(world: World, operation: str, skip_max: int) -> Strike | None:
    """One of the next such operations of one target."""
    target = _live(world)
    if target is None:
        return None
    fault = Fault(operation, skip=world.clock.rng.randint(0, skip_max))
    target.disk.faults.append(fault)
    return lambda: not fault.count


def write_failed(world: World) -> Strike | None:
    """F4: EIO and a short write."""
    return _fail_disk(world, "write", 3)


def sync_failed(world: World) -> Strike | None:
    """F11: EIO once from fsync; the bytes are lost though the next fsync succeeds."""
    return _fail_disk(world, world.clock.rng.choice(["sync", "sync_directory", "rename"]), 2)


def disk_filled(world: World) -> Strike | None:
    """F5: no space for anything new, for a while."""
    target = _live(world)
    if target is None or not target.disk.space().bytes_free:
        return None
    disk = target.disk
    whole = disk.bytes_total
    disk.bytes_total = whole - disk.space().bytes_free

    def emptied() -> None:
        disk.bytes_total = whole

    world.clock.after(LONG_US, emptied)
    return _at_once


def disks_filled(world: World) -> Strike | None:
    """F5: of most targets, or of all: nothing small is taken in either."""
    struck = [disk_filled(world) for _ in range(2 * len(world.targets))]
    return next((one for one in struck if one is not None), None)


def bit_rotted(world: World) -> Strike | None:
    """F7: one bit of one sealed column, at most one column in a history, not with a lost target."""
    lost = any(t.lost or t.wiped for t in world.targets.values())
    columns = [
        (t, file) for t in world.targets.values() for file in t.disk.files()
        if file.startswith("columns/")
    ]  # fmt: skip
    if lost or world.rotted or not columns:
        return None
    target, file = world.clock.rng.choice(columns)
    offset = world.clock.rng.randrange(target.disk.file_bytes(file))
    target.disk.rot(file, offset, world.clock.rng.randrange(8))
    world.rotted.append(f"{target.id}/{file}")
    return _at_once


def pages_misplaced(world: World) -> Strike | None:
    """F8: a page of a column, or all of them, are those of another column, or stand at another
    place of the same: each is what was once written, and passes for whole. Instead of a flipped
    bit, and of what was committed: before that, no program could know.
    """
    rng = world.clock.rng
    lost = any(t.lost or t.wiped for t in world.targets.values())
    target = rng.choice(list(world.targets.values()))
    columns = [file for file in target.disk.files() if file.startswith("columns/")]
    kept = [file for file in columns if file in world.oracles.announced_columns()]
    if lost or world.rotted or not kept:
        return None
    file = rng.choice(kept)
    source = rng.choice([file, rng.choice(columns)])
    disk = target.disk
    pages, source_pages = disk.file_bytes(file) // 4096, disk.file_bytes(source) // 4096
    if file == source or rng.random() < 0.5:
        disk.misplace(file, rng.randrange(pages), source, rng.randrange(source_pages))
    else:
        for page in range(min(pages, source_pages)):
            disk.misplace(file, page, source, page)
    world.rotted.append(f"{target.id}/{file}")
    return _at_once


def document_rotted(world: World) -> Strike | None:
    """F7: one bit of one record, index or tombstone, which exists twice: nothing is lost by it.
    Once in a history.
    """
    documents = [
        (t, file) for t in world.targets.values() for file in t.disk.files()
        if file.startswith("documents/")
    ]  # fmt: skip
    if world.document_rotted or not documents:
        return None
    target, file = world.clock.rng.choice(documents)
    offset = world.clock.rng.randrange(target.disk.file_bytes(file))
    target.disk.rot(file, offset, world.clock.rng.randrange(8))
    world.document_rotted = f"{target.id}/{file}"
    return _at_once


def parted_one_way(world: World) -> Strike | None:
    """F17: what one node says to another does not come through for a while; the answers would.
    What was sent meanwhile comes all at once, as from a kernel that sends it again.
    """
    rng, network = world.clock.rng, world.network
    ranks = [rank for rank in world.ranks if rank.up]
    target = rng.choice(list(world.targets.values()))
    pairs = [(target, world.coordinator)]
    if ranks:
        pairs += [(rng.choice(ranks), target), (rng.choice(ranks), world.coordinator)]
    one, other = rng.sample(rng.choice(pairs), 2)
    for_us = rng.choice([50_000, 1_000_000, 2_500_000, 4_000_000, LONG_US])
    network.hold(one.name, other.name, world.clock.now_us + for_us)
    held = network.held_frames
    return lambda: network.held_frames > held


def clock_jumped(world: World) -> Strike | None:
    """F26: the coordinator's wall clock is wrong by an hour or a day, from now on."""
    world.coordinator.wall_jump_s += world.clock.rng.choice([-86_400, -3600, 3600, 86_400])
    return _at_once


def coordinator_crashed(world: World) -> Strike | None:
    """F12: at any moment."""
    if not world.coordinator.up:
        return None
    world.coordinator.crash()
    world.clock.after(
        world.clock.rng.choice([20_000, 1_000_000, 5_000_000]), world.restart_coordinator
    )
    return _at_once


def coordinator_crashed_at_write(world: World) -> Strike | None:
    """F12: just around the durable write of one kind of entry."""
    if not world.coordinator.up:
        return None
    kinds = [
        "LaunchNumbered", "LaunchEntered",
        "AttemptOpened", "AttemptDecided", "RowCommitted", "RowAborted",
    ]  # fmt: skip
    window = world.clock.rng.choice(catalog_windows(*kinds))
    aim = Aim(window, 1, lambda node: kill_coordinator(world, node))
    world.windows.aim(aim)
    return lambda: aim.struck


def trainer_killed(world: World) -> Strike | None:
    """F14: one trainer; its stager stays."""
    ranks = [r for r in world.ranks if r.trainer_alive]
    if not ranks:
        return None
    world.clock.rng.choice(ranks).kill_trainer()
    return _at_once


def stager_killed(world: World) -> Strike | None:
    """F14: one trainer with its stager and arena."""
    ranks = [r for r in world.ranks if r.up]
    if not ranks:
        return None
    world.clock.rng.choice(ranks).crash()
    return _at_once


def reader_killed(world: World) -> Strike | None:
    """F14: a process in the middle of its load; another loads in its place."""
    readers = [r for r in world.readers if r.reading]
    if not readers:
        return None
    world.clock.rng.choice(readers).crash()
    world.clock.after(world.clock.rng.randint(0, 300_000), world.read)
    return _at_once


def connections_cut(world: World) -> Strike | None:
    """F15: what was executed is not answered."""
    rng, network = world.clock.rng, world.network
    network.weather.cut = rng.choice([0.002, 0.01])
    world.clock.after(rng.randint(10_000, 300_000), lambda: _calm(world))
    cuts = network.cut_frames
    return lambda: network.cut_frames > cuts


def frames_stuttered(world: World) -> Strike | None:
    """F16: frames arrive twice, late and after others."""
    network = world.network
    network.weather.stutter = 0.1
    network.weather.jitter_us = 20_000
    world.clock.after(1_000_000, lambda: _calm(world))
    repeated = network.repeated_frames
    return lambda: network.repeated_frames > repeated


def half_opened(world: World) -> Strike | None:
    """F17: one direction of a connection swallows everything, and the connection dies later."""
    rng = world.clock.rng
    nodes = [n for n in (world.coordinator, *world.targets.values(), *world.ranks) if n.up]
    sessions = world.network.sessions_of(rng.choice(nodes)) if nodes else []
    if not sessions:
        return None
    world.network.half_open(rng.choice(sessions), rng.choice([500_000, 6_000_000]))
    return _at_once


def command_came_late(world: World) -> Strike | None:
    """F16: a command of an earlier coordinator arrives when a later one is in office."""
    if coordinator_crashed(world) is None:
        return None
    replayed = world.replayed

    def come() -> None:
        if not world.replay_old_commands():  # Nobody to tell yet.
            world.clock.after(LATE_US, come)

    world.clock.after(LATE_US, come)
    return lambda: world.replayed > replayed


def bits_flipped_on_the_wire(world: World) -> Strike | None:
    """F6: a fragment arrives with another content."""
    network, flipped = world.network, world.network.flipped_frames
    network.corrupt_fragments += world.clock.rng.randint(1, 3)
    return lambda: network.flipped_frames > flipped


def _calm(world: World) -> None:
    weather = world.network.weather
    weather.cut = weather.stutter = 0.0
    weather.jitter_us = 200


FAULTS: dict[str, Callable[[World], Strike | None]] = {
    "F1 killed": target_killed,
    "F2 stopped": target_stopped,
    "F3 slow": target_slowed,
    "F4 EIO": write_failed,
    "F5 full": disk_filled,
    "F6 wire": bits_flipped_on_the_wire,
    "F7 rot": bit_rotted,
    "F7 document": document_rotted,
    "F8 misplaced": pages_misplaced,
    "F9 torn": target_torn,
    "F10 power": target_power_lost,
    "F11 fsync": sync_failed,
    "F12 coordinator": coordinator_crashed,
    "F12 at write": coordinator_crashed_at_write,
    "F14 trainer": trainer_killed,
    "F14 stager": stager_killed,
    "F14 reader": reader_killed,
    "F15 cut": connections_cut,
    "F16 twice": frames_stuttered,
    "F16 late": command_came_late,
    "F17 half open": half_opened,
    "F17 one way": parted_one_way,
    "F21 lost": target_lost,
    "F21 wiped": target_wiped,
    "F22 host": host_killed,
    "F26 clock": clock_jumped,
}
