"""One process that does one thing over and over and says what it cost: `python -m
ckptbench.probes NAME …`.

It prepares its memory, prints `ready`, waits for a line, works in rounds, and prints one JSON
line: for each round the bytes and the CPU and wall seconds. So several can be started at once,
and set-up is not counted.

    copy BYTES            warm np.copyto between private buffers of BYTES
    touch BYTES           first touch of fresh memory, as a load allocates it
    ec K+M CELL BYTES     parity over a resident arena of BYTES into a ring of 4 stripes: ISA-L's
                          kernel alone, without the checksums that the shipped codec takes
    fingerprint BYTES     xxh3-128 over a resident buffer
    crc CELL              CRC-32 over a ring of 4 cells, which stay in the cache
    tx FD BYTES COUNT     blocking sends of COUNT pieces of 512 KiB out of a resident buffer of
                          BYTES
    rx FD COUNT           recv_into a ring of 8 pieces of 512 KiB
    read FILE BYTES       O_DIRECT reads of 1 MiB
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ckpt.base.units import KiB, MiB
from ckpt.erasure.code import Code
from ckpt.erasure.matrix import recovery_matrix
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.native.isal import find_isal

ROUNDS: Final = 5
ROUND_BYTES: Final = 512 * MiB
"""Moved in each round, by whole passes."""
PIECE_BYTES: Final = 512 * KiB
READ_BYTES: Final = MiB
RING_STRIPES: Final = 4

Round = Callable[[], int]
"""Does one round and returns the bytes it moved."""


def main(argv: Sequence[str]) -> None:
    """Prepare, wait for the start, work, and report."""
    name, *arguments = argv
    work = PROBES[name](*arguments)
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    rounds = []
    # A second round of `touch` would find memory that this machine's host has just made.
    for _ in range(1 if name in ("tx", "rx", "read", "touch") else ROUNDS):
        cpu, wall = time.process_time(), time.monotonic()
        moved = work()
        rounds.append(
            {
                "bytes": moved,
                "cpu_s": time.process_time() - cpu,
                "wall_s": time.monotonic() - wall,
            }
        )
    print(json.dumps(rounds), flush=True)


def _buffer(size: int) -> memoryview:
    """Private memory, touched, with bytes that are not all alike."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(memory)
    pattern = os.urandom(min(size, MiB))
    for start in range(0, size, len(pattern)):
        part = view[start : start + len(pattern)]
        part[:] = pattern[: len(part)]
    return view


def _passes(size: int) -> int:
    return max(1, ROUND_BYTES // size)


def _copy(size: str) -> Round:
    source = np.frombuffer(_buffer(int(size)), np.uint8)
    target = np.frombuffer(_buffer(int(size)), np.uint8)

    def work() -> int:
        for _ in range(_passes(source.nbytes)):
            np.copyto(target, source)
        return _passes(source.nbytes) * source.nbytes

    return work


def _touch(size: str) -> Round:
    def work() -> int:
        memory = np.empty(int(size), np.uint8)
        memory[:: mmap.PAGESIZE] = 1
        return memory.nbytes

    return work


def _ec(code_text: str, cell_text: str, size: str) -> Round:
    code, cell = Code.parse(code_text), int(cell_text)
    # A stripe of many columns is larger than a small arena.
    arena, encode = _buffer(max(int(size), code.k * cell)), _kernel(code, cell)
    ring = _buffer(RING_STRIPES * max(1, code.m) * cell)
    parts = [ring[start : start + cell] for start in range(0, len(ring), cell)]

    def work() -> int:
        stripes = len(arena) // (code.k * cell)
        for number in range(_passes(len(arena)) * stripes):
            start = number % stripes * code.k * cell
            data = [arena[start + j * cell : start + (j + 1) * cell] for j in range(code.k)]
            first = number % RING_STRIPES * code.m
            encode(data, parts[first : first + code.m])
        return _passes(len(arena)) * stripes * code.k * cell

    return work


def _kernel(code: Code, cell: int) -> Callable[[Sequence[memoryview], Sequence[memoryview]], None]:
    """ISA-L's encoder for cells of that size."""
    isal = find_isal()
    parity = range(code.k, code.n)
    tables = isal.tables(recovery_matrix(code, range(code.k), parity))
    kernel = ctypes.CDLL(isal.path).ec_encode_data
    pointers = ctypes.c_void_p * code.k, ctypes.c_void_p * code.m

    def encode(*cells: Sequence[memoryview]) -> None:
        reads, writes = (
            kind(*(np.frombuffer(cell, np.uint8).ctypes.data for cell in some))
            for kind, some in zip(pointers, cells, strict=True)
        )
        kernel(cell, code.k, code.m, tables, reads, writes)

    return encode


def _fingerprint(size: str) -> Round:
    memory = _buffer(int(size))

    def work() -> int:
        for _ in range(_passes(len(memory))):
            xxh3_128(memory)
        return _passes(len(memory)) * len(memory)

    return work


def _crc(cell_text: str) -> Round:
    cell = int(cell_text)
    ring = _buffer(4 * cell)
    cells = [ring[start : start + cell] for start in range(0, len(ring), cell)]

    def work() -> int:
        count = ROUND_BYTES // cell
        for number in range(count):
            crc32(cells[number % 4])
        return count * cell

    return work


def _tx(descriptor: str, size: str, count: str) -> Round:
    memory = _buffer(int(size))
    sock = socket.socket(fileno=int(descriptor))
    starts = range(0, len(memory), PIECE_BYTES)

    def work() -> int:
        with sock:
            for number in range(int(count)):
                start = starts[number % len(starts)]
                sock.sendall(memory[start : start + PIECE_BYTES])
        return int(count) * PIECE_BYTES

    return work


def _rx(descriptor: str, count: str) -> Round:
    ring = _buffer(8 * PIECE_BYTES)
    sock = socket.socket(fileno=int(descriptor))
    pieces = [ring[start : start + PIECE_BYTES] for start in range(0, len(ring), PIECE_BYTES)]

    def work() -> int:
        with sock:
            for number in range(int(count)):
                got = sock.recv_into(pieces[number % 8], PIECE_BYTES, socket.MSG_WAITALL)
                if got != PIECE_BYTES:
                    raise EOFError(f"the sender ended after {number} pieces and {got} bytes")
        return int(count) * PIECE_BYTES

    return work


def _read(path: str, size: str) -> Round:
    ring = _buffer(4 * READ_BYTES)
    views = [ring[start : start + READ_BYTES] for start in range(0, len(ring), READ_BYTES)]

    def work() -> int:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            moved = 0
            while moved < int(size):
                moved += os.preadv(descriptor, [views[moved // READ_BYTES % 4]], moved)
            return moved
        finally:
            os.close(descriptor)

    return work


PROBES: Final[dict[str, Callable[..., Round]]] = {
    "copy": _copy,
    "touch": _touch,
    "ec": _ec,
    "fingerprint": _fingerprint,
    "crc": _crc,
    "tx": _tx,
    "rx": _rx,
    "read": _read,
}

if __name__ == "__main__":
    main(sys.argv[1:])
