"""What Prometheus is told, and that it is the text that Prometheus reads."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from ckpt.aio.net.serving.server_limits import Pressure
from ckpt.base.ids import BootId, Rank, TargetId
from ckpt.erasure.code import Code
from ckpt.format.messages.hello import Role
from ckpt.format.messages.targets import DEVICE_ERROR_KINDS, DeviceReport
from ckpt.plan.drains import StorePolicy
from ckpt.protocol.coordinator.catalog import TargetSeen
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.machine import CoordinatorMachine, CoordinatorPolicy
from ckpt.protocol.coordinator.reading.checks import BY_COMMANDS, CHECKS
from ckpt.protocol.coordinator.stores import StoreRow
from ckpt.protocol.target.counters import Counters
from ckptd.coordinator.metrics import CommitStatistics, coordinator_families
from ckptd.http.exposition import Family, Histogram, Kind, render
from ckptd.target.metrics import family_of_counter
from tests.protocol.coordinating import Bench


def test_a_family_is_help_type_and_samples_in_order() -> None:
    family = Family("ckpt_x_bytes", Kind.GAUGE, "Bytes\nof \\ x.").add(1.5, a="1").add(2, a="2")
    assert render([family]) == (
        "# HELP ckpt_x_bytes Bytes\\nof \\\\ x.\n"
        "# TYPE ckpt_x_bytes gauge\n"
        'ckpt_x_bytes{a="1"} 1.5\n'
        'ckpt_x_bytes{a="2"} 2\n'
    )


def test_each_of_a_targets_counters_says_what_it_is() -> None:
    """Its HELP is all that a browser of metrics shows; 29 said "Of one target" alone."""
    helps = [family_of_counter(name).help for name in Counters().as_dict()]
    assert len(set(helps)) == len(helps)
    assert "kept in `aside/`" in family_of_counter("set_aside").help
    assert family_of_counter("of_a_later_version").help


def test_label_values_are_escaped() -> None:
    family = Family("ckpt_x", Kind.GAUGE, "X.").add(1, run='a "b"\\\n')
    assert render([family]).splitlines()[2] == 'ckpt_x{run="a \\"b\\"\\\\\\n"} 1'


def test_a_histogram_is_cumulative_and_ends_with_infinity() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    family = Family("ckpt_s", Kind.HISTOGRAM, "S.", histograms=[((("a", "b"),), histogram)])
    assert render([family]).splitlines()[2:] == [
        'ckpt_s_bucket{a="b",le="0.1"} 2',
        'ckpt_s_bucket{a="b",le="1"} 3',
        'ckpt_s_bucket{a="b",le="+Inf"} 4',
        'ckpt_s_sum{a="b"} 7.65',
        'ckpt_s_count{a="b"} 4',
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
        (0.1, "0.1"),
        (3.0, "3"),
        (1 << 60, "1152921504606846976"),
    ],
)
def test_numbers_are_written_as_the_format_has_them(value: float, text: str) -> None:
    assert render([Family("ckpt_x", Kind.GAUGE, "X.").add(value)]).endswith(f"ckpt_x {text}\n")


def test_families_without_samples_are_left_out_and_names_come_once() -> None:
    assert render([Family("ckpt_x", Kind.GAUGE, "X.")]) == ""
    with pytest.raises(AssertionError):
        render([Family("ckpt_x", Kind.GAUGE, "X."), Family("ckpt_x", Kind.GAUGE, "X.")])
    with pytest.raises(AssertionError):
        Family("ckpt_x", Kind.COUNTER, "Counters end in _total.")


def test_a_coordinator_speaks_the_format_and_drops_counters_with_hostile_names() -> None:
    image = CatalogImage(7)
    image.targets[TargetId("t0")] = TargetSeen(TargetId("t0"), "p/r/h/d", "/d")
    image.stores["s3://b"] = StoreRow(StorePolicy("s3://b"))
    policy = CoordinatorPolicy("c1", Code(2, 1))
    machine = CoordinatorMachine(policy, image, secret=bytes(32), wall_s=lambda: 0.0)
    target = machine.members.targets[TargetId("t0")]
    target.boot = BootId(1)
    target.device = DeviceReport({"write": 3, "space": 9}, 3, "write: EIO")
    target.counters = {"bytes_written": 5, 'x"} 1\nckpt_evil': 1, "streams": 2}
    text = told(machine)
    lines = text.splitlines()
    samples = [sample for family in read(text) for sample in family.samples]
    assert len(samples) == sum(not line.startswith("#") for line in lines)
    assert 'ckpt_build_info{version="1"} 1' in lines
    assert "ckpt_coordinator_term 7" in lines
    assert 'ckpt_target_up{target="t0"} 0' in lines
    assert 'ckpt_target_bytes_written_total{target="t0"} 5' in lines
    assert 'ckpt_target_streams{target="t0"} 2' in lines
    assert 'ckpt_target_device_failing{target="t0"} 1' in lines
    refused = dict.fromkeys(DEVICE_ERROR_KINDS, 0) | {"write": 3, "space": 9}
    for kind, count in refused.items():
        name = "ckpt_target_device_errors_total"
        assert f'{name}{{target="t0",kind="{kind}"}} {count}' in lines
    assert 'ckpt_sessions{role="stager"} 3' in lines
    assert 'ckpt_save_stall_seconds_bucket{le="+Inf"} 0' in lines
    assert 'ckpt_drain_backlog{store="s3://b"} 0' in lines
    assert 'ckpt_drain_workers{store="s3://b"} 0' in lines
    assert "ckpt_evicted_total 0" in lines
    assert "ckpt_connections_full 1" in lines
    away = {"stranger": 3, "descriptors": 2, "full": 1}
    for reason, count in away.items():
        assert f'ckpt_peers_turned_away_total{{reason="{reason}"}} {count}' in lines
    assert "evil" not in text


def test_a_counter_of_a_target_takes_no_other_metric_s_name() -> None:
    """Nor that of another one: Prometheus takes nothing of an answer that has a sample twice."""
    bench = Bench(2, "1+1")
    bench.targets[TargetId("t0")].counters = {
        "device_errors": 5,
        "of_later": 1,
        "of_later_total": 2,
        "streams_begun": 7,
    }
    bench.tick(2)
    text = told(bench.machine)
    samples = [(one.name, *one.labels.items()) for each in read(text) for one in each.samples]
    assert len(set(samples)) == len(samples)
    assert 'ckpt_target_streams_begun_total{target="t0"} 7' in text.splitlines()


def test_what_is_written_is_read_as_it_was_meant() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.5, 7.0):
        histogram.observe(value)
    hostile = 'a "b"\\\n}'
    written = [
        Family("ckpt_x_total", Kind.COUNTER, "Of\n\\ x.").add(3, run=hostile).add(1 << 60, run=""),
        Family("ckpt_y", Kind.GAUGE, "Y.").add(math.inf).add(0.1, a="1", b="2"),
        Family("ckpt_s", Kind.HISTOGRAM, "S.", histograms=[((("a", "b"),), histogram)]),
    ]
    counter, gauge, counted = read(render(written))
    assert (counter.name, counter.type, counter.documentation) == ("ckpt_x", "counter", "Of\n\\ x.")
    assert [(one.labels, one.value) for one in counter.samples] == [
        ({"run": hostile}, 3),
        ({"run": ""}, 1 << 60),
    ]
    assert gauge.type == "gauge"
    assert [(one.labels, one.value) for one in gauge.samples] == [
        ({}, math.inf),
        ({"a": "1", "b": "2"}, 0.1),
    ]
    assert counted.type == "histogram"
    assert [one.value for one in counted.samples] == [1, 2, 3, 7.55, 3]


def read(text: str) -> list[Metric]:
    """As Prometheus' own library reads it."""
    return list(text_string_to_metric_families(text))


def told(machine: CoordinatorMachine) -> str:
    families = coordinator_families(
        version="1",
        machine=machine,
        statistics=CommitStatistics(),
        sessions=Counter({Role.STAGER: 3}),
        tickets_waiting=0,
        catalog_full=False,
        stores=machine.views.stores(),
        pressure=Pressure("it is full", 3, 2, 1),
    )
    return render(families)


def sample(bench: Bench, name: str) -> float | None:
    """Its value; None when it is not there."""
    lines = (line.rsplit(" ", 1) for line in told(bench.machine).splitlines())
    found = [float(value) for known, value in lines if known == name]
    return found[0] if found else None


def test_each_check_that_a_coordinator_makes_is_a_sample_and_one_while_it_stands() -> None:
    bench = Bench(6, "2+2")
    down = 'ckpt_health_check{check="TARGET_DOWN",severity="warning"}'
    assert sample(bench, down) == 0
    bench.stop(TargetId("t0"))
    assert sample(bench, down) == 1
    lines = [line for line in told(bench.machine).splitlines() if line.startswith("ckpt_health_c")]
    assert len(lines) == len(CHECKS) - len(BY_COMMANDS)
    stand = {line.split('"')[1] for line in lines if line.endswith(" 1")}
    assert stand == {each.name for each in bench.machine.views.status().checks}
    bench.start(TargetId("t0"))
    assert sample(bench, down) == 0


def test_how_much_the_weakest_checkpoint_survives_and_how_many_are_degraded() -> None:
    bench = Bench(6, "2+2")
    degraded, least = "ckpt_checkpoints_degraded", "ckpt_targets_survivable_min"
    assert (sample(bench, degraded), sample(bench, least)) == (0, None), "there is none yet"
    bench.save(1)
    bench.save(2)
    assert (sample(bench, degraded), sample(bench, least)) == (0, 2)
    checkpoint = next(bench.machine.checkpoints.all())
    holders = sorted(id for id in checkpoint.placement[Rank(0)].columns if id is not None)
    bench.stop(holders[0])
    now = bench.machine.checkpoints.redundancy(checkpoint)
    assert (sample(bench, degraded), sample(bench, least)) in ((1, now.targets), (2, now.targets))
    bench.stop(*holders[1:3])
    assert sample(bench, least) == -1, "one cannot be read now"
    for holder in holders[:3]:
        bench.start(holder)
    assert (sample(bench, degraded), sample(bench, least)) == (0, 2)


def test_a_device_s_bytes_are_told_by_who_holds_them() -> None:
    bench = Bench(2, "1+1")
    bench.targets[TargetId("t0")].bytes_free = 700
    bench.targets[TargetId("t0")].counters = {
        "usable_bytes": 1000, "reserved_bytes": 50, "device_used_bytes": 300,
    }  # fmt: skip
    bench.tick()
    for state, count in (("columns", 0), ("reserved", 50), ("other", 250), ("free", 700)):
        name = f'ckpt_device_bytes{{device="p/r/h0/d0",state="{state}"}}'
        assert sample(bench, name) == count
