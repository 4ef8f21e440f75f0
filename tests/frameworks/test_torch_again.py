"""The second save of a state of one form: only compared and copied, and as right as the first."""

from __future__ import annotations

import datetime
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import ckpt
import ckpt_torch
from ckpt_client.default import process_store
from ckpt_torch.place import Who
from ckpt_torch.staging.known import Known, recall
from tests.frameworks.gloo import Ranks
from tests.frameworks.test_torch_save import (
    FLOATS,
    build,
    caught,
    nested,
    state_of,
    stepped,
    whole,
)
from tests.landing import in_turn


def known_of(url: str, rank: int = 0, world_size: int = 1) -> Known | None:
    return recall(process_store(url), Who(rank, world_size, None, False))


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.arange(8)).backward()
    optimizer.step()


def sharded_job(url: str, kind: str) -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    net, optimizer = stepped(kind)
    seen: list[Known | None] = []
    expected = []
    for step in (11, 12, 13):
        state = state_of(net, optimizer, step)
        state["loader"] = {"position": step}
        state["rng"] = {f"{rank}": {"torch": torch.get_rng_state(), "seed": random.random()}}
        expected.append(whole({"model": state["model"], "optim": state["optim"]}))
        future = ckpt_torch.async_save(state, checkpoint_id=f"{url}/again-{kind}/{step}")
        train(net, optimizer)  # At once: what was staged must not see it.
        future.result()
        seen.append(known_of(url, rank, size))
    other, moments = build(kind)
    for parameter in other.parameters():
        parameter.grad = torch.zeros_like(parameter)
    moments.step()
    found = []
    for step in (11, 12, 13):
        back = {"model": other.state_dict(), "optim": moments.state_dict(), "step": 0}
        ckpt_torch.load(back, checkpoint_id=f"{url}/again-{kind}/{step}")
        assert back.pop("step") == step
        found.append(whole(back))
    return expected == found, seen[0] is not None, seen[0] is seen[1] is seen[2]


@pytest.mark.parametrize("kind", in_turn(["hsdp", "fsdp", "2d", "plain"], every=3))
def test_sharded_states_are_recognised_and_come_back_with_each_steps_bits(
    cluster: str, ranks: Ranks, kind: str
) -> None:
    for same, learned, recognised in ranks.run(4, sharded_job, cluster, kind):
        assert same
        assert learned
        # One box for each rank is the rule; a strided shard may leave it several.
        assert recognised


def every_type(seed: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, object] = {
        str(kind): torch.randn(5, 7, generator=generator).to(kind) for kind in FLOATS
    }
    wide = torch.randn(6, 4, generator=generator)
    return state | {
        "bool": torch.tensor([True, seed % 2 == 0]),
        "int": torch.arange(seed, seed + 6).reshape(2, 3).t(),
        "uint16": torch.arange(seed, seed + 3).to(torch.uint16),
        "complex": torch.randn(4, dtype=torch.complex64, generator=generator),
        "zero-d": torch.tensor(seed, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 3),
        "strided": wide[::2, 1:],
        "parameter": torch.nn.Parameter(wide.clone()),
        "numpy": np.arange(4.0) + seed,
        "big-endian": (np.arange(4.0) + seed).astype(">f8"),
        "numpy bfloat16": np.full(9, seed, ml_dtypes.bfloat16),
        "text": np.array([f"{seed:3}", "abc"]),
        "values": [seed, seed / 7, f"{seed:02}", (True, None)],
    }


def test_every_element_type_and_layout_is_copied_by_a_recognised_save(cluster: str) -> None:
    """Types that torch lacks are numpy's own in the state, and loaded by numpy."""
    name = f"{cluster}/again-types"
    ckpt_torch.save(every_type(10), checkpoint_id=f"{name}/1", no_dist=True)
    known = known_of(cluster)
    for step in (2, 3):
        ckpt_torch.save(every_type(9 + step), checkpoint_id=f"{name}/{step}", no_dist=True)
    assert known is not None
    assert known_of(cluster) is known
    with ckpt.open(cluster) as store:
        for step in (1, 2, 3):
            ckpt_torch.save(every_type(9 + step), checkpoint_id=f"{name}-new/{step}", no_dist=True)
            found, expected = (
                store.load(run, step, whole=True, rank=0, world_size=1)
                for run in ("again-types", "again-types-new")
            )
            assert isinstance(found, dict)
            assert isinstance(expected, dict)
            assert list(found) == list(expected)
            for key, value in found.items():
                other = expected[key]
                same = value.tobytes() == other.tobytes() if hasattr(value, "tobytes") else None
                assert same or value == other, key
            assert float(found["zero-d"]) == 9 + step
            strided = every_type(9 + step)["strided"]
            assert isinstance(strided, torch.Tensor)
            assert found["strided"].tolist() == strided.tolist()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"a": datetime.date(2026, 1, 2)}, r"a: a datetime.date is not plain data"),
        ({"w": torch.zeros(3).to_sparse()}, "w: .*sparse"),
        ({"w": torch.zeros(3, device="meta")}, "w: a tensor on meta"),
        ({"w": nested()}, "w: a nested tensor"),
        ({"w": torch.zeros(3, dtype=torch.complex64).conj().imag}, "w: a lazily .* negated"),
        ({"c": torch.zeros(2, dtype=torch.complex64).conj()}, "c: a lazily conjugated"),
        ({"a": "\ud800"}, "a: .*valid Unicode"),
    ],
)
def test_a_leaf_that_went_bad_is_refused_by_path_and_nothing_is_staged(
    cluster: str, change: dict[str, object], text: str
) -> None:
    state: dict[str, object] = {
        "a": 1,
        "w": torch.zeros(3),
        "c": torch.zeros(2, dtype=torch.complex64),
    }
    ckpt_torch.save(state, checkpoint_id=f"{cluster}/again-bad/1", no_dist=True)
    for staging in ("copy", "overlap"):
        with pytest.raises(ckpt.Refused, match=text):
            ckpt_torch.async_save(
                {**state, **change}, checkpoint_id=f"{cluster}/again-bad/2", no_dist=True,
                staging=staging,
            )  # fmt: skip
    with ckpt.open(cluster) as store:
        assert store.latest("again-bad") == 1


def uneven_job(url: str) -> Any:
    """Rank 1 alone changes its form, then a value, then all go on."""
    rank = dist.get_rank()
    state: dict[str, object] = {"w": torch.full((5,), 1.0), f"own{rank}": torch.zeros(3)}
    name = f"{url}/again-uneven"
    ckpt_torch.save({**state, "lr": 0.5}, checkpoint_id=f"{name}/1")
    if rank == 1:
        state["more"] = torch.ones(2)
    ckpt_torch.save({**state, "lr": 0.25}, checkpoint_id=f"{name}/2")
    told = [
        caught(lambda: ckpt_torch.save({**state, "lr": 0.1 * rank}, checkpoint_id=f"{name}/3")),
        caught(
            lambda: ckpt_torch.save(
                {**state, "lr": object() if rank == 1 else 0.1}, checkpoint_id=f"{name}/4"
            )
        ),
    ]
    state["w"] = torch.full((5,), 7.0)
    ckpt_torch.save({**state, "lr": 0.125}, checkpoint_id=f"{name}/5")
    back: dict[str, object] = {"w": torch.zeros(5), "more": torch.zeros(2), "lr": 0.0}
    ckpt_torch.load(back, checkpoint_id=f"{name}/5")
    return told, whole(back)


def test_a_rank_that_changes_alone_is_heard_by_those_that_did_not(
    cluster: str, ranks: Ranks
) -> None:
    expected = {"w": torch.full((5,), 7.0), "more": torch.ones(2), "lr": 0.125}
    for rank, (told, back) in enumerate(ranks.run(3, uneven_job, cluster)):
        assert "lr: the value differs between ranks 0 and 1" in told[0]
        assert ("not plain data" if rank == 1 else "rank 1 does not save: lr") in told[1]
        assert back == whole(expected)


def stager_job(url: str) -> Any:
    """DCP's own call, twice, through the AsyncStager."""
    rank, size = dist.get_rank(), dist.get_world_size()
    state = {"w": torch.zeros(50), "step": torch.tensor(0), "note": "a text"}
    seen = []
    for step in (1, 2, 3):
        state["w"].fill_(step)
        writer = ckpt_torch.CkptWriter(f"{url}/again-dcp/{step}")
        group = dist.new_group(backend="gloo")
        response = dcp.async_save(
            state,
            storage_writer=writer,
            async_stager=ckpt_torch.CkptStager(writer),
            process_group=group,
        )
        response.staging_completion.result()
        state["w"].fill_(-1)
        response.upload_completion.result()
        seen.append(known_of(url, rank, size))
    back = {"w": torch.zeros(50), "step": torch.tensor(9), "note": ""}
    dcp.load(back, storage_reader=ckpt_torch.CkptReader(f"{url}/again-dcp/2"))
    return seen[0] is seen[1] is seen[2] is not None, back["w"].tolist()


def test_dcps_stager_recognises_the_state_too(cluster: str, ranks: Ranks) -> None:
    for recognised, found in ranks.run(2, stager_job, cluster):
        assert recognised
        assert found == [2.0] * 50
