"""What a store was opened with, checked; unset options take the environment's word."""

from __future__ import annotations

import os

import msgspec

from ckpt.base.errors import Refused
from ckpt.base.ids import whole_number
from ckpt.base.units import check_seconds
from ckpt.format.messages.saving import ReplicaPolicy
from ckpt.protocol.stager.events import FullPolicy, Unchanged
from ckpt_client.control_group import limited_groups
from ckpt_client.environment import find_launch_key


class Settings(msgspec.Struct, frozen=True):
    """`open`'s options, checked."""

    launch: str | None
    replicas: str
    when_full: str
    unchanged: str
    references: bool
    arena_bytes_max: int
    stager_idle_s: float
    start_timeout_s: float
    durable: str
    """Empty for none."""


def checked_settings(
    *,
    launch: str | None,
    replicas: str,
    when_full: str,
    unchanged: str,
    references: bool,
    arena_bytes_max: int | None,
    stager_idle_s: float,
    start_timeout_s: float,
    durable: str | None,
) -> Settings:
    """Raises Refused by option."""
    return Settings(
        launch=find_launch_key(launch),
        replicas=_choice("replicas", replicas, ReplicaPolicy),
        when_full=_choice("when_full", when_full, FullPolicy),
        unchanged=_choice("unchanged", unchanged, Unchanged),
        references=_yes_or_no("references", references),
        arena_bytes_max=_half_of_memory() if arena_bytes_max is None else _size(arena_bytes_max),
        stager_idle_s=check_seconds("stager_idle_s", stager_idle_s),
        start_timeout_s=check_seconds("start_timeout_s", start_timeout_s),
        durable=_place(durable or os.environ.get("CKPT_DURABLE", "")),
    )


def _size(arena_bytes_max: int) -> int:
    count = whole_number(arena_bytes_max)
    if count is None or not 0 < count < 1 << 63:
        raise Refused(f"arena_bytes_max={arena_bytes_max!r} is not a number of bytes")
    return count


def _yes_or_no(name: str, value: bool) -> bool:
    if value not in (True, False):
        raise Refused(f"{name}={value!r} is not True or False")
    return bool(value)


def _place(durable: str) -> str:
    """Whether it can be opened is found out by the first load that needs it."""
    scheme, separator, rest = durable.partition("://") if isinstance(durable, str) else ("",) * 3
    if durable and not (scheme and separator and rest):
        raise Refused(
            f"durable={durable!r} is not the URL of an object store",
            hint="such as s3://BUCKET/PREFIX or file:///DIR; look at $CKPT_DURABLE",
        )
    return durable


def _choice(
    name: str, value: str, kind: type[ReplicaPolicy] | type[FullPolicy] | type[Unchanged]
) -> str:
    known = [one.value for one in kind]
    if value not in known:
        raise Refused(f"{name}={value!r} is not one of {', '.join(known)}")
    return value


def _half_of_memory() -> int:
    """Of the host's, or of what a job's control group may have where that is less."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([host, *(group.limit_bytes for group in limited_groups())]) // 2
