"""A proxy in front of an S3 server that misbehaves on request.

Each request is read whole; `decide(request)` names what happens to it. The Host header stays the
client's, so that its signature holds.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STALL_S = 60.0
"""Longer than any client waits here; ended early when the proxy closes."""


class Fault(Enum):
    """What may become of a request."""

    NONE = "none"
    SLOW_DOWN = "503 SlowDown"
    INTERNAL = "500 InternalError"
    CONFLICT = "409 ConditionalRequestConflict"
    FORBIDDEN = "403 AccessDenied"
    CUT_BEFORE = "the connection is cut, nothing was done"
    CUT_AFTER = "it is done, and the connection is cut before the answer"
    CUT_ANSWER = "half of the answer comes"
    FULL_AFTER = "it is done, and the answer is that there is no space for it: etcd's"
    NOT_ROOT = "nothing is done, and the answer is that root alone may: etcd's"
    STALL = "nothing comes"
    ROT_SENT = "one bit of the body is another in the store"
    ROT_READ = "one bit of the answer is another"


REFUSALS = {
    Fault.SLOW_DOWN: (503, "SlowDown"),
    Fault.INTERNAL: (500, "InternalError"),
    Fault.CONFLICT: (409, "ConditionalRequestConflict"),
    Fault.FORBIDDEN: (403, "AccessDenied"),
}


NOT_ROOT = b'{"error": "etcdserver: permission denied", "code": 7}'
NO_SPACE = b'{"error": "etcdserver: mvcc: database space exceeded", "code": 8}'


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for."""

    number: int
    method: str
    path: str
    """With its query."""
    body: bytes
    md5: str
    """The header Content-MD5; empty without one."""


Decide = Callable[[Request], Fault]


class Proxy:
    """I listen on 127.0.0.1 until closed. `log` holds every request with what became of it."""

    def __init__(self, port: int, at: int = 0) -> None:
        """port: the store's; at: mine, 0 for any that is free."""
        self.decide: Decide = lambda _request: Fault.NONE
        self.bytes_per_s: float | None = None
        """Of bodies to the store."""
        self.delay_s: Callable[[Request], float] = lambda _request: 0.0
        """Ahead of the store; others go past it meanwhile."""
        self.log: list[tuple[Request, Fault]] = []
        self.closing = threading.Event()
        self._backend = port
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", at), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fault_of(self, method: str, path: str, body: bytes, md5: str) -> tuple[Request, Fault]:
        with self._lock:
            request = Request(len(self.log), method, path, body, md5)
            fault = self.decide(request)
            self.log.append((request, fault))
        return request, fault

    def forward(
        self, request: Request, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        self.closing.wait(self.delay_s(request))
        if self.bytes_per_s:
            self.closing.wait(len(request.body) / self.bytes_per_s)
        connection = http.client.HTTPConnection("127.0.0.1", self._backend, timeout=60)
        try:
            connection.putrequest(
                request.method, request.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(request.body)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    owner: Proxy
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """The proxy keeps its own log."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request, fault = self.owner.fault_of(
            self.command, self.path, body, self.headers.get("Content-MD5", "")
        )
        if fault in REFUSALS:
            self._refuse(*REFUSALS[fault])
        elif fault is Fault.NOT_ROOT:
            self._answer(403, "application/json", NOT_ROOT)
        elif fault is Fault.CUT_BEFORE:
            self._cut()
        elif fault is Fault.STALL:
            self.owner.closing.wait(STALL_S)
            self._cut()
        else:
            self._forward(request, fault)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _forward(self, request: Request, fault: Fault) -> None:
        if fault is Fault.ROT_SENT and request.body:
            request = replace(request, body=_rotten(request.body))
        headers = {k: v for k, v in self.headers.items() if k.lower() != "expect"}
        status, answered, content = self.owner.forward(request, headers)
        if fault is Fault.CUT_AFTER:
            self._cut()
            return
        if fault is Fault.FULL_AFTER:
            self._answer(429, "application/json", NO_SPACE)
            return
        if fault is Fault.ROT_READ and content and request.method == "GET":
            content = _rotten(content)
        self.send_response(status)
        for name, value in answered.items():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date"):
                self.send_header(name, value)
        length = answered.get("Content-Length", str(len(content)))
        self.send_header(
            "Content-Length", length if request.method == "HEAD" else str(len(content))
        )
        self.end_headers()
        if fault is Fault.CUT_ANSWER:
            self.wfile.write(content[: len(content) // 2])
            self._cut()
            return
        self.wfile.write(content)

    def _refuse(self, status: int, code: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>by the proxy</Message></Error>"
        self._answer(status, "application/xml", text.encode())

    def _answer(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def _rotten(content: bytes) -> bytes:
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
