"""CkptWriter, CkptReader and CkptStager under torch.distributed.checkpoint itself."""

from __future__ import annotations

import datetime
import io
import multiprocessing
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.state_dict_saver import (
    AsyncCheckpointerType,
    AsyncSaveResponse,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import ckpt
import ckpt_torch
from ckpt_torch import CkptReader, CkptStager, CkptWriter
from tests.frameworks.gloo import RankFailed, Ranks
from tests.frameworks.test_torch_save import build, state_of, stepped, whole
from tests.landing import has_turn


def checkpoint_of(kind: str, step: int) -> dict[str, Any]:
    net, optimizer = stepped(kind)
    state = state_of(net, optimizer, step)
    del state["loader"]  # It holds a numpy array, which DCP takes for an object.
    return state


def empty_like(kind: str) -> dict[str, Any]:
    net, optimizer = build(kind)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return {"model": net.state_dict(), "optim": optimizer.state_dict(), "step": 0}


def save_job(url: str, kind: str, step: int, how: str) -> Any:
    state = checkpoint_of(kind, step)
    expected = whole({key: state[key] for key in ("model", "optim")})
    path = f"{url}/dcp-{how}-{kind}/{step}"
    writer = CkptWriter(path)
    match how:
        case "sync":
            metadata = dcp.save(state, storage_writer=writer)
            assert metadata.storage_meta is not None
            assert metadata.storage_meta.checkpoint_id == path
        case "id":
            dcp.save(state, checkpoint_id=path, storage_writer=CkptWriter())
        case "thread":
            response = dcp.async_save(state, storage_writer=writer)
            response.result()  # type: ignore[union-attr]
        case "stager":
            stager = CkptStager(writer)
            assert isinstance(stager, AsyncStager)
            answer = dcp.async_save(state, storage_writer=writer, async_stager=stager)
            assert isinstance(answer, AsyncSaveResponse)
            answer.staging_completion.result()
            for tensor in state["model"].values():
                tensor.zero_()  # Staged: nothing of it leaks.
            answer.upload_completion.result()
        case "process":
            response = dcp.async_save(
                state, storage_writer=writer, async_checkpointer_type=AsyncCheckpointerType.PROCESS
            )
            response.result()  # type: ignore[union-attr]
        case "alone":
            del state["rng"]  # Without talking to others, all ranks have the same names.
            dcp.save(state, storage_writer=writer, use_collectives=False)
    return expected


def load_job(url: str, kind: str, step: int, how: str, other: str) -> Any:
    state = empty_like(other)
    dcp.load(state, storage_reader=CkptReader(f"{url}/dcp-{how}-{kind}/{step}"))
    assert state["step"] == step
    return whole({key: state[key] for key in ("model", "optim")})


@pytest.mark.parametrize("how", ["sync", "id", "thread", "stager", "alone"])
def test_dcp_saves_and_loads_with_another_sharding(cluster: str, ranks: Ranks, how: str) -> None:
    expected = ranks.run(2, save_job, cluster, "fsdp", 4, how)[0]
    for found in ranks.run(3, load_job, cluster, "fsdp", 4, how, "fsdp"):
        assert found == expected


def chunks_job(url: str, step: int) -> dict[str, tuple[list[int], list[tuple[list[int], ...]]]]:
    metadata = CkptReader(f"{url}/dcp-chunks/{step}").read_metadata()
    tensors = metadata.state_dict_metadata.items()
    return {
        name: (
            list(tensor.size),
            [(list(chunk.offsets), list(chunk.sizes)) for chunk in tensor.chunks],
        )
        for name, tensor in tensors
        if isinstance(tensor, TensorStorageMetadata)
    }


def save_chunks_job(url: str, step: int) -> None:
    dcp.save(checkpoint_of("fsdp", step), storage_writer=CkptWriter(f"{url}/dcp-chunks/{step}"))


def test_a_tensor_is_one_chunk_of_the_metadata_however_ranks_cut_it(
    cluster: str, ranks: Ranks
) -> None:
    ranks.run(3, save_chunks_job, cluster, 4)
    (found,) = ranks.run(1, chunks_job, cluster, 4)
    assert any(len(size) == 2 for size, _ in found.values())
    for size, chunks in found.values():
        assert chunks == [([0] * len(size), size)]


def saved_again_job(url: str, how: str) -> None:
    """`overwrite=False` refuses a step that is there, on all ranks, and leaves it as it is."""
    path, first = f"{url}/dcp-again-{how}/3", {"w": torch.ones(40)}
    kind = FsspecWriter if how == "url" else CkptWriter
    writer = kind(path, overwrite=False)
    match how:
        case "url":
            collectives, stager, told = True, None, "overwrite=False|already exists"
        case "stager":
            collectives, stager, told = True, CkptStager(writer), "again-stager@3 is committed"
        case _:
            collectives, stager, told = how == "sync", None, f"again-{how}@3 is committed"

    def save(state: dict[str, Any]) -> None:
        if stager is None:
            dcp.save(state, storage_writer=writer, use_collectives=collectives)
        else:
            dcp.async_save(
                state, storage_writer=writer, async_stager=stager
            ).upload_completion.result()

    save(first)
    with pytest.raises((CheckpointException, ckpt.CkptError), match=told):
        save({"w": torch.zeros(40)})
    found = {"w": torch.zeros(40)}
    dcp.load(found, storage_reader=FsspecReader(path) if how == "url" else CkptReader(path))
    assert found["w"].equal(first["w"])
    dist.barrier()
    if how != "url":  # The same ranks go on, and one who may replaces it.
        dcp.save({"w": torch.zeros(40)}, storage_writer=CkptWriter(path))
        dcp.load(found, storage_reader=CkptReader(path))
        assert not found["w"].any()


@pytest.mark.parametrize("how", ["sync", "alone", "stager", "url"])
def test_overwrite_false_refuses_a_step_that_is_there(cluster: str, ranks: Ranks, how: str) -> None:
    ranks.run(2, saved_again_job, cluster, how)


def test_two_dimensional_sharding_goes_through_dcp(cluster: str, ranks: Ranks) -> None:
    expected = ranks.run(4, save_job, cluster, "2d", 1, "sync")[0]
    for count, other in ((2, "tp"), (1, "plain")):
        for found in ranks.run(count, load_job, cluster, "2d", 1, "sync", other):
            assert found == expected


def process_job(url: str) -> Any:
    """PROCESS mode, after this process has itself read the newest step.

    At its turn what torch spawns starts cold; of torch_checkpointing and NVIDIA it does at others.
    """
    if has_turn(2, every=3):
        multiprocessing.set_executable(sys.executable)
    cut = distribute_tensor(torch.arange(40.0), init_device_mesh("cpu", (2,)), [Shard(0)])
    state: dict[str, Any] = {"w": cut, "plain": torch.ones(5), "n": 3}
    for step in (1, 2):
        future = dcp.async_save(
            state,
            storage_writer=CkptWriter(f"{url}/dcp-process/{step}"),
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )
        future.result()  # type: ignore[union-attr]
        # The newest step is the same for the whole launch, whoever saves meanwhile.
        newest: dict[str, object] = {"n": 0}
        assert ckpt_torch.load(newest, checkpoint_id=f"{url}/dcp-process") == 1
    like: dict[str, Any] = {
        "w": distribute_tensor(torch.zeros(40), init_device_mesh("cpu", (2,)), [Shard(0)]),
        "plain": torch.zeros(5),
        "n": 0,
    }
    dcp.load(like, storage_reader=CkptReader(f"{url}/dcp-process/2"))
    return whole(like)


def test_process_mode_saves_from_a_process_of_its_own(cluster: str, ranks: Ranks) -> None:
    for found in ranks.run(2, process_job, cluster):
        assert found == {"w": whole(torch.arange(40.0)), "plain": whole(torch.ones(5)), "n": 3}


def caching_job(url: str) -> Any:
    SavePlanner._cached_save_plan.clear()
    SavePlanner._cached_all_plans.clear()
    writer = CkptWriter()
    state = checkpoint_of("fsdp", 0)
    sent = []
    for step in (1, 2, 3):
        for tensor in state["model"].values():
            tensor.mul_(2)
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(
            {**state, "step": step},
            checkpoint_id=f"{url}/dcp-cached/{step}",
            storage_writer=writer,
            planner=planner,
        )
        assert writer.commit is None or writer.commit.step == step
        sent.append(bool(SavePlanner._cached_save_plan))
    expected = whole(state["model"])
    like = empty_like("fsdp")
    dcp.load(like, storage_reader=CkptReader(f"{url}/dcp-cached/3"))
    return sent, like["step"], whole(like["model"]) == expected


def test_cached_plans_save_new_values(cluster: str, ranks: Ranks) -> None:
    for sent, step, same in ranks.run(2, caching_job, cluster):
        assert (sent, step, same) == ([True] * 3, 3, True)


def once_job(url: str) -> Any:
    rank = dist.get_rank()
    full = torch.arange(64 * 64.0).reshape(64, 64)
    mesh = init_device_mesh("cpu", (2,))
    path = f"{url}/dcp-once/1"
    plain = {"w": distribute_tensor(full, mesh, [Shard(0)]), "same": torch.ones(5000)}
    dcp.save(plain, storage_writer=CkptWriter(path))
    with ckpt.open(url) as store:
        (commit,) = store.steps("dcp-once")
    reader = CkptReader(path)
    cut = distribute_tensor(torch.zeros(64, 64), mesh, [Shard(1)])
    metadata = reader.read_metadata()
    entry = metadata.state_dict_metadata["w"]
    assert isinstance(entry, TensorStorageMetadata)
    chunks = [tuple(chunk.offsets) for chunk in entry.chunks]
    dcp.load({"w": cut}, storage_reader=reader)
    assert torch.equal(cut.to_local(), full[:, 32 * rank : 32 * rank + 32])
    return commit.bytes, chunks


def test_replicas_are_stored_once_and_a_tensor_is_one_chunk_to_dcp(
    cluster: str, ranks: Ranks
) -> None:
    for stored, chunks in ranks.run(2, once_job, cluster):
        # Each rank's tree document takes whole pages.
        assert 64 * 64 * 4 + 5000 * 4 <= stored < 64 * 64 * 4 + 5000 * 4 + 2 * 4096 + 3000
        assert chunks == [(0, 0)]


def test_one_process_without_a_group_saves_and_loads(cluster: str) -> None:
    date = datetime.date(2026, 1, 2)
    path = f"{cluster}/dcp-single/7"
    with pytest.warns(UserWarning, match="single process"):
        dcp.save({"a": {"b": torch.ones(3)}, "betas": (0.9, 0.95)}, storage_writer=CkptWriter(path))
    like: dict[str, Any] = {"a": {"b": torch.zeros(3)}, "betas": None}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(like, storage_reader=CkptReader(path))
    assert torch.equal(like["a"]["b"], torch.ones(3))
    assert like["betas"] == (0.9, 0.95)
    nested: dict[str, Any] = {"a": {"b": torch.zeros(3)}, "betas": ()}
    state: dict[str, Any] = {"a": {"b": torch.zeros(3)}}
    ckpt_torch.load(state, checkpoint_id=path, no_dist=True)
    assert torch.equal(state["a"]["b"], torch.ones(3))
    assert nested["betas"] == ()
    with (
        pytest.warns(UserWarning, match="single process"),
        pytest.raises(dcp.api.CheckpointException, match="when: not plain data"),
    ):
        dcp.save({"when": date}, storage_writer=CkptWriter(f"{cluster}/dcp-single/8"))


def test_a_writer_that_holds_an_open_store_does_not_travel(cluster: str) -> None:
    from multiprocessing.reduction import ForkingPickler

    with ckpt.open(cluster) as store, pytest.raises(ckpt.Refused, match="another process"):
        ForkingPickler(io.BytesIO()).dump(CkptWriter("run/1", store=store))


def pickle_job(url: str, how: str) -> Any:
    path = f"{url}/dcp-pickles-{how}/1"
    state: dict[str, Any] = {"order": np.arange(5), "when": datetime.date(2026, 1, 2)}
    writer = CkptWriter(path, allow_pickle=True)
    if how == "stager":
        answer = dcp.async_save(
            state,
            storage_writer=writer,
            async_stager=CkptStager(writer),
            process_group=dist.new_group(backend="gloo"),
        )
        answer.upload_completion.result()  # type: ignore[union-attr]
    else:
        dcp.save(state, storage_writer=writer)
    like: dict[str, Any] = {"order": None, "when": None}
    try:
        dcp.load(like, storage_reader=CkptReader(path))
    except dcp.api.CheckpointException as error:
        refusal = str(error)
    dcp.load(like, storage_reader=CkptReader(path, allow_pickle=True))
    return refusal, like["order"].tolist(), like["when"] == state["when"]


@pytest.mark.parametrize("how", ["sync", "stager"])
def test_objects_are_pickled_only_where_both_sides_allow_it(
    cluster: str, ranks: Ranks, how: str
) -> None:
    for refusal, order, same in ranks.run(2, pickle_job, cluster, how):
        assert "order, when: stored as a pickle" in refusal
        assert (order, same) == ([0, 1, 2, 3, 4], True)


def finite_job(url: str, how: str) -> Any:
    """One rank's shard holds NaN at step 1; step 2 is good."""
    mesh = init_device_mesh("cpu", (2,))
    path = f"{url}/dcp-finite-{how}"
    refusals = []
    for step in (1, 2, 3):
        full = torch.arange(12.0).reshape(4, 3)
        if step == 1:
            full[3, 1] = float("nan")
        state = {"m": {"w": distribute_tensor(full, mesh, [Shard(0)])}, "step": step}
        writer = CkptWriter(f"{path}/{step}", check_finite=True)
        try:
            if how == "stager":
                group = dist.new_group(backend="gloo")
                answer = dcp.async_save(
                    state,
                    storage_writer=writer,
                    async_stager=CkptStager(writer),
                    process_group=group,
                )
                answer.upload_completion.result()  # type: ignore[union-attr]
            else:
                dcp.save(state, storage_writer=writer, use_collectives=how == "sync")
        except (ckpt.CkptError, dcp.api.CheckpointException) as error:
            refusals.append((step, str(error)))
    with ckpt.open(url) as store:
        return refusals, [commit.step for commit in store.steps(path.rpartition("/")[2])]


@pytest.mark.parametrize("how", ["sync", "stager"])
def test_nan_on_one_rank_is_refused_by_name_on_all_and_the_next_step_is_saved(
    cluster: str, ranks: Ranks, how: str
) -> None:
    for refusals, steps in ranks.run(2, finite_job, cluster, how):
        ((step, text),) = refusals
        assert step == 1
        assert "m/w: element [1, 1] of (2, 3) is nan" in text
        assert steps == [2, 3]


def missing_job(url: str) -> None:
    dcp.save({"a": torch.ones(2)}, storage_writer=CkptWriter(f"{url}/dcp-missing/1"))
    dcp.load({"b": torch.ones(2)}, storage_reader=CkptReader(f"{url}/dcp-missing/1"))


def test_a_key_that_the_checkpoint_lacks_is_named(cluster: str, ranks: Ranks) -> None:
    with pytest.raises(RankFailed, match="Missing key in checkpoint state_dict: b"):
        ranks.run(2, missing_job, cluster)
