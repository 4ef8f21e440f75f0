"""Locking pages of memory that torch did not allocate, so that a device copies from and to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np
import torch

PORTABLE: Final = 1
"""cudaHostRegisterPortable: for all devices of the process."""
_log = logging.getLogger("ckpt.save")
Register = Callable[[int, int], bool]
Unregister = Callable[[int], bool]


class PageLocks:
    """Of one device."""

    def __init__(self, device: torch.device) -> None:
        self._name = str(device)
        self._device = device
        self.failed = False
        """Some memory could not be locked: from then on none is taken for locked."""

    def lock(self, memory: memoryview) -> bool:
        """Whether the device copies by itself now; warns once when it does not."""
        if self.failed:
            return False
        calls = _calls_of(self._device)
        self.failed = calls is None or not calls[0](_address(memory), len(memory))
        if self.failed:
            # CUDA says it again with the next kernel, whosever that is.
            with suppress(RuntimeError):
                torch.zeros(1, device=self._device)
            _log.warning(
                "%s cannot lock the pages of the staging memory: copies go through locked memory "
                "of torch's own, which costs the host one more copy",
                self._name,
            )
        return not self.failed

    def unlock(self, memory: memoryview) -> None:
        calls = _calls_of(self._device)
        if calls is not None and not calls[1](_address(memory)):
            _log.warning("%s could not unlock pages of the staging memory", self._name)


def locked_memory(device: torch.device, size: int) -> torch.Tensor:
    """New bytes of host memory that the device copies from and to by itself; plain memory where
    torch has no such thing for it.
    """
    # As who copies into it, beside any mode and default of the caller's.
    with torch.inference_mode(False), suppress(RuntimeError):
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
    _log.warning("torch has no page-locked memory for %s: its copies wait for the host", device)
    with torch.inference_mode(False):
        return torch.empty(size, dtype=torch.uint8, device="cpu")


def _address(memory: memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def _calls_of(device: torch.device) -> tuple[Register, Unregister] | None:
    """The runtime's two calls, if torch shows them: CUDA's, which are HIP's on ROCm; or those of a
    backend's module, `host_register(address, size)` and `host_unregister(address)`.
    """
    if device.type == "cuda":
        runtime = torch.cuda.cudart()

        def register(address: int, size: int) -> bool:
            # A thread begins on device 0, and would make itself a context there.
            with torch.cuda.device(device):
                return int(runtime.cudaHostRegister(address, size, PORTABLE)) == 0

        def unregister(address: int) -> bool:
            with torch.cuda.device(device):
                return int(runtime.cudaHostUnregister(address)) == 0

        return register, unregister
    module = torch.get_device_module(device)
    if hasattr(module, "host_register") and hasattr(module, "host_unregister"):
        return module.host_register, module.host_unregister
    return None
