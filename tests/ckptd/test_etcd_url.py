"""URLs of catalogs in etcd: what they say, and that a wrong one is refused with what is wrong."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ckpt.base.errors import Refused
from ckptd.catalog.etcd.url import mending_command, parse_etcd_url
from ckptd.coordinator.config import CoordinatorConfig


def test_a_url_says_all_of_it() -> None:
    url = parse_etcd_url(
        "etcd://10.0.0.1:2379,[::1]:2379,etcd3:2379/ckpt/prod"
        "?ca=/c/ca.pem&cert=/c/cert.pem&key=/c/key.pem&user=ckpt&password_file=/c/password"
    )
    assert url.members == ("10.0.0.1:2379", "[::1]:2379", "etcd3:2379")
    assert (url.prefix, url.scheme, url.user) == ("ckpt/prod", "https", "ckpt")
    files = [Path("/c/ca.pem"), Path("/c/cert.pem"), Path("/c/key.pem"), Path("/c/password")]
    assert [url.ca, url.cert, url.key, url.password_file] == files


@pytest.mark.parametrize(
    "text",
    ["etcd://127.0.0.1:1,localhost:2,[::1]:3/p", "etcd://10.0.0.1:1/p?insecure=1"],
)
def test_plain_text_is_for_loopback_and_where_it_is_asked_for(text: str) -> None:
    assert parse_etcd_url(text).scheme == "http"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("s3://127.0.0.1:1/p", "is no etcd:// URL"),
        ("etcd://127.0.0.1/p", "not of the form HOST:PORT"),
        ("etcd:///p", "not of the form HOST:PORT"),
        ("etcd://127.0.0.1:1,127.0.0.1:1/p", "named twice"),
        ("etcd://127.0.0.1:1", "prefix ''"),
        ("etcd://127.0.0.1:1/a:b", "prefix 'a:b'"),
        ("etcd://127.0.0.1:1/a//b", "prefix 'a//b'"),
        (f"etcd://127.0.0.1:1/{'a' * 65}", "at most 64"),
        ("etcd://127.0.0.1:1,10.0.0.1:1/p", "10.0.0.1:1 .* plain text"),
        ("etcd://127.0.0.1:1/p?cacert=/c", "'cacert' .* is not known"),
        ("etcd://127.0.0.1:1/p?ca=", "'ca' .* is empty"),
        ("etcd://127.0.0.1:1/p?ca=/a&ca=/b", "given twice"),
        ("etcd://127.0.0.1:1/p?ca=/a&cert=/b", "cert and key go together"),
        ("etcd://127.0.0.1:1/p?cert=/b&key=/c", "needs ca"),
        ("etcd://127.0.0.1:1/p?user=u", "user and password_file go together"),
        ("etcd://10.0.0.1:1/p?insecure=yes", "insecure=yes"),
        ("etcd://10.0.0.1:1/p?ca=/a&insecure=1", "insecure=1 with ca"),
    ],
)
def test_what_is_wrong_is_named(text: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        parse_etcd_url(text)
    with pytest.raises(Refused, match=why):
        CoordinatorConfig(Path("d"), catalog=text)


@pytest.mark.parametrize(
    "prefix",
    ["p", "ckpt/prod", "x" * 64, "x" * 63, "x" * 61 + "/yz", "x" * 62 + "-2", "a/" * 31 + "-2"],
)
def test_the_command_that_makes_a_catalog_again_names_a_prefix_that_is_taken(prefix: str) -> None:
    command = shlex.split(mending_command(f"etcd://127.0.0.1:2379/{prefix}/?insecure=1"))
    beside = parse_etcd_url(command[3])
    assert beside.prefix != prefix
    assert (beside.members, command[4]) == (("127.0.0.1:2379",), "--targets")
