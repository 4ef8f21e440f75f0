"""A checkpoint of a cluster by its URL, in commands and in `ckpt.load`, as frameworks name it.

Commands said that no store was named, or that the cluster was no object store.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.errors import Refused
from tests.client.clikit import run

RUN = "team/llama"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two steps, in a directory whose name a URL has to quote."""
    directory = tmp_path_factory.mktemp("by url") / "a%20b"
    url = "ckpt+local://" + str(directory).replace("%", "%25")
    with ckpt.open(f"{url}?targets=2&code=1+1") as store:
        for step in (1, 2):
            state = {"w": np.full(9, step), "deep": {"b": np.zeros(2)}}
            store.save(RUN, step, state, rank=0, world_size=1).wait(60.0)
        assert run("tag", f"{RUN}@1", "best", "--store", url).code == 0
    yield f"ckpt+local://{directory}"
    run("local", "stop", str(directory))


@pytest.mark.parametrize(
    "name", [f"{RUN}/1", f"{RUN}@1", f"{RUN}@best", f"{RUN}/step-1", f"{RUN}/001"]
)
def test_every_way_to_write_it_is_the_same_step(cluster: str, name: str) -> None:
    document = run("show", f"{cluster}/{name}", "--json").document()
    assert [one["step"] for one in document["generations"]] == [1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", "{}", "--tensors"], "team/llama@1#"),
        (["verify", "{}"], "team/llama@1  healthy"),
        (["cat", "{}/w"], "[1, 1, 1, 1, 1, 1, 1, 1, 1]"),
        (["cat", "{}/deep/b"], "[0., 0.]"),
        (["diff", "{}", "{}"], "2 same"),
        (["pin", "{}"], "stays until it is unpinned"),
        (["unpin", "{}"], "team/llama@1"),
        (["rm", "{}", "--dry-run"], "team/llama@1"),
        (["rollback", "{}", "--dry-run"], "team/llama@1"),
        (["tag", "{}"], "best"),
    ],
)
def test_every_command_takes_it(cluster: str, words: list[str], says: str) -> None:
    ended = run(*(word.format(f"{cluster}/{RUN}/1") for word in words))
    assert ended.code == 0, ended.err
    assert says in ended.out


def test_an_export_takes_it(cluster: str, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    assert run("export", f"{cluster}/{RUN}/1", "--format", "npz", str(out)).code == 0
    with np.load(out) as archive:
        assert set(archive.files) == {"w", "deep.b"}


def test_runs_are_listed_by_the_url_of_a_store_or_of_one_of_them(cluster: str) -> None:
    for url in (cluster, f"{cluster}/{RUN}"):
        steps = run("ls", url, "--json").document()["steps"]
        assert [one["step"] for one in steps] == [1, 2]


def test_what_does_not_fit_is_refused(cluster: str, tmp_path: Path) -> None:
    for words, says in (
        (["show", cluster], "names no run"),
        (["show", f"{cluster}/{RUN}/1", "--store", "ckpt://127.0.0.1:1"], "both name a store"),
        (["diff", f"{cluster}/{RUN}/1", "ckpt://127.0.0.1:1/r/1"], "both name a store"),
        (["show", f"ckpt+local://{tmp_path}/r/1"], "no directory in it holds a cluster.toml"),
        (["show", f"{cluster}/{RUN}/1?targets=2"], "takes no query"),
    ):
        ended = run(*words)
        assert ended.code == Refused.exit_code
        assert says in ended.err
    assert run("show", f"{cluster}/{RUN}/1", "--store", cluster.replace("%", "%25")).code == 0


def test_a_load_takes_it(cluster: str) -> None:
    for name, step in ((f"{RUN}/1", 1), (f"{RUN}@1", 1), (RUN, 2)):
        state = ckpt.load(f"{cluster}/{name}")
        assert isinstance(state, dict)
        assert state["w"].tolist() == [step] * 9
    assert isinstance(ckpt.load(f"{cluster}/{RUN}", 1), dict)
    with pytest.raises(Refused, match="both name a step"):
        ckpt.load(f"{cluster}/{RUN}/1", 2)
