"""An etcd that reaches its quota, and gets room again, as an operator would make it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Final

from tests.ha.members import Etcd
from tests.ha.places import asked, in_base64

QUOTA: Final = ("--quota-backend-bytes", str(16 << 20))
_JUNK: Final = "another's"
_JUNK_TEXT: Final = in_base64("x" * 500_000)
_PUTS_MAX: Final = 200
_FULL: Final = 429


def fill(etcd: Etcd) -> None:
    """By keys that are none of ours, until its alarm is raised."""
    for number in range(_PUTS_MAX):
        if not _put(etcd, number):
            return
    raise AssertionError(f"{_PUTS_MAX} values fit")


def make_room(etcd: Etcd) -> None:
    """Remove them, compact, defragment each member, end the alarm."""
    gone = {"key": in_base64(f"{_JUNK}/"), "range_end": in_base64(f"{_JUNK}0")}
    found = asked(etcd.members[0], "/v3/kv/deleterange", gone)
    revision = found["header"]["revision"]
    asked(etcd.members[0], "/v3/kv/compaction", {"revision": revision, "physical": True})
    for member in etcd.members:
        asked(member, "/v3/maintenance/defragment", {})
    alarms = asked(etcd.members[0], "/v3/maintenance/alarm", {"action": "GET"})["alarms"]
    for alarm in alarms:
        asked(etcd.members[0], "/v3/maintenance/alarm", {**alarm, "action": "DEACTIVATE"})


def _put(etcd: Etcd, number: int) -> bool:
    """False when it says that it is full."""
    key = in_base64(f"{_JUNK}/{number}")
    body = json.dumps({"key": key, "value": _JUNK_TEXT}).encode()
    url = f"http://{etcd.members[0].address}/v3/kv/put"
    try:
        urllib.request.urlopen(url, body, 30).close()
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != _FULL:
            raise
        return False
    return True
