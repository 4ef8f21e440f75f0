"""How much loss a checkpoint was made to survive, in a reader's words."""

from __future__ import annotations

from dataclasses import dataclass

from ckpt.base.units import counted


@dataclass(frozen=True, slots=True)
class RedundancyAtCommit:
    """What the checkpoint survived losing when it was committed."""

    targets_survivable: int
    domains_survivable: int
    domain_level: str

    def __str__(self) -> str:
        domains = counted(self.domains_survivable, self.domain_level)
        return f"survives {counted(self.targets_survivable, 'target')}, {domains}"
