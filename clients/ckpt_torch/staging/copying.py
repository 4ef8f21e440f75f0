"""How do tensors get into a half of the arena? Those in host memory by torch's own loops, those of
an accelerator by itself (ckpt_torch.device), after what the caller's stream had to do at the save.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, cast

import numpy as np
import torch

from ckpt.base.errors import Refused
from ckpt_client.accelerator import Accelerator, OutPlan, StreamPoint
from ckpt_client.save.arrays import ARRAYS, AnyArray
from ckpt_client.save.copying import NUMPY, ArrayPlace, Bytes, copy_bytes
from ckpt_client.save.packing import Picker, picker
from ckpt_torch.device.accelerators import TorchAccelerator, accelerator_of
from ckpt_torch.modes import refuse_modes
from ckpt_torch.staging.device_samples import DeviceSample
from ckpt_torch.staging.watch import TensorWatch, Whole
from ckpt_torch.tensors import as_array, from_array, is_shared, lie_in_memory, torch_dtype

Devices = tuple[torch.device, ...] | None
"""Of each array, in order; None when all lie in host memory."""
CPU: Final = torch.device("cpu")


def devices_of(arrays: Sequence[object]) -> Devices:
    """Where numpy arrays and tensors lie."""
    if ARRAYS.isdisjoint(map(type, arrays)):
        return None if all(map(_is_cpu, arrays)) else tuple(map(_device_of, arrays))
    if all(one.is_cpu for one in arrays if isinstance(one, torch.Tensor)):
        return None
    return tuple(CPU if type(one) in ARRAYS else _device_of(one) for one in arrays)


_is_cpu: Final = attrgetter("is_cpu")
_device_of: Final = attrgetter("device")
_detach: Final = torch.Tensor.detach


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Which arrays go where, and how."""

    host: Picker
    """Takes the tensors in host memory."""
    host_places: list[torch.Tensor]
    plain: tuple[tuple[int, AnyArray], ...]
    """(number of a numpy array, its place)."""
    queued: tuple[tuple[torch.device, Picker, list[torch.Tensor], OutPlan], ...]
    """(device, what takes its tensors, their places, how)."""


class TorchCopier:
    """Of tensors on any device, and of numpy arrays, as they are when I am made."""

    def __init__(
        self,
        arrays: Sequence[object],
        *,
        watched: bool = False,
        wholes: Sequence[Whole] = (),
        all_here: bool = False,
    ) -> None:
        """watched: find what is changed while I copy; see OverlapCopier.
        wholes: what some of the arrays are local parts of.
        all_here: it is known that all lie in host memory: they need not be asked.

        Raises what `refuse_modes` raises.
        """
        refuse_modes()
        devices = None if all_here else devices_of(arrays)
        kinds = list(map(type, arrays))
        # What was prepared for a tensor takes no array in its place.
        plain = None if ARRAYS.isdisjoint(kinds) else tuple(kind in ARRAYS for kind in kinds)
        self.kind: Hashable = "torch", devices, plain
        elsewhere = set(devices or ()) - {CPU}
        self._accelerators = {device: accelerator_of(device) for device in elsewhere}
        self._samples: dict[torch.device, DeviceSample] = {}
        if watched and devices is not None:
            self._samples = {
                device: DeviceSample(arrays, devices, device, one)
                for device, one in self._accelerators.items()
            }
        self._begun = {device: one.now() for device, one in self._accelerators.items()}
        #: What the devices were asked to copy, and when each is through.
        self._queued: list[tuple[TorchAccelerator, StreamPoint]] = []
        #: What they copy from beside `arrays`, until then.
        self._kept: list[torch.Tensor] = []
        self.watched = watched
        self._watch: TensorWatch | None = None
        if watched:
            self._watch = TensorWatch(arrays, wholes, all_here=devices is None)

    @property
    def accelerators(self) -> Sequence[Accelerator]:
        return tuple(self._accelerators.values())

    # What these two make serves later saves as well, which may be outside of inference mode.
    @torch.inference_mode(False)
    def places(self, memory: Bytes, wanted: Iterable[ArrayPlace]) -> list[object]:
        wanted = list(wanted)
        over = {name: _over(name) for name in {name for _, name, _ in wanted}}
        arrays = cast(list[AnyArray], NUMPY.places(memory, wanted))
        return [over[name](array) for array, (_, name, _) in zip(arrays, wanted, strict=True)]

    @torch.inference_mode(False)
    def prepare(self, places: Sequence[object], arrays: Sequence[object]) -> object:
        plain, host = [], []
        by_device: dict[torch.device, list[int]] = {}
        for number, array in enumerate(arrays):
            if not isinstance(array, torch.Tensor):
                plain.append((number, _array_of(places[number])))
            elif array.is_cpu:
                host.append(number)
            else:
                by_device.setdefault(array.device, []).append(number)
        queued = []
        for device, numbers in by_device.items():
            pick = picker(tuple(numbers))
            targets = list(cast(Sequence[torch.Tensor], pick(places)))
            plan = self._accelerators[device].plan_out(pick(arrays), targets)
            queued.append((device, pick, targets, plan))
        host_places = [cast(torch.Tensor, places[number]) for number in host]
        return _Prepared(picker(tuple(host)), host_places, tuple(plain), tuple(queued))

    def copy(self, prepared: object, arrays: Sequence[object]) -> None:
        """What devices copy is queued first, so that they do it beside the host's part."""
        assert isinstance(prepared, _Prepared)
        for device, pick, places, plan in prepared.queued:
            mine = pick(arrays)
            self._queue(device, plan, self._held(mine))
            if sample := self._samples.get(device):
                sample.note_copied(mine, places)
        for device, sample in self._samples.items():
            moment = sample.cross(self._begun[device])
            if moment is not None:
                self._queued.append((self._accelerators[device], moment))
        for number, place in prepared.plain:
            array = cast(AnyArray, arrays[number])
            np.copyto(place, array)
            if self._watch is not None:
                self._watch.note_array(array, place)
        if prepared.host_places:
            sources = list(self._held(prepared.host(arrays)))
            with torch.no_grad():
                torch._foreach_copy_(prepared.host_places, sources)
            if self._watch is not None:
                tensors = cast(Sequence[torch.Tensor], prepared.host(arrays))
                self._watch.note_copied(tensors, prepared.host_places)

    def copy_part(self, array: object, start: int, target: Bytes) -> None:
        tensor = array
        if isinstance(array, torch.Tensor):
            (array,) = self._held([array])
        if not isinstance(array, torch.Tensor) or array.is_cpu:
            plain = _array_of(array)
            copy_bytes(plain, start, target)
            if self._watch is not None:
                if isinstance(tensor, torch.Tensor):
                    self._watch.note_part(tensor, start, target)
                else:
                    self._watch.note_array_part(plain, start, target)
            return
        if sample := self._samples.get(array.device):
            sample.note_part(tensor, target.ctypes.data, range(start, start + target.size))
        accelerator, place = self._accelerators[array.device], torch.from_numpy(target)
        source = accelerator.flat_bytes(array, self._begun[array.device])
        part = source[start : start + target.size]
        self._kept.append(source)
        self._queue(array.device, accelerator.plan_out([part], [place]), [part])

    def finish(self) -> None:
        for _, moment in self._queued:
            moment.wait()
        self._kept.clear()
        if self._watch is not None:
            for sample in self._samples.values():
                self._watch.note_unlike(sample.unlike())

    def follow(self) -> None:
        self.changed()
        for accelerator, moment in self._queued:
            accelerator.follow(moment)

    def changed(self) -> Sequence[int]:
        assert self._watch is not None
        return self._watch.changed()

    def _held(self, arrays: Sequence[object]) -> Sequence[torch.Tensor]:
        """Tensors as they are now: `parameter.data = ...` beside the copy frees no memory of these,
        and changes nothing of them. What was freed already has a stand-in: to read there would end
        the process, and the watch ends the save.
        """
        tensors = cast(Sequence[torch.Tensor], arrays)
        if self._watch is None:
            return tensors
        # Under the interpreter lock no tensor is changed half.
        held = list(map(_detach, tensors))
        if self._watch.note_held(tensors, held):
            held = [one if lie_in_memory([one]) else _stand_in(one) for one in held]
        self._kept += held
        return held

    def _queue(self, device: torch.device, plan: OutPlan, sources: Sequence[object]) -> None:
        accelerator = self._accelerators[device]
        moment = accelerator.copy_out(plan, sources, self._begun[device])
        self._queued.append((accelerator, moment))


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """Of the same form, with memory for one element."""
    return torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


def _over(name: str) -> Callable[[AnyArray], object]:
    """How a tensor is made over an array of this dtype; the array stays where torch has none."""
    try:
        return torch.from_numpy if is_shared(torch_dtype(name)) else from_array
    except Refused:  # Its source is a numpy array.
        return lambda array: array


def _array_of(value: object) -> AnyArray:
    return as_array(value) if isinstance(value, torch.Tensor) else cast(AnyArray, value)
