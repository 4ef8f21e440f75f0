"""`target.toml`: which target of which cluster a directory is. Written once, at the first start."""

from __future__ import annotations

import asyncio
import json
import secrets
import tomllib
from dataclasses import dataclass
from pathlib import Path

from ckpt.aio.channel import Bulk
from ckpt.aio.dial import Dialer
from ckpt.aio.durable import write_aside
from ckpt.base.errors import Refused
from ckpt.base.limits import TARGET_ID_BYTES_MAX
from ckpt.format.messages import Message, Role
from ckpt.protocol.events import Session
from ckpt.protocol.handshake import Established

FILE_NAME = "target.toml"


@dataclass(frozen=True, slots=True)
class TargetFile:
    """What a directory says of itself."""

    target: str
    cluster: str


async def adopt_identity(
    directory: Path, id: str, cluster: str, coordinator: str, secret: bytes, stop: asyncio.Event
) -> TargetFile | None:
    """The directory's identity, made at its first start; None when the stop signal came first.

    Raises Refused when the directory belongs to another cluster or is another target.
    """
    known = read_target_file(directory)
    if known is not None:
        if cluster and known.cluster != cluster:
            raise Refused(
                f"{directory} belongs to cluster {known.cluster}, not to {cluster}",
                hint="name an empty directory, or the cluster that it belongs to",
            )
        if id and known.target != id:
            raise Refused(f"{directory} is target {known.target}, not {id}")
        return known
    if not 0 <= len(id.encode()) <= TARGET_ID_BYTES_MAX:
        raise Refused(f"a target's id has at most {TARGET_ID_BYTES_MAX} bytes")
    if not cluster:
        learned = await _learn_cluster(coordinator, secret, stop)
        if learned is None:
            return None
        cluster = learned
    made = TargetFile(id or f"target-{secrets.token_hex(4)}", cluster)
    _write_target_file(directory, made)
    return made


def read_target_file(directory: Path) -> TargetFile | None:
    """None when there is none; raises Refused when it cannot be understood."""
    path = directory / FILE_NAME
    try:
        values = tomllib.loads(path.read_text())
        return TargetFile(str(values["target"]), str(values["cluster"]))
    except FileNotFoundError:
        return None
    except (OSError, tomllib.TOMLDecodeError, KeyError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be understood: {error}") from None


def _write_target_file(directory: Path, made: TargetFile) -> None:
    # JSON strings are TOML basic strings.
    text = f"target = {json.dumps(made.target)}\ncluster = {json.dumps(made.cluster)}\n"
    write_aside(directory / FILE_NAME, text.encode())


class _Learner:
    """Takes the cluster's id from the first proved session."""

    def __init__(self) -> None:
        self.cluster: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def opened(self, _session: Session, peer: Established) -> None:
        if not self.cluster.done():
            self.cluster.set_result(peer.cluster)

    def received(
        self, _session: Session, _request: int, _message: Message, bulk: Bulk | None
    ) -> None:
        if bulk is not None:
            bulk.release()

    def closed(self, _session: Session, _reason: str) -> None:
        """The dialer dials again."""


async def _learn_cluster(coordinator: str, secret: bytes, stop: asyncio.Event) -> str | None:
    learner = _Learner()
    dialer = Dialer(learner, address=coordinator, secret=secret, role=Role.TARGET, name="")
    dialer.start()
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((learner.cluster, stopped), return_when=asyncio.FIRST_COMPLETED)
        return learner.cluster.result() if learner.cluster.done() else None
    finally:
        stopped.cancel()
        await dialer.close()
