"""People renew passwords and certificates while coordinators run, in etcd and here one after the
other: who was let in before goes on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ckpt.base.errors import Unauthorized, Unavailable
from ckpt.testing.catalog_contract import on_a_loop
from ckptd.catalog.etcd.client import EtcdClient
from ckptd.catalog.etcd.url import parse_etcd_url
from ckptd.catalog.etcd.words import Range, RangeFound
from tests.ha.certificates import Certificates
from tests.ha.members import Etcd, Member
from tests.ha.places import Prefix, asked
from tests.ha.test_admission import admit, file_with
from tests.stores.proxy import Proxy, Request

KEY = b"mine:meta"
UP_S = 30.0
"""Patience with a member that starts."""


@asynccontextmanager
async def asking(place: Prefix) -> AsyncIterator[EtcdClient]:
    """As a coordinator does."""
    client = EtcdClient(parse_etcd_url(place.url))
    try:
        yield client
    finally:
        await client.close()


def change_password(member: Member, word: str) -> None:
    """Of ckpt: who has shown the old one has to show it."""
    root = {"name": "root", "password": "root-word"}
    token = str(asked(member, "/v3/auth/authenticate", root)["token"])
    changed = {"name": "ckpt", "password": word}
    asked(member, "/v3/auth/user/changepw", changed, token=token)


@on_a_loop
async def test_a_password_that_changes_in_etcd_first_is_waited_for(tmp_path: Path) -> None:
    with Etcd(tmp_path / "etcd") as etcd:
        (member,) = etcd.members
        admit(member)
        file = file_with(tmp_path / "password", "ckpt-word")
        place = Prefix(etcd.addresses, "mine", f"?user=ckpt&password_file={file}")
        async with asking(place) as known, asking(place) as new:
            assert await known.one(KEY, -1.0) is None
            known.was_let_in = True
            change_password(member, "another-word")
            with pytest.raises(Unavailable, match=f"{file} has not the password of ckpt any more"):
                await known.one(KEY, -1.0)
            with pytest.raises(Unauthorized, match="authentication failed"):
                await new.one(KEY, -1.0)
            file.unlink()
            with pytest.raises(Unavailable, match="has not the password"):
                await known.one(KEY, -1.0)
            file_with(file, "another-word")
            assert await known.one(KEY, -1.0) is None


@on_a_loop
async def test_a_log_in_that_takes_longer_than_an_attempt_is_not_begun_again(
    tmp_path: Path,
) -> None:
    """A busy etcd checks a password for longer than it may take to keep a lease: each attempt to do
    so took the token of all, began to log in and was cut off.
    """
    with Etcd(tmp_path / "etcd") as etcd:
        (member,) = etcd.members
        admit(member)
        file = file_with(tmp_path / "password", "ckpt-word")
        proxy = Proxy(member.port)
        proxy.delay_s = lambda request: 1.0 if _logs_in(request) else 0.0
        place = Prefix(f"127.0.0.1:{proxy.port}", "mine", f"?user=ckpt&password_file={file}")
        try:
            async with asking(place) as client:
                deadline = asyncio.get_running_loop().time() + UP_S
                asks = (
                    client.call("kv/range", Range(KEY), RangeFound, deadline, attempt_s=0.4)
                    for _ in range(8)
                )
                found = await asyncio.gather(*asks)
        finally:
            proxy.close()
        assert not any(answer.kvs for answer in found)
        assert sum(_logs_in(request) for request, _ in proxy.log) < 4


def _logs_in(request: Request) -> bool:
    return request.path == "/v3/auth/authenticate"


@on_a_loop
async def test_certificates_of_another_authority_are_read_and_shown(
    tmp_path: Path, certificates: Certificates
) -> None:
    with Etcd(tmp_path / "etcd", flags=certificates.flags, scheme="https") as etcd:
        (member,) = etcd.members
        place = Prefix(etcd.addresses, options=certificates.shown)
        async with asking(place) as client:
            assert await client.one(KEY, -1.0) is None
            member.kill()
            certificates.renew()
            member.start()
            deadline = asyncio.get_running_loop().time() + UP_S
            assert await client.one(KEY, deadline) is None


@pytest.mark.parametrize(
    ("whose", "why"),
    [
        ("server", "TLS fails: its certificate has expired: renew it"),
        (
            "client",
            "TLS fails: it does not take cert=.*client.pem .*: see openssl x509 -noout -dates",
        ),
    ],
)
@on_a_loop
async def test_a_certificate_that_has_expired_is_named_and_waited_for(
    tmp_path: Path, certificates: Certificates, whose: str, why: str
) -> None:
    for name in ("server", "client"):
        certificates.sign(name)
    with Etcd(tmp_path / "etcd", flags=certificates.flags, scheme="https") as etcd:
        (member,) = etcd.members
        place = Prefix(etcd.addresses, options=certificates.shown)
        async with asking(place) as client:
            assert await client.one(KEY, -1.0) is None
            client.was_let_in = True
            member.kill()
            certificates.sign(whose, -1)
            member.start()
            member.wait_up()
            deadline = asyncio.get_running_loop().time() + UP_S
            while re.search(why, await complaint(client)) is None:
                assert asyncio.get_running_loop().time() < deadline
            certificates.sign(whose)
            deadline = asyncio.get_running_loop().time() + UP_S
            assert await client.one(KEY, deadline) is None


async def complaint(client: EtcdClient) -> str:
    """A connection may break ahead of the alert that says why."""
    with pytest.raises(Unavailable) as caught:
        await client.one(KEY, -1.0)
    return str(caught.value)
