"""A pass to a coordinator's page: whoever knows the cluster's secret makes one, for a short time.

    key  = HMAC-SHA256(secret, "ckpt page v1")
    pass = ENDS "." MAC      ENDS: Unix time in seconds, decimal; MAC: half of an HMAC, in hex
    MAC  = HMAC-SHA256(key, ENDS)[:16]

It stands in an address that people open, so it says nothing of the secret, opens the page alone,
and ends. The clocks of both hosts are asked: one that is minutes wrong costs a page, nothing else.
"""

from __future__ import annotations

import hmac
from typing import Final

PAGE_PASS_LIFE_S: Final = 600
CLOCKS_APART_S: Final = 300
"""One whose end is later than its life and this from now was made by a wrong clock."""
_MAC_BYTES: Final = 16
_ENDS_DIGITS_MAX: Final = 12


def page_pass(secret: bytes, now_s: float) -> str:
    """One that begins now. URL-safe."""
    ends = str(int(now_s) + PAGE_PASS_LIFE_S)
    return f"{ends}.{_mac(page_key(secret), ends)}"


def page_key(secret: bytes) -> bytes:
    """Of passes alone: nothing else is made with it."""
    return hmac.digest(secret, b"ckpt page v1", "sha256")


def opens_page(key: bytes, given: str, now_s: float) -> bool:
    """Whether this is a pass, and not over."""
    ends, _, mac = given.partition(".")
    if not (ends.isascii() and ends.isdigit() and len(ends) <= _ENDS_DIGITS_MAX):
        return False
    if not hmac.compare_digest(_mac(key, ends).encode(), mac.encode(errors="surrogateescape")):
        return False
    return now_s <= int(ends) <= now_s + PAGE_PASS_LIFE_S + CLOCKS_APART_S


def _mac(key: bytes, ends: str) -> str:
    return hmac.digest(key, ends.encode(), "sha256")[:_MAC_BYTES].hex()
