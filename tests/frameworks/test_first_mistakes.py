"""What somebody new gets wrong under torch: each error names it and says what to write instead."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp

import ckpt
import ckpt_torch


def test_a_tensor_on_meta_is_refused_with_what_gives_it_memory(cluster: str) -> None:
    tensor = torch.zeros(3, device="meta")
    with pytest.raises(
        ckpt.Refused, match=r"^w: a tensor on meta; .*by its to_empty\(device=...\)"
    ):
        ckpt_torch.save({"w": tensor}, checkpoint_id=f"{cluster}/mistakes/1", no_dist=True)


def test_a_model_on_meta_is_not_loaded_into_and_the_error_says_what_gives_it_memory(
    cluster: str,
) -> None:
    name = f"{cluster}/onto-meta/1"
    ckpt_torch.save({"m": torch.nn.Linear(2, 2).state_dict()}, checkpoint_id=name, no_dist=True)
    state = {"m": torch.nn.Linear(2, 2, device="meta").state_dict()}
    with pytest.raises(
        ckpt.Refused, match=r"^m/weight: a tensor on meta; .*to_empty\(device=...\)"
    ):
        ckpt_torch.load(state, checkpoint_id=name, no_dist=True)


@pytest.mark.parametrize("name", [7, 7.5, b"gpt/7"])
def test_a_checkpoint_id_that_is_no_text_is_refused_by_name(cluster: str, name: object) -> None:
    with (
        ckpt.open(cluster) as store,
        pytest.raises(ckpt.Refused, match=r"^checkpoint_id 7|^checkpoint_id b'gpt/7'") as raised,
    ):
        ckpt_torch.save({"w": 1}, checkpoint_id=name, store=store)  # type: ignore[arg-type]
    assert "RUN/STEP" in raised.value.hint


def test_a_checkpoint_id_without_a_step_is_refused_with_one_that_has_it(cluster: str) -> None:
    with ckpt.open(cluster) as store, pytest.raises(ckpt.Refused, match="names no step") as raised:
        ckpt_torch.save({"w": torch.ones(2)}, checkpoint_id="gpt", store=store)
    assert raised.value.hint == "the step is its end, a number, as in gpt/100"


def test_an_at_sign_is_a_step_s_or_answered_with_how_calls_name_one(cluster: str) -> None:
    with ckpt.open(cluster) as store:
        ckpt_torch.save({"w": 1}, checkpoint_id="at@7", store=store)
        assert store.latest("at") == 7
        with pytest.raises(ckpt.Refused, match=r"'at@best' has an '@'.* the run alone"):
            ckpt_torch.save({"w": 1}, checkpoint_id="at@best", store=store)


def test_what_dcp_wrote_as_files_is_not_missed_but_named(cluster: str) -> None:
    """Whoever went from DCP's files by URL to `ckpt_torch.load` reads how to load them."""
    name = f"{cluster}/by-files/1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of torch, without a process group.
        dcp.save({"w": torch.ones(3)}, checkpoint_id=name)
    with pytest.raises(ckpt.Refused, match=r"the checkpoint has no w; .*dcp\.load\(.*URL"):
        ckpt_torch.load({"w": torch.zeros(3)}, checkpoint_id=name, no_dist=True)


def test_a_new_optimizer_s_state_is_said_to_take_nothing(cluster: str) -> None:
    """Its moments would be zero after a resume that ended well."""
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    name = f"{cluster}/new-optimizer"
    ckpt_torch.save({"o": optimizer, "none": {}}, checkpoint_id=f"{name}/1")
    ckpt_torch.load({"o": optimizer, "none": {}}, checkpoint_id=f"{name}/1")  # Nothing is lost.
    net(torch.ones(2)).sum().backward()
    optimizer.step()
    ckpt_torch.save({"o": optimizer}, checkpoint_id=f"{name}/2")
    new = torch.optim.AdamW(net.parameters())
    with pytest.warns(UserWarning, match=r"o/state is empty here: o/state/=0/exp_avg, .* is not l"):
        ckpt_torch.load({"o": new}, checkpoint_id=f"{name}/2")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("way", ["load", "dcp"])
def test_a_backward_pass_does_not_go_on_with_what_was_loaded_meanwhile(
    cluster: str, way: str
) -> None:
    """As torch's own loads say. Its gradients were of one half of either state."""
    name = f"{cluster}/beneath-{way}/1"
    dcp.save({"w": torch.full((3,), 5.0)}, storage_writer=ckpt_torch.CkptWriter(name), no_dist=True)
    weight = torch.full((3,), 2.0, requires_grad=True)
    loss = (weight * weight).sum()
    state: dict[str, object] = {"w": weight}
    if way == "load":
        ckpt_torch.load(state, checkpoint_id=name)
    else:
        dcp.load(state, storage_reader=ckpt_torch.CkptReader(name), no_dist=True)
    assert weight.tolist() == [5.0] * 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_load_says_what_it_leaves_out_of_an_object(cluster: str) -> None:
    """As of an optimizer here that has not stepped every parameter yet."""
    name = f"{cluster}/left-out/1"

    def trained(stepped: int) -> torch.optim.Adam:
        weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
        optimizer = torch.optim.Adam(weights)
        sum(weight.sum() for weight in weights[:stepped]).backward()  # type: ignore[union-attr]
        optimizer.step()
        return optimizer

    more = torch.nn.Linear(2, 2).state_dict()
    ckpt_torch.save({"o": trained(3), "model": more, "rest": [1]}, checkpoint_id=name)
    less = {"weight": torch.zeros(2, 2)}
    with pytest.warns(UserWarning, match=r"^o/state/=1/exp_avg, .*: in the checkpoint, and not "):
        ckpt_torch.load({"o": trained(1), "model": less}, checkpoint_id=name)
    ckpt_torch.load({"o": trained(3), "model": less}, checkpoint_id=name)  # Asks for a part.
