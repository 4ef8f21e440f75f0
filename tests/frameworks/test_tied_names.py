"""One tensor under several names: its checkpoint has each of them, and a load takes none of two
that differ for the other.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import ckpt_torch
from ckpt.base.errors import Refused
from ckpt.base.units import MiB
from ckpt_client.load import plan
from ckpt_torch import CkptReader, CkptWriter
from ckpt_torch.reading import twins
from tests.frameworks.device.emulated import Emulated


def made(value: float, where: str = "cpu") -> torch.Tensor:
    """Some pieces' worth, rows of which one or the other end within a piece."""
    tensor = torch.full((300, 1000), value, dtype=torch.bfloat16)
    tensor[7] = float("nan")
    return tensor.to(where)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "PIECE_BYTES", MiB // 8)


def tied(tensor: torch.Tensor) -> dict[str, Any]:
    return {"head": tensor, "layers": {"embedding": tensor.detach()}, "bias": made(3.0)}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().view(torch.uint8)


def check_comes_back(name: str, where: str) -> None:
    ckpt_torch.save(tied(made(1.0, where)), checkpoint_id=name)
    found = made(0.0, where)
    ckpt_torch.load(tied(found), checkpoint_id=name)
    assert torch.equal(bits(found), bits(made(1.0)))


def check_is_refused(name: str, where: str, **options: Any) -> None:
    """The last row alone differs."""
    head, embedding = made(1.0, where), made(1.0, where)
    embedding[-1, -1] = 2.0
    state = {"head": head, "layers": {"embedding": embedding}, "bias": made(3.0)}
    ckpt_torch.save(state, checkpoint_id=name)
    with pytest.raises(Refused, match=r"layers/embedding and head are one tensor here, and two"):
        ckpt_torch.load(tied(made(0.0, where)), checkpoint_id=name, **options)
    apart = {"head": made(0.0, where), "layers": {"embedding": made(0.0, where)}}
    ckpt_torch.load(apart, checkpoint_id=name)
    assert torch.equal(bits(apart["layers"]["embedding"]), bits(embedding))


def test_tied_tensors_come_back(cluster: str) -> None:
    check_comes_back(f"{cluster}/tied/1", "cpu")


def test_tied_tensors_of_a_device_come_back(cluster: str, device: Emulated) -> None:
    check_comes_back(f"{cluster}/tied-there/1", "emulated")


def test_two_that_differ_are_not_loaded_into_one(cluster: str) -> None:
    """Which one it held afterwards was chance; of large ones it could be parts of both."""
    check_is_refused(f"{cluster}/untied/1", "cpu")


def test_two_that_differ_are_not_loaded_into_one_of_a_device(
    cluster: str, device: Emulated
) -> None:
    check_is_refused(f"{cluster}/untied-there/1", "emulated")


def test_who_uses_a_part_before_the_rest_is_there_gets_it_whole(cluster: str) -> None:
    """The name whose part comes first fills the memory, whatever its place in the state."""
    name = f"{cluster}/tied-parts/1"
    ckpt_torch.save(tied(made(1.0)), checkpoint_id=name)
    found = made(0.0)
    loading = ckpt_torch.async_load(tied(found), checkpoint_id=name, order=["layers"])
    loading.prefixes["layers"].result(60.0)
    assert torch.equal(bits(found), bits(made(1.0)))
    loading.result(60.0)


def test_views_of_one_storage_are_filled_each(cluster: str) -> None:
    name = f"{cluster}/views/1"
    whole = torch.arange(3000.0)
    ckpt_torch.save({"q": whole[:1000], "k": whole[1000:]}, checkpoint_id=name)
    found = torch.zeros(3000)
    ckpt_torch.load({"q": found[:1000], "k": found[1000:]}, checkpoint_id=name)
    assert torch.equal(found, whole)


def overlaid(memory: torch.Tensor) -> dict[str, Any]:
    """As a flat parameter and its views; the last two share no item, and lie within each other."""
    columns = memory[100:].view(50, 20)
    return {
        "flat": memory[:80],
        "bias": memory[60:100],
        "rows": {"even": columns[:, ::2], "odd": columns[:, 1::2]},
    }


def check_parts_in_common(name: str, where: str) -> None:
    whole = torch.arange(1100.0, device=where)
    saved = overlaid(whole)
    ckpt_torch.save(saved, checkpoint_id=f"{name}/1")
    found = torch.zeros(1100, device=where)
    ckpt_torch.load(overlaid(found), checkpoint_id=f"{name}/1")
    assert torch.equal(bits(found), bits(whole))
    saved["bias"] = saved["bias"].clone()
    saved["bias"][0] = -1.0
    ckpt_torch.save(saved, checkpoint_id=f"{name}/2")
    with pytest.raises(Refused, match=r"(flat and bias|bias and flat) share a part of their mem"):
        ckpt_torch.load(overlaid(torch.zeros(1100, device=where)), checkpoint_id=f"{name}/2")


def test_names_that_share_a_part_of_their_memory_hold_what_was_saved(cluster: str) -> None:
    """The one that was read last had its values in both."""
    check_parts_in_common(f"{cluster}/overlaid", "cpu")


def test_names_that_share_memory_of_a_device_hold_what_was_saved(
    cluster: str, device: Emulated
) -> None:
    check_parts_in_common(f"{cluster}/overlaid-there", "emulated")


def through_dcp(name: str, saved: dict[str, Any], found: dict[str, Any]) -> None:
    """DCP plans what it finds, and asks nobody whether two names are one tensor."""
    with warnings.catch_warnings(action="ignore"):  # Of torch: a single process.
        dcp.save(saved, storage_writer=CkptWriter(name))
        dcp.load(found, storage_reader=CkptReader(name))


def check_dcp_refuses_two_for_one(name: str, where: str) -> None:
    head, embedding = made(1.0, where), made(1.0, where)
    found = made(0.0, where)
    through_dcp(f"{name}/1", tied(head), tied(found))
    assert torch.equal(bits(found), bits(head))
    embedding[-1, -1] = 2.0
    two = {"head": head, "layers": {"embedding": embedding}, "bias": made(3.0)}
    with pytest.raises(dcp.CheckpointException, match=r"(head|layers/embedding) are one tensor he"):
        through_dcp(f"{name}/2", two, tied(made(0.0, where)))


def check_dcp_refuses_parts(name: str, where: str) -> None:
    whole = torch.arange(1100.0, device=where)
    saved, found = overlaid(whole), torch.zeros(1100, device=where)
    through_dcp(f"{name}/3", saved, overlaid(found))
    assert torch.equal(bits(found), bits(whole))
    saved["bias"] = saved["bias"].clone()
    saved["bias"][0] = -1.0
    with pytest.raises(dcp.CheckpointException, match="share a part of their memory here"):
        through_dcp(f"{name}/4", saved, overlaid(torch.zeros(1100, device=where)))


def test_dcp_loads_no_two_that_differ_into_one(cluster: str) -> None:
    """The one that was read last had its values in both."""
    check_dcp_refuses_two_for_one(f"{cluster}/dcp-tied", "cpu")
    check_dcp_refuses_parts(f"{cluster}/dcp-tied", "cpu")


def test_dcp_loads_no_two_that_differ_into_one_of_a_device(cluster: str, device: Emulated) -> None:
    check_dcp_refuses_two_for_one(f"{cluster}/dcp-there", "emulated")
    check_dcp_refuses_parts(f"{cluster}/dcp-there", "emulated")


def test_which_tensors_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    flat, table = torch.zeros(6), torch.zeros(10, 10)
    columns = [table[:, number] for number in range(10)]
    for tensors, shared in (
        ([flat[:4], flat[2:]], {0: 1, 1: 0}),
        ([flat[:3], flat[3:], flat[3:3], torch.zeros(6)], {}),
        ([flat[::2], flat[1::2], flat[4:5]], {0: 2, 2: 0}),
        ([flat.view(torch.int16)[3:5], flat[:1], flat[2:3]], {0: 2, 2: 0}),
        (columns, {}),
        ([*columns, table[3:4, 4:6]], {4: 10, 5: 10, 10: 4}),
    ):
        assert twins.shared_memory(tensors) == shared
    monkeypatch.setattr(plan, "PAIRS_MAX", 10)
    assert set(twins.shared_memory(columns)) == set(range(10)), "they are read twice, and compared"
