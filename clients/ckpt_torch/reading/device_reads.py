"""How do a checkpoint's bytes get into a device's memory? Through a ring of locked host memory.

    targets, stores ──batch n + 1──> slot ─┐                  │
                                     slot ─┴──batch n, on the copies' own stream──> tensors

Host memory is the ring's, whatever the state's size: its slots are shared by the devices that the
state lies on. What other ranks read at the same time is read first, by name, in batches of its own:
ranks that hold the same replicas cut the same batches, and meet while they have just begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import add
from typing import Final, Self

import torch
from torch.nn.parameter import is_lazy

from ckpt.base.errors import Refused
from ckpt.base.units import MiB, format_bytes
from ckpt_client.accelerator import Accelerator, StreamPoint
from ckpt_client.load.batches import ALIGN_BYTES, Batch, BoxPart, WholeBox, batches
from ckpt_client.load.contents import Contents, Want
from ckpt_client.load.ring import Ring
from ckpt_client.save.arrays import AnyArray
from ckpt_torch.device.accelerators import accelerator_of
from ckpt_torch.device.page_locks import locked_memory
from ckpt_torch.modes import refuse_modes
from ckpt_torch.tensors import PLAIN_TENSORS, as_array, is_apart

RING_BYTES: Final = 256 * MiB
RING_BYTES_MIN: Final = 1 * MiB
PIECE_BYTES_MAX: Final = 4 * MiB
"""Smaller tensors share a cell of the tier with others (decision 5)."""
SLOTS: Final = 4
"""Of each device: one is filled while the device copies from others. Fewer and larger ones are no
faster, and a prefix that is waited for comes a slot later."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWant:
    """A box of a stored tensor, and the memory of a device that it fills."""

    tensor: torch.Tensor
    """Detached, of the box's shape and the stored dtype; any strides."""
    want: Want
    """Its array has the shape and dtype alone; a replica is what `Contents.is_shared` says so."""

    @classmethod
    def of(cls, contents: Contents, tensor: torch.Tensor, want: Want) -> DeviceWant:
        """Raises as `Contents.fill` for what does not fit the checkpoint; nothing is read."""
        shared = contents.is_shared(want)
        return cls(tensor, Want(want.name, want.array, want.offset, want.rank, shared))


class DeviceReads:
    """I fill what one load wants, again from the beginning when it must; a context manager. After
    it no copy is under way, whatever was raised.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], ring_bytes: int = RING_BYTES) -> None:
        """tensors: what may be filled, on devices or in the host's memory: no slot is larger than
        they need. What the calling thread has queued on these devices is done before anything is
        copied. The first slots are made beside the caller.

        Raises Refused for a ring that is too small, and what `refuse_modes` raises.
        """
        refuse_modes()
        if ring_bytes < RING_BYTES_MIN:
            least = format_bytes(RING_BYTES_MIN)
            raise Refused(f"a ring of {ring_bytes} bytes", hint=f"at least {least}")
        sizes: dict[torch.device, int] = {}
        host: list[int] = []
        for tensor in tensors:
            if tensor.is_cpu:
                if type(tensor) in PLAIN_TENSORS or not is_lazy(tensor):
                    host.append(tensor.numel() * tensor.element_size())
            elif is_apart(tensor.device):
                room = -(-tensor.nbytes // ALIGN_BYTES) * ALIGN_BYTES
                sizes[tensor.device] = sizes.get(tensor.device, 0) + room
        self.host_in_pieces = 2 * sum([n for n in host if n < PIECE_BYTES_MAX]) > sum(host)
        """Whether most bytes in the host's memory lie in tensors below PIECE_BYTES_MAX."""
        self.wanted_bytes = sum(host) + sum(sizes.values())
        """Of all tensors."""
        slot_bytes = ring_bytes // SLOTS // max(1, len(sizes)) // ALIGN_BYTES * ALIGN_BYTES
        self._lanes = {device: _Lane(device, slot_bytes, size) for device, size in sizes.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for lane in self._lanes.values():
            lane.ring.close()

    def fill(self, contents: Contents, host: Sequence[Want], wants: Sequence[DeviceWant]) -> None:
        """Read all of it: host memory is filled afterwards, for the devices copies are queued, see
        `wait_copied`. Raises as `Contents.fill`, and Aborted for a device that fails.
        """
        also = list(host)
        for lane, part, pieces in self._batches(wants):
            lane.read(contents, also, [(part[piece.box], piece) for piece in pieces])
            also = []
        if also:
            contents.fill(also)

    def wait_copied(self) -> None:
        """Wait until all that was filled is in its place. Raises Aborted."""
        for lane in self._lanes.values():
            lane.ring.wait_copied()

    def _batches(
        self, wants: Sequence[DeviceWant]
    ) -> Iterator[tuple[_Lane, list[DeviceWant], Batch]]:
        shared = [each for each in wants if each.want.replica]
        shared.sort(key=lambda each: (each.want.name, each.want.offset))
        alone = [each for each in wants if not each.want.replica]
        for kind in (shared, alone):
            for device, lane in self._lanes.items():
                part = [each for each in kind if each.tensor.device == device]
                boxes = [WholeBox(tuple(e.tensor.shape), e.tensor.itemsize) for e in part]
                for pieces in batches(boxes, lane.slot_bytes):
                    yield lane, part, pieces


class _Lane:
    """The way into one device."""

    def __init__(self, device: torch.device, slot_bytes: int, size: int) -> None:
        """size: of all that may go there, in bytes."""
        self.slot_bytes = slot_bytes
        """How batches are cut."""
        self.ring = Ring(self._slot, SLOTS)
        self._device = device
        self._accelerator: Accelerator = accelerator_of(device)
        #: Empty: copies wait for what the accelerator's current stream has queued, and beside an
        #: `async_load` that would be the caller's forward pass.
        self._stream = torch.Stream(device=device)
        #: What the caller had queued, until it is through: it may still write the tensors.
        self._before: StreamPoint | None = self._accelerator.now()
        #: A state that is smaller than a slot needs no more than itself.
        self._needed_bytes = min(slot_bytes, size)
        if size:
            # The second is wanted while the first one's bytes cross, for which none is made in
            # haste: locking a slot's pages takes longer than reading it.
            self.ring.make_ahead(1 if size <= slot_bytes else 2)

    def read(
        self, contents: Contents, also: list[Want], pieces: Sequence[tuple[DeviceWant, BoxPart]]
    ) -> None:
        """One batch, and host memory with it; the batch's copies are queued."""
        slot = self.ring.take()
        wants, sources, targets = list(also), [], []
        for whole, piece in pieces:
            memory = slot[piece.first : piece.end].view(whole.tensor.dtype).view(piece.shape)
            wants.append(part_of(whole.want, piece, as_array(memory)))
            sources.append(memory)
            targets.append(narrowed(whole.tensor, piece))
        contents.fill(wants)
        if self._before is not None:
            self._before.wait()
            self._before = None
        with self._stream:
            self.ring.sent(self._accelerator.copy_in(sources, targets))

    def _slot(self) -> torch.Tensor:
        return locked_memory(self._device, self._needed_bytes)


def part_of(whole: Want, piece: BoxPart, array: AnyArray) -> Want:
    """The same want of a part of its box, into the array."""
    offset = tuple(map(add, whole.offset, piece.start))
    return Want(whole.name, array, offset, whole.rank, whole.replica)


def narrowed(tensor: torch.Tensor, piece: BoxPart) -> torch.Tensor:
    """A view of a part of a box's tensor."""
    for axis, (start, length) in enumerate(zip(piece.start, piece.shape, strict=True)):
        if length != tensor.shape[axis]:
            tensor = tensor.narrow(axis, start, length)
    return tensor
