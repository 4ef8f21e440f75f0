"""What a client asks first, and what it makes of a coordinator that does not know the question."""

from __future__ import annotations

import fcntl
import socket
from pathlib import Path
from typing import cast

import pytest

import ckpt
from ckpt.aio.secret import make_secret
from ckpt.base.errors import CkptError, Refused, Unavailable
from ckpt.base.ids import RunName
from ckpt_client.connection import Impatience, _greet
from ckpt_client.control import Control
from ckpt_client.load import pin
from ckpt_client.load.checkpoint import resolve
from ckpt_client.load.reader_context import ReaderContext
from ckpt_client.locate import Locator


class _Coordinator:
    """It answers these questions, and others with an error."""

    def __init__(self, *known: str, error: CkptError) -> None:
        self.asked: list[str] = []
        self._known, self._error = known, error

    def ask(self, what: str, look: object = None) -> bytes:
        self.asked.append(what)
        if what not in self._known:
            raise self._error
        return b"{}"

    def greeted(self) -> list[str]:
        """What a client that greets it has asked."""
        _greet(cast(Control, self))
        return self.asked


def test_one_question_is_enough() -> None:
    assert _Coordinator("coordinator", error=Refused("never")).greeted() == ["coordinator"]


def test_a_coordinator_of_the_version_before_is_asked_what_it_knows() -> None:
    older = _Coordinator("runs", error=Refused("'coordinator' is not one of status, runs"))
    assert older.greeted() == ["coordinator", "runs"]


@pytest.mark.parametrize("error", [Refused("of another cluster"), Unavailable("no quorum")])
def test_an_error_that_means_the_client_is_raised(error: CkptError) -> None:
    coordinator = _Coordinator(error=error)
    with pytest.raises(type(error), match=error.message):
        coordinator.greeted()
    assert len(coordinator.asked) <= 2


def test_a_coordinator_that_nobody_can_reach_is_given_up_as_soon_as_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").touch(mode=0o600)
    (tmp_path / "secret").write_text("ab" * 32)
    monkeypatch.setenv("CKPT_SECRET_FILE", str(tmp_path / "secret"))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"ckpt://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(Unavailable, match=r"no answer from .* in 2 s: .*refused"):
            ckpt.open(url, start_timeout_s=0)


class _HeardError(Exception):
    """All that was waited for."""


def test_who_waits_for_a_coordinator_that_is_not_there_hears_why_and_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_secret(tmp_path / "secret")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Nobody listens there.
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        control = Control(Locator("", address), tmp_path / "secret", None)
        impatience = Impatience(control, 60.0)
        looks = 0

        def look() -> None:
            nonlocal looks
            impatience.look()
            if caplog.records:
                looks += 1
            if looks == 3:
                raise _HeardError

        try:
            with pytest.raises(_HeardError):
                _greet(control, look=look)
        finally:
            control.close()
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("ckpt.store", "WARNING")
    assert record.getMessage().startswith(f"ckpt.open waits for the coordinator at {address}: ")
    assert "refused" in record.getMessage()


def test_a_load_says_in_the_log_that_nobody_answers_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pin, "ANSWER_SLACK_S", 3.5)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Nobody listens there.
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        context = ReaderContext(lambda: address, bytes(32), "a cluster", "a reader")
        with pytest.raises(Unavailable, match="no answer"):
            resolve(context, RunName("llama/7b"), timeout_s=0.0)
    (record,) = caplog.records
    start = f"the load of llama/7b waits for the coordinator at {address}: "
    assert record.getMessage().startswith(start)
    assert "refused" in record.getMessage()


def test_an_open_says_in_the_log_that_another_one_holds_the_cluster(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="another process is still starting"):
            ckpt.open(f"ckpt+local://{tmp_path}", start_timeout_s=2.5)
    (record,) = caplog.records
    assert record.getMessage() == f"another process opens or starts the cluster in {tmp_path}"
