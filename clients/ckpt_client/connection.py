"""A store's standing connection: the cluster that a URL names, started if need be.

What a Store and a filesystem have in common: one conversation with the coordinator, the secret, and
whom readers ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ckpt.aio.clock import draw
from ckpt.aio.inherited import hold_standard_numbers
from ckpt.aio.secret import find_secret_file
from ckpt.base.errors import Refused, Unavailable
from ckpt.base.ids import Rank, RunName
from ckpt.base.rests import shortened
from ckpt.format.messages.launches import LaunchJoined
from ckpt_client.control import Control
from ckpt_client.environment import RankPlace, find_place
from ckpt_client.load.reader_context import ReaderContext
from ckpt_client.local.cluster import (
    is_supervised,
    of_another_cluster,
    opened_cluster,
    serving,
)
from ckpt_client.locate import Locator, ReadyFile, client_name, read_ready
from ckpt_client.url import LocalUrl, RemoteUrl
from ckpt_client.wait_notice import WaitNotice

REACHED_S_MIN: Final = 2.0
"""Whatever the patience, so long is tried to reach a coordinator: a lost packet alone takes one."""


class Impatience:
    """I log once that a coordinator does not answer yet, and why; and I give up one that nobody
    has reached for `patience_s`.
    """

    def __init__(self, control: Control, patience_s: float) -> None:
        self._control = control
        self._patience_s = max(patience_s, REACHED_S_MIN)
        self._begun_s = time.monotonic()
        self._waiting = WaitNotice(
            f"ckpt.open waits for the coordinator at {control.locator.address()}"
        )

    def look(self) -> None:
        """Nobody answers. Raises Unavailable once that has lasted too long."""
        if time.monotonic() >= self._begun_s + self._patience_s:
            raise self._control.unanswered(self._patience_s)
        self.say(self._control.trouble)

    def say(self, why: str) -> None:
        """As `WaitNotice.say`."""
        self._waiting.say(why)


class Connection:
    """I am connected from the start. Close me."""

    def __init__(
        self, url: LocalUrl | RemoteUrl, launch_key: str | None, start_timeout_s: float
    ) -> None:
        """Raises Refused, Unauthorized, Unavailable."""
        hold_standard_numbers()
        self.url = url
        self._launch_key = launch_key
        self._start_timeout_s = start_timeout_s
        self.secret_file: Path
        self.locator: Locator
        self.control: Control
        self.cluster: str
        """The cluster's id."""
        match url:
            case RemoteUrl():
                self.secret_file = find_secret_file()
                self._connect(Locator("", url.address), start_timeout_s)
            case LocalUrl():
                with opened_cluster(url, start_timeout_s) as cluster:
                    self.secret_file = cluster.secret_file
                    self._connect(Locator(str(cluster.directory), ""), look=cluster.start_again)

    def ensure_cluster(self) -> None:
        """Start a local cluster again that has stopped since. Raises NotFound where it is no longer
        in its directory, and as `ckpt.open`.
        """
        if isinstance(self.url, LocalUrl):
            directory = Path(self.url.directory)
            if is_supervised(directory):
                self._check_same(directory, read_ready(directory))
            else:
                self._open_again(self.url)

    def ensure_answers(self) -> None:
        """`ensure_cluster` before a question; waits for a cluster that is just starting."""
        if isinstance(self.url, LocalUrl):
            directory = Path(self.url.directory)
            ready = serving(directory)
            if ready is None:
                self._open_again(self.url)
            else:
                self._check_same(directory, ready)

    def _open_again(self, url: LocalUrl) -> None:
        with opened_cluster(url, self._start_timeout_s, self.cluster) as cluster:
            _greet(self.control, look=cluster.start_again)

    def _check_same(self, directory: Path, ready: ReadyFile | None) -> None:
        """Its secret is another one as well, and would be called wrong."""
        if ready is not None and self.cluster and ready.cluster not in ("", self.cluster):
            raise of_another_cluster(directory, ready.cluster, self.cluster)

    def reader(self, durable: str = "") -> ReaderContext:
        """Whom readers ask, and who they are; `durable` is the object store that they can read."""
        control = self.control
        return ReaderContext(control.find, control.secret, control.cluster, client_name(), durable)

    def launch_by_environment(self, run: RunName) -> tuple[RankPlace, LaunchJoined | None]:
        """Who this process is, by its environment, and the launch whose ranks read one generation
        of a step; None for a single rank, and where nothing names this start of the job.
        """
        try:
            place = find_place()
        except Refused:  # It is not said who this is: that is no reason to read nothing.
            return RankPlace(Rank(0), 1), None
        if self._launch_key is None:
            return place, None
        return place, self.control.join_to_read(run, place.rank, place.world_size)

    def close(self) -> None:
        self.control.close()

    def _connect(
        self,
        locator: Locator,
        patience_s: float = 0.0,
        look: Callable[[], None] | None = None,
    ) -> None:
        """Without `look`, which would start it, the cluster is of other hosts."""
        self.locator = locator
        self.control = Control(locator, self.secret_file, self._launch_key)
        impatience = Impatience(self.control, patience_s) if look is None else None
        try:
            _greet(self.control, patience_s, look, impatience)
            self.cluster = self.control.cluster
        except BaseException:
            self.control.close()
            raise


def _greet(
    control: Control,
    patience_s: float = 0.0,
    look: Callable[[], None] | None = None,
    impatience: Impatience | None = None,
) -> None:
    """One question, so that a wrong address or secret fails at once. While its targets are not yet
    there, a coordinator says when to come again: then it is asked for `patience_s`.

    look: as in `Control.call`; who holds a local cluster's lock starts it by `start_again`. Without
        it `impatience` looks.
    """
    deadline_s = time.monotonic() + patience_s
    question = "coordinator"
    if look is None and impatience is not None:
        look = impatience.look
    while True:
        try:
            control.ask(question, look=look)
        except Refused:
            if question == "runs":
                raise
            # One of a version before does not know the first question.
            question = "runs"
            continue
        except Unavailable as error:
            rest_s = error.retry_after_s
            if rest_s is None or time.monotonic() + rest_s > deadline_s:
                raise
            if impatience is not None:
                impatience.say(error.message)
        else:
            return
        # A whole job waits here: not all its ranks at the same moment.
        time.sleep(shortened(rest_s, draw))
