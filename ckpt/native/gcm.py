"""AES-256-GCM (NIST SP 800-38D), computed by libcrypto: encrypts, decrypts, or authenticates alone.

A nonce is never used twice under one key, or all is lost. What is encrypted under a key of one
direction of one session has the number of its frame (u64) and which part of that it is (u32):

    number, HEAD   what the frame says      number, BULK   the bytes after it

Keys change on the way: each is used for FRAMES_PER_KEY frames, at most 2^39 bytes, and the next is
made of it (`KeyChain`). So no session needs to end for its key: 2^64 frames are never reached, and
2^35 blocks of a key leave an attacker's advantage below 2^-58.

The interpreter's lock is free while libcrypto works. One thread at a time uses each object.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import struct
from typing import Final

from ckpt.base.errors import CkptError
from ckpt.native.libcrypto import Encrypting, Libcrypto, find_libcrypto
from ckpt.native.library import GuardState
from ckpt.native.sums import Buffer

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
HEAD: Final = 0
BULK: Final = 1
FRAMES_PER_KEY: Final = 1 << 16
_NONCE: Final = struct.Struct("<QI")
_GET_TAG: Final = 0x10
_SET_TAG: Final = 0x11
"""EVP_CTRL_AEAD_GET_TAG and EVP_CTRL_AEAD_SET_TAG of openssl/evp.h."""
_PART_BYTES_MAX: Final = (1 << 31) - 1

assert _NONCE.size == 12, "the length for which a nonce is used as it is"


class KeyChain:
    """The key of each frame: the first FRAMES_PER_KEY have `key`, and so on. None comes back."""

    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY_BYTES
        self._key = key
        self._generation = 0

    def of(self, number: int) -> bytes:
        """Of a frame that is not of an earlier key than the one before."""
        generation = number // FRAMES_PER_KEY
        assert generation >= self._generation, "a key that was given up"
        while self._generation < generation:
            self._key = hmac.new(self._key, b"ckpt next key", hashlib.sha256).digest()
            self._generation += 1
        return self._key


class CipherContext:
    """One context of libcrypto: a message at a time."""

    def __init__(self, how: Encrypting, key: bytes | None) -> None:
        """Raises CkptError where there is no libcrypto."""
        self.crypto: Libcrypto = find_libcrypto()
        self.address: int | None = self.crypto.new_context()
        if self.address is None:
            raise MemoryError("no memory for a cipher's context")
        self._calls = self.crypto.calls(how)
        self._written = ctypes.c_int()
        self._key = key
        self.check(self._calls.begin(self.address, self.crypto.aes_256_gcm(), None, key, None))

    def __del__(self) -> None:
        address, self.address = getattr(self, "address", None), None
        if address is not None:
            self.crypto.free_context(address)

    def begin(self, nonce: bytes, key: bytes | None = None) -> None:
        """A message; with another key, if one is given that differs."""
        changed = None if key is None or key == self._key else key
        self._key = changed or self._key
        self.check(self._calls.begin(self.address, None, None, changed, nonce))

    def update(self, source: Buffer, into: memoryview | None) -> None:
        """The next bytes, which may be none, from contiguous memory; `into` is as long, is
        `source` itself or does not overlap it; None: they are authenticated, not encrypted.
        What may not be written to is copied.
        """
        flat = memoryview(source).cast("B")
        assert flat.nbytes <= _PART_BYTES_MAX
        if not flat.nbytes:
            return
        data = bytes(flat) if flat.readonly else _first(flat)
        place = None if into is None else _first(into)
        assert into is None or into.nbytes == flat.nbytes
        self.check(
            self._calls.update(self.address, place, ctypes.byref(self._written), data, flat.nbytes)
        )

    def tag(self) -> bytes:
        """Of all bytes since `begin`, when they were encrypted."""
        tag = ctypes.create_string_buffer(TAG_BYTES)
        self.check(self._calls.end(self.address, tag, ctypes.byref(self._written)))
        self.check(self.crypto.control(self.address, _GET_TAG, TAG_BYTES, tag))
        return tag.raw

    def fits(self, tag: Buffer) -> bool:
        """Whether this is the tag of all bytes since `begin`, when they were decrypted."""
        assert len(tag) == TAG_BYTES
        wanted = ctypes.create_string_buffer(bytes(tag), TAG_BYTES)
        nothing = ctypes.create_string_buffer(TAG_BYTES)
        self.check(self.crypto.control(self.address, _SET_TAG, TAG_BYTES, wanted))
        outcome: int = self._calls.end(self.address, nothing, ctypes.byref(self._written))
        return outcome == 1

    def guard(self, *, decrypts: bool) -> GuardState:
        """For `Landing`, which gives it what comes."""
        return GuardState(self.address, self._calls.update_address, decrypts)

    def check(self, outcome: int) -> None:
        """Raises CkptError when libcrypto refused."""
        if outcome != 1:
            raise CkptError("libcrypto refuses AES-256-GCM")


class Sealer:
    """Encrypts what one direction says, in order: heads whole, bulks bit by bit."""

    def __init__(self, key: bytes, part: int) -> None:
        """For HEAD or for BULK alone: there may be heads while the bulk before is on its way.
        Raises CkptError where there is no libcrypto.
        """
        self._keys = KeyChain(key)
        self._part = part
        self._context = CipherContext(Encrypting.YES, key)
        self.state = self._context.guard(decrypts=False)
        """For `Sealing`, which encrypts what it sends."""

    def seal(self, number: int, label: bytes, text: bytes) -> bytes:
        """All of it, and its tag, which is over `label` as well."""
        sealed = memoryview(bytearray(len(text) + TAG_BYTES))
        self.begin(number)
        self._context.update(label, None)
        self.add(text, sealed[: len(text)])
        sealed[len(text) :] = self.end()
        return bytes(sealed)

    def begin(self, number: int) -> None:
        """The bulk of this frame; numbers only grow."""
        self._context.begin(_NONCE.pack(number, self._part), self._keys.of(number))

    def add(self, text: Buffer, into: memoryview) -> None:
        """The next bytes, encrypted into as many that are elsewhere."""
        self._context.update(text, into)

    def end(self) -> bytes:
        """The tag, TAG_BYTES long."""
        return self._context.tag()


class Opener:
    """Decrypts what one direction says, in order. Nothing of it counts before its tag fits."""

    def __init__(self, key: bytes) -> None:
        """Raises CkptError where there is no libcrypto."""
        self._keys = KeyChain(key)
        self._context = CipherContext(Encrypting.NO, key)
        self.state = self._context.guard(decrypts=True)
        """For `Landing`, which has what comes decrypted in its place."""

    def open(self, number: int, label: bytes, sealed: Buffer) -> bytes | None:
        """What was sealed with this number and label; None when it was not."""
        text = memoryview(bytearray(sealed))
        body, tag = text[:-TAG_BYTES], text[-TAG_BYTES:]
        self._begin(number, HEAD)
        self._context.update(label, None)
        self.add(body)
        return bytes(body) if self.fits(tag) else None

    def begin(self, number: int) -> None:
        """The bulk of this frame."""
        self._begin(number, BULK)

    def _begin(self, number: int, part: int) -> None:
        self._context.begin(_NONCE.pack(number, part), self._keys.of(number))

    def add(self, view: Buffer) -> None:
        """The next bytes, which are decrypted where they lie."""
        self._context.update(view, memoryview(view))

    def fits(self, tag: Buffer) -> bool:
        """Whether what was added is what was sealed; TAG_BYTES are compared."""
        return self._context.fits(tag)


def _first(view: memoryview) -> object:
    return ctypes.byref(ctypes.c_char.from_buffer(view))
