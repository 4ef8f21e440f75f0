"""Tensors whose memory is not all that they are: each is refused by its path, and why."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import ckpt
import ckpt_torch


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of torch, which means to drop them.
        return torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8)


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of torch, which prefers its other kind.
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def without_shape() -> torch.Tensor:
    """As a lazy module has it before its first forward."""
    return torch.nn.LazyLinear(3).state_dict()["weight"]


def freed(shape: tuple[int, ...] = (2, 3)) -> torch.Tensor:
    """As FSDP's first version leaves parameters between their uses: with a shape alone."""
    tensor = torch.ones(shape)
    tensor.untyped_storage().resize_(0)
    return tensor


def without_memory() -> torch.Tensor:
    """As autograd makes them for what is zero."""
    return torch._efficientzerotensor((2, 3))


def shrunk() -> torch.Tensor:
    """Its memory was made smaller under it."""
    tensor = torch.ones(2, 3)
    tensor.untyped_storage().resize_(8)
    return tensor


def shrunk_part() -> torch.Tensor:
    """One that begins within such memory, which has as many bytes as the tensor alone needs."""
    view = torch.ones(4, 3)[2:]
    view.untyped_storage().resize_(24)
    return view


def shrunk_strided() -> torch.Tensor:
    """One with gaps, in memory for one without."""
    view = torch.ones(4, 3)[::2]
    view.untyped_storage().resize_(24)
    return view


def freed_part() -> torch.Tensor:
    """One that begins within such memory, not where it did."""
    view = torch.ones(4, 3)[2:]
    view.untyped_storage().resize_(0)
    return view


@pytest.mark.parametrize("staging", ["copy", "overlap"])
@pytest.mark.parametrize(
    ("made", "why"),
    [
        (quantized, r"a quantized tensor; save int_repr\(\)"),
        (without_shape, "a parameter without a shape; call its module once"),
        (freed, "a tensor that reaches to byte 24 of its memory, which has 0"),
        (without_memory, r"a tensor that has no memory; clone\(\) it"),
        (freed_part, "a tensor that reaches to byte 48 of its memory, which has 0"),
        (shrunk, "a tensor that reaches to byte 24 of its memory, which has 8"),
        (shrunk_part, "a tensor that reaches to byte 48 of its memory, which has 24"),
        (shrunk_strided, "a tensor that reaches to byte 36 of its memory, which has 24"),
    ],
)
def test_it_is_refused_by_its_path_in_a_save_and_in_a_load(
    cluster: str, made: Callable[[], torch.Tensor], why: str, staging: str
) -> None:
    name = f"{cluster}/odd-{made.__name__}-{staging}"
    for step in (1, 2):  # Where the state is new, and where another one was saved last.
        state = {"net": {"weight": made()}}
        with pytest.raises(ckpt.Refused, match=f"net/weight: {why}"):
            ckpt_torch.async_save(state, checkpoint_id=f"{name}/{step}", staging=staging)
        plain = {"net": {"weight": torch.ones(2, 3)}}
        ckpt_torch.save(plain, checkpoint_id=f"{name}/{step}")
    with pytest.raises(ckpt.Refused, match="net/weight: "):
        ckpt_torch.load({"net": {"weight": made()}}, checkpoint_id=f"{name}/2")


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("kind", [torch.complex32, torch.float4_e2m1fn_x2, torch.int4])
def test_a_type_that_numpy_lacks_is_refused_and_its_bits_are_kept_as_the_hint_says(
    cluster: str, kind: torch.dtype
) -> None:
    weight, name = torch.arange(24, dtype=torch.uint8).view(kind), f"{cluster}/odd-{kind}/1"
    with pytest.raises(ckpt.Refused, match=f"net/w: a {kind} tensor has no numpy form") as refused:
        ckpt_torch.save({"net": {"w": weight}}, checkpoint_id=name)
    assert "view(torch.uint8)" in refused.value.hint
    ckpt_torch.save({"net": {"w": weight.view(torch.uint8)}}, checkpoint_id=name)
    found = torch.zeros_like(weight.view(torch.uint8)).view(kind)
    ckpt_torch.load({"net": {"w": found.view(torch.uint8)}}, checkpoint_id=name)
    assert torch.equal(found.view(torch.uint8), weight.view(torch.uint8))


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def test_store_save_refuses_a_tensor_that_has_no_memory_of_its_own(
    cluster: str, mesh: DeviceMesh
) -> None:
    """What torch gives out as the memory of such a tensor is freed memory, another tensor's, or of
    the other sign.
    """
    odd = {
        "DTensor": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)]),
        "FakeTensor": FakeTensorMode().from_tensor(torch.arange(8.0)),
        "no memory": torch._efficientzerotensor((8,)),
        "negated": torch.complex(torch.ones(8), torch.ones(8)).conj().imag,
        "memory, which has 0": freed((8,)),
        "torch.int4 tensor": torch.ones(8, dtype=torch.int8).view(torch.int4),
        "torch.sparse_coo": torch.ones(8).to_sparse(),
        "nested tensor": nested(),
    }
    with ckpt.open(cluster) as store:
        for step, (kind, tensor) in enumerate(odd.items()):
            for whole in (tensor, ckpt.Replicated(tensor)):
                with pytest.raises(ckpt.Refused, match=f"net/weight: .*{kind}"):
                    store.save("no-memory", step, {"net": {"weight": whole}})
            plain = {"net": {"weight": torch.arange(8.0)}}
            store.save("no-memory", step, plain).wait(60)
            with pytest.raises(ckpt.Refused, match=f"net/weight: .*{kind}"):  # Its form is known.
                store.save("no-memory", step, {"net": {"weight": tensor}})
            with pytest.raises(ckpt.Refused, match=f"net/weight: .*{kind}"):
                store.load("no-memory", step, like={"net": {"weight": tensor}})


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.ones(3, dtype=torch.bfloat16),
        lambda: torch.ones(3, requires_grad=True),
        lambda: torch.nn.Linear(2, 2).weight,
    ],
    ids=["bfloat16", "with a gradient", "a parameter"],
)
def test_a_tensor_that_numpy_cannot_see_is_refused_with_who_takes_it(
    cluster: str, made: Callable[[], torch.Tensor]
) -> None:
    with ckpt.open(cluster) as store, pytest.raises(ckpt.Refused, match=r"^net/w: a torch") as no:
        store.save("no-numpy", 1, {"net": {"w": made()}})
    assert "ckpt_torch.save(state," in no.value.hint
