"""Who may ask over HTTP? Members sign each request; a token is for who only reads metrics.

A request is signed with the cluster's secret, which never travels:

    Authorization: CKPT-HMAC-SHA256 challenge=<hex>, nonce=<hex>, mac=<hex>
    key  = HMAC-SHA256(secret, "ckpt http v1")
    mac  = HMAC-SHA256(key, text) in hex
    text = "request" LF method LF path?query LF hex(sha256(body)) LF challenge LF nonce

No clock is in it. The challenge is the server's: 16 random bytes, learned from the `Ckpt-Challenge`
header of any 401 or signed answer. It is replaced after CHALLENGE_REQUESTS_MAX requests; the one
before it is accepted for as many more, so that requests under way do not fail at a change.
The nonce is the client's: 16 random bytes, once for each request. A (challenge, nonce) pair is
accepted once; the server remembers the pairs of its two challenges and no more, so its memory is
bounded, and only signed requests enter it. A restart makes a new challenge, so nothing from before
it can be replayed.

The answer carries `Ckpt-Mac`, by which the client knows that it speaks with a member: the mac, in
the same way, over "answer" LF request mac LF status LF hex(sha256(body)).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

CHALLENGE_HEADER: Final = "Ckpt-Challenge"
MAC_HEADER: Final = "Ckpt-Mac"
SCHEME: Final = "CKPT-HMAC-SHA256"
CHALLENGE_REQUESTS_MAX: Final = 4096
NONCES_MAX: Final = 2 * CHALLENGE_REQUESTS_MAX
"""Remembered for each of the two challenges."""
NONCE_BYTES: Final = 16

_FIELDS = re.compile(
    SCHEME + r" challenge=([0-9a-f]{32}), nonce=([0-9a-f]{32}), mac=([0-9a-f]{64})"
)


def http_key(secret: bytes) -> bytes:
    """The key of this plane; frames use others: a signature of one means nothing on the other."""
    return hmac.digest(secret, b"ckpt http v1", "sha256")


def sign_request(
    key: bytes, method: str, path: str, body: bytes, challenge: str, nonce: str
) -> str:
    """The value of the Authorization header. `path` has the query, as it is sent."""
    mac = _request_mac(key, method, path, body, challenge, nonce)
    return f"{SCHEME} challenge={challenge}, nonce={nonce}, mac={mac}"


def sign_answer(key: bytes, authorization: str, status: int, body: bytes) -> str:
    """The value of the answer's `Ckpt-Mac` header, bound to the request's own signature."""
    request_mac = authorization.rpartition("mac=")[2]
    text = f"answer\n{request_mac}\n{status}\n{hashlib.sha256(body).hexdigest()}"
    return hmac.digest(key, text.encode(), "sha256").hex()


def answer_is_signed(key: bytes, authorization: str, status: int, body: bytes, mac: str) -> bool:
    """Whether the answer to this request comes from a member."""
    return _equal(sign_answer(key, authorization, status, body), mac)


def _request_mac(
    key: bytes, method: str, path: str, body: bytes, challenge: str, nonce: str
) -> str:
    digest = hashlib.sha256(body).hexdigest()
    text = "\n".join(("request", method, path, digest, challenge, nonce))
    return hmac.digest(key, text.encode(), "sha256").hex()


@dataclass(slots=True)
class _Challenge:
    text: str
    nonces: set[str] = field(default_factory=set)


class Verifier:
    """The server's side. `fresh` gives random bytes; `challenge` is what a 401 should carry."""

    def __init__(self, key: bytes, fresh: Callable[[int], bytes]) -> None:
        self._key = key
        self._fresh = fresh
        self._current = _Challenge(fresh(NONCE_BYTES).hex())
        self._previous: _Challenge | None = None

    @property
    def challenge(self) -> str:
        return self._current.text

    def accepts(self, method: str, path: str, body: bytes, authorization: str) -> bool:
        """Whether the request is signed, under a challenge of ours, for the first time."""
        found = _FIELDS.fullmatch(authorization)
        if found is None:
            return False
        text, nonce, mac = found.groups()
        challenge = self._known(text)
        if challenge is None:
            return False
        if not _equal(_request_mac(self._key, method, path, body, text, nonce), mac):
            return False
        if nonce in challenge.nonces or len(challenge.nonces) >= NONCES_MAX:
            return False
        challenge.nonces.add(nonce)
        if len(self._current.nonces) >= CHALLENGE_REQUESTS_MAX:
            self._previous = self._current
            self._current = _Challenge(self._fresh(NONCE_BYTES).hex())
        return True

    def _known(self, text: str) -> _Challenge | None:
        if text == self._current.text:
            return self._current
        if self._previous is not None and text == self._previous.text:
            return self._previous
        return None


def token_matches(token: str, given: str) -> bool:
    """Compare a bearer token in constant time."""
    return _equal(token, given)


def _equal(expected: str, given: str) -> bool:
    return hmac.compare_digest(expected.encode(), given.encode(errors="surrogateescape"))
