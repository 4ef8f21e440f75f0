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
from typing import TYPE_CHECKING, Final

from ckpt.base.units import (
    counted,
    format_age,
    format_bytes,
    format_seconds,
    parse_age,
    parse_bytes,
)
from ckpt.erasure.code import Code
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output, age_text
from ckpt_client.cli.tables import Tone
from ckpt_client.cli.upkeep.durability_report import (
    PAYLOADS,
    REBUILD_AFTER_S,
    DurabilityReport,
    report_of,
)

if TYPE_CHECKING:
    from ckpt.plan.durability.outlook import Outlook

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
SEED: Final = 1
NINES_MAX: Final = 40
"""Most marks in the picture."""


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
    report = report_of(arguments, output)
    output.document(_document(report))
    _print(report, output)
    return ExitCode.OK


def _count(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return value


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
    for line in _assumed(report):
        output.prose("", line)
    output.line()
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
    output.table(head, rows, spare=("groups",))


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
