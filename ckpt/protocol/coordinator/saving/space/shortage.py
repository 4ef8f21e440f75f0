"""Why a save has not got its space: too few targets, or full ones; what is said of it, and to do.

`share`: of each target's space, what is kept for repair from the save that asks (kept_space.py).
"""

from __future__ import annotations

from collections import Counter

from ckpt.base.errors import NoSpace, Unavailable
from ckpt.base.ids import TargetId
from ckpt.base.units import counted, format_bytes
from ckpt.erasure.code import Code
from ckpt.protocol.coordinator.cluster.candidates import few_domains
from ckpt.protocol.coordinator.cluster.devices import (
    OTHERS_HOLD,
    OWN_HOLD,
    device_spaces,
    devices_text,
)
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.keeping.evicting import Evictor
from ckpt.protocol.coordinator.policy import SpreadRule
from ckpt.protocol.coordinator.saving.space.allotment import Allotment
from ckpt.protocol.coordinator.saving.space.kept_space import kept_bytes


class Shortage:
    """I look at the targets as they are now."""

    def __init__(self, members: Membership, evictor: Evictor, rule: SpreadRule) -> None:
        self._members = members
        self._rule = rule
        self._evictor = evictor

    def too_few(self, live: int, given: int, code: Code) -> Unavailable:
        """`given`: so many gave space."""
        leaving = self._members.leaving_text()
        hint = "start the missing targets (ckpt status shows them) and save again"
        if leaving:
            hint = "add targets, or say ckpt target undrain ID (in ID if it is out), and save again"
        domains = few_domains(self._members.live(), code.floor, self._rule)
        if domains and live >= code.floor:
            domains += ","
            hint = f"start targets in other {self._rule.level}s (--domain), and save again"
        return Unavailable(
            f"{counted(live, 'target', 'is', 'are')} live{domains} and {given} gave space, "
            f"{code.floor} are needed for {code}"
            f"{leaving}{self._members.silence()}{self._members.failing_text()}",
            hint=hint,
        )

    def full(self, allotment: Allotment, share: float) -> list[TargetId]:
        """Live targets that have no room, as they said when asked or at their last renewal.

        Those of one device share what it has free, as placement counts it too.
        """
        live = self._members.live()
        sharing = Counter(target.domain for target in live)
        wanted, size = allotment.layout.code.n, allotment.file_bytes
        return [
            target.id
            for target in live
            if target.bytes_free - kept_bytes(target, share) < size
            or target.device_bytes_free - kept_bytes(target, share)
            < size * min(wanted, sharing[target.domain])
            or (
                target.id in allotment.refused and allotment.refused[target.id].code == NoSpace.code
            )
        ]

    def no_space(self, allotment: Allotment, share: float, full: list[TargetId]) -> NoSpace:
        """What fills the devices of those, and when there may be room."""
        spaces = [
            d for d in device_spaces(self._members.live()) if not set(full).isdisjoint(d.targets)
        ]
        spaces.sort(key=lambda device: device.taken, reverse=True)
        size = allotment.file_bytes
        text = f"no space for columns of {format_bytes(size)} on {', '.join(full)}"
        # A quota, or a limit of a file's size, shows in nothing that its target counts.
        refusals = [allotment.refused[id] for id in full if id in allotment.refused]
        limited = next((refusal for refusal in refusals if refusal.hint), None)
        if limited is not None:
            text = f"{text}: {limited.message}"
        # A device that is filled fast has refused since its targets last said what they have.
        explained = [d for d in spaces if d.usable_bytes and d.left_bytes(share) < size]
        if explained:
            text = f"{text}: {devices_text(explained)}"
        if share and explained:
            text = f"{text}; the last {share:.0%} of each target are kept for repair"
        on_device = max(Counter(target.domain for target in self._members.live()).values())
        kept = max(kept_bytes(target, share) for target in self._members.live())
        room = self._evictor.no_room(kept + size * min(allotment.layout.code.n, on_device))
        usual = OTHERS_HOLD if spaces[0].is_held_by_others else OWN_HOLD
        return NoSpace(
            f"{text}; {room.reason}" if room.reason else text,
            hint=usual if limited is None else limited.hint,
            retry_after_s=room.retry_s,
        )
