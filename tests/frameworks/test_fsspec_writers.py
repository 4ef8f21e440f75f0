"""torch.distributed.checkpoint, pandas and safetensors through URLs, with no code of ours."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint._fsspec_filesystem import FileSystem as FsspecFileSystem
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.api import CheckpointException

import ckpt_torch
from ckpt.base.errors import Refused
from ckpt_client.fs.step_files import CkptFileSystemBase
from tests.frameworks.gloo import Ranks
from tests.fs.test_filesystem_page import PAGE
from tests.pages import run_examples

pytestmark = [
    # What torch says of a save without a process group, and of a step that is saved again.
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:Detected an existing checkpoint:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated.*:FutureWarning"),
]


@pytest.fixture(scope="module")
def fs(cluster: str) -> Iterator[CkptFileSystemBase]:
    made = fsspec.core.url_to_fs(cluster)[0]
    yield made
    made.close()


def state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(7)
    return {
        "w": torch.randn(257, 33, generator=generator),
        "layers": [torch.arange(10, dtype=torch.bfloat16), torch.zeros(0)],
        "step": 12,
    }


def empty() -> dict[str, Any]:
    return {
        "w": torch.zeros(257, 33),
        "layers": [torch.zeros(10, dtype=torch.bfloat16), torch.zeros(0)],
        "step": 0,
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    pairs = zip((a["w"], *a["layers"]), (b["w"], *b["layers"]), strict=True)
    return a["step"] == b["step"] and all(torch.equal(x, y) for x, y in pairs)


def test_dcp_saves_and_loads_by_a_url_alone(
    cluster: str, fs: CkptFileSystemBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_wide: list[int] = []
    monkeypatch.setattr(os, "sync", lambda: host_wide.append(1))
    dcp.save(state(), checkpoint_id=f"{cluster}/plain/12")
    assert fs.ls("plain/12", detail=False) == ["plain/12/.metadata", "plain/12/__0_0.distcp"]
    assert not host_wide, "write files can be synced one by one"
    loaded = empty()
    dcp.load(loaded, checkpoint_id=f"{cluster}/plain/12")
    assert same(loaded, state())


def test_dcp_saves_a_step_again(cluster: str) -> None:
    dcp.save(state(), checkpoint_id=f"{cluster}/again/step-1")
    changed = state() | {"step": 13}
    dcp.save(changed, checkpoint_id=f"{cluster}/again/step-1")
    loaded = empty()
    dcp.load(loaded, checkpoint_id=f"{cluster}/again/step-1")
    assert same(loaded, changed)


def test_dcp_async_save_in_a_thread(cluster: str) -> None:
    future = dcp.async_save(state(), checkpoint_id=f"{cluster}/async/1")
    future.result()
    loaded = empty()
    dcp.load(loaded, checkpoint_id=f"{cluster}/async/1")
    assert same(loaded, state())


def test_dcp_with_several_threads_writes_several_files(
    cluster: str, fs: CkptFileSystemBase
) -> None:
    many = {f"t{n}": torch.full((100,), float(n)) for n in range(8)}
    url = f"{cluster}/threads/1"
    dcp.save(many, storage_writer=FsspecWriter(url, thread_count=3))
    assert len(fs.glob("threads/1/*.distcp")) == 3
    loaded = {name: torch.zeros(100) for name in many}
    dcp.load(loaded, storage_reader=FsspecReader(url))
    assert all(torch.equal(loaded[name], many[name]) for name in many)


def test_a_save_that_fails_is_not_there(cluster: str, fs: CkptFileSystemBase) -> None:
    class Unpicklable:
        def __reduce__(self) -> tuple[object, ...]:
            raise RuntimeError("not this one")

    with pytest.raises(CheckpointException, match="not this one"):
        dcp.save({"bad": Unpicklable()}, checkpoint_id=f"{cluster}/failed/1")
    assert not fs.exists("failed")


def save_of_rank(url: str) -> None:
    """On each gloo rank: its own shard of a DTensor, and what all share."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (4,))
    whole = torch.arange(4 * 6, dtype=torch.float32).reshape(8, 3)
    dcp.save(
        {"sharded": distribute_tensor(whole, mesh, [Shard(0)]), "shared": torch.ones(5)},
        checkpoint_id=url,
    )


def test_four_ranks_meet_in_one_step_and_one_process_loads_it(
    cluster: str, fs: CkptFileSystemBase, ranks: Ranks
) -> None:
    ranks.run(4, save_of_rank, f"{cluster}/gloo/step-5")
    names = [path.rpartition("/")[2] for path in fs.ls("gloo/step-5", detail=False)]
    assert names[0] == ".metadata"
    assert len([name for name in names if name.endswith(".distcp")]) == 4
    loaded = {"sharded": torch.zeros(8, 3), "shared": torch.zeros(5)}
    dcp.load(loaded, checkpoint_id=f"{cluster}/gloo/step-5")
    assert torch.equal(loaded["sharded"], torch.arange(24.0).reshape(8, 3))
    assert torch.equal(loaded["shared"], torch.ones(5))


def test_the_metadata_is_torchs_own(cluster: str) -> None:
    dcp.save(state(), checkpoint_id=f"{cluster}/meta/1")
    metadata = FsspecReader(f"{cluster}/meta/1").read_metadata()
    assert {one.relative_path for one in metadata.storage_data.values()} == {"__0_0.distcp"}


def test_a_query_is_refused_with_the_right_form(cluster: str) -> None:
    with pytest.raises(Refused, match="no query"):
        dcp.save(state(), checkpoint_id=f"{cluster}?targets=7")


def test_pandas_reads_and_writes_by_url(cluster: str) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"loss": [1.5, 2.5], "name": ["a", "b"]})
    for url in (f"{cluster}/tables/loss.csv", f"{cluster}/frame/3/loss.csv"):
        frame.to_csv(url, index=False)
        pandas.testing.assert_frame_equal(pandas.read_csv(url), frame)
    frame.to_json(f"{cluster}/tables/loss.json", orient="records", lines=True)
    again = pandas.read_json(f"{cluster}/tables/loss.json", orient="records", lines=True)
    pandas.testing.assert_frame_equal(again, frame)
    frame.to_pickle(f"{cluster}/tables/loss.pkl.gz")
    pandas.testing.assert_frame_equal(pandas.read_pickle(f"{cluster}/tables/loss.pkl.gz"), frame)


def test_safetensors_through_fsspec(cluster: str, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {"w": torch.randn(64, 64), "b": torch.zeros(3, dtype=torch.bfloat16)}
    url = f"{cluster}/weights/9/model.safetensors"
    with fsspec.open(url, "wb") as file:
        file.write(safetensors.save(tensors))
    with fsspec.open(url, "rb") as file:
        loaded = safetensors.load(file.read())
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    with fsspec.open(f"simplecache::{url}", simplecache={"cache_storage": str(tmp_path)}) as file:
        loaded = safetensors.load_file(file.name)
    assert torch.equal(loaded["w"], tensors["w"])


def test_torch_save_and_load_by_url(cluster: str) -> None:
    url = f"{cluster}/single/model.pt"
    with fsspec.open(url, "wb") as file:
        torch.save(state(), file)
    with fsspec.open(url, "rb") as file:
        assert same(torch.load(file), state())
    with fsspec.open(url, "rb") as file:
        assert same(torch.load(io.BytesIO(file.read())), state())


def test_the_pages_example_for_torch(cluster: str) -> None:
    run_examples(PAGE, "torch", {"URL": cluster})


def test_huggingfaces_safetensors_are_one_commit_in_a_transaction(
    cluster: str, fs: CkptFileSystemBase, tmp_path: Path
) -> None:
    """Torch's writer takes local folders alone; with fsspec's filesystem in it, it takes a URL."""
    pytest.importorskip("safetensors")
    url, tensors = f"{cluster}/hub/step-3", {"a": torch.randn(40, 7), "b": torch.arange(9.0)}
    writer = HuggingFaceStorageWriter(str(tmp_path), fqn_to_index_mapping={"a": 1, "b": 2})
    writer.fs = FsspecFileSystem()
    with fs.transaction:
        dcp.save(tensors, checkpoint_id=url, storage_writer=writer)
        assert not fs.exists("hub/step-3"), "visible with its block"
    names = [path.rpartition("/")[2] for path in fs.ls("hub/step-3", detail=False)]
    assert names == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    index = json.loads(fs.cat_file("hub/step-3/model.safetensors.index.json"))
    assert index["weight_map"] == {"a": names[0], "b": names[1]}
    # Its reader opens local files: what `fetch` is for weights, `get` is here.
    fs.get("hub/step-3", str(tmp_path / "copy"), recursive=True)
    loaded = {"a": torch.zeros(40, 7), "b": torch.zeros(9)}
    dcp.load(loaded, storage_reader=HuggingFaceStorageReader(str(tmp_path / "copy")))
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_a_metadata_file_for_each_rank_is_refused_by_name_and_the_way_out_works(
    cluster: str, fs: CkptFileSystemBase
) -> None:
    url = f"{cluster}/apart/4"
    with pytest.raises(Refused, match=r"use_collectives=True, or with ckpt_torch"):
        dcp.save(state(), checkpoint_id=url, use_collectives=False)
    assert not fs.exists("apart")
    writer = ckpt_torch.CkptWriter(url)
    dcp.save(state(), storage_writer=writer, use_collectives=False)
    loaded = empty()
    dcp.load(loaded, storage_reader=ckpt_torch.CkptReader(url))
    assert same(loaded, state())
