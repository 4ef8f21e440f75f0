"""The etcd of these tests is real, and is of three members where a test wants that."""

from __future__ import annotations

from pathlib import Path

from tests.ha.members import Etcd
from tests.ha.places import asked

ONE = {"key": "YQ==", "value": "MQ=="}
TWO = {"key": "YQ==", "value": "Mg=="}


def test_a_member_answers_and_says_its_version(etcd: Etcd) -> None:
    (member,) = etcd.members
    assert str(asked(member, "/version")["etcdserver"]).startswith("3.")


def test_three_members_are_one_and_a_killed_one_comes_back(tmp_path: Path) -> None:
    with Etcd(tmp_path, 3) as etcd:
        first, second, third = etcd.members
        asked(first, "/v3/kv/put", ONE)
        first.kill()
        asked(second, "/v3/kv/put", TWO)
        first.start()
        first.wait_up()
        for member in (first, third):
            found = asked(member, "/v3/kv/range", {"key": TWO["key"]})
            assert found["count"] == "1"
            assert TWO["value"] in str(found["kvs"])
