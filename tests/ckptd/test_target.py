"""The target daemon as a process: over sockets, on a real disk, killed, misled and without
space.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import shutil
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from ckpt.base.errors import Refused
from ckpt.base.ids import ReservationId
from ckpt.base.limits import BLOCK_BYTES, FRAME_META_BYTES_MAX
from ckpt.base.units import KiB, MiB
from ckpt.format.messages.hello import OLDEST_VERSION, PROTOCOL_VERSION, Failed, Role
from ckpt.format.messages.reading import (
    ByteRange,
    ColumnVerified,
    RangeDamaged,
    RangeData,
    RangesDone,
    ReadRanges,
    VerifyColumn,
)
from ckpt.format.messages.targets import (
    ColumnsListed,
    KeepProtocol,
    ListColumns,
    ProtocolKept,
    Reserve,
)
from ckpt.format.messages.writing import ColumnSealed
from ckpt.protocol import handshake
from ckpt.protocol.proofs import check_proof
from ckpt.protocol.target.core import column_name
from ckptd.catalog.sources import RunningTarget
from tests.ckptd.target_peers import (
    ANSWER_S,
    CLUSTER,
    SECRET,
    Coordinator,
    Daemon,
    Peer,
    reserve,
    run,
)
from tests.protocol.target_world import Column, cut_up


def _column(rank: int = 0) -> Column:
    return Column(payload_bytes=6 * MiB + 12345, cell_bytes=512 * KiB, rank=rank)


async def _daemon(directory: Path, coordinator: Coordinator, *flags: str) -> Daemon:
    return await asyncio.to_thread(Daemon, directory, coordinator.address, *flags)


async def _registered(coordinator: Coordinator) -> None:
    async with asyncio.timeout(ANSWER_S):
        await coordinator.registrations.get()


async def _read(peer: Peer, column: Column, start: int, end: int) -> dict[int, bytes]:
    answers = await peer.ask(3, ReadRanges(column.id, (ByteRange(start, end),)))
    assert answers[-1][0] == RangesDone()
    found = {}
    for message, data in answers:
        if isinstance(message, RangeData):
            found |= cut_up(message, data)
    return found


def test_a_target_whose_socket_cannot_be_removed_ends_well(tmp_path: Path) -> None:
    """As on a device that has become read-only; here a folder stands in the socket's place."""

    async def story(coordinator: Coordinator) -> None:
        with await _daemon(tmp_path / "t", coordinator, "--id", "t1") as daemon:
            await _registered(coordinator)
            place = Path(str(daemon.ready["unix"]))
            place.unlink()
            place.mkdir()
            assert await asyncio.to_thread(daemon.end, signal.SIGTERM) == 0
        *_, last = [json.loads(line) for line in daemon.log.read_text().splitlines()]
        assert last["msg"] == "stopped"

    run(story)


def test_a_column_is_written_proved_and_read_back_over_sockets(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        column = _column()
        with await _daemon(tmp_path / "t", coordinator, "--id", "t1") as daemon:
            await _registered(coordinator)
            await reserve(coordinator, [column])
            for address in (daemon.address, f"unix:{daemon.ready['unix']}"):
                async with Peer(address) as stager:
                    sealed = await stager.write(column, reservation=1)
                    assert isinstance(sealed, ColumnSealed)
                    assert check_proof(sealed.proof, CLUSTER, SECRET)
            async with Peer(daemon.address, Role.READER) as reader:
                found = await _read(reader, column, 0, len(column.data))
                assert b"".join(found[at] for at in sorted(found)) == column.data
            async with asyncio.timeout(ANSWER_S):
                while (await coordinator.renewals.get()).counters["columns_sealed"] != 1:
                    continue
            assert daemon.end(signal.SIGTERM) == 0
        lines = [json.loads(line) for line in daemon.log.read_text().splitlines()]
        assert all({"ts", "level", "logger", "msg"} <= line.keys() for line in lines)

    run(story)


def test_an_ipv6_address_is_announced_as_others_dial_it(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        column = _column()
        flags = ("--id", "t1", "--listen", "[::1]:0")
        with await _daemon(tmp_path / "t", coordinator, *flags) as daemon:
            registered = await coordinator.registrations.get()
            assert registered.address == daemon.address
            assert daemon.address.startswith("[::1]:")
            await reserve(coordinator, [column])
            async with Peer(daemon.address) as stager:
                assert isinstance(await stager.write(column, reservation=1), ColumnSealed)

    run(story)


def test_who_asks_what_no_answer_has_room_for_is_refused_and_goes_on(tmp_path: Path) -> None:
    """Four characters of the answer for each of the question."""

    async def story(coordinator: Coordinator) -> None:
        column = _column()
        with await _daemon(tmp_path / "t", coordinator, "--id", "t1") as daemon:
            await _registered(coordinator)
            await reserve(coordinator, [column])
            async with Peer(daemon.address) as stager:
                long = replace(column.begin(1), code="\0" * (FRAME_META_BYTES_MAX // 3))
                await stager.send(5, long)
                answer, _ = await stager.next()
                assert isinstance(answer, Failed)
                assert answer.code == "refused"
                assert "does not fit one frame" in answer.message
                assert isinstance(await stager.write(column, reservation=1), ColumnSealed)

    run(story)


def test_several_columns_at_once_all_seal(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        columns = [_column(rank) for rank in range(6)]
        with await _daemon(tmp_path / "t", coordinator) as daemon:
            await _registered(coordinator)
            await reserve(coordinator, columns)

            async def write(number: int, column: Column) -> object:
                async with Peer(daemon.address) as stager:
                    return await stager.write(column, number)

            tasks = [write(number, column) for number, column in enumerate(columns, start=1)]
            sealed = await asyncio.gather(*tasks)
            assert all(isinstance(each, ColumnSealed) for each in sealed)
            async with Peer(daemon.address, Role.READER) as reader:
                for column in columns:
                    ((answer, _),) = await reader.ask(9, VerifyColumn(column.id))
                    size = len(column.data)
                    assert answer == ColumnVerified(column.id, False, size, ())

    run(story)


def test_a_flipped_byte_on_disk_damages_its_block_only(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        column = _column()
        with await _daemon(tmp_path / "t", coordinator) as daemon:
            await _registered(coordinator)
            await reserve(coordinator, [column])
            async with Peer(daemon.address) as stager:
                assert isinstance(await stager.write(column, 1), ColumnSealed)
            file = tmp_path / "t" / "columns" / column_name(column.id)
            with file.open("r+b") as handle:
                handle.seek(4096 + 3 * BLOCK_BYTES + 100)
                byte = handle.read(1)
                handle.seek(-1, 1)
                handle.write(bytes([byte[0] ^ 1]))
            async with Peer(daemon.address, Role.READER) as reader:
                answers = await reader.ask(
                    3, ReadRanges(column.id, (ByteRange(0, len(column.data)),))
                )
                damaged = [m for m, _ in answers if isinstance(m, RangeDamaged)]
                expected = RangeDamaged(3 * BLOCK_BYTES, 4 * BLOCK_BYTES, "checksum")
                assert damaged == [expected]
                got = sum(len(data) for message, data in answers if isinstance(message, RangeData))
                assert got == len(column.data) - BLOCK_BYTES

    run(story)


def test_a_killed_target_serves_its_sealed_columns_again_and_forgets_the_rest(
    tmp_path: Path,
) -> None:
    async def story(coordinator: Coordinator) -> None:
        sealed, half = _column(0), _column(1)
        with await _daemon(tmp_path / "t", coordinator) as daemon:
            await _registered(coordinator)
            await reserve(coordinator, [sealed, half])
            async with Peer(daemon.address) as stager:
                assert isinstance(await stager.write(sealed, 1), ColumnSealed)
                await stager.send(8, half.begin(2))
                message, cell = half.fragment(0)
                await stager.send(8, message, cell)
                await asyncio.to_thread(daemon.end, signal.SIGKILL)
        with await _daemon(tmp_path / "t", coordinator) as daemon:
            await _registered(coordinator)
            async with Peer(daemon.address, Role.READER) as reader:
                found = await _read(reader, sealed, 100, 1_000_000)
                joined = b"".join(found[at] for at in sorted(found))
                assert joined == sealed.data[100:1_000_000]
                ((listed, _),) = await reader.ask(4, ListColumns())
                assert isinstance(listed, ColumnsListed)
                assert [each.column for each in listed.columns] == [sealed.id]
        assert list((tmp_path / "t" / "staging").iterdir()) == []

    run(story)


def test_a_write_beyond_what_the_file_system_gives_refuses_that_column_only(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        small, large = _column(0), Column(40 * MiB, cell_bytes=512 * KiB, rank=1)

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (8 * MiB, 8 * MiB))

        daemon = await asyncio.to_thread(
            lambda: Daemon(tmp_path / "t", coordinator.address, before=limit)
        )
        with daemon:
            await _registered(coordinator)
            await reserve(coordinator, [small])
            refused = await coordinator.command(Reserve(1, ReservationId(2), large.file_bytes))
            assert isinstance(refused, Failed)
            assert refused.code == "no_space"
            async with Peer(daemon.address) as stager:
                assert isinstance(await stager.write(small, 1), ColumnSealed)

    run(story)


@pytest.mark.parametrize("flags", [(), ("--listen", "0.0.0.0:0"), ("--no-unix",)])
def test_a_pool_that_hosts_or_tcp_fill_has_its_memory_at_the_start(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    async def story(coordinator: Coordinator) -> None:
        pool_bytes = 192 * MiB
        with await _daemon(
            tmp_path / "t", coordinator, "--pool-bytes", str(pool_bytes), *flags
        ) as daemon:
            await _registered(coordinator)
            assert (_own_memory_bytes(daemon.process.pid) >= pool_bytes) == bool(flags)

    run(story)


def _own_memory_bytes(pid: int) -> int:
    (line,) = re.findall(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(line) * KiB


def test_a_second_daemon_on_one_directory_is_refused(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        with await _daemon(tmp_path / "t", coordinator) as daemon:
            assert daemon.ready
            with await _daemon(tmp_path / "t", coordinator) as second:
                assert await asyncio.to_thread(second.process.wait, ANSWER_S) == 11
            assert "another process serves" in daemon.log.read_text()

    run(story)


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_a_target_whose_directory_goes_answers_for_it_no_longer(tmp_path: Path, how: str) -> None:
    async def story(coordinator: Coordinator) -> None:
        directory = tmp_path / "t"
        with await _daemon(directory, coordinator) as daemon:
            await _registered(coordinator)
            directory.rename(tmp_path / "elsewhere")
            if how == "removed":
                shutil.rmtree(tmp_path / "elsewhere")
            elif how == "replaced":
                directory.mkdir()
                shutil.copy(tmp_path / "elsewhere" / "lock", directory)
            assert await asyncio.to_thread(daemon.process.wait, ANSWER_S) == 1
            complaint = f"{directory} is gone: it was removed or moved"
            assert complaint in daemon.log.read_text()
            assert "ckpt target replace ID" in daemon.log.read_text()

    run(story)


def test_a_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        with await _daemon(tmp_path / "t", coordinator) as daemon:
            await _registered(coordinator)
            assert await asyncio.to_thread(daemon.end, signal.SIGTERM) == 0
        other = await asyncio.to_thread(
            lambda: Daemon(tmp_path / "t", coordinator.address, cluster="other")
        )
        with other:
            assert await asyncio.to_thread(other.process.wait, ANSWER_S) == 2
        assert "belongs to cluster c0ffee, not to other" in other.log.read_text()

    run(story)


def test_a_target_whose_coordinator_is_of_another_cluster_ends_and_says_so(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        with await asyncio.to_thread(lambda: Daemon(tmp_path / "t", coordinator.address)):
            """The directory is this cluster's from now on."""
        other = Coordinator()
        other.listen(cluster="other")
        assert other.server is not None
        try:
            daemon = await asyncio.to_thread(lambda: Daemon(tmp_path / "t", other.address))
            assert await asyncio.to_thread(daemon.process.wait, ANSWER_S) == 2
            daemon.end(signal.SIGKILL)
            assert "'other'" in daemon.log.read_text()
            assert "--coordinator" in daemon.log.read_text()
        finally:
            await other.server.close(linger_s=0)

    run(story)


@pytest.mark.parametrize("its_own_first", [True, False])
def test_a_target_whose_coordinators_are_of_two_clusters_ends_and_names_them(
    tmp_path: Path, its_own_first: bool
) -> None:
    async def story(coordinator: Coordinator) -> None:
        other = Coordinator()
        other.listen(cluster="other")
        assert other.server is not None
        listed = [coordinator.address, other.address]
        if not its_own_first:
            listed.reverse()
        try:
            daemon = await asyncio.to_thread(lambda: Daemon(tmp_path / "t", ",".join(listed)))
            assert await asyncio.to_thread(daemon.process.wait, ANSWER_S) == 2
            daemon.end(signal.SIGKILL)
            for text in (*listed, CLUSTER, "other"):
                assert text in daemon.log.read_text()
        finally:
            await other.server.close(linger_s=0)

    run(story)


def test_a_first_start_without_a_cluster_takes_the_coordinators(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        daemon = await asyncio.to_thread(
            lambda: Daemon(tmp_path / "t", coordinator.address, cluster="")
        )
        with daemon:
            assert daemon.ready["cluster"] == CLUSTER

    run(story)


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        (tmp_path / "secret").write_text(SECRET.hex())
        (tmp_path / "secret").chmod(0o644)
        with await _daemon(tmp_path / "t", coordinator) as daemon:
            assert await asyncio.to_thread(daemon.process.wait, ANSWER_S) == 2
        assert "others can read the secret" in daemon.log.read_text()

    run(story)


def test_a_target_comes_back_to_a_coordinator_that_restarted(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        assert coordinator.server is not None
        port = coordinator.server.port
        with await _daemon(tmp_path / "t", coordinator):
            await _registered(coordinator)
            await coordinator.server.close(linger_s=0)
            coordinator.listen(port)
            await _registered(coordinator)

    run(story)


def test_a_target_seals_a_column_and_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        column = _column()
        with await _daemon(tmp_path / "t", coordinator) as daemon:
            await _registered(coordinator)
            await reserve(coordinator, [column])
            async with Peer(daemon.address) as stager:
                assert isinstance(await stager.write(column, 1), ColumnSealed)
            assert daemon.end(signal.SIGTERM) == 0

    run(story)


def _needs(address: str) -> int:
    """As whoever makes a catalog again hears it."""
    source = RunningTarget(address, SECRET)
    try:
        return source.holdings().protocol
    finally:
        source.close()


def _comes_from_before(address: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handshake, "PROTOCOL_VERSION", PROTOCOL_VERSION - 1)
        patch.setattr(handshake, "MOVES_VERSION", PROTOCOL_VERSION + 1)
        _needs(address)


def test_who_speaks_less_than_it_was_asked_to_keep_is_refused_by_name(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        with await _daemon(tmp_path / "t", coordinator, "--id", "t1") as daemon:
            await _registered(coordinator)
            await asyncio.to_thread(_comes_from_before, daemon.address)
            assert await asyncio.to_thread(_needs, daemon.address) == OLDEST_VERSION
            kept = await coordinator.command(KeepProtocol(1, PROTOCOL_VERSION))
            assert kept == ProtocolKept()
            daemon.end(signal.SIGKILL)
        with await _daemon(tmp_path / "t", coordinator) as daemon:
            registration = await coordinator.registrations.get()
            assert registration.protocol == PROTOCOL_VERSION
            assert await asyncio.to_thread(_needs, daemon.address) == PROTOCOL_VERSION
            with pytest.raises(Refused, match="needs protocol 3; admin rebuild speaks 2") as caught:
                await asyncio.to_thread(_comes_from_before, daemon.address)
            assert "upgrade it" in caught.value.hint

    run(story)
