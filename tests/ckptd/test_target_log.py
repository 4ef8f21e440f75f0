"""What a target's log says while no coordinator takes it in: the reason, and that once."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ckpt.aio.net.bulk import Bulk
from ckpt.base.errors import Refused
from ckpt.base.units import US_PER_S
from ckpt.format.messages import Message
from ckpt.format.messages.hello import PROTOCOL_VERSION, Failed
from ckpt.format.messages.targets import RegisterTarget
from ckpt.protocol.events import Session
from ckptd.target.identity import TargetFile, adopt_identity
from tests.ckptd.target_peers import ANSWER_S, SECRET, Coordinator, Daemon, run
from tests.waiting import wait_until_async

TRIES = 4
OUT = "coordinator out of reach"


class Log:
    """Lines of a target that was never in a cluster, whose stop signal comes by `enough`."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.stop = asyncio.Event()

    def report(self, _level: str, text: str, fields: Mapping[str, object]) -> None:
        self.lines.append((text, str(fields.get("why"))))

    async def adopt(
        self, directory: Path, coordinator: str, secret: bytes = SECRET
    ) -> TargetFile | None:
        async with asyncio.timeout(ANSWER_S):
            return await adopt_identity(
                directory, "t1", "", coordinator, secret, self.stop, self.report
            )


def test_a_new_target_says_once_why_no_coordinator_answers(tmp_path: Path) -> None:
    """Its first start needs one: whoever gave a wrong address finds the reason in its log."""

    async def story() -> None:
        log, callers = Log(), 0

        async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal callers
            callers += 1
            writer.close()
            if callers == TRIES:
                log.stop.set()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as other:
            address = f"127.0.0.1:{other.sockets[0].getsockname()[1]}"
            assert await log.adopt(tmp_path, address) is None
        assert log.lines == [(OUT, "the peer closed the connection")]

    asyncio.run(story())


class Removing(Coordinator):
    """Refuses all, and wants to hear t1, which was removed, no more."""

    def __init__(self) -> None:
        super().__init__()
        self.came: Counter[str] = Counter()

    def has_come(self, id: str, count: int) -> bool:
        return self.came[id] >= count

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        assert self.server is not None
        if isinstance(message, RegisterTarget):
            after_us = 3600 * US_PER_S if message.target == "t1" else None
            self.came[message.target] += 1
            failed = Failed("refused", "it is not let in", retry_after_us=after_us)
            self.server.send(session, request, failed)


def test_a_target_that_was_removed_does_not_dial_again_and_again(tmp_path: Path) -> None:
    """Another one that is refused comes again soon: somebody may say that it is let in."""

    async def scene() -> Counter[str]:
        coordinator = Removing()
        coordinator.listen()
        assert coordinator.server is not None
        try:
            with ExitStack() as daemons:
                for id, count in (("t1", 1), ("t2", TRIES)):
                    said = (coordinator.address, "--id", id)
                    daemon = await asyncio.to_thread(Daemon, tmp_path / id, *said)
                    daemons.enter_context(daemon)
                    known = partial(coordinator.has_come, id, count)
                    await wait_until_async(known, f"{id} has come {count} times")
            return coordinator.came
        finally:
            await coordinator.server.close(linger_s=0)

    came = asyncio.run(scene())
    assert came["t1"] == 1


def test_a_new_target_with_another_secret_says_so(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        log = Log()
        adopted = asyncio.create_task(log.adopt(tmp_path, coordinator.address, b"x" * 32))
        await wait_until_async(lambda: bool(log.lines), "it says why it waits")
        log.stop.set()
        assert await adopted is None
        assert [text for text, _ in log.lines] == [OUT]
        assert "does not know this cluster's secret" in log.lines[0][1]

    run(story)


def test_a_new_target_that_is_too_old_for_the_cluster_ends_with_the_reason(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        assert coordinator.server is not None
        coordinator.server.identity = replace(
            coordinator.server.identity, needs=PROTOCOL_VERSION + 1
        )
        with pytest.raises(Refused, match=f"needs protocol {PROTOCOL_VERSION + 1}"):
            await Log().adopt(tmp_path, coordinator.address)
        assert list(tmp_path.iterdir()) == []

    run(story)


class Unwilling(Coordinator):
    """Refuses so many registrations, then takes targets in."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = TRIES

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        assert self.server is not None
        if isinstance(message, RegisterTarget) and self.refusals:
            self.refusals -= 1
            self.server.send(session, request, Failed("refused", "it is another directory"))
        else:
            super().received(session, request, message, bulk)


def test_a_target_that_is_refused_again_and_again_logs_the_reason_once(tmp_path: Path) -> None:
    """It dials twice a second for as long as it runs: the disk with its log must not fill."""

    async def scene() -> list[str]:
        coordinator = Unwilling()
        coordinator.listen()
        assert coordinator.server is not None
        try:
            daemon = await asyncio.to_thread(
                Daemon, tmp_path / "t", coordinator.address, "--id", "t1"
            )
            with daemon:
                async with asyncio.timeout(ANSWER_S):
                    await coordinator.registrations.get()
                    await coordinator.renewals.get()
                await asyncio.to_thread(daemon.end, signal.SIGTERM)
                lines = map(json.loads, daemon.log.read_text().splitlines())
                return [line["msg"] for line in lines if line["msg"] != "ready"]
        finally:
            await coordinator.server.close(linger_s=0)

    said = asyncio.run(scene())
    assert said == [
        *("starting", "coordinator reached", "the coordinator refused", "coordinator lost", OUT),
        *("coordinator reached", "coordinator lost", "stopped"),
    ]
