"""What `ckpt durability` estimates, of the tier as the options and the store say it is."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from ckpt.base.errors import Refused
from ckpt.base.ids import Domain, RunName, TargetId
from ckpt.erasure.code import Code
from ckpt_client.cli.cluster import Conversation, conversation
from ckpt_client.cli.output import Output

if TYPE_CHECKING:
    from ckpt.format.messages.repairs import RepairMeasured
    from ckpt.plan.durability.outlook import Conditions, Outlook, Tier
    from ckpt.plan.durability.trials import Tried

REBUILD_AFTER_S: Final = 300
"""As coordinators wait that are given no other time."""
PAYLOADS: Final = 1000


class DurabilityReport(Struct, frozen=True):
    """What the command prints."""

    tier: Tier
    level: str
    measured: RepairMeasured | None
    """The rate of repair that was taken, where it is the store's own."""
    is_unmeasured: bool
    """The store that was asked has made nothing again that was worth it."""
    is_off: bool
    """Its coordinator makes nothing again (repair = false), and no flag supposes that it does."""
    wait_source: str
    """Where the wait before a rebuild comes from: `flag`, `store` or `default`."""
    conditions: Conditions
    placements: tuple[Outlook, ...]
    """Columns placed as they are, columns placed anywhere, and three copies."""
    group_sizes: tuple[Outlook, ...]
    tried: Tried | None
    """Trials of one group, placed as it is."""
    tried_interval: tuple[float, float] | None
    """The 95% interval of `tried`."""
    group_chance: float
    """The chance that the Markov chain gives for one group, placed as it is."""


class _Known(Struct, frozen=True):
    """What a store says of itself."""

    code: Code
    targets: int
    domains: int
    level: str
    payloads: int
    target_bytes: int
    rebuild_after_s: float | None
    """None: nothing is made again."""
    measured: RepairMeasured | None


def _tier(arguments: argparse.Namespace, output: Output) -> tuple[str, Tier, _Known | None]:
    """The level of its domains, the tier, and what the store says, if one is named. Raises Refused
    where nobody says what it is.
    """
    from ckpt.plan.durability.outlook import Tier

    known: _Known | None = None
    if _names_store(arguments):
        with conversation(arguments, output) as talk:
            known = _known(talk, arguments.level)
    elif arguments.code is None or arguments.targets is None:
        raise Refused(
            "neither a store nor --code and --targets say what the tier is",
            hint="--store URL, or such as --code 4+2 --targets 96 --domains 12",
        )
    code: Code = arguments.code if known is None or arguments.code else known.code
    targets: int = arguments.targets or (known.targets if known else 0)
    domains: int = arguments.domains or (known.domains if known else targets)
    # With fewer targets than the store's, domains are fewer as well.
    domains = domains if arguments.domains else min(domains, targets)
    tier = Tier(
        code,
        targets,
        domains,
        arguments.max_per_domain or (-(-code.n // domains) if known else 1),
        arguments.payloads or (known.payloads if known else 0) or PAYLOADS,
        arguments.target_bytes or (known.target_bytes if known else 0),
    )
    level: str = arguments.level or (known.level if known else "host")
    return level, tier, known


def _names_store(arguments: argparse.Namespace) -> bool:
    return bool(arguments.store or os.environ.get("CKPT_STORE"))


def _known(talk: Conversation, wanted: str | None) -> _Known:
    from ckpt.plan.placement import check_level, domain_key

    status, repair = talk.status(), talk.repair()
    steps = [step for run in status.runs for step in talk.steps(RunName(run.run))]
    level = check_level(wanted or (steps[-1].domain_level if steps else "host"))
    domains = {
        domain_key(TargetId(target.id), Domain.parse(target.domain), level)
        for target in status.targets
    }
    used = [target.bytes_used for target in status.targets]
    return _Known(
        Code.parse(status.code),
        len(used),
        len(domains),
        level,
        sum(step.world_size for step in steps),
        sum(used) // max(1, len(used)),
        repair.rebuild_after_s,
        repair.measured,
    )


def _rate_of(measured: RepairMeasured, tier: Tier) -> float:
    """Of each target that helps: as fast as all of them together, who are a group, made what one of
    them had."""
    from ckpt.plan.durability import outlook

    helpers = max(1, outlook.placed_group(tier).targets - 1)
    return measured.bytes_per_s * (tier.code.k + 1) / helpers


def _wait_s(arguments: argparse.Namespace, known: _Known | None) -> tuple[float, str]:
    """Before a rebuild begins, and who says so."""
    if arguments.rebuild_after is not None:
        return float(arguments.rebuild_after), "flag"
    if known is not None and known.rebuild_after_s is not None:
        return known.rebuild_after_s, "store"
    return float(REBUILD_AFTER_S), "default"


def report_of(arguments: argparse.Namespace, output: Output) -> DurabilityReport:
    """Raises Refused where neither a store nor the options say what the tier is."""
    from random import Random

    from ckpt.plan.durability import outlook
    from ckpt.plan.durability.markov import loss_chance
    from ckpt.plan.durability.trials import tried

    level, tier, known = _tier(arguments, output)
    is_said = arguments.rebuild_rate is not None
    is_off = known is not None and known.rebuild_after_s is None and not is_said
    is_taken = known is not None and tier.target_bytes and not is_off and not is_said
    measured = known.measured if known is not None and is_taken else None
    wait_s, wait_source = _wait_s(arguments, known)
    conditions = outlook.Conditions(
        arguments.afr,
        arguments.domain_afr,
        arguments.permanent,
        float(arguments.return_after),
        float(arguments.step_life),
        _rate_of(measured, tier) if measured else float(arguments.rebuild_rate or 0),
        wait_s,
    )
    if arguments.rebuild_rate and not tier.target_bytes:
        raise Refused("how long a rebuild takes depends on the bytes", hint="--target-bytes BYTES")
    placed = outlook.as_placed(tier, conditions)
    others = (outlook.at_random(tier, conditions), outlook.replicated(tier, conditions))
    hazards = outlook.hazards_of(placed.group, conditions, tier.target_bytes)
    found: Tried | None = None
    if arguments.trials:
        found = tried(placed.group, hazards, arguments.trials, Random(arguments.seed).random)
    return DurabilityReport(
        tier,
        level,
        measured,
        measured is None and not is_said and not is_off and known is not None,
        is_off,
        wait_source,
        conditions,
        (placed, *(each for each in others if each is not None)),
        tuple(outlook.by_group_size(tier, conditions)),
        found,
        found.interval if found else None,
        loss_chance(placed.group, hazards),
    )
