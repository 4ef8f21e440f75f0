"""What URLs and paths mean, and what those that mean nothing are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt.base.errors import Refused
from ckpt.base.ids import RunName, Step
from ckpt_client.fs.filesystem import CkptFileSystem, CkptLocalFileSystem
from ckpt_client.fs.paths import Spot, split_local, split_remote, spot_of
from ckpt_client.step_url import StepUrl, parse_step_url


@pytest.mark.parametrize(
    ("path", "run", "step", "name", "loose"),
    [
        ("llm/100/__0_0.distcp", "llm", 100, "100/__0_0.distcp", False),
        ("a/b/step-7/.metadata", "a/b", 7, "step-7/.metadata", False),
        ("a/step_7/x/9/y", "a", 7, "step_7/x/9/y", False),
        ("a/step0007/y", "a", 7, "step0007/y", False),
        ("7/8/y", "7", 8, "8/y", False),
        ("tables/x.csv", "tables/x.csv", 0, "x.csv", True),
        ("7", "7", 0, "7", True),
        ("llama-70/steps", "llama-70/steps", 0, "steps", True),
    ],
)
def test_a_path_belongs_to_a_step_or_is_loose(
    path: str, run: str, step: int, name: str, loose: bool
) -> None:
    assert spot_of(path) == Spot(run, step, name, loose)  # type: ignore[arg-type]


def test_a_folder_is_spelled_as_it_was_written() -> None:
    assert (spot_of("a/step-7/x/y").folder, spot_of("a/step-7/x/y").base) == ("a/step-7", "x/y")
    assert (spot_of("a/b").folder, spot_of("a/b").base) == ("a/b", "b")


@pytest.mark.parametrize(
    "path", ["a/100", "a/../b", "a@1/x/y", "a/7/\n/..", "run/99999999999999999999/x"]
)
def test_a_bad_path_is_refused(path: str) -> None:
    with pytest.raises(Refused):
        spot_of(path)


def test_a_file_that_is_named_as_a_step_is_refused_with_the_form() -> None:
    """As the chunks of a Zarr array are that lies below no step."""
    with pytest.raises(Refused) as refusal:
        spot_of("tables/grid.zarr/c/0")
    assert "RUN/STEP/FILE" in refusal.value.hint


@pytest.mark.parametrize(
    "url", ["ckpt://host:70/run/1/x", "ckpt:/host:70/run/1/x", "ckpt:///host:70//run/1/x/"]
)
def test_a_remote_url_is_cut_also_as_pathlib_folds_it(url: str) -> None:
    assert split_remote(url) == ("host:70", "run/1/x")
    assert CkptFileSystem._strip_protocol(url) == "run/1/x"
    assert CkptFileSystem._strip_protocol(Path(url)) == "run/1/x"
    assert CkptFileSystem._get_kwargs_from_urls(url) == {"host": "host:70"}


def test_a_remote_url_may_list_a_clusters_coordinators() -> None:
    url = "ckpt://a:70,b:70,[::1]:71/run/1/x"
    assert split_remote(url) == ("a:70,b:70,[::1]:71", "run/1/x")
    assert CkptFileSystem._strip_protocol(url) == "run/1/x"
    assert CkptFileSystem._get_kwargs_from_urls(url) == {"host": "a:70,b:70,[::1]:71"}
    place = parse_step_url("ckpt://a:70,b:70/run/1")
    assert place == StepUrl("ckpt://a:70,b:70", RunName("run"), Step(1))


@pytest.mark.parametrize(
    "url",
    ["ckpt://run/1/x", "ckpt://host/run", "ckpt://host:port/run", "ckpt://a:70,b/run/1/x"],
)
def test_a_remote_url_without_a_port_is_refused_with_the_form(url: str) -> None:
    with pytest.raises(Refused, match="ckpt://HOST:PORT/RUN/STEP/FILE"):
        split_remote(url)


@pytest.mark.parametrize(
    ("cls", "url", "form"),
    [
        (CkptFileSystem, "ckpt://host:70/run?x=1", "ckpt://HOST:PORT/RUN/STEP/FILE"),
        (CkptLocalFileSystem, "ckpt+local:///d?targets=7", "ckpt[+]local:///DIR/RUN/STEP/FILE"),
    ],
)
def test_a_query_is_refused_with_the_right_form(
    cls: type[CkptFileSystem], url: str, form: str
) -> None:
    for call in (cls._strip_protocol, cls._get_kwargs_from_urls):
        with pytest.raises(Refused, match=f"no query, it is {form}"):
            call(url)


def test_the_longest_prefix_with_a_cluster_file_is_the_directory(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "cluster.toml").touch()
    assert split_local(f"ckpt+local://{inner}/run/1/x") == (str(tmp_path), "a/b/run/1/x")
    (inner / "cluster.toml").touch()
    assert split_local(f"ckpt+local://{inner}/run/1/x") == (str(inner), "run/1/x")
    assert split_local(f"ckpt+local:{inner}/run/1/x") == (str(inner), "run/1/x")


def test_without_a_cluster_file_the_error_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        split_local(f"ckpt+local://{tmp_path}/run/1/x")
    assert "ckptd local DIR" in caught.value.hint
