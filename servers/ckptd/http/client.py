"""How does a local tool ask a coordinator over HTTP? One signed GET at a time, blocking."""

from __future__ import annotations

import http.client
import json
import secrets
from typing import Final

from ckpt.base.errors import CkptError, Unauthorized, Unavailable, error_from_wire
from ckptd.http.auth import (
    CHALLENGE_HEADER,
    MAC_HEADER,
    NONCE_BYTES,
    answer_is_signed,
    http_key,
    sign_request,
)

ANSWER_BYTES_MAX: Final = 64 << 20


class HttpAsker:
    """I ask one coordinator. I remember its challenge, so that a question is one exchange."""

    def __init__(self, address: str, secret: bytes, *, timeout_s: float = 2.0) -> None:
        self._address = address
        self._key = http_key(secret)
        self._timeout_s = timeout_s
        self._challenge = "0" * (2 * NONCE_BYTES)

    def ask(self, path: str) -> object:
        """The answer's JSON. Raises Unavailable, Unauthorized, or the error that it names."""
        for _ in range(2):  # The second time with the challenge of the first refusal.
            challenge = self._challenge
            authorization = sign_request(
                self._key, "GET", path, b"", challenge, secrets.token_hex(NONCE_BYTES)
            )
            status, headers, body = self._get(path, authorization)
            self._challenge = headers.get(CHALLENGE_HEADER, self._challenge)
            if status != 401:
                if not answer_is_signed(
                    self._key, authorization, status, body, headers.get(MAC_HEADER, "")
                ):
                    raise Unauthorized(f"who answers at {self._address} does not know the secret")
                return _document(status, body)
        raise Unauthorized(f"the coordinator at {self._address} has another secret")

    def _get(self, path: str, authorization: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection(self._address, timeout=self._timeout_s)
        try:
            connection.request("GET", path, headers={"Authorization": authorization})
            response = connection.getresponse()
            return response.status, response.headers, response.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"no answer from {self._address}: {error}") from error
        finally:
            connection.close()


def _document(status: int, body: bytes) -> object:
    document: object = json.loads(body)
    if status == 200:
        return document
    match document:
        case {"error": {"code": str(code), "message": str(message), "hint": str(hint)}}:
            raise error_from_wire(code, message, hint)
        case _:
            raise CkptError(f"HTTP status {status}")
