"""What is wrong with a query of Prometheus? As far as that is seen from the metrics that there are:
names, labels and their values, and what each kind of metric is asked by. No query is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ckptd.http.exposition import Family, Kind
from tests.reference.metrics import OPEN, coordinator_metrics, target_metrics

_SELECTOR: Final = re.compile(r"\b(ckpt_\w+|up)\b(?:\{([^}]*)\})?(\[[\w$]+\])?")
_MATCHER: Final = re.compile(r'\s*(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"\s*')
_GROUPED: Final = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")
_OF_SCRAPES: Final = frozenset({"job", "instance", "reported_by"})
"""Labels that Prometheus adds, as docs/metrics.md has it scrape."""


@dataclass(frozen=True, slots=True)
class Series:
    """What is known of one name that a query may have."""

    grows: bool
    """It counts from a process's start, so it means something over a time alone."""
    labels: Mapping[str, frozenset[str]]
    """With all their values; no value: a cluster gives them."""


def known_series() -> dict[str, Series]:
    """By name; a histogram is three."""
    found = {"up": Series(False, {})}
    for family in (*coordinator_metrics(), *target_metrics()):
        labels = dict(_labels(family))
        if name := found.get(family.name):
            labels = {each: values | name.labels[each] for each, values in labels.items()}
        found[family.name] = Series(family.kind is Kind.COUNTER, labels)
        if family.kind is Kind.HISTOGRAM:
            del found[family.name]
            found |= {family.name + end: Series(True, labels) for end in ("_sum", "_count")}
            found[f"{family.name}_bucket"] = Series(True, labels | {"le": frozenset()})
    return found


def _labels(family: Family) -> Iterator[tuple[str, frozenset[str]]]:
    samples = [dict(labels) for labels, _ in (*family.samples, *family.histograms)]
    for label in samples[0]:
        values = frozenset(sample[label] for sample in samples)
        yield label, values if label not in OPEN and len(values) > 1 else frozenset()


def faults(query: str, known: Mapping[str, Series]) -> list[str]:
    """In words; none of a good one."""
    found = []
    if query.count("(") != query.count(")"):
        found.append("brackets do not match")
    labels: set[str] = set()
    for name, matchers, over in _SELECTOR.findall(query):
        series = known.get(name)
        if series is None:
            found.append(f"no metric {name}")
            continue
        labels |= {*series.labels, *_OF_SCRAPES}
        found += _matched(name, matchers, series)
        if series.grows and not over:
            found.append(f"{name} grows: ask for its rate")
        if over and not series.grows and "changes(" not in query:
            found.append(f"{name} does not grow: it has no rate")
    if not labels and not found:
        found.append("asks for nothing")
    for named in _GROUPED.findall(query):
        asked = {label.strip() for label in named.split(",")}
        found += [f"no label {label} to group by" for label in sorted(asked - labels)]
    if "histogram_quantile(" in query and not re.search(r"_bucket\b", query):
        found.append("a quantile is of buckets")
    return found


def _matched(name: str, matchers: str, series: Series) -> Iterator[str]:
    for matcher in filter(None, matchers.split(",")):
        parts = _MATCHER.fullmatch(matcher)
        if parts is None:
            yield f"{matcher!r} matches nothing"
        elif parts[1] not in {*series.labels, *_OF_SCRAPES}:
            yield f"{name} has no label {parts[1]}"
        elif values := series.labels.get(parts[1]):
            wrong = set(parts[2].split("|")) - values
            yield from (f"{parts[1]} of {name} is never {value}" for value in sorted(wrong))
