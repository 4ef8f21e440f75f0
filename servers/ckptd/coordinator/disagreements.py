"""What do coordinators that share a catalog have to agree in, and do not?"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import Final

from ckpt.aio.net.wire_policy import is_loopback
from ckpt.base.errors import CkptError, Refused
from ckpt.protocol.coordinator.leading import KeyHolder
from ckptd.catalog.etcd.roll import Coordinator
from ckptd.log import Reporter

_MARK_BYTES: Final = 8


def other_codes(known: Mapping[str, Coordinator]) -> str:
    """Coordinators with another code, or other options that shape a cluster; empty if all that
    report them agree. The next leader may need more targets, survive fewer losses, or keep less.
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


class SecretWatch:
    """I look whether who leads has this coordinator's secret. With another one it could not even
    stand by: it would take over from who leads, and no target and no trainer would let it in.
    """

    def __init__(
        self, secret: bytes, cluster: str, report: Reporter, refuse: Callable[[CkptError], None]
    ) -> None:
        """refuse: hears why a coordinator that has just started is to end."""
        mac = hmac.digest(secret, f"ckpt coordinator {cluster}".encode(), "sha256")
        self.mark = mac[:_MARK_BYTES].hex()
        self._report = report
        self._refuse = refuse
        #: Of the key whose holder was named.
        self._named = 0

    def look(self, holder: KeyHolder | None, *, is_new: bool) -> None:
        """`is_new`: this coordinator has not stood by or led yet."""
        if holder is None or holder.secret_mark in ("", self.mark):
            return
        error = Refused(
            f"coordinator {holder.id} leads with another secret than this one has",
            hint="give all coordinators of a cluster the same secret file",
        )
        if is_new:
            self._refuse(error)
        elif holder.revision != self._named:
            # It came last: those that were here are right.
            self._named = holder.revision
            self._report("error", error.message, {"remedy": error.hint, "address": holder.address})


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
