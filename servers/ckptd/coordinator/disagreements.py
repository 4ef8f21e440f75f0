"""What do coordinators that share a catalog have to agree in, and do not?"""

from __future__ import annotations

from collections.abc import Mapping

from ckpt.aio.net.wire_policy import is_loopback
from ckptd.catalog.etcd.roll import Coordinator


def other_codes(known: Mapping[str, Coordinator]) -> str:
    """Coordinators that would plan saves with another code; empty if all that report one agree. The
    next leader may need more targets, or survive fewer losses.
    """
    codes = {id: one.code for id, one in sorted(known.items()) if one.code}
    if len(set(codes.values())) < 2:
        return ""
    return ", ".join(f"{id} has --code {code}" for id, code in codes.items())


def out_of_reach(known: Mapping[str, Coordinator]) -> str:
    """Which of several coordinators listen only on their own host; empty if none does."""
    if len({one.host for one in known.values()}) < 2:
        return ""
    alone = [id for id, one in sorted(known.items()) if is_loopback(_host(one.address))]
    return f"other hosts do not reach {', '.join(alone)}" if alone else ""


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
