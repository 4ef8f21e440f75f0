"""Is what a device copied what its tensors held at the save's call? Some elements of some of them
tell, without anybody's waiting for the device in the call.

    caller's stream   | before | elements, gathered |  what the training does next
    copies' own                                     | tensors ──> arena | elements ──> host |
    when all is there                                                                compared
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from ckpt_client.accelerator import StreamPoint
from ckpt_torch.device.accelerators import TorchAccelerator
from ckpt_torch.device.page_locks import locked_memory

TENSORS_MAX: Final = 16
"""Of a device, others in each save: each costs the call some microseconds."""
TENSORS_TRIED: Final = 8 * TENSORS_MAX
"""To find those without looking at all."""
ELEMENTS: Final = 8
"""Of each, side by side."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes [start, start + length) of a tensor's, which are at `place` of what was gathered."""

    number: int
    start: int
    length: int
    place: int


class DeviceSample:
    """Some elements of tensors of one device, as the calling thread's stream leaves them."""

    def __init__(
        self,
        tensors: Sequence[object],
        devices: Sequence[object],
        device: torch.device,
        accelerator: TorchAccelerator,
    ) -> None:
        """devices: of each of the tensors; those on `device` count. Raises Aborted."""
        self._device = device
        self._accelerator = accelerator
        #: By the id of its tensor.
        self._pieces: dict[int, _Piece] = {}
        #: Where the bytes of a tensor begin in the host's memory, and which of them are there.
        self._copies: list[tuple[_Piece, int, range]] = []
        self._here: torch.Tensor | None = None
        with torch.no_grad():
            self._there = self._gathered(tensors, _some(devices, device))

    def cross(self, begun: StreamPoint) -> StreamPoint | None:
        """Queue what brings them to the host, after `begun`; None when there are none. Raises
        Aborted.
        """
        if self._there is None:
            return None
        self._here = locked_memory(self._device, self._there.numel())
        return self._accelerator.bring(self._there, self._here, begun)

    def note_copied(self, tensors: Sequence[object], places: Sequence[torch.Tensor]) -> None:
        """Note where these are being copied to."""
        for tensor, place in zip(tensors, places, strict=True):
            if id(tensor) in self._pieces:
                self.note_part(tensor, place.data_ptr(), range(place.nbytes))

    def note_part(self, tensor: object, address: int, part: range) -> None:
        """The same of these bytes of one."""
        piece = self._pieces.get(id(tensor))
        if piece is not None:
            self._copies.append((piece, address - part.start, part))

    def unlike(self) -> Iterator[int]:
        """Numbers of the tensors whose copies have others, once all has crossed."""
        if self._here is None:
            return
        found = self._here.numpy().tobytes()
        for piece, address, copied in self._copies:
            if copied.start <= piece.start and piece.start + piece.length <= copied.stop:
                copy = ctypes.string_at(address + piece.start, piece.length)
                if copy != found[piece.place : piece.place + piece.length]:
                    yield piece.number

    def _gathered(self, tensors: Sequence[object], numbers: Sequence[int]) -> torch.Tensor | None:
        found: list[torch.Tensor] = []
        place = 0
        for number in numbers:
            tensor = tensors[number]
            assert isinstance(tensor, torch.Tensor)
            if len(found) == TENSORS_MAX:
                break
            # A copy of a true bool has the byte 1; one whose memory was freed has none.
            if tensor.dtype is torch.bool or not tensor.is_contiguous() or not tensor.data_ptr():
                continue
            count = min(ELEMENTS, tensor.numel())
            first = random.randrange(tensor.numel() - count + 1)
            offset = tensor.storage_offset() + first
            found.append(tensor.as_strided((count,), (1,), offset).view(torch.uint8))
            size = tensor.itemsize
            self._pieces[id(tensor)] = _Piece(number, first * size, count * size, place)
            place += count * size
        return self._accelerator.joined(found) if found else None


def _some(devices: Sequence[object], device: torch.device) -> list[int]:
    """Numbers of some on the device, in any order."""
    tried = random.sample(range(len(devices)), min(len(devices), TENSORS_TRIED))
    found = [number for number in tried if devices[number] == device]
    if len(found) < TENSORS_MAX:
        found = [number for number, one in enumerate(devices) if one == device]
        random.shuffle(found)
    return found
