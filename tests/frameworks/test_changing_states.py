"""States that change between saves: keys come, go, move and change their names, leaves their types,
shapes, strides and memory. What a load gives is what was saved, every bit under its own name.

Saves of one form after another are only compared and copied; all ways of saving share one store
here, so that each meets what the others have learnt.
"""

from __future__ import annotations

import random
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import ckpt
import ckpt_torch
from tests.client.bits import bits_of
from tests.frameworks.gloo import Ranks

FEW, MANY = range(4), range(4, 120)
SAVES = 8
KEYS = ("a", "b", "c", "a.b", "a/b", "1", 1, True, -3, ("t", 1), "", "#0", "=1", "~", "é")
TYPES: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.complex64: np.complex64,
    torch.int64: np.int64,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}
ARRAYS = ("<f4", ">f4", "<i8", "|b1", "<c16", "<U2")
SHAPES = ((), (0,), (3,), (4, 3), (2, 0, 3), (1, 3, 2), (700, 90))
LAYOUTS = ("whole", "every other", "turned", "within", "spread")
WRAPPED = ("plain", "parameter", "buffer", "inference")
CONTAINERS = ("dict", "ordered", "default", "user", "proxy")


class Pair(NamedTuple):
    first: object
    second: object


@dataclass(frozen=True)
class Leaf:
    """How one is made; its values come when it is."""

    kind: str
    dtype: Any = None
    shape: tuple[int, ...] = ()
    layout: str = "whole"
    wrapped: str = "plain"


@dataclass(frozen=True)
class Node:
    """A mapping, or a list, tuple or named tuple, whose keys count for nothing."""

    kind: str
    items: tuple[tuple[Any, Any], ...]


class Maker:
    """I draw forms of states, and change them."""

    def __init__(self, chance: random.Random, *, keys: tuple[Any, ...], plainly: bool) -> None:
        self._chance = chance
        self._keys = keys
        #: DCP takes no other containers than dicts here, and gives back no numpy.
        self._plainly = plainly
        self._kinds = ("tensor",) * 6 + ("scalar", "tied", "tied")
        if not plainly and chance.random() < 0.5:  # A numpy scalar is no part of a known form.
            self._kinds += ("array", "array", chance.choice(("array", "number")))
        self._usual = [self._any() for _ in range(2)]

    def leaf(self) -> Leaf:
        """Mostly one of few, so that one may be taken for another."""
        return self._chance.choice(self._usual) if self._chance.random() < 0.7 else self._any()

    def _any(self) -> Leaf:
        pick = self._chance.choice
        kind = pick(self._kinds)
        if kind == "array":
            return Leaf(kind, pick(ARRAYS), pick(SHAPES), pick(("whole", "every other", "turned")))
        return Leaf(kind, pick(list(TYPES)), pick(SHAPES), pick(LAYOUTS), pick(WRAPPED))

    def like(self, leaf: Leaf) -> Leaf:
        """Another in one respect."""
        other = self._any()
        parts: list[dict[str, Any]] = [
            {"shape": other.shape}, {"kind": "tied" if leaf.kind == "tensor" else leaf.kind}
        ]  # fmt: skip
        if leaf.kind == "array":
            parts.append({"dtype": self._chance.choice(ARRAYS)})
        else:
            dtype = self._chance.choice(list(TYPES))
            parts += [{"dtype": dtype}, {"layout": other.layout}, {"wrapped": other.wrapped}]
        return replace(leaf, **self._chance.choice(parts))

    def node(self, depth: int = 0) -> Node:
        pick = self._chance.choice
        kind = pick((*CONTAINERS, "list", "tuple", "pair")) if depth else "dict"
        kind = "dict" if self._plainly else kind
        count = 2 if kind == "pair" else self._chance.randrange(5)
        keys = self._chance.sample(self._keys, len(self._keys))
        unlike = [key for n, key in enumerate(keys) if key not in keys[:n]][:count]
        return Node(kind, tuple((key, self._child(depth)) for key in unlike))

    def _child(self, depth: int) -> Leaf | Node:
        return self.node(depth + 1) if depth < 2 and self._chance.random() < 0.3 else self.leaf()

    def changed(self, node: Node, depth: int = 0) -> Node:
        """A little, somewhere."""
        below = [n for n, (_, child) in enumerate(node.items) if isinstance(child, Node)]
        if below and self._chance.random() < 0.5:
            at = self._chance.choice(below)
            items = list(node.items)
            items[at] = items[at][0], self.changed(items[at][1], depth + 1)
            return replace(node, items=tuple(items))
        change = self._chance.choice(
            ("turn", "swap", "rename", "like", "like", "other", "add", "drop", "kind")
        )
        items, count = list(node.items), len(node.items)
        unused = [key for key in self._keys if all(key != one for one, _ in items)]
        is_pair = node.kind == "pair"
        if change == "turn":
            items = [*items[1:], *items[:1]]
        elif change == "swap" and count > 1:
            one, two = self._chance.sample(range(count), 2)
            (a, x), (b, y) = items[one], items[two]
            items[one], items[two] = (a, y), (b, x)
        elif change == "rename" and count and unused:
            at = self._chance.randrange(count)
            similar = [key for key in self._keys if key == items[at][0]]
            items[at] = self._chance.choice([*unused, *similar * 4]), items[at][1]
        elif change in ("like", "other") and count:
            at = self._chance.randrange(count)
            key, child = items[at]
            is_like = change == "like" and isinstance(child, Leaf)
            items[at] = key, self.like(child) if is_like else self._child(depth)
        elif change == "add" and unused and not is_pair:
            items.insert(self._chance.randrange(count + 1), (unused[0], self._child(depth)))
        elif change == "drop" and count and not is_pair:
            items.pop(self._chance.randrange(count))
        elif change == "kind" and depth and not self._plainly and not is_pair:
            return replace(node, kind=self._chance.choice((*CONTAINERS, "list", "tuple")))
        return replace(node, items=tuple(items))


class Values:
    """I make a state of a form, of random bits."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        #: What tensors of several names, and views into one memory, are of.
        self._tied: dict[object, torch.Tensor] = {}
        self._memory = self._bits(torch.uint8, 1 << 20)

    def made(self, form: Leaf | Node, *, whole: bool = False) -> Any:
        """whole: every tensor in memory of its own, as a load wants it."""
        if isinstance(form, Leaf):
            return self._leaf(replace(form, layout="whole", wrapped="plain") if whole else form)
        made = {key: self.made(child, whole=whole) for key, child in form.items}
        if form.kind in ("list", "tuple"):
            return list(made.values()) if form.kind == "list" else tuple(made.values())
        if form.kind == "pair":
            return Pair(*made.values())
        kinds: dict[str, Any] = {
            "dict": dict, "ordered": OrderedDict, "user": UserDict, "proxy": MappingProxyType,
            "default": lambda items: defaultdict(list, items),
        }  # fmt: skip
        return kinds[form.kind](made)

    def _leaf(self, leaf: Leaf) -> Any:
        chance = self._chance
        if leaf.kind == "scalar":
            return chance.choice((7, -0.0, float("nan"), 1 << chance.randrange(80), "text", None))
        if leaf.kind == "number":
            return np.float32(chance.random())
        if leaf.kind == "array":
            return self._array(leaf)
        if leaf.kind == "tied":
            key = leaf.dtype, leaf.shape
            return self._tied.setdefault(key, self._tensor(replace(leaf, layout="whole")))
        made = self._tensor(leaf)
        if leaf.wrapped == "parameter":
            can_learn = made.is_floating_point() or made.is_complex()
            return torch.nn.Parameter(made, requires_grad=can_learn)
        return torch.nn.Buffer(made) if leaf.wrapped == "buffer" else made

    def _bits(self, kind: torch.dtype, count: int) -> torch.Tensor:
        made = bytearray(self._chance.randbytes(count * kind.itemsize))
        if kind is torch.bool:
            made = bytearray(byte & 1 for byte in made)
        return torch.frombuffer(made, dtype=kind) if made else torch.empty(0, dtype=kind)

    def _tensor(self, leaf: Leaf) -> torch.Tensor:
        count, shape = int(np.prod(leaf.shape)), leaf.shape
        with torch.inference_mode(leaf.wrapped == "inference"):
            match leaf.layout:
                case "every other" if shape:
                    return self._bits(leaf.dtype, 2 * count).view(*shape[:-1], 2 * shape[-1])[
                        ..., ::2
                    ]
                case "turned":
                    turned = self._bits(leaf.dtype, count).view(shape[::-1])
                    return turned.permute(tuple(range(len(shape)))[::-1])
                case "within" if count and leaf.dtype is not torch.bool:
                    first = 16 * self._chance.randrange(1000)
                    part = self._memory[first : first + count * leaf.dtype.itemsize]
                    return part.view(leaf.dtype).view(shape)
                case "spread" if count:
                    return self._bits(leaf.dtype, 1).view((1,) * len(shape)).expand(shape)
            return self._bits(leaf.dtype, count).view(shape)

    def _array(self, leaf: Leaf) -> Any:
        count = int(np.prod(leaf.shape))
        if leaf.dtype == "<U2":
            return np.array([self._chance.choice("aé") for _ in range(count)]).reshape(leaf.shape)
        made = self._bits(torch.bool if leaf.dtype == "|b1" else torch.uint8, 16 * 2 * count)
        flat = made.numpy().view(leaf.dtype)
        if leaf.layout == "every other" and leaf.shape:
            return flat[: 2 * count].reshape(*leaf.shape[:-1], 2 * leaf.shape[-1])[..., ::2]
        whole = flat[:count].reshape(leaf.shape)
        return np.asfortranarray(whole) if leaf.layout == "turned" else whole


def as_numpy(value: Any) -> Any:
    """The same in numpy's arrays and plain containers; of numpy's scalars, arrays."""
    if isinstance(value, Mapping):
        return {key: as_numpy(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        items = [as_numpy(child) for child in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, torch.Tensor):
        found = value.detach().clone(memory_format=torch.contiguous_format)
        raw = bytes(found.reshape(-1).view(torch.uint8).tolist()) if found.numel() else b""
        return np.frombuffer(raw, TYPES[found.dtype]).reshape(tuple(found.shape))
    return np.asarray(value) if isinstance(value, np.generic) else value


def told_apart(chance: random.Random, tree: Any) -> Any:
    """The same for `Store.save`, some of it Replicated."""
    if isinstance(tree, dict):
        made: Any = {key: told_apart(chance, child) for key, child in tree.items()}
    else:
        made = tree
    return ckpt.Replicated(made) if chance.random() < 0.1 else made


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """A process group of one, without which DCP saves nothing beside the training."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def played(store: ckpt.Store, run: str, seed: int) -> None:
    """One state after the other, each saved in any way and loaded in all."""
    chance = random.Random(seed)
    maker = Maker(chance, keys=KEYS, plainly=False)
    form = maker.node()
    usual = chance.choice(("store", "torch", "torch"))
    for step in range(SAVES):
        if chance.random() < 0.7:
            form = maker.changed(form)
        state = Values(chance).made(form)
        wanted = bits_of(as_numpy(state))
        way = chance.choice(("store", "torch")) if chance.random() < 0.2 else usual
        staging = chance.choice(("copy", "overlap"))
        what = f"seed {seed}, step {step}: {way}, {staging}, {form}"
        if way == "store":
            told = told_apart(random.Random(seed), as_numpy(state))
            store.save(run, step, told, staging=staging).wait()
        else:
            name = f"{run}/{step}"
            if chance.random() < 0.3:
                ckpt_torch.prepare(state, checkpoint_id=name, store=store, no_dist=True)
            ckpt_torch.async_save(
                state, checkpoint_id=name, store=store, staging=staging, no_dist=True
            ).result(60)
            into = Values(chance).made(form, whole=True)
            ckpt_torch.load(into, checkpoint_id=name, store=store, no_dist=True)
            assert bits_of(as_numpy(into)) == wanted, what
        assert bits_of(store.load(run, step)) == wanted, what


def played_beside_dcp(store: ckpt.Store, run: str, seed: int) -> None:
    """The same of what DCP takes, through its planner or its stager."""
    chance = random.Random(seed)
    maker = Maker(chance, keys=tuple("abcdefgh"), plainly=True)
    form = maker.node()
    for step in range(SAVES):
        if chance.random() < 0.7:
            form = maker.changed(form)
        state = Values(chance).made(form)
        wanted = bits_of(as_numpy(state))
        path, way = f"{run}/{step}", chance.choice(("writer", "stager", "torch"))
        into = Values(chance).made(form, whole=True)
        if way == "torch":
            ckpt_torch.save(state, checkpoint_id=path, store=store)
            ckpt_torch.load(into, checkpoint_id=path, store=store)
        else:
            writer = ckpt_torch.CkptWriter(path, store=store)
            if way == "writer":
                dcp.save(state, storage_writer=writer)
            else:
                stager = ckpt_torch.CkptStager(writer, staging=chance.choice(("copy", "overlap")))
                dcp.async_save(
                    state, storage_writer=writer, async_stager=stager
                ).upload_completion.result()
            dcp.load(into, storage_reader=ckpt_torch.CkptReader(path, store=store))
        assert bits_of(as_numpy(into)) == wanted, f"seed {seed}, step {step}: {way}, {form}"


def cut(chance: random.Random, mesh: DeviceMesh, scale: float) -> dict[str, Any]:
    """DTensors of a few forms, equal on all ranks as a whole."""
    found: dict[str, Any] = {}
    for name in chance.sample("xyz", 2):
        whole = Values(chance).made(Leaf("tensor", torch.float32, chance.choice(((5, 3), (4, 3)))))
        placement = chance.choice((Shard(0), Shard(0), Shard(1), Replicate()))
        found[name] = distribute_tensor(whole * scale, mesh, [placement], src_data_rank=None)
    return found


def played_together(url: str, seed: int) -> None:
    """Ranks have parts in common, parts of their own that change alone, and parts of tensors."""
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
    chance, alone = random.Random(seed), random.Random(1000 * seed + rank)
    maker, own_maker = (Maker(one, keys=KEYS, plainly=False) for one in (chance, alone))
    common, own, cuts = maker.node(), own_maker.node(), 0

    def made(values: int, *, whole: bool) -> dict[str, Any]:
        return {
            "common": Values(random.Random(values)).made(common, whole=whole),
            f"own{rank}": Values(random.Random(values + rank)).made(own, whole=whole),
            "cut": cut(random.Random(cuts), mesh, values),
        }

    with ckpt.open(url) as store:
        for step in range(1, SAVES):
            common = maker.changed(common) if chance.random() < 0.3 else common
            own = own_maker.changed(own) if alone.random() < 0.3 else own
            cuts = chance.randrange(3) if chance.random() < 0.3 else cuts
            staging = chance.choice(("copy", "overlap"))
            state, into = made(100 * seed + step, whole=False), made(-7, whole=True)
            name = f"together-{seed}/{step}"
            ckpt_torch.async_save(state, checkpoint_id=name, store=store, staging=staging).result(
                120
            )
            ckpt_torch.load(into, checkpoint_id=name, store=store)
            wanted, found = (bits_of(as_numpy(local_of(one))) for one in (state, into))
            assert found == wanted, f"seed {seed}, step {step}: {staging}, {common}, {own}"


def local_of(state: dict[str, Any]) -> dict[str, Any]:
    """With this rank's part of each DTensor."""
    return {**state, "cut": {name: one.to_local() for name, one in state["cut"].items()}}


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_each_bit_is_under_its_own_name_on_each_rank(
    cluster: str, ranks: Ranks, seeds: range
) -> None:
    for seed in seeds:
        ranks.run(2, played_together, cluster, seed)


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_each_bit_is_under_its_own_name(cluster: str, seeds: range) -> None:
    with ckpt.open(cluster) as store:
        for seed in seeds:
            played(store, f"changing-{seed}", seed)


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_each_bit_is_under_its_own_name_beside_dcp(cluster: str, alone: None, seeds: range) -> None:
    with ckpt.open(cluster) as store:
        for seed in seeds:
            played_beside_dcp(store, f"changing-dcp-{seed}", seed)
