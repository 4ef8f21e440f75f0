"""A store's URL is cut into parts, and everything that is wrong with it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt.aio.net.address import TcpAddress
from ckpt.base.errors import Refused
from ckpt.erasure.code import Code
from ckpt_client.url import LocalOptions, LocalUrl, RemoteUrl, default_code, parse_url


def _options(query: str) -> LocalOptions:
    url = parse_url(f"ckpt+local:///d?{query}")
    assert isinstance(url, LocalUrl)
    return url.options


def test_a_local_url_has_a_directory_and_options() -> None:
    url = parse_url("ckpt+local:///scratch/burst?targets=7&code=4+2")
    assert url == LocalUrl("/scratch/burst", LocalOptions(targets=7, code="4+2"))


def test_a_plus_stands_for_itself_and_percent_is_decoded() -> None:
    assert parse_url("ckpt+local:///a+b%20c%2Bd") == LocalUrl("/a+b c+d", LocalOptions())
    assert _options("code=4%2B2").code == "4+2"


def test_every_option_has_its_type() -> None:
    query = (
        "keep=3&restart=never&linger=1.5&capacity=2GiB&pretend_domains=1&unprotected=0&cell=512k"
    )
    assert _options(query) == LocalOptions(
        keep=3,
        restart="never",
        linger=1.5,
        capacity=2 << 30,
        pretend_domains=True,
        unprotected=False,
        cell=512 << 10,
    )


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("target=7", r"did you mean targets\?"),
        ("colour=red", "known are targets, code"),
        ("targets=x", "targets"),
        ("targets=0", "targets"),
        ("code=42", "K\\+M"),
        ("restart=sometimes", "restart"),
        ("linger=-1", "linger"),
        ("linger=nan", "linger"),
        ("pretend_domains=yes", "pretend_domains"),
        ("keep=1&keep=2", "twice"),
    ],
)
def test_a_wrong_option_is_refused_by_name(query: str, named: str) -> None:
    with pytest.raises(Refused, match=named):
        _options(query)


def test_a_coordinator_is_host_and_port() -> None:
    assert parse_url("ckpt://node7:7000") == RemoteUrl("node7", 7000)
    v6 = parse_url("ckpt://[::1]:7000")
    assert v6 == RemoteUrl("::1", 7000)
    assert v6.address == "[::1]:7000"


def test_a_clusters_coordinators_are_listed_with_commas() -> None:
    url = parse_url("ckpt://node7:7000,[::1]:7001,10.0.0.1:7002/")
    assert url == RemoteUrl("node7", 7000, (TcpAddress("::1", 7001), TcpAddress("10.0.0.1", 7002)))
    assert url.address == "node7:7000,[::1]:7001,10.0.0.1:7002"
    assert parse_url(None, {"CKPT_STORE": f"ckpt://{url.address}"}) == url


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("ckpt://h:1,node7", "'node7'"),
        ("ckpt://h:1,", "''"),
        ("ckpt://h:1,g:x,i:3", "'g:x'"),
        ("ckpt://h:1,h:1", "h:1 stands twice"),
        ("ckpt://" + ",".join(f"h:{port}" for port in range(1, 18)), "at most 16"),
    ],
)
def test_a_wrong_list_of_coordinators_is_refused_by_the_part_that_is_wrong(
    url: str, named: str
) -> None:
    with pytest.raises(Refused, match=named):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    ["ckpt://node7", "ckpt://:1", "ckpt://h:0", "ckpt://h:1?x=1", "file:///d", "/d", "",
     "ckpt+local://host/d", "ckpt+local:///", "ckpt+local:d", "ckpt://[::1", "ckpt://[::1]x:1",
     "ckpt://user:word@h:1", "ckpt://h:1 ", "ckpt+local:///d\n", " ckpt+local:///d",
     "ckpt+local:///a\tb", "ckpt+local:///%ff", 5, Path("/d")],
)  # fmt: skip
def test_what_is_no_store_is_refused(url: str) -> None:
    """A line's end that came along with the text would name another directory."""
    with pytest.raises(Refused):
        parse_url(url, {})


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("/scratch/x", "did you mean ckpt+local:///scratch/x?"),
        (Path("/scratch/x"), "did you mean ckpt+local:///scratch/x?"),
        ("scratch/a b", f"did you mean ckpt+local://{Path.cwd().as_uri()[7:]}/scratch/a%20b?"),
        ("/d?targets=7&code=4+2", "did you mean ckpt+local:///d?targets=7&code=4+2?"),
        ("~/x", f"did you mean ckpt+local://{Path.home().as_uri()[7:]}/x?"),
        ("file:///x", "did you mean ckpt+local:///x?"),
        ("ckpt+local:/x", "did you mean ckpt+local:///x?"),
        ("ckpt:///x", "did you mean ckpt+local:///x?"),
        ("ckpt+local://d/e", "did you mean ckpt+local:///d/e, with three slashes?"),
        ("node1:4800", "did you mean ckpt://node1:4800?"),
        ("http://node1:4800/", "did you mean ckpt://node1:4800?"),
        ("ckpt://node1", "ckpt://node1:7070"),
        ("ckpt://node1:1/gpt", "a store's URL ends with the port: ckpt://node1:1"),
        ("cpkt://node1:1", "did you mean ckpt?"),
        ("s3://bucket", "ckpt.open(..., durable=URL)"),
        ("", "such as ckpt+local:///scratch/burst"),
    ],
)
def test_who_writes_something_else_hears_which_store_was_meant(url: str, hint: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_url(url, {})
    assert hint in refused.value.hint


def test_without_a_url_the_environment_counts() -> None:
    assert parse_url(None, {"CKPT_STORE": "ckpt://h:1"}) == RemoteUrl("h", 1)
    with pytest.raises(Refused, match="CKPT_STORE"):
        parse_url(None, {})


@pytest.mark.parametrize(
    ("targets", "code"), [(9, "4+2"), (6, "4+2"), (5, "2+1"), (3, "2+1"), (2, "1+1")]
)
def test_the_code_follows_the_number_of_targets(targets: int, code: str) -> None:
    assert LocalOptions(targets=targets).shape() == (targets, Code.parse(code))


def test_one_target_is_taken_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="no redundancy"):
        assert default_code(1) == Code(1, 0)


def test_the_code_must_fit_the_targets_and_have_parity() -> None:
    with pytest.raises(Refused, match="needs 6 targets"):
        LocalOptions(targets=5, code="4+2").shape()
    with pytest.raises(Refused, match="unprotected=1"):
        LocalOptions(targets=4, code="4+0").shape()
    assert LocalOptions(targets=4, code="4+0", unprotected=True).shape() == (4, Code(4, 0))
    assert LocalOptions(code="8+4").shape() == (12, Code(8, 4))
    assert LocalOptions().shape() == (7, Code(4, 2))
