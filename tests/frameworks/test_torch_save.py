"""ckpt_torch.save, async_save and load on real process groups, and across their sizes."""

from __future__ import annotations

import datetime
import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import Shard as LocalShard
from torch.distributed._shard.sharded_tensor import init_from_local_shards
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard

import ckpt
import ckpt_torch
from ckpt_torch.boxes import held
from tests.frameworks.gloo import Ranks
from tests.landing import in_turn

FLOATS = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


class Loader:
    """A stateful data loader, as torchdata's are."""

    def __init__(self, position: int) -> None:
        self.position = position

    def state_dict(self) -> dict[str, object]:
        return {"position": self.position, "order": np.arange(self.position)}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        position = state_dict["position"]
        assert isinstance(position, int)
        self.position = position


class Net(torch.nn.Module):
    """Odd sizes, so that no axis divides evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(37, 18)
        self.up = torch.nn.Linear(18, 26)
        self.down = torch.nn.Linear(26, 18, bias=False)
        self.register_buffer("scale", torch.ones(3, dtype=torch.bfloat16))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.embed(ids)))).sum()


def build(kind: str) -> tuple[Net, torch.optim.Optimizer]:
    """The net cut as `kind` says over the process group, with one optimizer step done."""
    torch.manual_seed(5)
    net = Net()
    size = dist.get_world_size()
    if kind == "2d":
        mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(net, mesh["tp"], plan)
        fully_shard(net, mesh=mesh["dp"])
    elif kind == "hsdp":
        fully_shard(net, mesh=init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("r", "s")))
    elif kind == "fsdp":
        fully_shard(net, mesh=init_device_mesh("cpu", (size,)))
    elif kind == "tp":
        mesh = init_device_mesh("cpu", (size,))
        parallelize_module(net, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, foreach=False)
    return net, optimizer


def stepped(kind: str) -> tuple[Net, torch.optim.Optimizer]:
    net, optimizer = build(kind)
    generator = torch.Generator().manual_seed(dist.get_rank() if kind in ("fsdp", "hsdp") else 0)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randint(0, 37, (8,), generator=generator)).backward()
        optimizer.step()
    return net, optimizer


def state_of(net: Net, optimizer: torch.optim.Optimizer, step: int) -> dict[str, object]:
    rank = dist.get_rank()
    return {
        "model": net.state_dict(),
        "optim": optimizer.state_dict(),
        "loader": Loader(step),
        "step": step,
        "rng": {f"{rank}": {"torch": torch.get_rng_state(), "python": random.getstate()}},
    }


def whole(value: object) -> Any:
    """The tree with every DTensor gathered; bits as bytes."""
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().reshape(-1)
        return (str(value.dtype), tuple(value.shape), flat.view(torch.uint8).numpy().tobytes())
    if isinstance(value, dict):
        return {key: whole(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [whole(child) for child in value]
    return value


def save_job(url: str, kind: str, step: int) -> Any:
    net, optimizer = stepped(kind)
    state = state_of(net, optimizer, step)
    expected = whole({"model": state["model"], "optim": state["optim"]})
    rng = random.getstate()
    commit = ckpt_torch.save(state, checkpoint_id=f"{url}/{kind}/{step}")
    assert (commit.step, commit.world_size) == (step, dist.get_world_size())
    return expected, rng, commit.bytes


def load_job(url: str, saved: str, kind: str, step: int) -> Any:
    net, optimizer = build(kind)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # Makes the moments that the load fills.
    loader = Loader(0)
    state: dict[str, object] = {
        "model": net.state_dict(),
        "optim": optimizer.state_dict(),
        "loader": loader,
        "step": 0,
        "rng": {"0": {"torch": torch.get_rng_state(), "python": random.getstate()}},
    }
    loaded = ckpt_torch.load(state, checkpoint_id=f"{url}/{saved}")
    assert loaded == state["step"] == loader.position == step
    return whole({"model": state["model"], "optim": state["optim"]}), state["rng"]


@pytest.mark.parametrize("kind", in_turn(["2d", "hsdp", "fsdp"], every=3))
def test_four_ranks_save_and_other_numbers_of_ranks_load_the_same_bits(
    cluster: str, ranks: Ranks, kind: str
) -> None:
    saved = ranks.run(4, save_job, cluster, kind, 7)
    expected, rng, stored_bytes = saved[0]
    unique = sum(len(bits) for _, _, bits in _tensors(expected))
    assert stored_bytes < 1.5 * unique + 64_000, "what several ranks hold is stored once"
    for count, other in ((2, "tp"), (3, "fsdp"), (1, "plain"), (4, kind)):
        for rank, (found, found_rng) in enumerate(
            ranks.run(count, load_job, cluster, kind, other, 7)
        ):
            assert found == expected, (kind, count, other, rank)
            assert found_rng["0"]["python"] == rng


def _tensors(tree: object) -> list[Any]:
    if isinstance(tree, tuple):
        return [tree]
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [leaf for child in children for leaf in _tensors(child)]


def test_tensor_parallel_state_comes_back_under_fsdp(cluster: str, ranks: Ranks) -> None:
    expected = ranks.run(2, save_job, cluster, "tp", 3)[0][0]
    for found, _ in ranks.run(3, load_job, cluster, "tp", "fsdp", 3):
        assert found == expected


def sharded_tensor_job(url: str, saving: bool) -> Any:
    """A ShardedTensor, as older FSDP and torchrec hold them; loaded as a DTensor."""
    full = torch.arange(44.0).reshape(11, 4)
    if not saving:
        cut = distribute_tensor(
            torch.zeros(11, 4), init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(1)]
        )
        state: dict[str, object] = {"w": cut}
        ckpt_torch.load(state, checkpoint_id=f"{url}/sharded-tensor/1")
        return whole(cut), whole(full)
    rank = dist.get_rank()
    rows = full.chunk(dist.get_world_size())[rank].clone()
    begin = sum(len(part) for part in full.chunk(dist.get_world_size())[:rank])
    local = LocalShard.from_tensor_and_offsets(rows, [begin, 0], rank)
    sharded = init_from_local_shards([local], 11, 4)
    ckpt_torch.save({"w": sharded}, checkpoint_id=f"{url}/sharded-tensor/1")
    again = init_from_local_shards(
        [LocalShard.from_tensor_and_offsets(torch.zeros_like(rows), [begin, 0], rank)], 11, 4
    )
    ckpt_torch.load({"w": again}, checkpoint_id=f"{url}/sharded-tensor/1")
    return whole(again.local_shards()[0].tensor), whole(rows)


def test_a_sharded_tensor_comes_back_as_it_was_and_as_a_dtensor(cluster: str, ranks: Ranks) -> None:
    for found, expected in ranks.run(3, sharded_tensor_job, cluster, True):
        assert found == expected
    for found, expected in ranks.run(2, sharded_tensor_job, cluster, False):
        assert found == expected


def stage_job(url: str) -> Any:
    """Two pipeline stages, each with a mesh of its own: the other's tensor is nowhere here."""
    rank = dist.get_rank()
    meshes = [DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])]

    def cut(scale: float) -> dict[str, object]:
        full = torch.arange(24.0).reshape(8, 3) * scale
        return {
            f"stage{number}": distribute_tensor(full + number * scale, mesh, [Shard(0)])
            for number, mesh in enumerate(meshes)
        }

    for step in (1, 2):  # The second is of a form that is known.
        ckpt_torch.save({**cut(float(step)), "n": step}, checkpoint_id=f"{url}/stages/{step}")
    state = {**cut(0.0), "n": 0}
    ckpt_torch.load(state, checkpoint_id=f"{url}/stages/2")
    here = state[f"stage{rank // 2}"], cut(2.0)[f"stage{rank // 2}"]
    return state["n"], [part.to_local().tolist() for part in here]  # type: ignore[attr-defined]


def test_a_tensor_of_a_mesh_without_this_rank_is_the_others_alone(
    cluster: str, ranks: Ranks
) -> None:
    for number, (found, expected) in ranks.run(4, stage_job, cluster):
        assert number == 2
        assert found == expected


def strided_job(shape: tuple[int, ...], split: int) -> Any:
    """Every rank's boxes, put together, are the tensor that torch cut."""
    mesh = init_device_mesh("cpu", (2, 2))
    full = torch.arange(int(np.prod(shape))).reshape(shape)
    found = []
    for placements in (
        [_StridedShard(0, split_factor=split), Shard(0)],
        [Shard(0), _StridedShard(0, split_factor=split)],
        [Replicate(), _StridedShard(0, split_factor=split)],
        [_StridedShard(0, split_factor=split), Shard(1)],
    ):
        cut = distribute_tensor(full, mesh, placements, src_data_rank=None)
        for box in held(cut).boxes:
            inside = tuple(
                slice(start, start + size)
                for start, size in zip(box.offset, box.tensor.shape, strict=True)
            )
            assert torch.equal(full[inside], box.tensor), (placements, box.offset)
        found.append(sum(box.tensor.numel() for box in held(cut).boxes) == cut.to_local().numel())
    return found


@pytest.mark.parametrize(("shape", "split"), [((16, 4), 2), ((11, 3), 2), ((13, 3), 4)])
def test_strided_shards_are_the_boxes_that_torch_cut(
    ranks: Ranks, shape: tuple[int, ...], split: int
) -> None:
    for found in ranks.run(4, strided_job, shape, split):
        assert all(found)


def leak_job(url: str) -> Any:
    weight = torch.ones(300_000)
    futures = []
    for step in range(3):
        futures.append(ckpt_torch.async_save({"w": weight}, checkpoint_id=f"{url}/leak/{step}"))
        weight.mul_(2).add_(step)  # The next optimizer step, at once.
    commits = [future.result() for future in futures]
    state: dict[str, object] = {"w": torch.zeros(300_000)}
    seen = []
    for step in range(3):
        ckpt_torch.load(state, checkpoint_id=f"{url}/leak/{step}")
        seen.append(state["w"].unique().tolist())  # type: ignore[attr-defined]
    return [commit.step for commit in commits], seen


def test_the_next_optimizer_step_never_leaks_into_a_save(cluster: str, ranks: Ranks) -> None:
    for steps, seen in ranks.run(2, leak_job, cluster):
        assert steps == [0, 1, 2]
        assert seen == [[1.0], [2.0], [5.0]]


def dtype_job(url: str) -> None:
    generator = torch.Generator().manual_seed(3)
    state: dict[str, object] = {
        str(kind): torch.randn(5, 7, generator=generator).to(kind) for kind in FLOATS
    }
    state |= {
        "bool": torch.tensor([True, False]),
        "int": torch.arange(6).reshape(2, 3).t(),
        "uint16": torch.arange(3).to(torch.uint16),
        "complex": torch.randn(4, dtype=torch.complex64, generator=generator),
        "zero-d": torch.tensor(1.5, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 3),
        "numpy": np.arange(4.0),
    }
    ckpt_torch.save(state, checkpoint_id=f"{url}/dtypes/1", no_dist=True)
    like: dict[str, object] = {
        name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else np.zeros(4)
        for name, value in state.items()
    }
    ckpt_torch.load(like, checkpoint_id=f"{url}/dtypes/1", no_dist=True)
    assert whole({k: v for k, v in like.items() if k != "numpy"}) == whole(
        {k: v for k, v in state.items() if k != "numpy"}
    )
    assert np.array_equal(like["numpy"], np.arange(4.0))  # type: ignore[arg-type]


def test_every_element_type_comes_back_without_a_process_group(cluster: str) -> None:
    dtype_job(cluster)


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of torch, which calls it a prototype.
        return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(1)])


def refuse(url: str, state: Any, text: str, **options: Any) -> None:
    with pytest.raises(ckpt.CkptError, match=text):
        ckpt_torch.save(state, checkpoint_id=f"{url}/refused/1", no_dist=True, **options)


def test_what_cannot_be_kept_is_refused_by_path_before_anything_is_staged(cluster: str) -> None:
    date = datetime.date(2026, 1, 2)
    form = r"write it.isoformat\(\) in its place, or set allow_pickle=True"
    refuse(cluster, {"a": {"b": date}}, rf"a/b: a datetime.date is not plain data; {form}")
    within = {"a": [torch.nn.Linear(1, 1)]}
    refuse(cluster, within, r"a/#0: a .*Linear is not plain data; save its state_dict\(\), or")
    refuse(cluster, {"a": [torch.zeros(2).to_sparse()]}, r"a/#0: .*sparse")
    refuse(cluster, {"m": torch.zeros(2, device="meta")}, r"m: a tensor on meta")
    refuse(
        cluster, {"m": [nested()]}, r"m/#0: a nested tensor; save the tensors that it is made of"
    )
    for key in ("#pickle", "#value", "#dcp"):
        refuse(cluster, {"a": [{key: 1}]}, rf"a/#0: the key '{key}' is taken")
    refuse(cluster, 5, r"the state is of type int, not a dict")
    listed: Any = [torch.zeros(1)]
    with pytest.raises(ckpt.Refused, match="the state is of type list, not a dict"):
        ckpt_torch.load(listed, checkpoint_id=f"{cluster}/refused/1", no_dist=True)
    refuse(
        cluster,
        {"w": torch.tensor([1.0, float("nan")])},
        r"w: element \[1\] of \(2,\) is nan",
        check_finite=True,
    )
    bad = {"m": {"b": torch.full((2, 3), float("inf"), dtype=torch.bfloat16)}}
    refuse(cluster, bad, r"m/b: element \[0, 0\] .* is inf", check_finite=True)
    with ckpt.open(cluster) as store:
        assert store.latest("refused") is None
    ckpt_torch.save(
        {**bad, "n/a": torch.ones(1)},
        checkpoint_id=f"{cluster}/looked-at/1",
        no_dist=True,
        check_finite=("n/a",),
    )
    refuse(cluster, {"n/a": torch.tensor(float("nan"))}, "n~1a: element", check_finite=("n/a",))


def test_a_pickle_is_named_in_the_checkpoint_and_must_be_allowed_again(cluster: str) -> None:
    date = datetime.date(2026, 1, 2)
    name = f"{cluster}/pickles/1"
    ckpt_torch.save({"when": date, "n": 1}, checkpoint_id=name, no_dist=True, allow_pickle=True)
    state: dict[str, object] = {"when": None, "n": 0}
    with pytest.raises(ckpt.Refused, match="when: stored as a pickle"):
        ckpt_torch.load(state, checkpoint_id=name, no_dist=True)
    assert state == {"when": None, "n": 0}
    ckpt_torch.load(state, checkpoint_id=name, no_dist=True, allow_pickle=True)
    assert state == {"when": date, "n": 1}


def test_a_load_that_is_refused_for_a_pickle_fills_no_tensor(cluster: str) -> None:
    name = f"{cluster}/pickles-beside-tensors/1"
    saved = {"w": torch.ones(4), "when": datetime.date(2026, 1, 2)}
    ckpt_torch.save(saved, checkpoint_id=name, no_dist=True, allow_pickle=True)
    w = torch.zeros(4)
    state: dict[str, object] = {"w": w, "when": None}
    with pytest.raises(ckpt.Refused, match="when: stored as a pickle"):
        ckpt_torch.load(state, checkpoint_id=name, no_dist=True)
    assert torch.equal(w, torch.zeros(4))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            {"w": torch.zeros(3, 2), "module": {"n": 1}},
            "the checkpoint has no module/n; it has n, which the state dict does not name",
        ),
        ({"w": torch.zeros(3, 2), "n": 0, "x": 1}, "has no x; leave out of the state dict"),
        ({"w": torch.zeros(2, 2)}, r"w: stored with global shape \(3, 2\), here \(2, 2\)"),
        ({"w": torch.zeros(3, 2).half()}, "w: stored as torch.float32, here torch.float16"),
        ({"w": 1}, "w: stored as a tensor"),
        ({"n": torch.zeros(1)}, "n: stored as a plain value"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_nothing_is_changed(
    cluster: str, state: dict[str, object], text: str
) -> None:
    name = f"{cluster}/fits/1"
    with ckpt.open(cluster) as store:
        if store.latest("fits") is None:
            stored = {"w": torch.ones(3, 2), "n": 5}
            ckpt_torch.save(stored, checkpoint_id=name, no_dist=True)
    before = whole(state)
    with pytest.raises(ckpt.Refused, match=text):
        ckpt_torch.load(state, checkpoint_id=name, no_dist=True)
    assert whole(state) == before


def test_strict_names_what_only_the_checkpoint_has(cluster: str) -> None:
    name = f"{cluster}/strict/1"
    ckpt_torch.save({"w": torch.ones(3), "n": 5}, checkpoint_id=name, no_dist=True)
    state: dict[str, object] = {"w": torch.zeros(3)}
    with pytest.raises(ckpt.Refused, match="does not name n"):
        ckpt_torch.load(state, checkpoint_id=name, no_dist=True, strict=True)
    ckpt_torch.load(state, checkpoint_id=name, no_dist=True)
    assert torch.equal(state["w"], torch.ones(3))  # type: ignore[arg-type]


def caught(action: Callable[[], object]) -> str:
    try:
        action()
    except ckpt.CkptError as error:
        return str(error)
    return ""


def differing_job(url: str, what: str) -> str:
    rank = dist.get_rank()
    states: dict[str, dict[str, object]] = {
        "value": {"lr": 0.1 + rank},
        "tensor": {"lr": 0.1, "t": torch.full((5,), float(rank))},
        "refusal": {"bad": datetime.date(2026, 1, 2) if rank == 1 else 1},
    }
    return caught(lambda: ckpt_torch.save(states[what], checkpoint_id=f"{url}/differ-{what}/1"))


@pytest.mark.parametrize(
    ("what", "mine", "others"),
    [
        ("value", "lr: the value differs between ranks 0 and 1", None),
        ("tensor", "replicas differ", None),
        ("refusal", "bad: a datetime.date is not plain data", "rank 1 does not save: bad"),
    ],
)
def test_replicas_that_differ_are_refused_on_all_ranks_and_none_hangs(
    cluster: str, ranks: Ranks, what: str, mine: str, others: str | None
) -> None:
    texts = ranks.run(3, differing_job, cluster, what)
    for rank, text in enumerate(texts):
        assert re.search(mine if rank == 1 or others is None else others, text), texts


def keyed_job(url: str, count: int) -> Any:
    """State that the user keys by rank, read by another rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if count:
        state: dict[str, object] = {
            f"rank{rank}": {"t": torch.full((4,), float(rank)), "n": rank, "s": [rank, "x"]}
        }
        for step in range(count):
            ckpt_torch.save({**state, "step": step}, checkpoint_id=f"{url}/keyed/{step}")
        return None
    other = (rank + 1) % size + 1
    like: dict[str, object] = {f"rank{other}": {"t": torch.zeros(4), "n": -1, "s": [0, ""]}}
    ckpt_torch.load(like, checkpoint_id=f"{url}/keyed/2")
    return other, whole(like[f"rank{other}"])


def test_state_keyed_by_rank_belongs_to_it_and_anyone_may_load_it(
    cluster: str, ranks: Ranks
) -> None:
    ranks.run(4, keyed_job, cluster, 3)
    for other, found in ranks.run(2, keyed_job, cluster, 0):
        expected = whole(torch.full((4,), float(other)))
        assert found == {"t": expected, "n": other, "s": [other, "x"]}


def wrong_world_job(url: str) -> str:
    return caught(lambda: ckpt_torch.save({"a": 1}, checkpoint_id=f"{url}/world/1"))


def test_a_wrong_world_size_in_the_environment_is_an_error(cluster: str, ranks: Ranks) -> None:
    for text in ranks.run(2, wrong_world_job, cluster, environ={"WORLD_SIZE": "8"}):
        assert "WORLD_SIZE=8 in the environment, the process group has 2 ranks" in text
