"""A checkpoint that lies in memory, as a Source: what tests write into stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import ml_dtypes
import numpy as np

from ckpt.base.ids import Rank
from ckpt.format.dtypes import dtype_name, dtype_of
from ckpt.format.index.pages import IndexBox, IndexTensor
from ckpt.format.table import Meaning
from ckpt.format.tree import DictNode, LeafNode, Node, Scalar, ScalarNode
from ckpt.objects.documents import Header
from ckpt.objects.elements import EXTENSIONS
from ckpt.objects.reader import StoredCheckpoint
from ckpt.objects.sinks.sink import at_once
from ckpt.objects.source import Array, Wish

HEADER = Header(
    run="team/llama 7b", step=500, generation="1.3", cluster="c0ffee", launch=1 << 32,
    world_size=2, committed_at_s=1.5, source="tier",
)  # fmt: skip


class MemorySource:
    """Two ranks: `whole` arrays are halved between them on the first axis, `own` are rank 1's."""

    metrics: Mapping[str, float] = {}

    def __init__(
        self,
        whole: Mapping[str, Array],
        own: Mapping[str, Array] | None = None,
        *,
        header: Header = HEADER,
        values: Mapping[str, Scalar] | None = None,
    ) -> None:
        self.header = header
        self.whole = dict(whole)
        self.own = dict(own or {})
        self.read_count = 0
        self._tensors = [_whole(name, array) for name, array in self.whole.items()]
        self._tensors += [_own(name, array) for name, array in self.own.items()]
        self._values = dict(values or {})

    def tensors(self) -> Sequence[IndexTensor]:
        return self._tensors

    def trees(self) -> Mapping[Rank, Node]:
        shared = [(name, LeafNode(name)) for name in self.whole]
        values = [(name, ScalarNode(value)) for name, value in self._values.items()]
        mine = [(name, LeafNode(name)) for name in self.own]
        return {
            Rank(0): DictNode((*shared, *values)),
            Rank(1): DictNode((*shared, *values, *mine)),
        }

    def read(self, wishes: Sequence[Wish], go_on: Callable[[], None] = at_once) -> None:
        self.read_count += 1
        for wish in wishes:
            go_on()
            own = wish.tensor.meaning is Meaning.OWN
            array = (self.own if own else self.whole)[wish.tensor.name]
            part = tuple(
                slice(o, o + n) for o, n in zip(wish.offset, wish.memory.shape, strict=True)
            )
            wish.memory[...] = array[part]

    def close(self) -> None:
        """Nothing is held."""


def _whole(name: str, array: Array) -> IndexTensor:
    if not array.ndim or array.shape[0] < 2:
        box = IndexBox(Rank(0), (0,) * array.ndim, array.shape, ())
        return IndexTensor(name, Meaning.REPLICATED, dtype_name(array.dtype), array.shape, (box,))
    half, rest = array.shape[0] // 2, (0,) * (array.ndim - 1)
    boxes = (
        IndexBox(Rank(0), (0, *rest), (half, *array.shape[1:]), ()),
        IndexBox(Rank(1), (half, *rest), (array.shape[0] - half, *array.shape[1:]), ()),
    )
    return IndexTensor(name, Meaning.SHARD, dtype_name(array.dtype), array.shape, boxes)


def _own(name: str, array: Array) -> IndexTensor:
    box = IndexBox(Rank(1), (0,) * array.ndim, array.shape, ())
    return IndexTensor(name, Meaning.OWN, dtype_name(array.dtype), array.shape, (box,))


def random_bits(dtype: object, shape: tuple[int, ...], seed: int = 1) -> Array:
    """Every bit pattern may occur, NaNs with payloads too; booleans are 0 or 1."""
    kind = np.dtype(dtype)  # type: ignore[call-overload]
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape)) * kind.itemsize
    raw = rng.integers(0, 2 if kind.kind == "b" else 256, size, np.uint8)
    return raw.view(kind).reshape(shape)


def many_kinds() -> dict[str, Array]:
    """Small tensors of every kind, and large ones that need several chunks."""
    arrays: dict[str, Array] = {
        f"small/{name}": random_bits(name, (7, 5))
        for name in ("?", "i1", "<u2", ">i4", "<f2", "<c16")
    }
    arrays["odd/text"] = np.array(["a", "züge", ""], "U4")
    arrays["odd/when"] = random_bits("<M8[ns]", (150_000,))
    arrays["odd/int4"] = np.arange(-8, 8).astype(ml_dtypes.int4)
    arrays["odd/#0/~.="] = np.zeros((0, 3), "f4")
    arrays["scalar"] = np.array(3.5, "f8")
    arrays["model/big"] = random_bits("<f4", (1500, 1501))
    arrays["model/big_endian"] = random_bits(">f4", (300, 1000))
    arrays["model/bf16"] = random_bits(ml_dtypes.bfloat16, (2000, 1500))
    arrays["model/f8"] = random_bits(ml_dtypes.float8_e4m3fn, (1500, 1000))
    arrays["model/zeros"] = np.zeros((1200, 1000), "<f4")
    return arrays


def every_type() -> dict[str, Array]:
    """A small tensor of each type: Zarr's, its extensions', and those that it lacks."""
    plain = [
        "?",
        "i1",
        "u1",
        "<i2",
        ">i2",
        "<u4",
        ">u8",
        "<f2",
        ">f2",
        "<f4",
        "<f8",
        ">c8",
        "<c16",
        "S5",
        "<m8[s]",
        "<M8[us]",
    ]
    arrays = {name: random_bits(name, (3, 2)) for name in plain}
    arrays |= {name: random_bits(getattr(ml_dtypes, name), (3, 2)) for name in EXTENSIONS}
    for name in ("int4", "uint4", "int2", "float4_e2m1fn"):
        arrays[name] = np.array([[0, 1]]).astype(getattr(ml_dtypes, name))
    arrays["text"] = np.array(["a", "züge", ""])
    arrays["long"] = np.array([1, 3]) / np.longdouble(3)
    return {f"every/{name}": array for name, array in arrays.items()}


def same_bits(a: object, b: object) -> bool:
    """Equal dtype, shape and bytes."""
    x, y = np.asarray(a), np.asarray(b)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def read_all(stored: StoredCheckpoint) -> dict[tuple[str, Rank | None], Array]:
    """Every tensor, whole; own ones by their rank."""
    found = {}
    wishes = []
    for tensor in stored.tensors():
        ranks = [box.rank for box in tensor.boxes] if tensor.meaning is Meaning.OWN else [None]
        for rank in ranks:
            memory = np.empty(tensor.global_shape, dtype_of(tensor.dtype))
            wishes.append(Wish(tensor, rank, (0,) * memory.ndim, memory))
            found[tensor.name, rank] = memory
    stored.read(wishes)
    return found
