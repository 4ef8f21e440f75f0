"""The HTTP plane, over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import secrets
import socket
import time
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import TypeVar

import pytest

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import NotFound, Unavailable
from ckpt.base.ids import RunName, Step
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.hello import Role
from ckpt.protocol.handshake import Caller
from ckpt.protocol.page_pass import PAGE_PASS_LIFE_S, page_pass
from ckptd.http import server as http_module
from ckptd.http.auth import (
    CHALLENGE_HEADER,
    CHALLENGE_REQUESTS_MAX,
    MAC_HEADER,
    NONCES_MAX,
    Verifier,
    answer_is_signed,
    http_key,
    sign_request,
)
from ckptd.http.server import CONNECTIONS_MAX, SEATS_MAX, HttpPlane, metrics_token
from tests.aio.strangers import ASK_S, Crowd
from tests.waiting import wait_until

T = TypeVar("T")
SECRET = b"s" * 32
TOKEN = "t" * 48


class FakeReports:
    """A cluster of one target and no surprises."""

    def __init__(self) -> None:
        self.ready = True

    def answer(self, what: str, run: RunName | None, step: Step | None) -> bytes:
        if run == "absent":
            raise NotFound("no run 'absent'")
        targets = [{"id": "<t0>", "state": "live", "bytes_used": 2048}]
        checks = [{"name": "TARGET_DOWN", "message": "<t1>", "command": "kill -CONT 7"}]
        answer = {"what": what, "run": run, "step": step, "targets": targets, "checks": checks}
        return json.dumps(answer).encode()

    def metrics(self) -> str:
        return "ckpt_target_up 1\n"

    def why_not_ready(self) -> str:
        return "not ready"

    def is_ready(self) -> bool:
        return self.ready


class Plane:
    """An HttpPlane on a loop of its own, and the address it answers at."""

    def __init__(self, reports: FakeReports) -> None:
        self.reports = reports
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever)
        self._thread.start()
        self.plane = HttpPlane(reports, answers=reports, secret=SECRET, token=TOKEN)
        self.host, _, port = self._run(self.plane.start("127.0.0.1", 0)).rpartition(":")
        self.port = int(port)

    def _run(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    def close(self) -> None:
        self._run(self.plane.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def get(
        self, path: str, headers: dict[str, str] | None = None, timeout_s: float = 30.0
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def challenge(self) -> str:
        return self.get("/v1/status")[1][CHALLENGE_HEADER]

    def signed(
        self, path: str, secret: bytes = SECRET, timeout_s: float = 30.0
    ) -> tuple[int, dict[str, str], bytes]:
        authorization = sign_request(
            http_key(secret), "GET", path, b"", self.challenge(), secrets.token_hex(16)
        )
        return self.get(path, {"Authorization": authorization}, timeout_s)


@contextmanager
def running() -> Iterator[Plane]:
    plane = Plane(FakeReports())
    try:
        yield plane
    finally:
        plane.close()


@pytest.fixture
def plane() -> Iterator[Plane]:
    with running() as plane:
        yield plane


def test_livez_and_readyz_are_open_and_say_nothing_else(plane: Plane) -> None:
    status, headers, body = plane.get("/livez")
    assert (status, body) == (200, b"ok\n")
    assert "Server" not in headers
    assert plane.get("/readyz")[0::2] == (200, b"ok\n")
    plane.reports.ready = False
    assert plane.get("/readyz")[0::2] == (503, b"not ready\n")


@pytest.mark.parametrize("path", ["/", "/metrics", "/v1/status", "/v1/nothing", "/absent"])
def test_without_a_credential_every_other_path_is_refused_alike(plane: Plane, path: str) -> None:
    status, headers, body = plane.get(path)
    assert (status, body) == (401, plane.get("/nothing")[2])
    assert headers["Content-Type"].startswith("text/plain")
    assert body.startswith(b"unauthorized\n")
    # How to get in, of each path.
    assert b"`ckpt status` prints an address that opens the page" in body
    assert b"metrics.token" in body
    assert b"--json" in body


def test_a_signed_request_is_answered_and_the_answer_is_signed(plane: Plane) -> None:
    path = "/v1/steps?run=a%20run&step=7"
    authorization = sign_request(
        http_key(SECRET), "GET", path, b"", plane.challenge(), secrets.token_hex(16)
    )
    status, headers, body = plane.get(path, {"Authorization": authorization})
    assert status == 200
    found = json.loads(body)
    assert (found["what"], found["run"], found["step"]) == ("steps", "a run", 7)
    assert answer_is_signed(http_key(SECRET), authorization, status, body, headers[MAC_HEADER])
    assert not answer_is_signed(http_key(b"x"), authorization, status, body, headers[MAC_HEADER])
    assert not answer_is_signed(
        http_key(SECRET), authorization, status, body + b" ", headers[MAC_HEADER]
    )


def test_a_signature_is_good_for_one_request_of_one_path_and_one_secret(plane: Plane) -> None:
    nonce = secrets.token_hex(16)
    signed = {
        "Authorization": sign_request(
            http_key(SECRET), "GET", "/v1/runs", b"", plane.challenge(), nonce
        )
    }
    assert plane.get("/v1/status", signed)[0] == 401
    assert plane.get("/v1/runs?run=x", signed)[0] == 401
    assert plane.get("/v1/runs", signed)[0] == 200
    assert plane.get("/v1/runs", signed)[0] == 401, "replayed"
    assert plane.signed("/v1/runs", secret=b"another")[0] == 401


def test_a_signature_from_before_a_restart_is_refused() -> None:
    with running() as plane:
        old = sign_request(
            http_key(SECRET), "GET", "/v1/runs", b"", plane.challenge(), secrets.token_hex(16)
        )
    with running() as plane:
        assert plane.get("/v1/runs", {"Authorization": old})[0] == 401


def test_the_token_opens_metrics_and_the_page_but_no_question(plane: Plane) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    status, headers, body = plane.get("/metrics", bearer)
    assert (status, body) == (200, b"ckpt_target_up 1\n")
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert plane.get("/metrics?token=" + TOKEN)[0] == 401
    assert plane.get("/v1/status", bearer)[0] == 401
    assert plane.get("/", {"Authorization": "Bearer wrong"})[0] == 401
    status, _, page = plane.get(f"/?token={TOKEN}")
    assert status == 200
    assert b"&lt;t0&gt;" in page
    assert b"2 KiB" in page
    assert b"<t0>" not in page
    assert b"<td class=words>&lt;t1&gt;<td" in page
    assert b"<code>kill -CONT 7</code>" in page


def test_a_pass_opens_the_page_alone_and_for_a_short_time(plane: Plane) -> None:
    now_s = time.time()
    good = page_pass(SECRET, now_s)
    status, headers, body = plane.get(f"/?token={good}")
    assert (status, b"TARGET_DOWN" in body) == (200, True)
    assert (headers["Referrer-Policy"], headers["Cache-Control"]) == ("no-referrer", "no-store")
    assert plane.get(f"/?token={good}")[0] == 200, "as often as it is asked"
    assert plane.get("/", {"Authorization": f"Bearer {good}"})[0] == 200
    over = page_pass(SECRET, now_s - PAGE_PASS_LIFE_S - 1)
    ends, _, mac = good.partition(".")
    longer = f"{int(ends) + 60}.{mac}"
    early = page_pass(SECRET, now_s + 10 * PAGE_PASS_LIFE_S)
    for bad in (over, longer, early, page_pass(b"x" * 32, now_s), f"{ends}.", f"x.{mac}", "."):
        assert plane.get(f"/?token={bad}")[0] == 401, bad
    for path in ("/metrics", "/v1/status"):
        assert plane.get(path, {"Authorization": f"Bearer {good}"})[0] == 401
        assert plane.get(f"{path}?token={good}")[0] == 401
    assert SECRET.hex() not in good


def test_a_wrong_question_is_an_error_in_json(plane: Plane) -> None:
    for path, status, code in [
        ("/v1/nothing", 400, "refused"),
        ("/v1/show?run=absent", 404, "not_found"),
        ("/v1/show?run=a@b", 400, "refused"),
        ("/v1/show?run=a&step=-1", 400, "refused"),
    ]:
        found, _, body = plane.signed(path)
        assert (found, json.loads(body)["error"]["code"]) == (status, code)


def test_oversized_requests_are_refused_and_the_plane_lives_on(plane: Plane) -> None:
    assert plane.get("/livez", {"Long": "x" * 10_000})[0] == 400
    assert plane.get("/" + "x" * 10_000)[0] in (400, 414)
    with socket.create_connection((plane.host, plane.port), timeout=30) as peer:
        peer.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        peer.sendall(b"x" * 100_000)
        assert b" 413 " in peer.recv(4096).splitlines()[0]
    assert plane.get("/livez")[0] == 200


def test_what_strangers_send_that_is_no_http_fills_no_log(
    plane: Plane, caplog: pytest.LogCaptureFixture
) -> None:
    """The log lies on the disk of the catalog, more often than not."""
    for words in (b"\0\r\n\r\n", b"GET //[ HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\na:\0\r\n\r\n"):
        with socket.create_connection((plane.host, plane.port), timeout=30) as peer:
            peer.sendall(words)
            assert b" 400 " in peer.recv(4096).splitlines()[0]
    assert plane.get("/livez")[0] == 200
    assert caplog.records == []


def test_a_defect_of_ours_is_in_the_log(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    plane.reports.metrics = lambda: 1 // 0 * ""  # type: ignore[method-assign]
    assert plane.get("/metrics", {"Authorization": f"Bearer {TOKEN}"})[0] == 500
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)


def test_who_takes_it_for_the_other_port_hears_which_one_it_is(plane: Plane) -> None:
    """As by 7080 instead of 7070."""
    address = f"{plane.host}:{plane.port}"
    with (
        RpcClient(address, Caller(SECRET, Role.ADMIN, "test")) as client,
        pytest.raises(Unavailable, match="it answers in HTTP") as caught,
    ):
        client.call(Ask("status"), timeout_s=1.0)
    assert "name that of --listen" in caught.value.hint


def test_a_connection_that_makes_no_whole_request_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_module, "_LIFE_S", 0.1)
    with running() as plane:
        for beginning in (b"", b"GET /livez HTTP/1.1\r\nHo"):
            with socket.create_connection((plane.host, plane.port), timeout=30) as peer:
                peer.sendall(beginning)
                assert is_cut_off(peer)


SLOW_BODY = b"GET /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx"
STRANGERS = {
    "nothing": b"",
    "a line": b"GET /v1/status HTTP/1.1\r\n",
    "half the headers": b"GET /livez HTTP/1.1\r\nHost: x\r\nX-A: b",
    "a body that does not come": SLOW_BODY,
    "a request, to keep its connection": b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    "requests without end": b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n" * 40,
}


@pytest.mark.parametrize("saying", STRANGERS)
def test_whoever_asks_is_answered_beside_a_crowd(
    saying: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody goes by itself: what frees a seat is that somebody else came.
    monkeypatch.setattr(http_module, "_LIFE_S", 600.0)
    count = 2 * SEATS_MAX
    with running() as plane, Crowd((plane.host, plane.port), count, STRANGERS[saying]) as crowd:
        crowd.wait_connected(count)
        for _ in range(3):
            assert plane.get("/livez", timeout_s=ASK_S)[0] == 200
            assert plane.signed("/v1/status", timeout_s=ASK_S)[0] == 200


def test_strangers_that_come_again_at_once_shut_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_module, "_LIFE_S", 600.0)
    with (
        running() as plane,
        Crowd((plane.host, plane.port), SEATS_MAX, b"GET ", returning=True) as crowd,
    ):
        crowd.wait_connected(SEATS_MAX)
        assert plane.get("/livez", timeout_s=ASK_S)[0] == 200
        assert plane.signed("/v1/status", timeout_s=ASK_S)[0] == 200


def test_a_connection_with_a_credential_keeps_its_place_beside_a_crowd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_module, "_LIFE_S", 600.0)
    with running() as plane, socket.create_connection((plane.host, plane.port), ASK_S) as peer:
        asked = f"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        peer.sendall(asked.encode())
        assert b" 200 " in peer.recv(65536)
        with Crowd((plane.host, plane.port), 3 * SEATS_MAX) as crowd:
            wait_until(lambda: crowd.cut_count > SEATS_MAX, "strangers gave way to strangers")
            peer.sendall(asked.encode())
            assert b" 200 " in peer.recv(65536)


def test_beyond_so_many_known_connections_one_is_answered_and_closed() -> None:
    with running() as plane, ExitStack() as peers:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        for _ in range(CONNECTIONS_MAX):
            known = http.client.HTTPConnection(plane.host, plane.port, timeout=30)
            peers.callback(known.close)
            known.request("GET", "/metrics", headers=bearer)
            answer = known.getresponse()
            answer.read()
            assert not answer.will_close
        one_more = http.client.HTTPConnection(plane.host, plane.port, timeout=30)
        peers.callback(one_more.close)
        one_more.request("GET", "/metrics", headers=bearer)
        answer = one_more.getresponse()
        assert (answer.status, answer.will_close) == (200, True)


def is_cut_off(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except ConnectionError:
        return True


def test_what_the_verifier_remembers_is_bounded() -> None:
    verifier = Verifier(http_key(SECRET), os.urandom)

    def ask(challenge: str) -> bool:
        signed = sign_request(
            http_key(SECRET), "GET", "/v1/runs", b"", challenge, secrets.token_hex(16)
        )
        return verifier.accepts("GET", "/v1/runs", b"", signed)

    first = verifier.challenge
    assert all(ask(first) for _ in range(CHALLENGE_REQUESTS_MAX))
    assert verifier.challenge != first
    assert all(ask(first) for _ in range(CHALLENGE_REQUESTS_MAX)), "under way at the change"
    assert not ask(first)
    for _ in range(3 * CHALLENGE_REQUESTS_MAX):
        assert ask(verifier.challenge)
        kept = (verifier._current, verifier._previous)
        assert sum(len(each.nonces) for each in kept if each is not None) <= 2 * NONCES_MAX


def test_the_token_is_made_once_and_for_the_owner_alone(tmp_path: Path) -> None:
    token = metrics_token(tmp_path)
    assert len(token) == 48
    assert metrics_token(tmp_path) == token
    assert (tmp_path / "metrics.token").stat().st_mode & 0o777 == 0o600


def test_a_signature_holds_for_one_method_one_path_and_one_body() -> None:
    key = http_key(b"secret")
    verifier = Verifier(key, os.urandom)

    def signed() -> str:
        nonce = os.urandom(16).hex()
        return sign_request(key, "POST", "/v1/hold?id=t0", b"body", verifier.challenge, nonce)

    assert not verifier.accepts("GET", "/v1/hold?id=t0", b"body", signed())
    assert not verifier.accepts("POST", "/v1/hold?id=t1", b"body", signed())
    assert not verifier.accepts("POST", "/v1/hold?id=t0", b"other", signed())
    assert verifier.accepts("POST", "/v1/hold?id=t0", b"body", signed())
