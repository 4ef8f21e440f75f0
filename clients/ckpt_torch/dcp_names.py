"""How a DCP checkpoint's items are named in a store: the path of each in the nested state dict.

DCP flattens a state dict to names such as `optim.state.embed.weight.exp_avg` and keeps the paths
apart, as planner data. Here the path is the name (a position in a list is an int key), so the index
alone gives both, and any reader sees the nested state.

    tensor      the path itself
    plain data  path + #value, a tree document as bytes
    objects     path + #pickle, torch's pickle as bytes
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch

from ckpt.base.errors import CkptError, Corrupt
from ckpt.format.tree import Node, decode_tree, encode_tree, path_text
from ckpt_client.save.arrays import AnyArray
from ckpt_client.save.state import flatten, unflatten
from ckpt_torch.tree import PICKLE_KEY, VALUE_KEY

MARK_VERSION: Final = 1
DcpPath = tuple[str | int, ...]
Tree = dict[str | int, object]


def path_of(fqn: str, planner_data: object) -> DcpPath:
    """The path of an item; its whole name where the planner did not flatten."""
    if isinstance(planner_data, Mapping):
        path = planner_data.get(fqn)
        if path is not None:
            return tuple(path)
    return (fqn,)


def value_name(name: str) -> str:
    """Where the plain value of a path is stored, when DCP's planner laid it out."""
    own = path_text((VALUE_KEY,))
    return f"{name}/{own}" if name else own


def put(tree: Tree, path: DcpPath, leaf: object) -> None:
    """Put a leaf into a nested tree, making the dicts on its way."""
    for key in path[:-1]:
        tree = tree.setdefault(key, {})  # type: ignore[assignment]
    tree[path[-1]] = leaf


def parse_name(name: str) -> DcpPath:
    """The path that a stored name stands for. Raises Corrupt for a name that this module never
    makes.
    """
    return tuple(_parse_step(step) for step in name.split("/"))


def _parse_step(step: str) -> str | int:
    if step.startswith(("=", "#")):
        try:
            return int(step[1:])
        except ValueError:
            raise Corrupt(f"{step!r} is no step of a path that DCP gives") from None
    if step == "~.":
        return ""
    for escaped, text in (("~3", "="), ("~2", "#")):
        if step.startswith(escaped):
            step = text + step[2:]
    return step.replace("~1", "/").replace("~0", "~")


def pack_value(stream: io.BytesIO) -> dict[str, AnyArray] | None:
    """An item's value as plain data; None when it is none.

    `stream` is what torch.save made of it.
    """
    try:
        value = torch.load(io.BytesIO(stream.getvalue()), weights_only=True)
    except Exception:  # Whatever an unknown class makes of it: it is no plain data.
        return None
    try:
        flat = flatten(value)
    except CkptError:
        return None
    if flat.leaves:
        return None
    return {VALUE_KEY: np.frombuffer(encode_tree(flat.root), np.uint8)}


def unpack_value(array: AnyArray) -> object:
    """The plain data that `pack_value` packed."""
    return unflatten(decode_tree(array.data), _no_leaf)


def pack_pickle(stream: io.BytesIO) -> dict[str, AnyArray]:
    """An item's value as the bytes that torch.save made."""
    return {PICKLE_KEY: np.frombuffer(stream.getvalue(), np.uint8)}


def _no_leaf(name: str) -> Node:
    raise Corrupt(f"{name}: a tensor inside of a plain value")
