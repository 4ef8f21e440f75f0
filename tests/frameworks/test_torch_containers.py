"""What a load puts back into the containers of the caller's state, of the types that they have."""

from __future__ import annotations

import collections
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest
import torch

import ckpt
import ckpt_torch


class Moments(NamedTuple):
    steps: int
    mean: torch.Tensor


def state(value: int) -> dict[str, object]:
    return {
        "moments": Moments(value, torch.full((3,), float(value))),
        "shape": torch.Size([value, 2]),
        "settings": collections.UserDict(rate=value, deep={"n": value}),
        "layers": collections.ChainMap({"depth": value}),
        "fixed": MappingProxyType({"depth": value, "w": torch.full((3,), float(value))}),
        "counted": collections.Counter(steps=value),
        "loss": np.float64(value),
        "when": np.datetime64(value, "s"),
        "zero": np.array(float(value)),
    }


def test_containers_keep_their_types_and_get_their_values(cluster: str) -> None:
    name = f"{cluster}/containers/1"
    ckpt_torch.save(state(7), checkpoint_id=name)
    found, wanted = state(0), state(7)
    settings = found["settings"]
    ckpt_torch.load(found, checkpoint_id=name)
    assert found["settings"] is settings
    tensors = [found.pop("moments"), wanted.pop("moments")]
    assert isinstance(tensors[0], Moments)
    assert tensors[0].steps == 7
    fixed = [found.pop("fixed"), wanted.pop("fixed")]
    assert isinstance(fixed[0], MappingProxyType)
    assert fixed[0]["depth"] == 7
    for tensor in (tensors[0].mean, fixed[0]["w"]):
        assert torch.equal(tensor, torch.full((3,), 7.0))
    assert found == wanted
    assert {key: type(one) for key, one in found.items()} == {
        key: type(one) for key, one in wanted.items()
    }


def masked() -> object:
    return np.ma.masked_array([1.0, 2.0], [False, True])


def test_an_array_that_is_more_than_its_memory_is_refused_by_path(cluster: str) -> None:
    """Its mask would be lost."""
    name = f"{cluster}/masked"
    for step in (1, 2):  # Where the state is new, and where another one was saved last.
        with pytest.raises(
            ckpt.Refused, match=r"net/w: a numpy\.ma\.MaskedArray is no plain array"
        ):
            ckpt_torch.save({"net": {"w": masked()}}, checkpoint_id=f"{name}/{step}")
        ckpt_torch.save({"net": {"w": np.ones(2)}}, checkpoint_id=f"{name}/{step}")
    state: dict[str, object] = {"w": masked()}
    ckpt_torch.save(state, checkpoint_id=f"{name}/3", allow_pickle=True, check_finite=True)
    found: dict[str, object] = {"w": None}
    ckpt_torch.load(found, checkpoint_id=f"{name}/3", allow_pickle=True)
    assert repr(found["w"]) == repr(masked())
