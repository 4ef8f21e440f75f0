"""Our own C library, beside this file since ckpt was installed.

It is bound when it is first asked for: what decides, and most commands, do without it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Final

from ckpt.base.errors import CkptError
from ckpt.native.isal import Kernels
from ckpt.native.loading import ensure_loading

LIBRARY: Final = Path(__file__).with_name("libckpt.so.1")
"""Not `.so` alone: Python would take it for a module of its own."""
LOG: Final = Path(__file__).with_name("build.log")
"""What the compiler printed where the library could not be built."""


class GuardState(ctypes.Structure):
    """`ckpt_guard` of source/ckpt_native.h."""

    _fields_ = (
        ("context", ctypes.c_void_p),
        ("update", ctypes.c_void_p),
        ("decrypts", ctypes.c_int),
    )


class LandingState(ctypes.Structure):
    """`ckpt_landing` of source/ckpt_native.h."""

    _fields_ = (
        ("bytes", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("block", ctypes.c_size_t),
        ("crcs", ctypes.c_void_p),
        ("filled", ctypes.c_size_t),
        ("summed", ctypes.c_size_t),
        ("guard", ctypes.POINTER(GuardState)),
        ("tail", ctypes.c_void_p),
        ("tail_length", ctypes.c_size_t),
        ("wake_max", ctypes.c_int),
        ("wake", ctypes.c_int),
        ("shown_us", ctypes.c_int64),
    )


class SendingState(ctypes.Structure):
    """`ckpt_sending` of source/ckpt_native.h."""

    _fields_ = (
        ("bytes", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("sent", ctypes.c_size_t),
        ("shown_us", ctypes.c_int64),
    )


class FetchState(ctypes.Structure):
    """`ckpt_fetch` of source/ckpt_native.h."""

    _fields_ = (
        ("descriptor", ctypes.c_int),
        ("offset", ctypes.c_int64),
        ("length", ctypes.c_size_t),
        ("block", ctypes.c_size_t),
        ("crcs", ctypes.c_void_p),
        ("to", ctypes.c_void_p),
        ("slice", ctypes.c_void_p),
        ("slice_length", ctypes.c_size_t),
        ("fetched", ctypes.c_size_t),
        ("hand", ctypes.c_int32),
    )


class BulkState(ctypes.Structure):
    """`ckpt_bulk` of source/ckpt_native.h."""

    _fields_ = (
        ("landing", ctypes.c_void_p),
        ("sending", ctypes.c_void_p),
        ("sealing", ctypes.c_void_p),
    )


class PollState(ctypes.Structure):
    """`ckpt_poll` of source/ckpt_native.h."""

    _fields_ = (
        ("kernels", ctypes.POINTER(Kernels)),
        ("bulks", ctypes.c_void_p),
        ("descriptors", ctypes.c_size_t),
        ("epoll", ctypes.c_int),
        ("show_us", ctypes.c_int64),
        ("worked_us", ctypes.c_int64),
    )


class ReadyState(ctypes.Structure):
    """`ckpt_ready` of source/ckpt_native.h."""

    _fields_ = (("descriptor", ctypes.c_int), ("events", ctypes.c_int))


READY_MAX: Final = 64
"""`CKPT_READY_MAX` of source/ckpt_native.h."""


class SealingState(ctypes.Structure):
    """`ckpt_sealing` of source/ckpt_native.h."""

    _fields_ = (
        ("bytes", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("sealed", ctypes.c_size_t),
        ("slice", ctypes.c_void_p),
        ("slice_length", ctypes.c_size_t),
        ("filled", ctypes.c_size_t),
        ("sent", ctypes.c_size_t),
        ("guard", ctypes.POINTER(GuardState)),
        ("shown_us", ctypes.c_int64),
    )


class TableState(ctypes.Structure):
    """`ckpt_table` of source/ckpt_native.h."""

    _fields_ = (
        ("rank", ctypes.c_int64),
        ("world_size", ctypes.c_int64),
        ("entries", ctypes.c_size_t),
        ("axes", ctypes.c_size_t),
        ("form_bytes", ctypes.c_size_t),
        ("entries_max", ctypes.c_size_t),
        ("axes_max", ctypes.c_size_t),
        ("form_bytes_max", ctypes.c_size_t),
        ("form", ctypes.c_void_p),
        ("begins", ctypes.c_void_p),
        ("form_ends", ctypes.c_void_p),
        ("marks", ctypes.c_void_p),
        ("axes_each", ctypes.c_void_p),
        ("wholes", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("shapes", ctypes.c_void_p),
        ("pieces", ctypes.c_void_p),
        ("prints", ctypes.c_void_p),
        ("printed", ctypes.c_void_p),
        ("kinds", ctypes.c_void_p),
        ("name_bytes", ctypes.c_void_p),
        ("plain", ctypes.c_void_p),
    )


class Library:
    """The functions of source/ckpt_native.h. Addresses are taken on trust: those who call check
    the buffers at them.
    """

    def __init__(self, path: Path) -> None:
        """Binds the library at `path`; raises OSError or AttributeError when it is not ours."""
        library = ctypes.CDLL(str(path))
        size, pointer, kernels = ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(Kernels)
        self.transform = library.ckpt_transform
        self.transform.argtypes = [
            kernels, size, ctypes.c_int, ctypes.c_int, pointer, pointer, pointer, pointer, pointer,
        ]  # fmt: skip
        self.transform.restype = None
        self.sum_blocks = library.ckpt_sum_blocks
        self.sum_blocks.argtypes = [kernels, pointer, size, size, pointer]
        self.sum_blocks.restype = ctypes.c_uint32
        self.join_blocks = library.ckpt_join_blocks
        self.join_blocks.argtypes = [pointer, size, size]
        self.join_blocks.restype = ctypes.c_uint32
        self.land = library.ckpt_land
        self.land.argtypes = [kernels, ctypes.c_int, ctypes.POINTER(LandingState)]
        self.land.restype = ctypes.c_int
        self.poll = library.ckpt_poll
        self.poll.argtypes = [
            ctypes.POINTER(PollState), ctypes.c_int, ctypes.POINTER(ReadyState),
        ]  # fmt: skip
        self.poll.restype = ctypes.c_int
        self.send = library.ckpt_send
        self.send.argtypes = [ctypes.c_int, ctypes.POINTER(SendingState)]
        self.send.restype = ctypes.c_int
        self.fetch = library.ckpt_fetch
        self.fetch.argtypes = [kernels, ctypes.POINTER(FetchState)]
        self.fetch.restype = ctypes.c_int
        self.let_go = library.ckpt_let_go
        self.let_go.argtypes = [ctypes.POINTER(FetchState)]
        self.let_go.restype = None
        self.seal = library.ckpt_seal
        self.seal.argtypes = [ctypes.c_int, ctypes.POINTER(SealingState)]
        self.seal.restype = ctypes.c_int
        self.read_table = library.ckpt_read_table
        self.read_table.argtypes = [pointer, size, ctypes.POINTER(TableState)]
        self.read_table.restype = ctypes.c_int
        self.write_tensors = library.ckpt_write_tensors
        self.write_tensors.argtypes = [pointer, size, pointer, size, pointer, size, pointer, size]
        self.write_tensors.restype = size
        library.ckpt_build.restype = ctypes.c_char_p
        self.build: str = library.ckpt_build().decode()
        """Which compiler made it, for which machine."""


@cache
def find_library() -> Library:
    """The library of this installation; raises CkptError where there is none that loads."""
    ensure_loading("ckpt's native library")
    try:
        return Library(LIBRARY)
    except (OSError, AttributeError) as error:
        raise CkptError(f"ckpt's native library cannot be used: {error}", hint=_hint()) from error


def _hint() -> str:
    if LOG.exists():
        return f"its build failed: {LOG} has what the compiler said; mend it, and install again"
    return "install ckpt-burst again, as a wheel or where it can be built: pip install ckpt-burst"
