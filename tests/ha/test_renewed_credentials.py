"""People renew passwords and certificates while coordinators run, in etcd and here one after the
other: who was let in before goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ckpt.base.errors import Unauthorized, Unavailable
from ckpt.testing.catalog_contract import on_a_loop
from ckptd.catalog.etcd.client import EtcdClient
from ckptd.catalog.etcd.url import parse_etcd_url
from tests.ha.certificates import Certificates
from tests.ha.members import Etcd, Member
from tests.ha.places import Prefix, asked
from tests.ha.test_admission import admit, file_with

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
