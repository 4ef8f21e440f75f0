"""The blocks of the page of metrics: what a coordinator exports, what a target does, and both.

The families are those that the daemons render, of a coordinator that has committed a step and of a
target that has refused a column, so that each has a sample to show its labels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from typing import Final

from ckpt.aio.net.serving.server_limits import Pressure, ServerStatistics
from ckpt.base.ids import BootId, TargetId
from ckpt.protocol.coordinator.reading.answers import StoreStatus
from ckpt.protocol.target.core import TargetIdentity, TargetLimits
from ckpt.protocol.target.counters import Counters
from ckpt.protocol.target.machine import TargetMachine
from ckptd.coordinator.metrics import CommitStatistics, coordinator_families, leading_families
from ckptd.http.exposition import Family, Histogram, Kind
from ckptd.target.metrics import target_families
from tests.pages import ROOT
from tests.protocol.coordinating import Bench
from tests.reference.blocks import table

RULES: Final = ROOT / "docs" / "examples" / "ckpt_alerts.yaml"
_HEAD: Final = ("metric", "type, unit", "labels", "meaning")
OPEN: Final = ("target", "run", "store", "device", "check")
"""Labels that a cluster gives their values, and one whose values have a page of their own."""
_UNITS: Final = (
    ("_timestamp_seconds", "Unix time"),
    ("_bytes_per_second", "bytes/s"),
    ("_seconds", "s"),
    ("_bytes", "bytes"),
)


def metrics_blocks() -> dict[str, str]:
    """Tables, by who exports what."""
    coordinator, target = _by_name(coordinator_metrics()), _by_name(target_metrics())
    both = [name for name in coordinator if name in target]
    alone = [family for name, family in coordinator.items() if name not in target]
    own = [family for name, family in target.items() if name not in coordinator]
    shared = [(coordinator[name], target[name]) for name in both]
    return {
        "coordinator": table(_HEAD, (_row(family, family.help) for family in alone)),
        "target": table(_HEAD, (_row(family, family.help) for family in own)),
        "both": table(_HEAD, (_row(one, _meaning(one, other)) for one, other in shared)),
        "rules": f"\n```yaml\n{RULES.read_text()}```\n\n",
    }


def metric_names() -> set[str]:
    """All, as a query spells them: a histogram is three."""
    names = set()
    for family in (*coordinator_metrics(), *target_metrics()):
        ends = ("_bucket", "_sum", "_count") if family.kind is Kind.HISTOGRAM else ()
        names |= {family.name, *(family.name + end for end in ends)}
    return names


def not_on_the_page(text: str) -> list[str]:
    """Of the metrics of a daemon's answer, those that docs/metrics.md does not list."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    told = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert told
    return [name for name in told if f"| `{name}` |" not in page]


def coordinator_metrics() -> list[Family]:
    """Of one that committed a step, drains, and has targets."""
    bench = Bench()
    bench.save(1)
    machine = bench.machine
    for target in machine.members.targets.values():
        target.counters = Counters().as_dict()
    store = StoreStatus("s3://bucket", "draining", backlog=1, oldest_undrained_at_s=1.0, end_in_s=1)
    families = coordinator_families(
        version="1",
        machine=machine,
        statistics=CommitStatistics(),
        sessions=Counter(),
        tickets_waiting=0,
        catalog_full=False,
        stores=[store],
        pressure=Pressure(),
    )
    times = Histogram((1.0,))
    leading = leading_families(leads=True, takeovers=1, written_s=times, written_bytes=1)
    return [*families, *leading]


def target_metrics() -> list[Family]:
    """Of one that refused a column."""
    identity = TargetIdentity("c1", TargetId("t1"), BootId(1), "p/r/h/d")
    machine = TargetMachine(identity, bytes(32), TargetLimits())
    machine._core.count_refusal("busy")
    families = target_families(
        version="1",
        machine=machine,
        statistics=ServerStatistics(**dict.fromkeys((f.name for f in fields(ServerStatistics)), 0)),
        sync_s=Histogram((1.0,)),
        pools={"receive": (0, 0), "read": (0, 0)},
    )
    return list(families)


def _by_name(families: Iterable[Family]) -> dict[str, Family]:
    return {family.name: family for family in families}


def _row(family: Family, meaning: str) -> tuple[str, ...]:
    unit = _unit(family, meaning)
    kind = f"{family.kind.value}, {unit}" if unit else family.kind.value
    return f"`{family.name}`", kind, _labels(family), meaning


def _labels(family: Family) -> str:
    """With their values, where these are the code's."""
    samples = [labels for labels, _ in (*family.samples, *family.histograms)]
    assert samples, f"{family.name} has no sample that would show its labels"
    shown = []
    for name in dict(samples[0]):
        values = list(dict.fromkeys(dict(labels)[name] for labels in samples))
        listed = len(values) > 1 and name not in OPEN
        shown.append(f"`{name}`: {', '.join(values)}" if listed else f"`{name}`")
    return "; ".join(shown)


def _unit(family: Family, meaning: str) -> str:
    name = family.name.removesuffix("_total") if family.kind is Kind.COUNTER else family.name
    unit = next((unit for end, unit in _UNITS if name.endswith(end)), "")
    if not unit and meaning.startswith("1 "):
        return "0 or 1"
    words = name.split("_")
    return unit or "bytes" * ("bytes" in words) or "s" * ("seconds" in words)


def _meaning(one: Family, other: Family) -> str:
    """Of what both export."""
    if one.help == other.help:
        return one.help
    return f"{one.help} From the target itself: {other.help}"
