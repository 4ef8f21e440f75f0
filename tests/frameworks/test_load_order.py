"""Parts of a state that are loaded first, and may be used before the rest is there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import ckpt
import ckpt_torch
from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.base.units import KiB, MiB
from ckpt.format.runs import Bytes
from ckpt.transfer.assembly import CellPool
from ckpt_client.load.contents import Contents
from ckpt_torch.place import Who
from ckpt_torch.reading.device_reads import DeviceReads
from ckpt_torch.reading.loading import LoadJob, names_of
from ckpt_torch.reading.order import LoadOrder
from ckpt_torch.reading.twins import shared_parts
from tests.no_threads import SAYS, no_threads
from tests.waiting import wait_until

ALONE = Who(0, 1, None, speaking=False)


class Counted(torch.nn.Linear):
    """A model whose state is asked for by `state_dict()`."""

    given_back = 0

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self.given_back += 1
        return super().load_state_dict(*args, **kwargs)


def state_of(value: float) -> dict[str, Any]:
    """A model, its optimizer's moments, and something plain."""
    return {
        "optimizer": {"exp_avg": torch.full((300, 400), value + 2), "lr": value},
        "model": {"a": torch.full((500, 70), value), "b": [torch.full((9,), value + 1)]},
        "seen": [value, 3],
    }


def same(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def run_job(
    url: str, state: dict[str, Any], prefixes: list[str], on_part: Callable[[str], None] | None
) -> None:
    """A load into tensors of the state, in this thread."""
    store = ckpt.open(url)
    order = LoadOrder(prefixes, names_of(state), on_part)
    job = LoadJob(state, ALONE, order, strict=False, allow_pickle=False)
    with (
        store,
        store.resolve("order", 1, rank=0, world_size=1) as checkpoint,
        DeviceReads(()) as devices,
    ):
        job.read(checkpoint, devices)


@pytest.fixture(scope="module")
def url(cluster: str) -> str:
    ckpt_torch.save(state_of(1.0), checkpoint_id=f"{cluster}/order/1")
    return cluster


def test_a_load_with_an_order_is_the_same_load(url: str) -> None:
    state = state_of(0.0)
    assert ckpt_torch.load(state, checkpoint_id=f"{url}/order/1", order=["model", "seen"]) == 1
    assert same(state, state_of(1.0))


def test_a_prefix_is_whole_before_the_next_is_read(url: str) -> None:
    state, expected = state_of(0.0), state_of(1.0)
    # Plain values are given back after the load.
    state["optimizer"]["lr"] = 1.0
    heard = []

    def look(prefix: str) -> None:
        parts = ((state[key], expected[key]) for key in ("model", "optimizer"))
        tensors = [same(here, wanted) for here, wanted in parts]
        heard.append((prefix, *tensors))

    run_job(url, state, ["model/b", "model", "optimizer"], look)
    assert heard == [("model/b", False, False), ("model", True, False), ("optimizer", True, True)]


def test_who_waits_for_a_prefix_can_use_it(url: str) -> None:
    state = state_of(0.0)
    loading = ckpt_torch.async_load(state, order=["model"], checkpoint_id=f"{url}/order/1")
    assert list(loading.prefixes) == ["model"]
    loading.prefixes["model"].result(60)
    assert same(state["model"], state_of(1.0)["model"])
    assert loading.result(60) == 1
    assert loading.done()
    assert same(state, state_of(1.0))
    assert loading.result() == 1


def test_objects_get_their_part_once_when_the_result_is_asked_for(url: str) -> None:
    saved, model = torch.nn.Linear(3, 4), Counted(3, 4)
    ckpt_torch.save({"net": saved, "n": 5}, checkpoint_id=f"{url}/objects/1")
    state: dict[str, Any] = {"net": model, "n": 0}
    loading = ckpt_torch.async_load(state, order=["net"], checkpoint_id=f"{url}/objects/1")
    loading.prefixes["net"].result(60)
    assert same(model.state_dict(), saved.state_dict())
    assert (state["n"], model.given_back) == (0, 0)
    loading.result(60)
    loading.result(60)
    assert (state["n"], model.given_back) == (5, 1)


def test_what_was_handed_out_is_not_written_again_when_the_load_begins_again(url: str) -> None:
    state, tries = state_of(0.0), []

    def fail_once(prefix: str) -> None:
        tries.append(prefix)
        if len(tries) == 1:
            state["model"]["a"].fill_(-1)
            raise ckpt.Unavailable("a target went away")

    run_job(url, state, ["model", "optimizer"], fail_once)
    assert tries == ["model", "optimizer"]
    assert bool((state["model"]["a"] == -1).all())
    assert same(state["optimizer"]["exp_avg"], state_of(1.0)["optimizer"]["exp_avg"])


def views_of(flat: torch.Tensor, way: str) -> dict[str, Any]:
    """A model whose weight is a part of other names' memory."""
    rest: dict[str, Any] = {"flat": flat}
    if way == "across":
        rest = {"first": flat[:600], "last": flat[600:], "x": flat[600:700]}
    elif way == "a name between":
        rest = {"between": flat[900:1300], "end": flat[1200:], "apart": torch.full((5,), 1.0)}
    return {"rest": rest, "model": {"w": flat[500:1000]}}


@pytest.mark.parametrize("way", ["whole", "across", "a name between"])
def test_what_lies_in_memory_that_was_handed_out_is_not_written_later(url: str, way: str) -> None:
    """As the views of a flat parameter do."""
    wanted = torch.arange(2000.0)
    name = f"{url}/views-{way.replace(' ', '-')}/1"
    ckpt_torch.save(views_of(wanted, way), checkpoint_id=name)
    flat = torch.zeros(2000)
    used = threading.Event()

    def use(prefix: str) -> None:
        flat[500:1000].add_(1)  # It is the caller's own now.
        used.set()

    state = views_of(flat, way)
    order = LoadOrder(["model"], names_of(state), use)
    job = LoadJob(state, ALONE, order, strict=False, allow_pickle=False)
    run, step = name.rsplit("/", 2)[1:]
    with (
        ckpt.open(url) as store,
        store.resolve(run, int(step), rank=0, world_size=1) as checkpoint,
        DeviceReads(()) as devices,
    ):
        job.read(checkpoint, devices)
    assert used.is_set()
    wanted[500:1000] += 1
    first = 500 if way == "a name between" else 0
    assert torch.equal(flat[first:], wanted[first:])


def test_only_what_shares_memory_comes_sooner_than_its_name_says() -> None:
    flat = torch.zeros(100)
    beside, columns = [flat[:50], flat[50:70], flat[70:70], flat[70:]], flat.view(10, 10)
    assert shared_parts(beside, [1, 0, 0, 2]) == [1, 0, 0, 2]
    assert shared_parts([*beside, flat[40:60]], [1, 2, 2, 2, 0]) == [0, 0, 2, 2, 0]
    # Columns lie within each other.
    assert shared_parts([columns[:, :3], columns[:, 3:]], [1, 0]) == [0, 0]


@pytest.mark.parametrize("handed_out", [True, False])
def test_another_generation_ends_a_load_that_has_handed_out(cluster: str, handed_out: bool) -> None:
    run, state = "out" if handed_out else "in", state_of(0.0)
    ckpt_torch.save(state_of(1.0), checkpoint_id=f"{cluster}/{run}/1")
    order = LoadOrder(["model"], names_of(state), (lambda _: None) if handed_out else None)
    job = LoadJob(state, ALONE, order, strict=False, allow_pickle=False)

    def overtaken(contents: Contents) -> object:
        """The step is saved again after the first attempt, which then comes to nothing."""
        found = job._once(checkpoint, contents, devices)
        if checkpoint.generation == first:
            ckpt_torch.save(state_of(5.0), checkpoint_id=f"{cluster}/{run}/1")
            raise ckpt.Unavailable("a target went away")
        return found

    with (
        ckpt.open(cluster) as store,
        store.resolve(run, 1, rank=0, world_size=1) as checkpoint,
        DeviceReads(()) as devices,
    ):
        first = checkpoint.generation
        ends = pytest.raises(ckpt.Lost, match=r"model of .* in use.*again from the beginning")
        with pytest.warns(UserWarning, match="is loaded"), ends if handed_out else nullcontext():
            checkpoint.read(overtaken)
    assert same(state["model"], state_of(1.0 if handed_out else 5.0)["model"])


def test_an_error_ends_every_future_that_is_not_done(url: str) -> None:
    state = {**state_of(0.0), "more": torch.zeros(3)}
    loading = ckpt_torch.async_load(state, order=["model"], checkpoint_id=f"{url}/order/1")
    for future in (loading.prefixes["model"], loading):
        with pytest.raises(ckpt.Refused, match="has no more"):
            future.result(60)
    assert same(state["model"], state_of(0.0)["model"])


def test_a_load_that_gets_no_thread_says_so_and_holds_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_of(0.0)
    with ckpt.open(url) as store, ExitStack() as held:
        store.steps("order")
        running, resolve = threading.active_count(), store.resolve

        def resolved(*args: Any, **kwargs: Any) -> object:
            """The last thread goes to its session with the coordinator."""
            checkpoint = resolve(*args, **kwargs)
            held.enter_context(no_threads())
            return checkpoint

        monkeypatch.setattr(store, "resolve", resolved)
        with pytest.raises(ckpt.Unavailable, match=SAYS) as error:
            ckpt_torch.async_load(state, order=["model"], checkpoint_id="order/1", store=store)
        assert threading.active_count() == running, error
    assert same(state, state_of(0.0))


@pytest.mark.parametrize("asked", [False, True])
def test_a_failed_load_that_nobody_asked_is_logged(
    url: str, caplog: pytest.LogCaptureFixture, asked: bool
) -> None:
    state = {**state_of(0.0), "more": torch.zeros(3)}
    loading = ckpt_torch.async_load(state, order=[], checkpoint_id=f"{url}/order/1")
    wait_until(loading.done, "its end")
    if asked:
        with pytest.raises(ckpt.Refused, match="has no more"):
            loading.result()
    del loading
    # Its thread lets go of it a little later.
    wait_until(lambda: not any(one.name == "ckpt-load" for one in threading.enumerate()), "its end")
    heard = [record.getMessage() for record in caplog.records if record.name == "ckpt.restore"]
    failed = [text for text in heard if "nobody asked" in text]
    assert len(failed) == (0 if asked else 1), heard
    assert asked or ("order@1" in failed[0] and "has no more" in failed[0])


def test_nobody_cancels_a_prefix(url: str) -> None:
    state = state_of(0.0)
    loading = ckpt_torch.async_load(state, order=["model"], checkpoint_id=f"{url}/order/1")
    future: Future[None] = loading.prefixes["model"]
    assert not future.cancel()
    assert loading.result(60) == 1


@pytest.mark.parametrize("load", [ckpt_torch.load, ckpt_torch.async_load])
@pytest.mark.parametrize(
    ("order", "message"),
    [
        (["model", "modell"], "order names modell, .*; it has optimizer, model, seen"),
        (["model", "model"], "twice"),
        (["mod"], "order names mod, "),
        ([""], "order names root, "),
        (["model/b/0", "nothing"], "order names model/b/0, nothing, .*; below model/b it has #0"),
        (["model/a/weight"], "order names model/a/weight, .*; model/a is a leaf"),
        ("model", r"order is the text 'model'.*; order=\['model'\]"),
        (b"model", "order is of type bytes"),
        (None, "order is of type NoneType"),
        (5, "order is of type int"),
        ([("model", "a")], r"order holds \('model', 'a'\).*joined by /"),
        ([["model"]], r"order holds \['model'\]"),
        ([0], "order holds 0"),
    ],
)
def test_an_order_that_does_not_fit_is_refused(
    url: str, load: Callable[..., object], order: Any, message: str
) -> None:
    with pytest.raises(ckpt.Refused, match=message):
        load(state_of(0.0), checkpoint_id=f"{url}/order/1", order=order)


def test_an_order_that_can_be_walked_once_is_walked_once(url: str) -> None:
    """A future that nobody knew of was never done."""
    state = state_of(0.0)
    order: Any = (key for key in ("model", "seen"))
    loading = ckpt_torch.async_load(state, order=order, checkpoint_id=f"{url}/order/1")
    assert list(loading.prefixes) == ["model", "seen"]
    assert loading.result(60) == 1
    assert [future.done() for future in loading.prefixes.values()] == [True, True]


def test_a_load_without_an_order_has_no_prefixes(url: str) -> None:
    state = state_of(0.0)
    loading = ckpt_torch.async_load(state, order=[], checkpoint_id=f"{url}/order/1")
    assert loading.prefixes == {}
    assert loading.result(60) == 1
    assert same(state, state_of(1.0))


def load_by_dcp(state: dict[str, Any], url: str) -> None:
    """Of a step that DCP has saved."""
    dcp.save(state_of(1.0), storage_writer=ckpt_torch.CkptWriter(url), no_dist=True)
    dcp.load(state, storage_reader=ckpt_torch.CkptReader(url), no_dist=True)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("by_dcp", [False, True])
def test_a_tensor_whose_items_share_memory_is_refused(url: str, by_dcp: bool) -> None:
    """After a load each of its rows was the last one."""
    state = state_of(0.0)
    state["model"]["a"] = torch.zeros(1, 70).expand(500, 70)
    load = load_by_dcp if by_dcp else lambda state, url: ckpt_torch.load(state, checkpoint_id=url)
    refused = CheckpointException if by_dcp else ckpt.Refused
    with pytest.raises(refused, match=r"model.a: several .* share one place"):
        load(state, f"{url}/dcp/1" if by_dcp else f"{url}/order/1")
    assert torch.equal(state["model"]["a"], torch.zeros(500, 70))
    assert torch.equal(state["optimizer"]["exp_avg"], state_of(0.0)["optimizer"]["exp_avg"])


def test_a_leaf_belongs_to_the_first_prefix_above_it() -> None:
    names = ["a/b", "a/b/c", "a/bc", "a", "d"]
    order = LoadOrder(["a/b", "a"], names)
    assert [order.part_of(name) for name in names] == [0, 0, 1, 1, 2]
    shadowed = LoadOrder(["a", "a/b"], names)
    assert [shadowed.part_of(name) for name in names] == [0, 0, 0, 0, 2]


def test_parts_are_counted_out_once() -> None:
    heard: list[str] = []
    first, second = (
        CheckpointId(RunName("r"), Step(1), Generation(1, number)) for number in (1, 2)
    )
    order = LoadOrder(["a", "b"], ["a/x", "b/x", "c"], heard.append)
    for number in range(order.part_count):
        order.hand_out(number, first)
        order.hand_out(number, first)
    assert heard == ["a", "b"]
    assert [order.is_handed_out(number) for number in range(3)] == [True, True, False]
    order.begin(first)
    with pytest.raises(ckpt.Lost, match=r"a, b of r@1.* in use"):
        order.begin(second)


@pytest.mark.parametrize(
    ("count", "size", "is_ahead"),
    [(160, 512 * KiB, True), (10, 8 * MiB, False), (40, 512 * KiB, False)],
    ids=["small tensors", "large ones", "a small state"],
)
def test_small_tensors_come_through_cells_that_were_touched_ahead(
    url: str, monkeypatch: pytest.MonkeyPatch, count: int, size: int, is_ahead: bool
) -> None:
    """Touched as they are received, they cost the first part of a load as much as all the rest."""
    ahead: list[Bytes] = []
    taken: list[bool] = []
    make_ahead, take, give_back = CellPool.make_ahead, CellPool.take, CellPool.give_back

    def noted_back(pool: CellPool, cell: Bytes) -> None:
        ahead.append(cell)
        give_back(pool, cell)

    def noted_ahead(pool: CellPool, cell_bytes: int, cell_count: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CellPool, "give_back", noted_back)
            make_ahead(pool, cell_bytes, cell_count)

    def noted_take(pool: CellPool, cell_bytes: int) -> Bytes:
        cell = take(pool, cell_bytes)
        taken.append(any(cell is one for one in ahead))
        return cell

    monkeypatch.setattr(CellPool, "make_ahead", noted_ahead)
    monkeypatch.setattr(CellPool, "take", noted_take)
    state = {str(n): torch.full((size // 4,), float(n)) for n in range(count)}
    run = f"{url}/ahead-{count}-{size}"
    ckpt_torch.save(state, checkpoint_id=f"{run}/1")
    back = {name: torch.zeros_like(one) for name, one in state.items()}
    ckpt_torch.load(back, checkpoint_id=f"{run}/1")
    assert same(back, state)
    assert bool(ahead) is is_ahead
    assert taken[:1] == [is_ahead] or not taken
    if is_ahead:
        assert taken.count(True) > taken.count(False)
