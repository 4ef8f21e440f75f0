"""What etcd refuses keeps its meaning, whichever gateway says it."""

from __future__ import annotations

import pytest

from ckpt.base.errors import CkptError, NoSpace, Refused, Unauthorized, Unavailable
from ckptd.catalog.etcd.url import parse_etcd_url
from ckptd.catalog.etcd.words import StaleToken, failure_of

URL = parse_etcd_url("etcd://127.0.0.1:2379/mine")
SAID = [
    (3, "etcdserver: request is too large", Refused),
    (3, "etcdserver: user name is empty", Unauthorized),
    (3, "etcdserver: authentication failed, invalid user ID or password", Unauthorized),
    (7, "etcdserver: permission denied", Unauthorized),
    (8, "etcdserver: mvcc: database space exceeded", NoSpace),
    (14, "etcdserver: leader changed", Unavailable),
    (16, "etcdserver: invalid auth token", StaleToken),
]


@pytest.mark.parametrize(("code", "text", "kind"), SAID)
@pytest.mark.parametrize(
    "gateway", ['"error":"{0}","message":"{0}","code":{1}', '"code":{1}, "message":"{0}"']
)
def test_a_refusal_means_the_same_through_both_gateways(
    gateway: str, code: int, text: str, kind: type[CkptError]
) -> None:
    """etcd 3.4 and 3.5 have the first one, 3.6 the second, and so Debian's later 3.5."""
    content = ("{" + gateway.replace("{0}", text).replace("{1}", str(code)) + "}").encode()
    found = failure_of(400, content, URL)
    assert type(found) is kind
    assert text in str(found)
