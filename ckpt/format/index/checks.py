"""What a tensor of an index must be, and in which order they lie."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from ckpt.base.errors import CkptError
from ckpt.base.limits import PAYLOAD_BYTES_MAX, TENSOR_DIMS_MAX, WORLD_SIZE_MAX
from ckpt.format.index.pages import IndexBox, IndexTensor, WireTensor
from ckpt.format.index.rows import REPEATED_BOXES_MAX, REPEATS_MAX, BoxRows, ends_of
from ckpt.format.table import DIM_MAX, Meaning, box_problem, tensor_problem

TensorKey = tuple[str, str, str, tuple[int, ...]]
_MEANINGS: Final = {meaning: meaning.value for meaning in Meaning}


def tensor_order(tensor: IndexTensor | WireTensor) -> TensorKey:
    """The key by which an index is sorted; no two of its tensors have the same."""
    return tensor.name, _MEANINGS[tensor.meaning], tensor.dtype, tensor.global_shape


def check_tensor(tensor: IndexTensor, problem: type[CkptError]) -> None:
    """Raises `problem` when a value is out of bounds. (An OWN tensor has no global one.)"""
    whole, is_global = tensor.global_shape, tensor.meaning is not Meaning.OWN
    text = tensor_problem(tensor.name, tensor.dtype, whole)
    if text:
        raise problem(f"index: {text}")
    boxes = tensor.boxes
    if type(boxes) is BoxRows:
        if not _are_rows(boxes):
            raise problem(f"index: {tensor.name} has a row of boxes that cannot be")
        # Steps are even, so what holds at both ends holds between them.
        boxes = [end for row in boxes.rows for end in ends_of(*row)]
    if len(boxes) == 1:  # As nearly all have it where there are many.
        text = _form_problem(whole, boxes[0].offset, boxes[0].shape, is_global)
    else:
        forms = tuple([(box.offset, box.shape) for box in boxes])
        text = _forms_problem(whole, forms, is_global=is_global)
    if text:
        raise problem(f"index: {tensor.name}{text}")
    for box in boxes:
        _check_box(tensor.name, box, problem)


def _check_box(name: str, box: IndexBox, problem: type[CkptError]) -> None:
    if box.continued:
        raise problem(f"index: {name} has but a part of a box")
    if not 0 <= box.rank < WORLD_SIZE_MAX:
        raise problem(f"index: {name} has a box that cannot be")
    end = 0
    for location in box.locations:
        start, offset, length = location.start, location.payload_offset, location.length
        if not (
            0 <= location.rank < WORLD_SIZE_MAX
            and end <= start
            and length > 0
            and offset >= 0
            and start + length <= PAYLOAD_BYTES_MAX
            and offset + length <= PAYLOAD_BYTES_MAX
        ):
            raise problem(f"index: {name} has a location that cannot be: {location}")
        end = start + length


def _are_rows(boxes: BoxRows) -> bool:
    """Whether their repeats can be, and are not more than a reader could hold."""
    return (
        all(
            len(repeats) <= REPEATS_MAX
            and len(box.offset) == len(box.shape)
            and all(r.count > 1 and len(r.offset_step) == len(box.offset) for r in repeats)
            for box, repeats in boxes.rows
        )
        and boxes.count_all() <= REPEATED_BOXES_MAX
    )


# Tensors of a model are cut in few ways, each into as many boxes as there are ranks.
@lru_cache(maxsize=16)
def _forms_problem(
    whole: tuple[int, ...], forms: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], *,
    is_global: bool,
) -> str:  # fmt: skip
    """What is wrong with (offset, shape) of boxes, after the tensor's name; empty when nothing."""
    texts = (_form_problem(whole, offset, shape, is_global) for offset, shape in forms)
    return next((text for text in texts if text), "")


@lru_cache(maxsize=4096)
def _form_problem(
    whole: tuple[int, ...], offset: tuple[int, ...], shape: tuple[int, ...], is_global: bool
) -> str:
    """The same of one."""
    text = box_problem(whole, offset, shape) if is_global else ""
    if text:
        return f": {text}"
    dims = offset + shape
    if len(dims) > 2 * TENSOR_DIMS_MAX or not all(0 <= dim <= DIM_MAX for dim in dims):
        return " has a box that cannot be"
    return ""
