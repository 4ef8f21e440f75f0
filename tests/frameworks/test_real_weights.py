"""Weights that people use go through a cluster, out in every format, and back in, bit by bit.

Two inputs: what the package silero-vad carries (a speech detector, 1 MB, published as safetensors
and as TorchScript), and a language model that the demo's own code trains here on two ranks.
"""

from __future__ import annotations

import hashlib
import importlib.util
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import pytest
import zarr

import ckpt
from ckpt_client.cli.main import main
from ckpt_client.demo.fleet import Fleet, FleetPlan
from ckpt_client.demo.model import ModelShape
from ckpt_client.demo.words import RUN_NAME, Finished
from tests.frameworks.clusters import local_cluster
from tests.objects.sources import same_bits

torch = pytest.importorskip("torch")
safetensors_numpy = pytest.importorskip("safetensors.numpy")
safetensors_torch = pytest.importorskip("safetensors.torch")

FORMATS = ("safetensors", "npz", "dcp", "zarr")
SHAPE = ModelShape(width=64)
STEPS = 8
SAMPLES = 512
"""That the speech detector hears at once, at 16 kHz."""
Arrays = Mapping[str, np.ndarray]


@pytest.fixture(scope="module")
def package() -> Path:
    """The folder of silero-vad's models."""
    found = importlib.util.find_spec("silero_vad")
    if found is None or found.origin is None:
        pytest.skip("NO PUBLISHED WEIGHTS: silero-vad is not installed")
    return Path(found.origin).parent / "data"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A second cluster, where nothing is yet."""
    with local_cluster(tmp_path_factory.mktemp("other")) as url:
        yield url


@pytest.fixture(scope="module")
def published(cluster: str, package: Path) -> Arrays:
    """The published weights as their own library reads them; in the cluster as silero@0."""
    path = package / "silero_vad_16k.safetensors"
    assert main(["import", str(path), "silero@0", "--store", cluster]) == 0
    found: Arrays = safetensors_numpy.load_file(path)
    assert sum(array.size for array in found.values()) > 300_000
    return found


@dataclass(frozen=True, slots=True)
class Trained:
    """The demo's run, as its ranks ended it."""

    finished: Mapping[int, Finished]
    state: Mapping[str, object]
    """The union of the ranks' states, as the cluster gives it."""


@pytest.fixture(scope="module")
def trained(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    plan = FleetPlan(
        ranks=2, seed=3, steps=STEPS, save_every=STEPS, width=SHAPE.width, url=cluster,
        launch="trained", directory=tmp_path_factory.mktemp("logs"),
    )  # fmt: skip
    finished: dict[int, Finished] = {}
    with Fleet(plan) as fleet:
        while not fleet.silent:
            words = fleet.hear(1.0)
            finished.update((one.rank, one.word) for one in words if isinstance(one.word, Finished))
    with ckpt.open(cluster) as store:
        state = store.load(RUN_NAME, STEPS, whole=True)
    assert isinstance(state, dict)
    return Trained(finished, state)


# --------------------------------------------------------------------------- published weights


@pytest.mark.parametrize("format", FORMATS)
def test_a_published_model_leaves_in_every_format_and_comes_back(
    cluster: str, other: str, published: Arrays, tmp_path: Path, format: str
) -> None:
    place = exported("silero@0", cluster, tmp_path, format)
    assert_equal(read_by_others(place, format), published)
    assert_equal(taken_in(place, "silero@0", other, format), published)


def test_imported_weights_are_every_rank_s_to_cut(cluster: str, published: Arrays) -> None:
    name, array = max(published.items(), key=lambda one: one[1].size)
    half = array.shape[0] // 2
    like = {name: ckpt.Box((half, *(0 for _ in array.shape[1:])), (half, *array.shape[1:]))}
    with ckpt.open(cluster) as store:
        found = store.load("silero", 0, like, rank=3, world_size=4, strict=False)
    assert isinstance(found, dict)
    assert same_bits(found[name], array[half : 2 * half])


def test_a_network_with_weights_from_a_checkpoint_gives_the_same_answers(
    cluster: str, package: Path, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: TorchScript is old
        original = torch.jit.load(package / "silero_vad.jit")
        restored = torch.jit.load(package / "silero_vad.jit")
    state = {name: tensor.numpy() for name, tensor in original.state_dict().items()}
    with ckpt.open(cluster) as store:
        store.save("script", 1, state, rank=0, world_size=1).wait(60.0)
    place = exported("script@1", cluster, tmp_path, "safetensors")
    for tensor in restored.state_dict().values():
        tensor.zero_()
    assert not np.array_equal(heard(restored), heard(original)), "else this test shows nothing"
    restored.load_state_dict(safetensors_torch.load_file(place / "model.safetensors"))
    assert np.array_equal(heard(restored), heard(original))


def heard(network: torch.jit.ScriptModule) -> np.ndarray:
    """How likely each piece of a fixed noise is speech."""
    noise = torch.randn(20, 1, SAMPLES, generator=torch.Generator().manual_seed(11))
    network.reset_states()
    with torch.no_grad():
        return np.array([network(piece, 16_000).item() for piece in noise])


# --------------------------------------------------------------------------- trained weights


@pytest.mark.parametrize("format", FORMATS)
def test_a_model_trained_by_the_demo_leaves_in_every_format_and_comes_back(
    cluster: str, other: str, trained: Trained, tmp_path: Path, format: str
) -> None:
    parameters = trained.state["parameters"]
    assert isinstance(parameters, dict)
    place = exported(f"{RUN_NAME}@{STEPS}", cluster, tmp_path, format)
    seen = read_by_others(place, format)
    assert_equal({f"parameters.{name}": array for name, array in parameters.items()}, seen, "among")
    found = taken_in(place, f"{RUN_NAME}@{STEPS}", other, format)
    assert_equal(found, seen)
    digests = {rank: finished.parameters for rank, finished in trained.finished.items()}
    assert digests == dict.fromkeys(range(2), digest(found)), "what the trainers had at their end"


def digest(arrays: Arrays) -> str:
    """Of the parameters in the order of the trainers' flat vector, which is padded for 2 ranks."""
    total = hashlib.sha256()
    for name in SHAPE.tensors():
        total.update(arrays[f"parameters.{name}"].tobytes())
    total.update(bytes(4 * (sum(map(prod, SHAPE.tensors().values())) % 2)))
    return total.hexdigest()


# --------------------------------------------------------------------------- out and in


def exported(what: str, cluster: str, folder: Path, format: str) -> Path | str:
    """Where `ckpt export` put it; a URL for Zarr."""
    place = folder / ("all.npz" if format == "npz" else format)
    destination = f"file://{place}" if format == "zarr" else str(place)
    assert main(["export", what, destination, "--format", format, "--store", cluster]) == 0
    return f"{destination}/{what}" if format == "zarr" else place


def read_by_others(place: Path | str, format: str) -> Arrays:
    """As the format's own library reads it."""
    match format:
        case "safetensors":
            return safetensors_numpy.load_file(Path(place) / "model.safetensors")
        case "npz":
            with np.load(place) as archive:
                return dict(archive)
        case "dcp":
            return read_dcp(Path(place))
        case _:
            return read_zarr(str(place))


def read_zarr(url: str) -> Arrays:
    """The group, and the archives of small arrays beside it."""
    (group,) = Path(url.removeprefix("file://")).iterdir()
    opened = zarr.open_group(group, mode="r")
    stores = [zarr.storage.ZipStore(path, mode="r") for path in (group / "packed").iterdir()]
    found: dict[str, np.ndarray] = {}
    for each in (opened, *(zarr.open_group(store, mode="r") for store in stores)):
        for path, node in each.members(max_depth=None):
            if isinstance(node, zarr.Array):
                found.update(named(path, node))
    return found


def named(path: str, node: zarr.Array) -> Arrays:
    """An array of the group by the name that an export gives it."""
    kind, *rest = path.split("/")
    content = np.asarray(node[...])
    if kind == "tensors":
        return {".".join(rest): content}
    name = ".".join(rest[1:])
    ranks = node.attrs.get("ranks")
    rows = zip(ranks, content, strict=True) if ranks else [(rest[0], content)]
    return {f"{name}@rank-{rank}": row for rank, row in rows}


def read_dcp(folder: Path) -> Arrays:
    from torch.distributed import checkpoint as dcp

    metadata = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {
        name: torch.zeros(entry.size, dtype=entry.properties.dtype)
        for name, entry in metadata.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: that no process group is meant
        dcp.load(state, checkpoint_id=folder, no_dist=True)
    return {name: tensor.numpy() for name, tensor in state.items()}


def taken_in(place: Path | str, what: str, other: str, format: str) -> Arrays:
    """What a load from the second cluster finds behind `ckpt import`, or `ckpt fetch` of ours."""
    run, _, step = what.partition("@")
    if format == "zarr":
        assert main(["fetch", str(place), "--store", other]) == 0
    else:
        run = f"{run}-{format}"
        line = ["import", str(place), f"{run}@{step}", "--store", other]
        assert main([*line, "--allow-pickle"] if format == "dcp" else line) == 0
    with ckpt.open(other) as store:
        return flat(store.load(run, int(step), whole=True))


def flat(state: object, path: str = "") -> Arrays:
    """Arrays by name, as an export names them."""
    match state:
        case dict():
            found = {}
            for key, child in state.items():
                found.update(flat(child, f"{path}.{key}" if path else str(key)))
            return found
        case ckpt.PerRank():
            return {
                f"{path}@rank-{rank}": array
                for rank, array in state.values.items()
                if isinstance(array, np.ndarray)
            }
        case np.ndarray():
            return {path: state}
        case _:
            return {}


def assert_equal(found: Arrays, expected: Arrays, which: str = "all") -> None:
    """The same names, or some of them, and the same bits."""
    assert found
    assert found.keys() <= expected.keys() if which == "among" else found.keys() == expected.keys()
    for name, array in found.items():
        assert same_bits(array, expected[name]), name
