"""How do people and tools look at a daemon? A small HTTP plane that only reads.

    /livez /readyz    open; `ok`, or 503; they say nothing else
    /metrics          Prometheus text; the read-only token (Authorization: Bearer) or a signature

and, of a coordinator, which has answers to questions:

    /                 a status page; the token or a pass (page_pass.py), also as ?token=
    /v1/status /v1/runs /v1/steps?run= /v1/show?run=&step= /v1/sessions    JSON; signed (http_auth)

Every request is bounded: its size, its time, and how many connections there are. A connection that
has not made a whole request within UNAUTHENTICATED_LIFE_US is cut off.

Connections without a credential sit in the same kind of seats as the other port's strangers
(`ckpt.aio.net.serving.seats`): when all are taken, the next one is let in and an older one goes,
also one that keeps its connection alive. A credential frees the seat; of such connections there are
at most CONNECTIONS_MAX, and who comes beyond is answered and then closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ckpt.aio.clock import now_us
from ckpt.aio.net.address import TcpAddress
from ckpt.aio.net.serving.accepting import Door, listen_at
from ckpt.base.errors import CkptError, Refused
from ckpt.base.ids import RunName, Step, check_run_name, check_step
from ckpt.base.limits import UNAUTHENTICATED_LIFE_US
from ckpt.base.units import US_PER_S
from ckpt.protocol.coordinator.reading.answers import Check
from ckpt.protocol.coordinator.reading.local_advice import for_its_page
from ckpt.protocol.page_pass import PAGE_PASS_LIFE_S, opens_page, page_key
from ckptd.http.auth import (
    CHALLENGE_HEADER,
    MAC_HEADER,
    Verifier,
    http_key,
    sign_answer,
    token_matches,
)
from ckptd.http.page import render_page

CONNECTIONS_MAX: Final = 64
"""Connections of peers that have shown a credential."""
SEATS_MAX: Final = 256
"""Connections of peers that have not."""
BODY_BYTES_MAX: Final = 4096
LINE_BYTES_MAX: Final = 4096
QUESTIONS: Final = ("status", "runs", "steps", "show", "sessions")
TOKEN_NAME: Final = "metrics.token"

#: Descriptors: whoever watches this daemon must not take it for dead because it has many peers.
_RESERVE_COUNT: Final = 4
_LIFE_S: Final = UNAUTHENTICATED_LIFE_US / US_PER_S
_STATUS_OF_CODE: Final = {"refused": 400, "not_found": 404, "unavailable": 503, "busy": 409}

#: Of every path alike, also of those that there are not: strangers learn nothing else.
_HOW_TO_GET_IN: Final = f"""unauthorized

/         `ckpt status` prints an address that opens the page, for {PAGE_PASS_LIFE_S // 60} minutes
/metrics  the token of the daemon's directory: Authorization: Bearer $(cat {TOKEN_NAME})
/v1/...   signed requests: `ckpt status --json`, `ckpt ls --json` and the like ask the same
"""

_log = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _is_ours(record: logging.LogRecord) -> bool:
    """Not what strangers make: words that are no HTTP, or a connection that ends early. They would
    fill the disk, with a trace for each.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError)


_log.addFilter(_is_ours)


class Reports(Protocol):
    """What the plane shows of every daemon; each answers at once, from memory."""

    def metrics(self) -> str:
        """Prometheus text."""

    def is_ready(self) -> bool:
        """Whether it can do its part of a save now."""

    def why_not_ready(self) -> str:
        """One line for people, when it cannot."""


class Answers(Protocol):
    """What else a coordinator can be asked; it answers this at once, from memory, as well."""

    def answer(self, what: str, run: RunName | None, step: Step | None) -> bytes:
        """JSON. Raises NotFound, Refused."""


class HttpPlane:
    """I serve one daemon's reports. `start` binds; after `close` nothing of me is left."""

    def __init__(
        self,
        reports: Reports,
        *,
        answers: Answers | None,
        secret: bytes,
        token: str,
        local: Path | None = None,
    ) -> None:
        """`local`: the absolute directory of the cluster of one machine that has this daemon."""
        self._reports = reports
        self._answers = answers
        self._local = local
        self._key = http_key(secret)
        self._page_key = page_key(secret)
        self._token = token
        self._verifier = Verifier(self._key, secrets.token_bytes)
        #: Every connection that has said something, until it is lost, by aiohttp's half of it.
        self._guests: dict[object, _Guest] = {}
        #: Those of them that have shown a credential; at most CONNECTIONS_MAX.
        self._known: set[_Guest] = set()
        #: Those that have a connection and have said nothing.
        self._silent: set[_Guest] = set()
        #: Connections that are being given their transport; that takes no time, but is awaited.
        self._beginnings: set[asyncio.Task[None]] = set()
        self._door: Door[_Guest] | None = None
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            logger=_log,
            handle_signals=False,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            keepalive_timeout=_LIFE_S,
            shutdown_timeout=1.0,
        )

    async def start(self, host: str, port: int) -> str:
        """Listen; returns the bound HOST:PORT. Raises Unavailable when it cannot be had."""
        await self._runner.setup()
        listener = listen_at(host, port)
        self._door = Door(self, SEATS_MAX, _RESERVE_COUNT)
        self._door.add(listener)
        bound, port = listener.getsockname()[:2]
        # The scope of a link's own address is not in that text.
        return str(TcpAddress(host if "%" in host else bound, port))

    async def close(self) -> None:
        """Stop listening, end every connection."""
        if self._door is not None:
            self._door.close()
        await asyncio.gather(*self._beginnings)
        for guest in tuple(self._silent):
            guest.abort()
        for guest in self._guests.values():
            guest.has_spoken()
        await self._runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._guarded])
        application.on_response_prepare.append(self._prepare)
        application.router.add_get("/livez", self._livez)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics)
        if self._answers is not None:
            application.router.add_get("/", partial(self._page, self._answers))
            application.router.add_get("/v1/{what}", partial(self._question, self._answers))
        return application

    # ----------------------------------------------------------------------- the door's host

    def welcome(self, sock: socket.socket, source: str) -> None:
        """The door calls this."""
        assert self._door is not None
        sock.setblocking(False)
        guest = _Guest(self._enter, self._left)
        self._door.seats.take(guest, source, now_us())
        self._silent.add(guest)
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._begin(guest, sock))
        self._beginnings.add(task)
        task.add_done_callback(self._beginnings.discard)

    async def _begin(self, guest: _Guest, sock: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: guest, sock)
        except OSError:
            # It was gone before it had a transport.
            sock.close()
            self._left(guest)

    def send_away(self, who: _Guest) -> None:
        """The door calls this."""
        assert self._door is not None
        self._door.leave(who)
        who.abort()

    def _enter(self, guest: _Guest) -> asyncio.Protocol:
        """It has said something: from now on aiohttp listens."""
        assert self._runner.server is not None
        protocol = self._runner.server()
        self._silent.discard(guest)
        self._guests[protocol] = guest
        return protocol

    def _left(self, guest: _Guest) -> None:
        assert self._door is not None
        self._door.leave(guest)
        self._silent.discard(guest)
        self._known.discard(guest)
        if guest.inner is not None:
            del self._guests[guest.inner]

    def _recognize(self, request: web.Request) -> None:
        """Its credential is right: nobody takes its seat any more."""
        guest = self._guests.get(request.protocol)
        if guest is not None and self._door is not None and len(self._known) < CONNECTIONS_MAX:
            self._known.add(guest)
            self._door.leave(guest)

    # ----------------------------------------------------------------------- who may ask

    @web.middleware
    async def _guarded(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            async with asyncio.timeout(_LIFE_S):
                body = await request.read()
        except TimeoutError:
            return web.Response(status=408)
        guest = self._guests.get(request.protocol)
        if guest is not None:  # It may have left meanwhile.
            guest.has_spoken()
        if request.path in ("/livez", "/readyz"):
            return await handler(request)
        authorization = request.headers.get("Authorization", "")
        if request.path.startswith("/v1/"):
            if not self._verifier.accepts(request.method, request.raw_path, body, authorization):
                return self._unauthorized("CKPT-HMAC-SHA256")
            self._recognize(request)
            response = await handler(request)
            assert isinstance(response, web.Response)
            assert isinstance(response.body, bytes)
            mac = sign_answer(self._key, authorization, response.status, response.body)
            response.headers[MAC_HEADER] = mac
            response.headers[CHALLENGE_HEADER] = self._verifier.challenge
            return response
        given = authorization.removeprefix("Bearer ")
        if request.path == "/" and not authorization:
            given = request.query.get("token", "")
        if (
            token_matches(self._token, given)
            or (request.path == "/" and opens_page(self._page_key, given, time.time()))
            or self._verifier.accepts(request.method, request.raw_path, body, authorization)
        ):
            self._recognize(request)
            return await handler(request)
        return self._unauthorized("Bearer")

    async def _prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers.popall("Server", None)
        guest = self._guests.get(request.protocol)
        if self._door is None or guest is None:
            return
        if (
            len(self._known) >= CONNECTIONS_MAX and guest not in self._known
        ) or self._door.is_short():
            response.headers["Connection"] = "close"
            response.force_close()

    def _unauthorized(self, scheme: str) -> web.Response:
        headers = {"WWW-Authenticate": scheme, CHALLENGE_HEADER: self._verifier.challenge}
        return web.Response(status=401, text=_HOW_TO_GET_IN, headers=headers)

    # ----------------------------------------------------------------------- answers

    async def _livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        if self._reports.is_ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text=f"{self._reports.why_not_ready()}\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        # The version is part of Prometheus' content type; aiohttp's own argument cannot carry it.
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._reports.metrics().encode(), headers=headers)

    async def _page(self, answers: Answers, request: web.Request) -> web.Response:
        status = json.loads(answers.answer("status", None, None))
        if self._local is not None:
            said = msgspec.convert(status["checks"], list[Check])
            here = [for_its_page(one, str(self._local)) for one in said]
            status["checks"] = msgspec.to_builtins(here)
        runs = json.loads(answers.answer("runs", None, None))
        headers = {
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
            "Referrer-Policy": "no-referrer",  # The token may stand in the address.
            "Cache-Control": "no-store",
        }
        return web.Response(
            text=render_page(status, runs), content_type="text/html", headers=headers
        )

    async def _question(self, answers: Answers, request: web.Request) -> web.Response:
        what = request.match_info["what"]
        try:
            if what not in QUESTIONS:
                raise Refused(f"no question {what!r}", hint=f"ask one of {', '.join(QUESTIONS)}")
            body = answers.answer(what, _run(request), _step(request))
        except CkptError as error:
            return _failure(error)
        return web.Response(body=body, content_type="application/json")


def metrics_token(directory: Path) -> str:
    """The read-only token of a daemon's directory; made at the first call, mode 0600."""
    path = directory / TOKEN_NAME
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        token = path.read_text().strip()
        if len(token) < 32:
            raise Refused(f"{path} is too short for a token", hint="remove it") from None
        return token
    token = secrets.token_hex(24)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    return token


class _Guest(asyncio.Protocol):
    """One connection: I pass everything on to aiohttp, and cut off who does not speak in time.

    Aiohttp's half is made when something comes: who says nothing costs a transport and me.
    """

    def __init__(
        self, enter: Callable[[_Guest], asyncio.Protocol], left: Callable[[_Guest], None]
    ) -> None:
        self.inner: asyncio.Protocol | None = None
        self._enter = enter
        self._left = left
        self._transport: asyncio.Transport | None = None
        self._unwanted = False
        self._timer: asyncio.TimerHandle | None = None

    def has_spoken(self) -> None:
        """A whole request came; from now on aiohttp's own time limits hold."""
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """Close it at once, or as soon as there is something to close."""
        self._unwanted = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(_LIFE_S, transport.abort)
        if self._unwanted:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_spoken()
        self._left(self)
        if self.inner is not None:
            self.inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.inner is None:
            assert self._transport is not None
            self.inner = self._enter(self)
            self.inner.connection_made(self._transport)
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self.inner is None else self.inner.eof_received()

    def pause_writing(self) -> None:
        if self.inner is not None:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if self.inner is not None:
            self.inner.resume_writing()


def _run(request: web.Request) -> RunName | None:
    text = request.query.get("run")
    return None if text is None else check_run_name(text)


def _step(request: web.Request) -> Step | None:
    text = request.query.get("step")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise Refused(f"step {text!r} is not a number")
    return check_step(int(text))


def _failure(error: CkptError) -> web.Response:
    document = {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
    status = _STATUS_OF_CODE.get(error.code, 500)
    return web.json_response(document, status=status)
