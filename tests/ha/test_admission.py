"""Who gets in, and which etcd is good enough: certificates, users, limits, versions, prefixes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ckpt.base.errors import CkptError, Corrupt, Refused, Unauthorized, Unavailable
from ckpt.format.messages.hello import OLDEST_VERSION, PROTOCOL_VERSION
from ckpt.protocol.coordinator.said import UpgradeFinished
from ckpt.testing.catalog_contract import found, on_a_loop, writing
from ckpt.testing.catalog_entries import attempt, checkpoint
from ckptd.catalog.etcd import client, keys
from ckptd.catalog.etcd.catalog import EtcdCatalog
from ckptd.catalog.etcd.fence import FencedSpace
from ckptd.catalog.etcd.history import RevisionHistory
from ckptd.catalog.etcd.lease import LeaseKeeper
from ckptd.catalog.etcd.url import parse_etcd_url
from tests.ha.certificates import Certificates
from tests.ha.members import Etcd, Member
from tests.ha.places import Prefix, asked, in_base64, names_in, proxied, value_of
from tests.stores.proxy import Fault, Request

NOWHERE = "127.0.0.1:1"
"""Nobody listens there."""


@on_a_loop
async def test_members_and_coordinator_show_their_certificates(
    tmp_path: Path, certificates: Certificates
) -> None:
    path = certificates.path
    with Etcd(tmp_path / "etcd", flags=certificates.flags, scheme="https") as etcd:
        trusted = f"?ca={path('ca.pem')}"
        place = Prefix(etcd.addresses, options=certificates.shown)
        async with writing(place) as writer:
            await writer.write(attempt(1))
        assert set((await found(place)).rows) == {checkpoint(1)}
        for options, why in [
            ("", "ends the connection without an answer: if it speaks TLS, give ca="),
            # Its alert may come after the end of the connection.
            (trusted, "(it wants a certificate: give cert= and key=|reset by peer|Broken pipe)"),
            (f"?ca={path('client.pem')}", f"certificate is not signed by ca={path('client.pem')}"),
        ]:
            with pytest.raises(Unavailable, match=f"{etcd.addresses}: .*{why}"):
                await Prefix(etcd.addresses, options=options).open(patience_s=0.0)


@on_a_loop
async def test_an_etcd_that_speaks_plain_text_is_not_asked_by_tls(
    etcd: Etcd, certificates: Certificates
) -> None:
    with pytest.raises(Unavailable, match="if it speaks plain text, leave ca= out"):
        await Prefix(etcd.addresses, options=certificates.shown).open(patience_s=0.0)


@on_a_loop
async def test_a_file_of_the_url_that_cannot_be_used_is_named(
    tmp_path: Path, certificates: Certificates
) -> None:
    path, empty = certificates.path, tmp_path / "empty"
    empty.touch(mode=0o600)
    open_to_all = tmp_path / "open"
    open_to_all.write_text("word")
    open_to_all.chmod(0o640)
    ca = f"?ca={path('ca.pem')}"
    for options, why in [
        ("?ca=/nowhere/ca.pem", "cannot read ca=/nowhere/ca.pem: No such file"),
        (f"?ca={empty}", f"ca={empty} is no certificate"),
        (f"{ca}&cert={path('client.pem')}&key=/nowhere", "cannot read key=/nowhere"),
        (f"{ca}&cert={path('client.pem')}&key={path('server.key')}", "cannot be used"),
        ("?user=u&password_file=/nowhere", "cannot read password_file=/nowhere"),
        (f"?user=u&password_file={open_to_all}", f"chmod 600 {open_to_all}"),
        (f"?user=u&password_file={empty}", f"password_file={empty} is empty"),
    ]:
        with pytest.raises(Refused, match=why):
            await Prefix(NOWHERE, options=options).open()


def file_with(path: Path, word: str) -> Path:
    """Its owner's alone."""
    path.touch(mode=0o600)
    path.write_text(f"{word}\n")
    return path


def admit(member: Member) -> None:
    """From now on the user ckpt may work below the prefix "mine", and nobody without a password."""
    for name in ("root", "ckpt"):
        asked(member, "/v3/auth/user/add", {"name": name, "password": f"{name}-word"})
        asked(member, "/v3/auth/role/add", {"name": name})
        asked(member, "/v3/auth/user/grant", {"user": name, "role": name})
    granted = {"key": in_base64("mine:"), "range_end": in_base64("mine;")}
    permission = {"permType": "READWRITE", **granted}
    asked(member, "/v3/auth/role/grant", {"name": "ckpt", "perm": permission})
    asked(member, "/v3/auth/enable", {})


@on_a_loop
async def test_a_user_shows_a_password_and_writes_below_the_prefix_alone(tmp_path: Path) -> None:
    with Etcd(tmp_path / "etcd") as etcd:
        (member,) = etcd.members
        admit(member)
        right = file_with(tmp_path / "right", "ckpt-word")
        wrong = file_with(tmp_path / "wrong", "guessed")
        own = f"?user=ckpt&password_file={right}"
        async with writing(Prefix(etcd.addresses, "mine", own)) as writer:
            await writer.write(attempt(1))
            member.kill()  # With all that it knew of who has shown a password.
            member.start()
            await writer.write(attempt(2))
        image = await found(Prefix(etcd.addresses, "mine", own))
        assert set(image.rows) == {checkpoint(1), checkpoint(2)}
        for prefix, options in [
            ("mine", ""), ("mine", f"?user=ckpt&password_file={wrong}"), ("others", own)
        ]:  # fmt: skip
            with pytest.raises(Unauthorized, match="user= and password_file="):
                await Prefix(etcd.addresses, prefix, options).open()


@on_a_loop
async def test_an_etcd_that_tells_root_alone_how_it_is_takes_a_new_catalog(tmp_path: Path) -> None:
    """As 3.5.28 and 3.6 do, where users are asked for their names."""

    def decide(request: Request) -> Fault:
        of_root = ("/v3/maintenance/status", "/v3/cluster/member/list")
        return Fault.NOT_ROOT if request.path in of_root else Fault.NONE

    with Etcd(tmp_path / "etcd") as etcd, proxied(etcd.members[0], decide) as proxy:
        admit(etcd.members[0])
        own = f"?user=ckpt&password_file={file_with(tmp_path / 'password', 'ckpt-word')}"
        async with writing(Prefix(f"127.0.0.1:{proxy.port}", "mine", own)) as writer:
            await writer.write(attempt(1))


@pytest.mark.parametrize(
    "flags", [("--max-txn-ops", "64"), ("--max-request-bytes", "1048576")], ids=lambda each: each[0]
)
@on_a_loop
async def test_an_etcd_that_takes_less_at_once_is_refused_before_anything_is_written(
    tmp_path: Path, flags: tuple[str, str]
) -> None:
    with Etcd(tmp_path / "etcd", flags=flags) as etcd:
        place = Prefix(etcd.addresses)
        with pytest.raises(Refused, match=flags[0]):
            await place.open()
        assert names_in(etcd, place) == set()


@contextmanager
def old_etcd(version: str) -> Iterator[str]:
    """HOST:PORT of who says to be one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps({"etcdserver": version, "etcdcluster": version}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@on_a_loop
async def test_an_etcd_without_its_gateway_is_said(tmp_path: Path) -> None:
    why = "start it with --enable-grpc-gateway"
    with (
        Etcd(tmp_path / "etcd", flags=["--enable-grpc-gateway=false"]) as etcd,
        pytest.raises(Unavailable, match=why),
    ):
        await Prefix(etcd.addresses).open(patience_s=0.0)


@on_a_loop
async def test_an_etcd_older_than_3_4_is_refused_by_its_version() -> None:
    with old_etcd("3.3.25") as address, pytest.raises(Refused, match=r"is etcd 3\.3\.25"):
        await Prefix(address).open()


@pytest.mark.parametrize(
    ("name", "value", "kind", "why"),
    [
        ("somebody", "else", Refused, "keys that are no catalog's"),
        ("meta", '{"schema": 3, "cluster": "c1"}', Refused, "schema 3"),
        ("meta", "nonsense", Corrupt, "'meta' of .* cannot be read"),
    ],
)
@on_a_loop
async def test_what_is_no_catalog_of_this_version_is_left_as_it_is(
    etcd: Etcd, name: str, value: str, kind: type[CkptError], why: str
) -> None:
    place, (member,) = Prefix(etcd.addresses), etcd.members
    key = in_base64(f"{place.name}:{name}")
    asked(member, "/v3/kv/put", {"key": key, "value": in_base64(value)})
    with pytest.raises(kind, match=why):
        await place.open()
    assert names_in(etcd, place) == {name}


@on_a_loop
async def test_a_catalog_that_cannot_be_read_is_named_and_not_begun_again(etcd: Etcd) -> None:
    place, (member,) = Prefix(etcd.addresses), etcd.members
    async with writing(place) as writer:
        await writer.write(attempt(1))
    key = in_base64(f"{place.name}:position")
    asked(member, "/v3/kv/put", {"key": key, "value": in_base64("far")})
    for _ in range(2):  # The key of the leader was freed.
        with pytest.raises(Corrupt, match="'position' cannot be read"):
            await place.open()
    asked(member, "/v3/kv/deleterange", {"key": key})
    assert set((await found(place)).rows) == {checkpoint(1)}


@on_a_loop
async def test_members_of_two_etcds_are_refused_by_name(
    tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MEMBERS_S", 30.0)
    with Etcd(tmp_path / "etcd", 3) as other:
        (first,), second = etcd.members, other.members[1]
        place = Prefix(f"{NOWHERE},{first.address},{second.address}")
        why = f"{first.address} and {second.address} are members of different etcds"
        with pytest.raises(Refused, match=why):
            await place.open(patience_s=0.5)
        assert names_in(etcd, place) == set()
        second.kill()
        with pytest.raises(Unavailable, match=f"do not answer: {NOWHERE}, {second.address}"):
            await place.open(patience_s=0.5)
        async with writing(Prefix(first.address, place.name)) as writer:
            await writer.write(attempt(1))
        with pytest.raises(Unavailable, match="most members of"):
            await place.open(patience_s=0.5)


@on_a_loop
async def test_a_catalog_of_another_cluster_that_came_in_the_place_of_one_is_not_led(
    etcd: Etcd,
) -> None:
    place = Prefix(etcd.addresses)
    async with writing(place, new_cluster="c1") as writer:
        await writer.write(attempt(1))
    etcd_client = client.EtcdClient(parse_etcd_url(place.url))
    space = FencedSpace(etcd_client)
    deadline = asyncio.get_running_loop().time() + 30.0
    fence = await space.take(deadline)
    keeper = LeaseKeeper(space, fence, RevisionHistory())
    with pytest.raises(Refused, match="is of cluster c1, not c2"):
        await EtcdCatalog.load(space, fence, "c2", keeper, deadline)
    await etcd_client.close()
    assert value_of(etcd, place, "leader") is None
    assert set((await found(place)).rows) == {checkpoint(1)}


async def begin_as_before(place: Prefix) -> None:
    """As the version before the one that moves columns opens a catalog."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "SCHEMA_VERSION", keys.SCHEMA_UNFINISHED)
        await (await place.open()).close()


@on_a_loop
async def test_an_earlier_version_leads_until_the_upgrade_is_finished(etcd: Etcd) -> None:
    place, (member,) = Prefix(etcd.addresses), etcd.members
    key = in_base64(f"{place.name}:meta")
    made = '{"schema": 1, "cluster": "c1"}'
    asked(member, "/v3/kv/put", {"key": key, "value": in_base64(made)})
    async with writing(place) as writer:
        assert writer.catalog.image.protocol == OLDEST_VERSION
        await writer.write(attempt(1))
    await begin_as_before(place)
    async with writing(place) as writer:
        await writer.write(attempt(2), UpgradeFinished(PROTOCOL_VERSION))
        await writer.write(attempt(3))
    assert json.loads(value_of(etcd, place, "meta") or b"") == {"schema": 2, "cluster": "c1"}
    with pytest.raises(Refused, match="schema 2; this is 1"):
        await begin_as_before(place)
    image = await found(place)
    assert (image.protocol, len(image.rows)) == (PROTOCOL_VERSION, 3)


@on_a_loop
async def test_no_earlier_version_leads_a_catalog_that_this_one_began(etcd: Etcd) -> None:
    place = Prefix(etcd.addresses)
    assert (await found(place)).protocol == PROTOCOL_VERSION
    with pytest.raises(Refused, match="schema 2; this is 1"):
        await begin_as_before(place)
