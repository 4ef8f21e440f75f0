"""Estimate how likely a checkpoint is lost within a year, and how long some are out of reach.

The estimate is a Markov chain, solved exactly, from the code, failure domains, placement groups and
failure rates. For comparison it shows the same code placed anywhere, and three copies. What the
options do not say comes from the store that is named; without a store the options are enough.
Nothing is changed.

How fast lost columns are made again is what the store's repair has measured when it last did so.
Where nothing was measured, nothing is supposed to make them again, as where no `ckptd repair` runs:
redundancy returns when a target is back with its bytes, or when the step is saved again
(--step-life). --rebuild-rate supposes that each target spends so many bytes a second on it (0: no
repair); this is where large groups help. The output says which of these was used. How long a target
is waited for before that begins is the store's `rebuild_after_s`. --trials simulates so many years
of one group, target by target, under the same assumptions.

The model knows losses that come one by one, or a domain at a time, at constant rates. It knows no
power cuts, operators or bugs.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from ckpt.base.errors import Refused
from ckpt.base.ids import Domain, RunName, TargetId
from ckpt.base.units import format_age, format_bytes, format_seconds, parse_age, parse_bytes
from ckpt.erasure.code import Code
from ckpt_client.cli.cluster import Conversation, conversation
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output, Tone, age_text, counted

if TYPE_CHECKING:
    from ckpt.format.messages.repairs import RepairMeasured
    from ckpt.plan.durability.outlook import Conditions, Outlook, Tier
    from ckpt.plan.durability.trials import Tried

EXAMPLE = (
    "ckpt durability --store ckpt://10.0.0.1:7070\n"
    "ckpt durability --code 8+4 --targets 1024 --domains 128 --rebuild-rate 200MB"
)
LEVELS: Final = ("target", "device", "host", "rack", "power")
FAILURES: Final = 2.4
"""Failures of a host in a year: about 6.5 in 1,000 days of nodes, as a large training cluster
counted them (Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research
Clusters", HPCA 2025).
"""
PERMANENT: Final = 0.01
"""With FAILURES 2.4% a year: disks are replaced at 2 to 4% (Schroeder and Gibson, "Disk Failures in
the Real World: What Does an MTTF of 1,000,000 Hours Mean to You?", FAST 2007)."""
DOMAIN_FAILURES: Final = 0.1
"""About a rack once in ten years (Ford et al., "Availability in Globally Distributed Storage
Systems", OSDI 2010)."""
HOUR_S: Final = 3600
REBUILD_AFTER_S: Final = 300
"""As coordinators wait that are given no other time."""
PAYLOADS: Final = 1000
SEED: Final = 1
NINES_MAX: Final = 40
"""Most marks in the picture."""


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


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--code", metavar="K+M", type=Code.parse, help="erasure code [the store's]")
    parser.add_argument(
        "--targets", metavar="COUNT", type=_count, help="how many targets [the store's]"
    )
    parser.add_argument(
        "--domains", metavar="COUNT", type=_count,
        help="their failure domains [the store's, else one for each target]",
    )  # fmt: skip
    parser.add_argument("--level", choices=LEVELS, help="what a domain is [the store's, else host]")
    parser.add_argument(
        "--max-per-domain", metavar="COLUMNS", type=_count,
        help="most columns of a payload in one domain [1, or what a store with too few domains needs]",
    )  # fmt: skip
    parser.add_argument(
        "--payloads", metavar="COUNT", type=_count,
        help=f"payloads in the tier: ranks x steps [the store's, else {PAYLOADS}]",
    )  # fmt: skip
    parser.add_argument(
        "--target-bytes", metavar="BYTES", type=parse_bytes,
        help="bytes on one target [the store's]",
    )  # fmt: skip
    _configure_rates(parser)
    parser.add_argument(
        "--trials", metavar="COUNT", type=_count, help="years of one group to simulate [none]"
    )
    parser.add_argument(
        "--seed", metavar="NUMBER", type=int, default=SEED, help=f"of the trials [{SEED}]"
    )


def _configure_rates(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--afr", metavar="FAILURES", type=float, default=FAILURES,
        help=f"failures of a target in a year, whatever the cause [{FAILURES:g}]",
    )  # fmt: skip
    parser.add_argument(
        "--domain-afr", metavar="FAILURES", type=float, default=DOMAIN_FAILURES,
        help=f"failures of a domain, all its targets at once, in a year [{DOMAIN_FAILURES:g}]",
    )  # fmt: skip
    parser.add_argument(
        "--permanent", metavar="SHARE", type=float, default=PERMANENT,
        help=f"share of failures that destroy the bytes [{PERMANENT:g}]",
    )  # fmt: skip
    for flag, default, text in (
        ("--return-after", HOUR_S, "mean time until any other failed target is back"),
        ("--step-life", HOUR_S, "mean time until a step is saved again, or drained"),
    ):
        shown = format_age(default)
        parser.add_argument(
            flag, metavar="AGE", type=parse_age, default=default, help=f"{text} [{shown}]"
        )
    shown = format_age(REBUILD_AFTER_S)
    parser.add_argument(
        "--rebuild-after", metavar="AGE", type=parse_age,
        help=f"from a loss until a rebuild begins [the store's rebuild_after_s, else {shown}]",
    )  # fmt: skip
    parser.add_argument(
        "--rebuild-rate", metavar="BYTES", type=parse_bytes,
        help="bytes a second that each target spends on making columns again; 0: none"
        " [as the store's repair has measured, else 0]",
    )  # fmt: skip


def run(arguments: argparse.Namespace, output: Output) -> int:
    report = _report(arguments, *_tier(arguments, output))
    output.document(_document(report))
    _print(report, output)
    return ExitCode.OK


def _count(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return value


# --------------------------------------------------------------------------- what is asked about


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


def _report(
    arguments: argparse.Namespace, level: str, tier: Tier, known: _Known | None
) -> DurabilityReport:
    from random import Random

    from ckpt.plan.durability import outlook
    from ckpt.plan.durability.markov import loss_chance
    from ckpt.plan.durability.trials import tried

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


# --------------------------------------------------------------------------- as JSON


def _document(report: DurabilityReport) -> dict[str, object]:
    tier, found = report.tier, report.tried
    return {
        "code": str(tier.code),
        "targets": tier.targets,
        "domains": tier.domains,
        "level": report.level,
        "max_per_domain": tier.max_per_domain,
        "payloads": tier.payloads,
        "target_bytes": tier.target_bytes,
        "conditions": report.conditions,
        "rebuild_rate_from": _rate_source(report),
        "rebuild_after_from": report.wait_source,
        "measured": report.measured,
        "placements": [_outlook_document(each) for each in report.placements],
        "group_sizes": [_outlook_document(each) for each in report.group_sizes],
        "tried": found and {
            "groups": found.trials,
            "lost": found.losses,
            "interval": report.tried_interval,
            "group_loss_chance": report.group_chance,
        },
    }  # fmt: skip


def _rate_source(report: DurabilityReport) -> str:
    if report.measured is not None:
        return "measured"
    return "supposed" if report.conditions.rebuild_rate else "none"


def _outlook_document(outlook: Outlook) -> dict[str, object]:
    from ckpt.plan.durability.outlook import YEAR_S

    return {
        "name": outlook.name,
        "code": str(outlook.code),
        "stored_ratio": outlook.overhead,
        "groups": outlook.groups,
        "group_targets": outlook.group.targets,
        "group_domains": outlook.group.domains,
        "columns_survivable": outlook.group.loss_max,
        "rebuild_s": outlook.rebuild_s,
        "loss_chance": outlook.loss_chance,
        "away_s": outlook.away_chance * YEAR_S,
    }


# --------------------------------------------------------------------------- for people


def _print(report: DurabilityReport, output: Output) -> None:
    for line in (*_assumed(report), ""):
        output.line(line)
    _print_placements(report, output)
    output.line()
    _print_sizes(report, output)
    if report.tried is not None and report.tried_interval is not None:
        least, most = report.tried_interval
        output.line()
        output.line(
            f"tried: {report.tried.losses} of {counted(report.tried.trials, 'group')} lost data in"
            f" a year, so {least:.2g} to {most:.2g} do (95%);"
            f" by the chain {report.group_chance:.2g}"
        )


def _assumed(report: DurabilityReport) -> tuple[str, ...]:
    tier, level, rates = report.tier, report.level, report.conditions
    survived = report.placements[0].group.loss_max
    returned = "a target is back with its bytes, or the step is saved again or drained"
    made = f"supposed: nothing makes lost columns again; redundancy returns when {returned}"
    if report.measured is not None:
        made = (
            f"measured {age_text(report.measured.at_s)}: repair makes"
            f" {format_bytes(report.measured.bytes_per_s)}/s of lost columns again, from"
            f" {format_seconds(rates.rebuild_after_s)} after a loss on"
        )
    elif rates.rebuild_rate:
        made = (
            f"supposed: each target spends {format_bytes(rates.rebuild_rate)}/s on making lost"
            f" columns again, from {format_seconds(rates.rebuild_after_s)} after a loss on"
        )
    elif report.is_off:
        made = f"{made}; the coordinator says so (repair = false)"
    elif report.is_unmeasured:
        made = f"{made}; no repair was measured here (--rebuild-rate)"
    return (
        f"{counted(tier.targets, 'target')} in {counted(tier.domains, level)}, code {tier.code}:"
        f" a payload survives {counted(survived, 'column')} lost",
        f"a target fails {rates.failures:g} times a year, a {level} {rates.domain_failures:g}"
        f" times; {100 * rates.permanent:g}% for good, else back after"
        f" {format_seconds(rates.return_s)}",
        made,
        f"a step is needed for {format_seconds(rates.step_life_s)} on average;"
        f" {tier.payloads:g} payloads at once",
    )


def _print_placements(report: DurabilityReport, output: Output) -> None:
    from ckpt.plan.durability.outlook import YEAR_S

    head = ("placed in", ">stored", ">groups", ">lost in a year", ">one in", ">away in a year")
    rows = [
        (
            each.name, f"{each.overhead:.3g}x", str(each.groups), f"{each.loss_chance:.2g}",
            _one_in(each.loss_chance), f"<= {format_seconds(each.away_chance * YEAR_S)}",
        )
        for each in report.placements
    ]  # fmt: skip
    output.table(head, rows)


def _print_sizes(report: DurabilityReport, output: Output) -> None:
    head = (">group of", ">made again in", ">lost in a year", "nines: longer is safer")
    rows = [
        (
            each.name,
            "never" if each.rebuild_s is None else format_seconds(each.rebuild_s),
            f"{each.loss_chance:.2g}",
            nines(each.loss_chance),
        )
        for each in report.group_sizes
    ]
    output.table(head, rows)
    if any(each.loss_chance > 1e-3 for each in report.placements[:1]):
        output.line(output.tone("more than one year in a thousand costs data", Tone.WARN))


def _one_in(chance: float) -> str:
    if chance <= 0:
        return "-"
    years = 1 / chance
    return f"{years:,.0f} years" if years < 1e6 else f"{years:.1e} years"


def nines(chance: float) -> str:
    """A mark for each leading 9 of the chance that nothing is lost: `###` for 99.9%."""
    from math import log10

    count = NINES_MAX if chance <= 0 else min(NINES_MAX, int(-log10(chance) + 1e-9))
    return "#" * count
