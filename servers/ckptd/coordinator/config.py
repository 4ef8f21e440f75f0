"""Options of `ckptd coordinator`."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, cast, get_args

from ckpt.aio.net.wire_policy import WirePolicy
from ckpt.base.errors import Refused
from ckpt.base.limits import BLOCK_BYTES, CELL_BYTES_MAX
from ckpt.base.units import US_PER_S, MiB
from ckpt.erasure.code import Code
from ckpt.format.messages.repairs import RepairLimits, check_limits
from ckpt.plan.placement import Level
from ckpt.protocol.coordinator.machine import CoordinatorPolicy
from ckpt.protocol.coordinator.policy import FillMarks, Watermarks
from ckptd import config as options
from ckptd.catalog.etcd.url import mending_command as mending_in_etcd
from ckptd.catalog.etcd.url import parse_etcd_url
from ckptd.catalog.file import mending_command

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_ID: Final = re.compile(r"[A-Za-z0-9._-]{0,64}")
_OF_ONE: Final = frozenset(
    {
        "directory", "catalog", "id", "listen", "advertise", "http", "cluster", "code", "log_level",
    }
)  # fmt: skip
"""Options that each coordinator has for itself, or that are compared otherwise."""


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """Options of `ckptd coordinator`, from TOML, environment or flags."""

    directory: Path
    """Holds the catalog, its lock and the metrics token."""
    catalog: Annotated[str, "URL"] = ""
    """etcd://H:P[,H:P...]/PREFIX?ca=&cert=&key=&user=&password_file=&insecure=1 for a catalog in
    that etcd; empty for SQLite in the directory."""
    id: Annotated[str, "ID"] = ""
    """Its name among the coordinators that share a catalog in etcd; empty takes this host's."""
    listen: Annotated[str, "HOST:PORT"] = "127.0.0.1:7070"
    """Where targets and clients connect; port 0 takes a free one."""
    advertise: Annotated[str, "HOST"] = ""
    """The host that others reach it by; empty takes that of listen."""
    http: Annotated[str, "HOST:PORT"] = ""
    """Where it serves the page, metrics and tools; empty for none."""
    cluster: Annotated[str, "ID"] = ""
    """The cluster's id; empty takes the catalog's, or a new one for a new catalog."""
    code: Annotated[str, "K+M"] = "4+2"
    """Erasure code of new saves."""
    cell_bytes: int = 0
    """Size of one fragment of new saves; 0: 8 MiB for large payloads, 4 MiB for others and while an
    upgrade from 0.1.0 is not finished."""
    level: Annotated[str, "target|device|host|rack|power"] = "host"
    """The kind of failure domain over which a payload's columns are spread."""
    max_per_domain: Annotated[int, "COLUMNS"] = 1
    """Columns of a payload in one domain of that level."""
    spare_count: Annotated[int, "TARGETS"] = 1
    """Spare targets for each payload."""
    orphan_grace_s: int = 60
    """How long after a restart streams may use space that the previous coordinator reserved, if
    none of its saves is under way.
    """
    repair: bool = True
    """Restore lost redundancy: copies of documents here, columns by ckptd repair."""
    rebuild_after_s: int = 300
    """Once a target is away for this long, ckptd repair makes its columns again elsewhere."""
    repair_floor_bytes: Annotated[int, "BYTES/S"] = 8 * MiB
    """Most bytes a second that repair may take of each target while somebody saves or loads."""
    repair_cap_bytes: Annotated[int, "BYTES/S"] = 0
    """Most bytes a second that repair may take of each target while nobody does; 0 is no cap."""
    balance_above_percent: int = 85
    """When more than this of a device's space is taken, ckptd repair moves columns to emptier
    devices; 0: never by itself."""
    keep: Annotated[int, "STEPS"] = 0
    """Newest committed steps of a run to keep; 0 keeps all."""
    evict_above_percent: int = 85
    """When more than this of the fullest device is taken, drained steps are evicted, oldest first;
    100: never by itself."""
    evict_below_percent: int = 70
    """Eviction stops below this."""
    nearfull_percent: int = 85
    """TARGET_NEARFULL is reported while columns and other files hold this much of a device, less
    its reserve.
    """
    full_percent: int = 95
    """The same for TARGET_FULL."""
    wire: Annotated[str, "auto|mac|encrypt|plain"] = "auto"
    """Protection of what is said over TCP: auto, a tag on bulks from and to other hosts, so that
    nobody on the way can change them; mac, a tag on all bulks; encrypt, everything is encrypted, so
    that nobody can read it; plain, no tags, where the network is trusted.
    """
    log_level: Annotated[str, "info|warning|error"] = "info"
    """Log events of this severity and above."""

    def __post_init__(self) -> None:
        if self.catalog:
            parse_etcd_url(self.catalog)
        elif self.id:
            raise Refused("id is for coordinators that share a catalog in etcd: give --catalog too")
        if not _ID.fullmatch(self.id):
            raise Refused(f"id {self.id!r}: at most 64 letters, digits and . _ -")
        Code.parse(self.code)
        options.host_and_port(self.listen)
        if self.advertise and not _is_host(self.advertise):
            raise Refused(f"advertise {self.advertise!r}: a host's name or number, without a port")
        WirePolicy.parse(self.wire)
        if self.http:
            options.host_and_port(self.http)
        if self.level not in get_args(Level):
            raise Refused(f"level {self.level!r}: one of {', '.join(get_args(Level))}")
        if self.cell_bytes % BLOCK_BYTES or not 0 <= self.cell_bytes <= CELL_BYTES_MAX:
            raise Refused(
                f"cell_bytes {self.cell_bytes}: 0, or a multiple of {BLOCK_BYTES}"
                f" up to {CELL_BYTES_MAX}"
            )
        if self.max_per_domain < 1:
            raise Refused("max_per_domain is at least 1")
        if min(self.spare_count, self.orphan_grace_s, self.keep, self.rebuild_after_s) < 0:
            text = "spare_count, orphan_grace_s, keep and rebuild_after_s are at least 0"
            raise Refused(text)
        check_limits(self._repair_limits)
        if not 0 <= self.evict_below_percent <= self.evict_above_percent <= 100:
            raise Refused("0 <= evict_below_percent <= evict_above_percent <= 100")
        if not 0 <= self.balance_above_percent <= 100:
            raise Refused("balance_above_percent is from 0 to 100")
        if not 0 < self.nearfull_percent <= self.full_percent <= 100:
            raise Refused("0 < nearfull_percent <= full_percent <= 100")

    @property
    def shape(self) -> str:
        """What a cluster is like that this one leads: the code, and the options that are not as
        usual.
        """
        words = [self.code]
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in _OF_ONE and value != each.default:
                option = each.name.replace("_", "-")
                words.append(f"--no-{option}" if value is False else f"--{option} {value}")
        return " ".join(words)

    @property
    def _repair_limits(self) -> RepairLimits:
        return RepairLimits(self.repair_floor_bytes, self.repair_cap_bytes)

    @property
    def _mend(self) -> str:
        if self.catalog:
            return mending_in_etcd(self.catalog, "{targets}")
        return mending_command(self.directory, "{targets}")

    def policy(self, cluster: str) -> CoordinatorPolicy:
        """As the machine wants it."""
        return CoordinatorPolicy(
            cluster=cluster,
            code=Code.parse(self.code),
            cell_bytes=self.cell_bytes or None,
            level=cast(Level, self.level),
            max_per_domain=self.max_per_domain,
            spare_count=self.spare_count,
            orphan_grace_us=self.orphan_grace_s * US_PER_S,
            rebuild_after_us=self.rebuild_after_s * US_PER_S if self.repair else None,
            repair=self._repair_limits,
            keep=self.keep or None,
            watermarks=Watermarks(self.evict_below_percent / 100, self.evict_above_percent / 100),
            balance_above=self.balance_above_percent / 100 or None,
            fill=FillMarks(self.nearfull_percent / 100, self.full_percent / 100),
            mend=self._mend,
        )


def _is_host(text: str) -> bool:
    """A name, or an address of either kind."""
    if ":" not in text:
        return _NAME.fullmatch(text) is not None
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
