"""Fixtures of lending: known memory, and a target's server that borrows and keeps what it gets."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt.aio.net.socketpath import socket_path
from tests.aio.lendkit import Keeper, Memory
from tests.aio.netkit import ServerThread, serving


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    os.close(made.descriptor)


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


@pytest.fixture(scope="module")
def few_objects() -> None:
    """What a worker's earlier tests left is walked once, not at each look for what is still mapped:
    that was a third of a second of CPU each.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def borrowing(tmp_path: Path, keeper: Keeper, few_objects: None) -> Iterator[ServerThread]:
    with serving(unix=socket_path(tmp_path, "s"), borrows=True, handler=keeper) as server:
        yield server
