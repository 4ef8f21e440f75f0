"""The rules for Prometheus and the dashboard for Grafana that the pages give away ask for what the
daemons say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ckpt.protocol.coordinator.reading.checks import BY_COMMANDS, CHECKS
from tests.pages import ROOT
from tests.reference.metrics import RULES
from tests.reference.queries import faults, known_series

DASHBOARD = ROOT / "docs" / "examples" / "ckpt_dashboard.json"
DURATION = re.compile(r"[1-9]\d*[smhd]")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    assert group["name"] == "ckpt"
    found: list[dict[str, Any]] = group["rules"]
    return found


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def queries() -> Iterator[tuple[str, str]]:
    """Whose, and what."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    page = (ROOT / "docs" / "metrics.md").read_text().partition("## Questions")[2]
    for line in page.partition("\n## ")[0].splitlines():
        if line.startswith("| ") and "`" in line:
            yield line.split("|")[1].strip(), line.split("`")[1]


def test_each_query_asks_for_what_is_there() -> None:
    known = known_series()
    asked = list(queries())
    assert len(asked) > 50
    assert {who: wrong for who, query in asked if (wrong := faults(query, known))} == {}


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("ckpt_target_ups == 0", "no metric ckpt_target_ups"),
        ("sum(ckpt_target_up", "brackets do not match"),
        ("vector(1)", "asks for nothing"),
        ('ckpt_target_up{rank="3"} == 0', "ckpt_target_up has no label rank"),
        ('ckpt_checkpoints{state="lost"} > 0', "state of ckpt_checkpoints is never lost"),
        ("ckpt_checkpoints{state=damaged} > 0", "'state=damaged' matches nothing"),
        ("ckpt_save_aborted_total > 3", "ckpt_save_aborted_total grows: ask for its rate"),
        ("rate(ckpt_target_up[1h])", "ckpt_target_up does not grow: it has no rate"),
        ("sum by (rack) (ckpt_target_up)", "no label rack to group by"),
        ("histogram_quantile(0.5, rate(ckpt_save_stall_seconds_sum[1h]))", "a quantile is of"),
        ("rate(ckpt_save_stall_seconds[1h])", "no metric ckpt_save_stall_seconds"),
    ],
)
def test_a_query_that_asks_for_nothing_is_found(query: str, fault: str) -> None:
    (found,) = faults(query, known_series())
    assert found.startswith(fault)


def test_a_rule_has_a_name_of_its_own_and_says_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule.keys() <= {"alert", "expr", "for", "annotations"}
        assert DURATION.fullmatch(rule.get("for", "1m")), rule["alert"]
        summary = rule["annotations"]["summary"]
        known = known_series()
        for label in re.findall(r"\$labels\.(\w+)", summary):
            asked = re.findall(r"\bckpt_\w+|\bup\b", rule["expr"])
            labels = {each for name in asked if name in known for each in known[name].labels}
            assert label in labels | {"instance", "job"}, rule["alert"]


def test_each_check_that_a_coordinator_makes_is_heard_of() -> None:
    """By its severity; the others are of a coordinator that does not answer."""
    heard = {rule["expr"] for rule in rules()}
    for name, kind in CHECKS.items():
        if name not in BY_COMMANDS:
            assert f'ckpt_health_check{{severity="{kind.severity}"}} == 1' in heard
    assert 'up{job="ckpt"} == 0' in heard


def test_the_dashboard_s_panels_stand_side_by_side() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
        targets = panel.get("targets", [])
        assert panel["type"] == "row" or targets
        letters = [target["refId"] for target in targets]
        assert len(set(letters)) == len(letters)
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
