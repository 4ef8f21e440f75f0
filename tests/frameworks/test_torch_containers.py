"""What a load puts back into the containers of the caller's state, of the types that they have."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import ckpt
import ckpt_torch
from ckpt_client.save.packing import PackingPlan, plan_packing
from ckpt_client.save.shards import Replicated
from ckpt_client.save.state import encoded_scalar, flatten
from ckpt_torch.place import Who
from ckpt_torch.reading.sequences import SequenceWalk, plain_data
from ckpt_torch.staging.known import learn
from ckpt_torch.staging.parts import parts_of
from ckpt_torch.tree import PICKLE_KEY, pickled
from tests.client.bits import bits_of


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


class Turning(Mapping[str, object]):
    """It begins at another key each time."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self._turns = 0

    def __getitem__(self, key: str) -> object:
        return self._values[key]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        self._turns += 1
        keys, begin = list(self._values), self._turns % len(self._values)
        return iter(keys[begin:] + keys[:begin])


@pytest.mark.parametrize("count", [2, 3, 5, 7])
def test_a_mapping_that_turns_its_order_has_each_value_under_its_name(
    cluster: str, count: int
) -> None:
    values = {f"k{n}": torch.full((3,), float(n)) for n in range(count)}
    for step in (1, 2):
        name = f"{cluster}/turning-{count}/{step}"
        ckpt_torch.save({"m": Turning(values)}, checkpoint_id=name)
        found = {key: torch.zeros(3) for key in values}
        ckpt_torch.load({"m": found}, checkpoint_id=name)
        assert {key: one.tolist() for key, one in found.items()} == {
            key: one.tolist() for key, one in values.items()
        }


class Renaming(Mapping[str, object]):
    """Another thread gives its one value another name, after so many looks."""

    def __init__(self, value: object, looks: int) -> None:
        self.value = value
        self.looks = looks

    def __getitem__(self, key: str) -> object:
        if key not in ("early", "late"):
            raise KeyError(key)
        return self.value

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        self.looks -= 1
        return iter(["early" if self.looks >= 0 else "late"])


@pytest.mark.parametrize("looks", range(1, 6))
def test_a_name_that_changes_between_two_looks_of_a_save_is_not_the_next_one_s(
    cluster: str, looks: int
) -> None:
    renaming = Renaming(torch.zeros(3), looks)
    with ckpt.open(cluster) as store:
        for step in (1, 2, 3):
            ckpt_torch.save({"m": renaming}, checkpoint_id=f"renaming-{looks}/{step}", store=store)
            found = store.load(f"renaming-{looks}", step)
            assert [one.tolist() for one in found["m"].values()] == [[step - 1.0] * 3]
            assert step == 1 or list(found["m"]) == ["late"]
            renaming.value, renaming.looks = torch.full((3,), float(step)), 0


class Shuffled(Mapping[str, object]):
    """Each look finds another order."""

    def __init__(self, values: Mapping[str, object], chance: random.Random) -> None:
        self._values = values
        self._chance = chance

    def __getitem__(self, key: str) -> object:
        return self._values[key]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._chance.sample(list(self._values), len(self._values)))


def test_a_mapping_without_an_order_has_each_value_under_its_name(cluster: str) -> None:
    chance = random.Random(7)
    with ckpt.open(cluster) as store:
        for step in range(24):
            wanted = {name: torch.full((3,), float(step + at)) for at, name in enumerate("ab")}
            state = {"m": Shuffled(wanted, chance)}
            ckpt_torch.save(state, checkpoint_id=f"shuffled/{step}", store=store)
            found = store.load("shuffled", step)["m"]
            assert {name: one.tolist() for name, one in found.items()} == {
                name: one.tolist() for name, one in wanted.items()
            }


@pytest.mark.parametrize("kind", [dict, list])
@pytest.mark.parametrize("way", ["save", "stager", "load", "async_load"])
def test_a_state_that_holds_itself_is_refused_by_its_path(
    cluster: str, way: str, kind: type[dict[str, object] | list[object]]
) -> None:
    around: dict[str, object] = {"w": torch.ones(3)}
    around["more"] = around if kind is dict else [around]
    path = "more/more/more/more" if kind is dict else "more/#0/more/#0"
    name = f"{cluster}/around-{way}/1"
    calls: dict[str, Callable[[], object]] = {
        "save": lambda: ckpt_torch.save(around, checkpoint_id=name),
        "stager": lambda: ckpt_torch.CkptStager(ckpt_torch.CkptWriter(name)).stage(around),
        "load": lambda: ckpt_torch.load(around, checkpoint_id=name),
        "async_load": lambda: ckpt_torch.async_load(around, checkpoint_id=name, order=["w"]),
    }
    if "load" in way:
        ckpt_torch.save({"w": torch.ones(3)}, checkpoint_id=name)
    with pytest.raises(
        ckpt.Refused, match=rf"^{path}/\.\.\.: the tree is deeper than 64; .*itself"
    ):
        calls[way]()


class Disturbing(collections.UserDict[str, object]):
    """Whoever looks at it finds another mapping grown: as if by another thread."""

    disturbed: dict[str, object] | None = None

    def __getitem__(self, key: str) -> object:
        if self.disturbed is not None:
            self.disturbed[f"late {len(self.disturbed)}"] = 0.0
        return self.data[key]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_dict_that_grows_while_it_is_saved_is_taken_as_it_was_at_one_look(
    cluster: str, ordered: bool
) -> None:
    name = f"{cluster}/growing-{ordered}/1"
    inner = Disturbing(n=1)
    outer: dict[str, object] = collections.OrderedDict() if ordered else {}
    outer.update(inner=inner, w=torch.full((3,), 7.0))
    inner.disturbed = outer
    ckpt_torch.save({"a": outer}, checkpoint_id=name)
    with ckpt.open(cluster) as store:
        found = store.load(f"growing-{ordered}", 1)["a"]
    assert found["inner"] == {"n": 1}
    assert found["w"].tolist() == [7.0] * 3


def test_a_key_that_comes_while_ranks_meet_moves_no_value_to_another_name(cluster: str) -> None:
    """Another thread's, between a look at the state and its layout."""
    metrics: dict[str, object] = {}
    state: dict[str, object] = {"metrics": metrics, "w": torch.ones(3), "b": torch.zeros(3)}
    parts = parts_of(state, False)
    holders = parts.guessed_holders(Who(0, 1, None, False))
    metrics["late"] = torch.full((3,), 5.0)
    learnt = learn(parts.settled, holders)
    assert learnt is not None
    assert learnt.form.recognise(state) is None
    del metrics["late"]
    assert learnt.form.recognise(state) is not None
    metrics["late"] = torch.full((3,), 5.0)
    declared: list[object] = []

    def lay_out(tree: object) -> PackingPlan:
        declared.append(tree)
        return plan_packing(flatten(tree), 0, 1)

    parts.laid_out(lay_out, holders)
    (whole,) = declared
    assert isinstance(whole, Replicated)
    tree = whole.tree
    assert isinstance(tree, dict)
    assert list(tree) == ["metrics", "w", "b"]
    assert tree["metrics"] == {}


@pytest.mark.parametrize("staging", ["copy", "overlap"])
def test_a_tensor_and_an_array_may_change_places_between_two_saves(
    cluster: str, staging: str
) -> None:
    """As those do that `load_whole` gives: the state looks as it did."""
    run = f"places-{staging}"
    with ckpt.open(cluster) as store:
        for step, kinds in enumerate(((0, 1), (1, 0), (1, 1), (0, 0))):
            arrays = [np.full(3, float(step + n)) for n in (0, 1)]
            made = [
                torch.from_numpy(a) if kind else a for a, kind in zip(arrays, kinds, strict=True)
            ]
            future = ckpt_torch.async_save(
                {"a": made[0], "b": made[1]},
                checkpoint_id=f"{run}/{step}",
                store=store,
                staging=staging,
            )
            future.result(60)
            found = store.load(run, step)
            assert bits_of(found) == bits_of({"a": arrays[0], "b": arrays[1]})


def test_what_ranks_have_in_different_forms_is_loaded_whole_as_tensors(cluster: str) -> None:
    with ckpt.open(cluster) as store:
        saves = []
        for rank in (0, 1):
            seen = [np.full(2, float(rank))] * (rank + 1)
            objects = [{PICKLE_KEY: pickled({rank})}] * (rank + 1)
            state = {"seen": seen, "objects": objects}
            saves.append(store.save("apart", 1, state, rank=rank, world_size=2))
        for save in saves:
            save.wait(60)
    with pytest.raises(ckpt.Refused, match="objects/#0: stored as a pickle"):
        ckpt_torch.load_whole(f"{cluster}/apart/1")
    whole = ckpt_torch.load_whole(f"{cluster}/apart/1", allow_pickle=True)
    assert isinstance(whole, dict)
    for rank in (0, 1):
        assert whole["objects"][rank] == [{rank}] * (rank + 1)
        (tensor, *more) = whole["seen"][rank]
        assert torch.equal(tensor, torch.full((2,), float(rank), dtype=torch.float64))
        assert len(more) == rank


def test_arrays_that_torch_has_no_type_for_are_loaded_whole_as_they_were(cluster: str) -> None:
    """A trainer's settings often hold some: the step was saved, and no framework could load it."""
    name = f"{cluster}/typeless/1"
    saved: dict[str, object] = {
        "classes": np.array(["cat", "dog"]),
        "dates": np.array(["2026-01-02", "NaT"], "M8[D]"),
        "big": np.arange(3, dtype=">f4"),
        "long": np.ones(2, np.longdouble) / 3,
    }
    ckpt_torch.save({"settings": saved, "w": torch.ones(2)}, checkpoint_id=name)
    whole = ckpt_torch.load_whole(name)
    assert isinstance(whole, dict)
    assert bits_of(whole["settings"]) == bits_of(saved)
    assert torch.equal(whole["w"], torch.ones(2))


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


@pytest.mark.parametrize("leaf", [np.bytes_(b"a\0"), np.str_("a\0")])
def test_text_of_numpy_s_whose_end_an_array_drops_is_refused_by_path(leaf: object) -> None:
    with pytest.raises(ckpt.Refused, match=r"^rng/key: a numpy\.(bytes|str)_ that ends in a zero"):
        parts_of({"rng": {"key": leaf}}, allow_pickle=True)


def test_a_list_of_plain_values_comes_back_as_long_as_it_was_saved(cluster: str) -> None:
    name = f"{cluster}/longer/1"
    saved = {
        "losses": [0.3, 0.2, 0.1],
        "seen": {"files": [["a", (1, 2)], []], "last": (1, 2, 3)},
        "shape": torch.Size([2, 3]),
        "none": [],
        "layers": [torch.ones(1), {"betas": (0.9, 0.99)}],
    }
    ckpt_torch.save(saved, checkpoint_id=name)
    losses: list[float] = []
    found: dict[str, object] = {
        "losses": losses,
        "seen": {"files": [["b", (0,)]], "last": ()},
        "shape": torch.Size([1]),
        "none": [1, 2],
        "layers": [torch.zeros(1), {"betas": (0.5,)}],
    }
    ckpt_torch.load(found, checkpoint_id=name, strict=True)
    assert found["losses"] is losses
    assert repr(found) == repr(saved)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_list_that_dcp_wrote_in_one_piece_fills_an_empty_one(cluster: str) -> None:
    name = f"{cluster}/dcp-list/1"
    dcp.save({"losses": [3, 2, 1]}, storage_writer=ckpt_torch.CkptWriter(name), no_dist=True)
    found: dict[str, object] = {"losses": []}
    ckpt_torch.load(found, checkpoint_id=name)
    assert found == {"losses": [3, 2, 1]}


def test_two_names_of_one_container_come_back_as_they_were_saved(cluster: str) -> None:
    """As a new SequentialLR has its first scheduler's list of rates."""
    name = f"{cluster}/shared/1"
    saved = {"now": [0.3], "first": [0.1], "grown": [1, 2], "d": {"n": 1}, "e": {"n": 2}}
    ckpt_torch.save({**saved, "same": [0.3]}, checkpoint_id=name)
    rates, counts = [0.0], {"n": 0}
    found: dict[str, object] = {
        "now": rates, "first": rates, "grown": rates, "d": counts, "e": counts, "same": rates,
    }  # fmt: skip
    ckpt_torch.load(found, checkpoint_id=name)
    assert found == {**saved, "same": [0.3]}
    assert found["now"] is found["same"] is rates
    assert found["d"] is counts


def test_a_sequence_of_schedulers_has_the_rates_that_it_had(cluster: str) -> None:
    name = f"{cluster}/schedulers/1"

    def made(steps: int) -> torch.optim.lr_scheduler.SequentialLR:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        rates = torch.optim.lr_scheduler
        parts = [rates.LinearLR(optimizer), rates.ExponentialLR(optimizer, 0.9)]
        sequence = rates.SequentialLR(optimizer, parts, [3])
        for _ in range(steps):
            optimizer.step()
            sequence.step()
        return sequence

    trained, new = made(7), made(0)
    ckpt_torch.save({"schedule": trained}, checkpoint_id=name)
    ckpt_torch.load({"schedule": new}, checkpoint_id=name)
    assert new.state_dict() == trained.state_dict()


class Pair(tuple[object, ...]):
    """It is made of its items one by one, and takes another tuple for one of them."""

    def __new__(cls, *items: object) -> Pair:
        return super().__new__(cls, items)


def test_a_tuple_s_items_stay_its_items(cluster: str) -> None:
    name = f"{cluster}/pair/1"
    ckpt_torch.save({"pair": Pair(1, 2), "one": Pair(3)}, checkpoint_id=name)
    found: dict[str, object] = {"pair": Pair(0, 0), "one": Pair(0)}
    ckpt_torch.load(found, checkpoint_id=name)
    assert found == {"pair": (1, 2), "one": (3,)}


class Span(NamedTuple):
    first: int
    last: int


@pytest.mark.parametrize(
    ("here", "why"),
    [
        ({"tensors": [torch.zeros(1)]}, "tensors: 2 items in the checkpoint, 1 here"),
        ({"tensors": []}, "tensors: 2 items in the checkpoint, 0 here"),
        ({"numbers": [torch.zeros(())]}, "numbers: 3 items in the checkpoint, 1 here"),
        ({"numbers": Span(0, 0)}, "numbers: 3 items in the checkpoint, 2 here"),
        ({"numbers": {}}, "numbers: stored as a list, here it is a dict"),
        ({"mapping": []}, "mapping: stored as a dict, here it is a list"),
        ({"number": []}, "number: stored as a plain value, here it is a list"),
        ({"number": {}}, "number: stored as a plain value, here it is a dict"),
        ({"tensor": ()}, "tensor: stored as a tensor, here it is a tuple"),
        (
            {"none": torch.zeros(encoded_scalar(None).shape, dtype=torch.uint8)},
            "none: stored as a plain value, here it is a tensor",
        ),
        ({"big": torch.zeros(2)}, "big: torch has no element type >f4"),
    ],
)
def test_what_would_come_back_cut_is_refused_by_path(
    kept: str, here: dict[str, object], why: str
) -> None:
    with pytest.raises(ckpt.Refused, match=f"^{why}"):
        ckpt_torch.load(here, checkpoint_id=kept)


@pytest.fixture(scope="module")
def kept(cluster: str) -> str:
    """A step that holds one of each kind."""
    name = f"{cluster}/kinds/1"
    state = {
        "tensors": [torch.ones(1), torch.ones(1)],
        "numbers": [1, 2, 3],
        "mapping": {"a": 1},
        "number": 1,
        "tensor": torch.ones(1),
        "none": None,
        "big": np.ones(2, ">f4"),
    }
    ckpt_torch.save(state, checkpoint_id=name)
    return name


def test_a_list_that_another_rank_alone_has_comes_back_whole() -> None:
    walk = SequenceWalk(unknown=[((), {"rng": {"0": [], "1": []}, "new": []})])
    for rank in (0, 1):
        walk.look_into(flatten({"rng": {str(rank): [rank, 7]}}).root)
    assert {name: plain_data(node) for name, node in walk.plain.items()} == {
        "rng/0": [0, 7],
        "rng/1": [1, 7],
    }
    assert walk.unknown == [(("new",), [])]
