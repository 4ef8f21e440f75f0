"""OpenSSL's libcrypto, found on this machine: the one that Python's hashlib has loaded already,
else the system's.

Looked for when the first connection to another host is to be authenticated, and not before.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Final

from ckpt.base.errors import CkptError

_SYSTEM_NAMES: Final = ("libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.3.dylib")


class Libcrypto:
    """The functions of one library that authentication takes. Safe to call from any thread."""

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
        self.begin = library.EVP_EncryptInit_ex
        self.begin.argtypes = [pointer, pointer, pointer, ctypes.c_char_p, ctypes.c_char_p]
        self.update = library.EVP_EncryptUpdate
        self.update.argtypes = [pointer, pointer, ctypes.POINTER(integer), pointer, integer]
        self.end = library.EVP_EncryptFinal_ex
        self.end.argtypes = [pointer, pointer, ctypes.POINTER(integer)]
        self.control = library.EVP_CIPHER_CTX_ctrl
        self.control.argtypes = [pointer, integer, integer, pointer]
        library.OpenSSL_version.restype = ctypes.c_char_p
        self.version: str = library.OpenSSL_version(0).decode()
        """`OpenSSL 3.0.19 27 Jan 2026`."""
        self.update_address = ctypes.cast(library.EVP_EncryptUpdate, pointer).value
        """For calls of our own library."""


@cache
def find_libcrypto() -> Libcrypto:
    """The first that loads; raises CkptError when this machine has none."""
    for path in _candidates():
        try:
            return Libcrypto(path)
        except (OSError, AttributeError):
            continue
    raise CkptError(
        "no libcrypto (OpenSSL 1.1.1 or later) was found: bytes from another host cannot be "
        "authenticated",
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
