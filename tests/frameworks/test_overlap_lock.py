"""Who copies beside the training leaves it the interpreter lock."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from ckpt_client.save.copying import NumpyCopier
from ckpt_client.save.overlap import SampledCopier
from ckpt_torch.staging.copying import TorchCopier
from tests.frameworks.test_overlap import finding, with_and_without

COPIES = 500
"""Of some tenths of a millisecond each: another thread gets the lock in one of them, or never."""
ELEMENTS = 300_000
NEVER_S = 1000.0


@pytest.fixture(autouse=True)
def _lock_is_never_asked_for() -> Iterator[None]:
    """Whoever has it keeps it for as long as its own code does not let go."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(NEVER_S)
    yield
    sys.setswitchinterval(before)


@dataclass
class Noted:
    """A call of which others can see when a thread is in it."""

    call: Callable[..., object]
    is_under_way: bool = False
    may_end: threading.Event = field(default_factory=threading.Event)

    def __call__(self, *given: Any) -> None:
        self.is_under_way = True
        self.call(*given)
        self.is_under_way = False

    def lets_others_run(self, copy: Callable[[], None]) -> bool:
        """Whether this thread gets the lock while another, which copies, is in the call."""

        def copy_all() -> None:
            for _ in range(COPIES):
                if self.may_end.is_set():
                    return
                copy()

        thread = threading.Thread(target=copy_all)
        thread.start()
        while thread.is_alive() and not self.is_under_way:
            self.may_end.wait(1e-5)
        found = self.is_under_way
        self.may_end.set()
        thread.join()
        return found


def keep_lock(places: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """As a copy of Python's own."""
    move = ctypes.PyDLL(None).memmove
    for place, source in zip(places, sources, strict=True):
        move(ctypes.c_void_p(place.data_ptr()), ctypes.c_void_p(source.data_ptr()), source.nbytes)


@with_and_without
def test_tensors_in_host_memory_are_copied_without_it(
    monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    noted = Noted(keep_lock if planted else torch._foreach_copy_)
    monkeypatch.setattr(torch, "_foreach_copy_", noted)
    tensors, places = [torch.ones(ELEMENTS)], [torch.zeros(ELEMENTS)]
    copier = TorchCopier(tensors, watched=True)
    prepared = copier.prepare(places, tensors)
    with finding(planted):
        assert noted.lets_others_run(lambda: copier.copy(prepared, tensors))
    assert torch.equal(places[0], tensors[0])


def test_arrays_of_numpy_s_are_copied_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted(NumpyCopier.copy)
    monkeypatch.setattr(NumpyCopier, "copy", lambda *given: noted(*given))
    arrays, places = [np.ones(ELEMENTS)], [np.zeros(ELEMENTS)]
    copier = SampledCopier(arrays)
    prepared = copier.prepare(places, arrays)
    assert noted.lets_others_run(lambda: copier.copy(prepared, arrays))
    assert np.array_equal(places[0], arrays[0])
