"""Which array does a value of the caller's hold? Its own memory where it allows that, no copy; and
what would come back as something else is refused by its path.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ckpt.base.errors import CkptError, Refused

AnyArray = NDArray[np.generic]
ARRAYS: Final = frozenset((np.ndarray, np.memmap))
"""Exact types: a subclass (a masked array, a matrix) would come back as something else."""


def as_array(value: object, where: str) -> AnyArray:
    """The value's memory as an array, without a copy where it allows that;
    Refused by path otherwise.
    """
    if type(value) in ARRAYS:
        assert isinstance(value, np.ndarray)
        return value
    if isinstance(value, np.generic):
        try:
            return scalar_array(value)
        except Refused as error:
            raise Refused(f"{shown(where)}: {error.message}", hint=error.hint) from None
    check_own_memory(value, where)
    if any(kind.__module__.partition(".")[0] in _LABELLED for kind in type(value).__mro__):
        raise Refused(
            f"{shown(where)}: a {_kind_of(value)} is more than its values",
            hint="store its values as an array, and its labels or unit beside them",
        )
    reasons = []
    if not isinstance(value, type | np.ndarray):
        for protocol, convert in (("__dlpack__", _from_dlpack), ("__array__", _from_array)):
            if hasattr(value, protocol):
                try:
                    return convert(value)
                except CkptError:
                    raise
                except Exception as error:  # Whatever a foreign array type raises is its answer.
                    reasons.append(f"{protocol} said: {error}")
    raise Refused(
        f"{shown(where)}: a {_kind_of(value)} cannot be stored"
        + "".join(f"; {one}" for one in reasons),
        hint=_instead(value),
    )


def scalar_array(value: np.generic) -> AnyArray:
    """A numpy scalar as an array without axes. Raises Refused for text whose end that drops."""
    array = np.asarray(value)
    if isinstance(value, np.str_ | np.bytes_) and len(array[()]) < len(value):
        raise Refused(
            f"a numpy.{type(value).__name__} that ends in a zero, which arrays drop",
            hint="store it as str or bytes",
        )
    return array


_LABELLED: Final = frozenset({"pandas", "xarray", "polars", "pyarrow", "pint"})
"""Libraries whose `__array__` leaves out labels or units."""


def _kind_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _instead(value: object) -> str:
    """What to store in its place; torch's modules, optimizers and their states come here often."""
    if isinstance(value, Mapping):
        return "make it a dict, dict(...); ckpt_torch.save takes a state_dict() as it is"
    if hasattr(value, "state_dict"):
        return "save its state_dict(), with ckpt_torch.save"
    if _TENSOR in _kinds_of(value):
        return 'ckpt_torch.save(state, checkpoint_id="RUN/STEP", store=store) takes it as it is'
    return written_as(value) or "use dict, list, tuple, arrays, numbers, str, bytes and None"


def written_as(value: object) -> str:
    """The next step for who saves such a value: what says the same in kinds that can be stored.
    Empty for a kind that has no such form.
    """
    if isinstance(value, type):
        return ""
    for module, name in _kinds_of(value):
        form = _WRITTEN_AS.get((module.partition(".")[0], name))
        if form is not None:
            return f"write {form} in its place"
    is_dataclass = hasattr(value, "__dataclass_fields__")
    return "write dataclasses.asdict(it) in its place" if is_dataclass else ""


_WRITTEN_AS: Final = {
    ("enum", "Enum"): "its .value", ("pathlib", "PurePath"): "str(it)",
    ("datetime", "date"): "it.isoformat()", ("datetime", "time"): "it.isoformat()",
    ("datetime", "timedelta"): "it.total_seconds()",
    ("builtins", "set"): "sorted(it)", ("builtins", "frozenset"): "sorted(it)",
    ("builtins", "range"): "list(it)", ("collections", "deque"): "list(it)",
    ("builtins", "bytearray"): "bytes(it)", ("builtins", "memoryview"): "bytes(it)",
    ("builtins", "tuple"): "tuple(it)",
    ("random", "Random"): "it.getstate()", ("numpy", "RandomState"): "it.get_state()",
    ("numpy", "Generator"): "it.bit_generator.state", ("torch", "Generator"): "it.get_state()",
    ("torch", "device"): "str(it)", ("torch", "dtype"): "str(it)",
}  # fmt: skip
"""A kind's first module and its name -> the form."""


def _kinds_of(value: object) -> list[tuple[str, str]]:
    """Modules and names of its class and of those above."""
    return [(one.__module__, one.__qualname__) for one in type(value).__mro__]


def check_own_memory(value: object, where: str) -> None:
    """Raises Refused by path for one of torch's tensors whose memory is not what it holds: what
    torch gives out as that of a DTensor, or of another class made of tensors, is freed or
    another's, and that of a view that is negated when it is read has the other sign.
    """
    kinds = _kinds_of(value)
    if _TENSOR not in kinds:
        return
    if kinds[0] not in (_TENSOR, _PARAMETER):
        raise Refused(
            f"{shown(where)}: a {'.'.join(kinds[0])} is no plain tensor",
            hint="ckpt_torch takes DTensors; of any other give the tensors that it is made of",
        )
    tensor = cast(Tensor, value)
    if tensor.is_nested or str(tensor.layout) != "torch.strided":
        raise Refused(
            f"{shown(where)}: a nested tensor, or one of layout {tensor.layout}",
            hint="store the dense tensors that it is made of",
        )
    if _SUB_BYTE.fullmatch(str(tensor.dtype)):
        raise Refused(
            f"{shown(where)}: a {tensor.dtype} tensor has no numpy form",
            hint="store its view(torch.uint8)",
        )
    is_functional = cast(_Torch, sys.modules["torch"])._is_functional_tensor
    if tensor._is_zerotensor() or is_functional(tensor):
        raise Refused(
            f"{shown(where)}: a tensor that has no memory", hint=f"clone() it, {_OUTSIDE}"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise Refused(
            f"{shown(where)}: a lazily conjugated or negated tensor",
            hint="resolve_conj(), resolve_neg()",
        )
    try:
        check_memory(tensor)
    except Refused as error:
        raise Refused(f"{shown(where)}: {error.message}", hint=error.hint) from None
    except NotImplementedError as error:  # As within torch.func's grad and vmap.
        raise Refused(f"{shown(where)}: {error}", hint=_OUTSIDE) from None


def check_memory(tensor: Tensor) -> None:
    """Raises Refused for a tensor that reaches out of its memory: FSDP's first version frees that
    of parameters between their uses, and what lies there belongs to others then.
    """
    if not tensor.numel():
        return
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps)
    needed, there = (last + 1) * tensor.element_size(), tensor.untyped_storage().nbytes()
    if there < needed:
        raise Refused(
            f"a tensor that reaches to byte {needed} of its memory, which has {there}",
            hint="its memory was freed: save what the wrapped model's state_dict() gives",
        )


class _Torch(Protocol):
    def _is_functional_tensor(self, tensor: Tensor) -> bool: ...


class _Storage(Protocol):
    def nbytes(self) -> int: ...


class Tensor(Protocol):
    """One of torch's, which need not be there."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> object: ...
    @property
    def layout(self) -> object: ...
    @property
    def is_nested(self) -> bool: ...

    def _is_zerotensor(self) -> bool: ...
    def is_conj(self) -> bool: ...
    def is_neg(self) -> bool: ...
    def numel(self) -> int: ...
    def stride(self) -> tuple[int, ...]: ...
    def storage_offset(self) -> int: ...
    def element_size(self) -> int: ...
    def untyped_storage(self) -> _Storage: ...


_OUTSIDE: Final = "outside of what torch.func transforms"
#: Modules and names of their classes.
_TENSOR: Final = "torch", "Tensor"
_PARAMETER: Final = "torch.nn.parameter", "Parameter"
#: What DLPack gives out as integers of a byte.
_SUB_BYTE: Final = re.compile(r"torch\.u?int[1-7]")


def _from_dlpack(value: object) -> AnyArray:
    return np.from_dlpack(value)  # type: ignore[arg-type]


def _from_array(value: object) -> AnyArray:
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError(f"it becomes an array of Python objects ({array.dtype})")
    return array


def shown(where: str) -> str:
    """A path in an error."""
    return where or "the state itself"
