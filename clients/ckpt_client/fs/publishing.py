"""When does a closed file become visible? The rules of this filesystem, in one place.

    loose file                        at close, as a checkpoint of its own
    in a transaction                  with all files of its step, at the transaction's end
    __R_N.distcp in a step            with its step: when `.metadata.tmp` is renamed to `.metadata`,
                                      together with exactly the data files that it names
    another file in a step            at close, as the only file of its step

Whatever is written by several processes meets at the coordinator; what is committed is named with
its length and fingerprint, so nobody publishes bytes that he does not mean.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from ckpt.base.errors import Aborted, CkptError, Refused, Unavailable
from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.format.members import Member, encode_members
from ckpt.format.messages.saving import AttemptCommitted, CommitMembers
from ckpt.protocol.coordinator.reading.answers import MembersView
from ckpt_client.connection import Connection
from ckpt_client.fs.metadata_names import METADATA, data_files
from ckpt_client.fs.paths import Spot
from ckpt_client.fs.sender import FileSender, Sent
from ckpt_client.fs.spool import Spool

COMMIT_TIMEOUT_S: Final = 120.0
MEMBERS_WAIT_S: Final = 20.0
"""After a restart of the coordinator the writers of other files come back within seconds."""
POLL_S: Final = 0.25
ALONE_TRIES_MAX: Final = 5
"""Tries for a single file that another writer of its name has overtaken."""
_members: Final = msgspec.json.Decoder(MembersView)


@dataclass(slots=True)
class _Pending:
    """A file that is on its targets and waits for its commit."""

    spot: Spot
    sent: Sent


class Publisher:
    """I am thread safe. Close me."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        #: Guards all that follows.
        self._lock = threading.Lock()
        self._closed = False
        #: Made by the first file.
        self._sender: FileSender | None = None
        #: By path; the last file of a path counts. The sender's thread drops what has committed.
        self._pending: dict[str, _Pending] = {}
        #: `.metadata.tmp` of a step, by path: its bytes go nowhere before it has its name.
        self._parked: dict[str, Spool] = {}

    # ----------------------------------------------------------------------- one file

    def publish_alone(self, spot: Spot, spool: Spool, check: Callable[[], None]) -> None:
        """Commit a single file; durable on return. Raises Refused when its step has other files.

        check: raises when the step has others already. It is asked while the file waits for its
            commit: whoever comes between is refused in turn, since this one waits.
        """
        for tries in range(1, ALONE_TRIES_MAX + 1):
            try:
                sent = self._send(spot, spool, spot.name)
            except Aborted:
                if tries == ALONE_TRIES_MAX:
                    raise
                continue
            try:
                if not spot.loose:
                    check()
                self._commit(sent.checkpoint, [sent.member], alone=True)
                return
            except BaseException as error:
                self._give_up(sent)
                if tries == ALONE_TRIES_MAX or not _is_overtaken(error):
                    raise

    def stage(self, path: str, spot: Spot, spool: Spool) -> None:
        """Send it to its targets; it is there on return, and visible with its step."""
        sent = self._send(spot, spool, spot.name)
        with self._lock:
            self._pending[path] = _Pending(spot, sent)

    def park(self, path: str, spool: Spool) -> None:
        """Keep the file here until it is renamed."""
        with self._lock:
            self._parked[path] = spool

    def open_list(self, run: RunName, step: Step) -> tuple[CheckpointId | None, list[Member]]:
        """The files that wait for the step's commit, of all processes; None without any."""
        self._connection.ensure_answers()
        view = _members.decode(self._connection.control.ask("members", run, step))
        if not view.generation:
            return None, []
        members = [Member(m.name, m.length, bytes.fromhex(m.fingerprint)) for m in view.members]
        return CheckpointId(run, step, Generation.parse(view.generation)), members

    def staged(self, path: str) -> list[Member]:
        """This process's files below a path that are on their targets and wait for a commit."""
        with self._lock:
            pending = list(self._pending.items())
        return [one.sent.member for name, one in pending if name.startswith(f"{path}/")]

    # ----------------------------------------------------------------------- commits

    def commit_metadata(self, path: str, spot: Spot) -> None:
        """Give the parked file at `path` its name and close its step, with the data files that it
        names. Raises FileNotFoundError, and Refused by name when one of them is not there.
        """
        with self._lock:
            spool = self._parked.get(path)
        if spool is None:
            raise FileNotFoundError(path)
        folder = spot.name.rpartition("/")[0]
        name = f"{folder}/{METADATA}"
        member, _, memory = spool.seal(name)
        wanted = {f"{folder}/{file}" for file in data_files(bytes(memory[: member.length]))}
        sent = self._send(spot, spool, name)
        try:
            members = self._await_members(sent.checkpoint, wanted)
            self._commit(sent.checkpoint, [*members, sent.member], alone=False)
        except BaseException:
            self._give_up(sent)
            raise
        self._drop_committed(sent.checkpoint)
        with self._lock:
            self._parked.pop(path, None)

    def commit_paths(self, paths: Iterable[str]) -> None:
        """End a transaction: one commit for each step, in order."""
        steps: defaultdict[CheckpointId, list[Member]] = defaultdict(list)
        with self._lock:
            for path in dict.fromkeys(paths):
                if path in self._pending:
                    sent = self._pending[path].sent
                    steps[sent.checkpoint].append(sent.member)
        for checkpoint, members in steps.items():
            self._commit(checkpoint, members, alone=False)
            self._drop_committed(checkpoint)

    def commit_members(self, checkpoint: CheckpointId, members: list[Member]) -> None:
        """Commit exactly the files of an open list, whoever wrote them. Raises Refused when one has
        gone.
        """
        self._commit(checkpoint, members, alone=False)
        self._drop_committed(checkpoint)

    def discard(self, path: str) -> bool:
        """Take back a file that is not committed; False when there is none."""
        with self._lock:
            pending = self._pending.pop(path, None)
            parked = self._parked.pop(path, None)
        if pending is not None:
            self._give_up(pending.sent)
        if parked is not None:
            parked.close()
        return pending is not None or parked is not None

    def writes_to(self, run: RunName, step: Step) -> bool:
        """Whether files of this process wait for the step's commit."""
        with self._lock:
            spots = [pending.spot for pending in self._pending.values()]
            return any((s.run, s.step) == (run, step) for s in spots)

    def has_parked(self, path: str) -> bool:
        with self._lock:
            return path in self._parked

    def waiting_below(self, path: str) -> list[str]:
        """Paths of this process's files below one, that wait for a commit."""
        with self._lock:
            waiting = [*self._pending, *self._parked]
        return [one for one in waiting if one == path or one.startswith(f"{path}/")]

    def close(self) -> None:
        """What was not committed is given up."""
        with self._lock:
            self._closed = True
            sender, self._sender = self._sender, None
            self._pending.clear()
            for spool in self._parked.values():
                spool.close()
            self._parked.clear()
        if sender is not None:
            sender.close()

    # ----------------------------------------------------------------------- inside

    def _send(self, spot: Spot, spool: Spool, name: str) -> Sent:
        self._connection.ensure_answers()
        with self._lock:
            if self._closed:
                raise Refused(f"{spot.folder}: the filesystem was closed before this file was")
            if self._sender is None:
                self._sender = FileSender(
                    self._connection.locator, self._connection.secret_file, self._drop_committed
                )
            sender = self._sender
        return sender.send(spot.run, spot.step, spool, name)

    def _give_up(self, sent: Sent) -> None:
        with self._lock:
            sender = self._sender
        if sender is not None:
            sender.give_up(sent)

    def _commit(self, checkpoint: CheckpointId, members: list[Member], *, alone: bool) -> None:
        _, joined = self._connection.launch_by_environment(checkpoint.run)
        launch = None if joined is None else joined.launch
        message = CommitMembers(checkpoint, alone, launch)
        document = encode_members(members)
        deadline = time.monotonic() + COMMIT_TIMEOUT_S
        while True:
            left_s = max(1.0, deadline - time.monotonic())
            try:
                self._connection.control.call(message, AttemptCommitted, document, timeout_s=left_s)
                return
            except Unavailable as error:
                if error.retry_after_s is None or time.monotonic() > deadline:
                    raise
                time.sleep(error.retry_after_s)

    def _await_members(self, checkpoint: CheckpointId, names: set[str]) -> list[Member]:
        """Those files of the open list. Raises Refused by name when one does not come."""
        deadline = time.monotonic() + MEMBERS_WAIT_S
        while True:
            listed, members = self.open_list(checkpoint.run, checkpoint.step)
            found = {member.name: member for member in members if listed == checkpoint}
            missing = sorted(names - found.keys())
            if not missing:
                return [found[name] for name in sorted(names)]
            if time.monotonic() > deadline:
                raise Refused(
                    f"{checkpoint} cannot be committed: its metadata names "
                    f"{', '.join(missing[:8])}, which no living process has written",
                    hint="save again",
                )
            time.sleep(POLL_S)

    def _drop_committed(self, checkpoint: CheckpointId) -> None:
        """Nothing of it waits any more, whoever committed it. Also the sender's thread calls it."""
        with self._lock:
            self._pending = {
                path: pending
                for path, pending in self._pending.items()
                if pending.sent.checkpoint != checkpoint
            }


def _is_overtaken(error: BaseException) -> bool:
    """Whether another writer of the same name was in between."""
    again = isinstance(error, CkptError) and "written again since" in error.message
    return again or isinstance(error, Aborted)
