"""OpenSSL's libcrypto, found on this machine: the one that Python's hashlib has loaded already,
else the system's.

Looked for when the first connection to another host is to be authenticated, and not before.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from typing import Final, NamedTuple

from ckpt.base.errors import CkptError
from ckpt.native.loading import ensure_loading

_SYSTEM_NAMES: Final = ("libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.3.dylib")


class Encrypting(Enum):
    """Which way a cipher goes: how libcrypto names its functions."""

    YES = "Encrypt"
    NO = "Decrypt"


class CipherCalls(NamedTuple):
    """EVP_EncryptInit_ex and those that go with it, or EVP_DecryptInit_ex."""

    begin: Callable[..., int]
    update: Callable[..., int]
    end: Callable[..., int]
    update_address: int | None
    """For calls of our own library."""


class Libcrypto:
    """The functions of one library that the wire takes. Safe to call from any thread."""

    def __init__(self, path: str | None) -> None:
        """Binds the library at `path`, or what is in the process already; raises OSError or
        AttributeError where there is none of these functions.
        """
        library = ctypes.CDLL(path)
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        self.new_context = library.EVP_CIPHER_CTX_new
        self.new_context.argtypes, self.new_context.restype = [], pointer
        self.free_context = library.EVP_CIPHER_CTX_free
        self.free_context.argtypes, self.free_context.restype = [pointer], None
        self.aes_256_gcm = library.EVP_aes_256_gcm
        self.aes_256_gcm.argtypes, self.aes_256_gcm.restype = [], pointer
        self._calls = {how: _bound(library, how) for how in Encrypting}
        self.control = library.EVP_CIPHER_CTX_ctrl
        self.control.argtypes = [pointer, integer, integer, pointer]
        library.OpenSSL_version.restype = ctypes.c_char_p
        self.version: str = library.OpenSSL_version(0).decode()
        """`OpenSSL 3.0.19 27 Jan 2026`."""

    def calls(self, how: Encrypting) -> CipherCalls:
        """The functions that go this way."""
        return self._calls[how]


def _bound(library: ctypes.CDLL, how: Encrypting) -> CipherCalls:
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    begin = getattr(library, f"EVP_{how.value}Init_ex")
    begin.argtypes = [pointer, pointer, pointer, ctypes.c_char_p, ctypes.c_char_p]
    update = getattr(library, f"EVP_{how.value}Update")
    update.argtypes = [pointer, pointer, ctypes.POINTER(integer), pointer, integer]
    end = getattr(library, f"EVP_{how.value}Final_ex")
    end.argtypes = [pointer, pointer, ctypes.POINTER(integer)]
    return CipherCalls(begin, update, end, ctypes.cast(update, pointer).value)


@cache
def find_libcrypto() -> Libcrypto:
    """The first that loads; raises CkptError when this machine has none."""
    ensure_loading("libcrypto")
    for path in _candidates():
        try:
            return Libcrypto(path)
        except (OSError, AttributeError):
            continue
    raise CkptError(
        "no libcrypto (OpenSSL 1.1.1 or later) was found: bytes from another host can be neither "
        "authenticated nor encrypted",
        hint='install OpenSSL\'s library, or set wire = "plain" on the daemons where the network '
        "is trusted",
    )


def _candidates() -> Iterator[str | None]:
    """Paths and names to try; None is the process itself."""
    try:
        import _hashlib
    except ImportError:  # A Python that was built without OpenSSL.
        yield from _SYSTEM_NAMES
        return
    yield getattr(_hashlib, "__file__", None)
    yield from _SYSTEM_NAMES
