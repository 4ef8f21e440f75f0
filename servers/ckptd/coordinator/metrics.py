"""What does a coordinator tell Prometheus? Names, kinds and meanings, in one table of functions.

Labels are few on purpose: target, role, state, run, store, check. Ranks, steps and generations are
in the JSON.
`ckpt_last_commit_timestamp_seconds` is the one number to page for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ckpt.aio.net.serving.server_limits import Pressure
from ckpt.base.units import US_PER_S
from ckpt.format.messages.hello import Role
from ckpt.format.messages.saving import CommitInfo
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster.devices import device_spaces
from ckpt.protocol.coordinator.cluster.membership import Membership, TargetState
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.draining import DrainQueue
from ckpt.protocol.coordinator.keeping.evicting import Evictor
from ckpt.protocol.coordinator.machine import CoordinatorMachine
from ckpt.protocol.coordinator.reading.answers import Check, StoreStatus
from ckpt.protocol.coordinator.reading.checks import BY_COMMANDS, CHECKS
from ckpt.protocol.coordinator.reading.repair_answers import RepairView
from ckpt.protocol.coordinator.reading.stored import STORED, state_text
from ckpt.protocol.coordinator.repairing.survey import Survey
from ckptd.http.exposition import Family, Histogram, Kind
from ckptd.target.metrics import add_device, build_info, device_families, family_of_counter

STALL_BOUNDS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
COMMIT_BOUNDS_S: Final = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
RUNS_LABELED_MAX: Final = 64
"""Runs with a label of their own: the latest to commit. A label's values must stay few."""
COUNTERS_LABELED_MAX: Final = 64
"""Of each target; a counter's name comes from a peer."""

_COUNTER_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")


class CommitStatistics:
    """What this process saw commit, since it began."""

    def __init__(self) -> None:
        self.stall_s = Histogram(STALL_BOUNDS_S)
        self.commit_s = Histogram(COMMIT_BOUNDS_S)
        self.aborted_count = 0
        self.bytes = 0
        self.rank_seconds_lost = 0.0

    def committed(self, info: CommitInfo) -> None:
        """Count one commit."""
        self.stall_s.observe(info.stall_us / US_PER_S)
        self.commit_s.observe(info.commit_us / US_PER_S)
        self.bytes += info.payload_bytes
        self.rank_seconds_lost += info.world_size * info.stall_us / US_PER_S


def coordinator_families(
    *,
    version: str,
    machine: CoordinatorMachine,
    stores: Sequence[StoreStatus],
    statistics: CommitStatistics,
    sessions: Counter[Role],
    tickets_waiting: int,
    catalog_full: bool,
    pressure: Pressure,
) -> Iterator[Family]:
    """All there are, from memory; one without a sample as well."""
    survey = machine.views.survey()
    yield build_info(version)
    yield health_family(machine.views.checks(stores, survey))
    yield from _cluster(machine.members, sessions, tickets_waiting)
    yield Family(
        "ckpt_catalog_full",
        Kind.GAUGE,
        "1 while the catalog has no room: no save begins, commits wait.",
    ).add(int(catalog_full))
    yield from _commits(statistics)
    yield from _runs(machine.checkpoints, machine.drains)
    yield from _survival(survey)
    yield from _targets(machine.members)
    yield from _drains(stores)
    yield from _repairs(machine.views.repair())
    yield from _evictions(machine.evictor)
    yield from _door(pressure)


def health_family(standing: Sequence[Check]) -> Family:
    """The checks that a coordinator can make, with those that stand now."""
    family = Family(
        "ckpt_health_check",
        Kind.GAUGE,
        "1 while this check of `ckpt status` stands, else 0.",
    )
    names = {each.name for each in standing}
    for name, kind in CHECKS.items():
        if name not in BY_COMMANDS:
            family.add(int(name in names), check=name, severity=kind.severity)
    return family


def leading_families(
    *, leads: bool, takeovers: int, written_s: Histogram, written_bytes: int
) -> Iterator[Family]:
    """Of one of several coordinators, whether it leads or stands by."""
    yield Family("ckpt_coordinator_leading", Kind.GAUGE, "1 while this coordinator leads.").add(
        float(leads)
    )
    yield Family(
        "ckpt_coordinator_takeovers_total", Kind.COUNTER,
        "How often this process took over as leader, where the catalog is in etcd.",
    ).add(takeovers)  # fmt: skip
    written = Family(
        "ckpt_catalog_transaction_seconds", Kind.HISTOGRAM,
        "Time that a transaction with etcd took, from the first try to the answer.",
    )  # fmt: skip
    written.histograms.append(((), written_s))
    yield written
    yield Family(
        "ckpt_catalog_written_bytes_total", Kind.COUNTER,
        "Bytes of keys and values that this process has stored in etcd.",
    ).add(written_bytes)  # fmt: skip


def _cluster(
    members: Membership, sessions: Counter[Role], tickets_waiting: int
) -> Iterator[Family]:
    yield Family(
        "ckpt_coordinator_term",
        Kind.GAUGE,
        "The coordinator's term, one more at each start or takeover.",
    ).add(members.term)
    yield Family(
        "ckpt_map_version", Kind.GAUGE, "Version of the cluster map, within the term."
    ).add(members.version)
    yield Family(
        "ckpt_catalog_tickets_waiting",
        Kind.GAUGE,
        "Changes to the catalog that are not durable yet.",
    ).add(tickets_waiting)
    family = Family("ckpt_sessions", Kind.GAUGE, "Authenticated connections by the peer's role.")
    for role in Role:
        if role is not Role.COORDINATOR:
            family.add(sessions[role], role=role.value)
    yield family


def _commits(statistics: CommitStatistics) -> Iterator[Family]:
    yield Family(
        "ckpt_save_stall_seconds",
        Kind.HISTOGRAM,
        "How long save() blocked training, on the slowest rank of each save.",
        histograms=[((), statistics.stall_s)],
    )
    yield Family(
        "ckpt_save_commit_seconds",
        Kind.HISTOGRAM,
        "Time from the first payload handed over until the commit record was durable.",
        histograms=[((), statistics.commit_s)],
    )
    yield Family("ckpt_save_aborted_total", Kind.COUNTER, "Saves that were aborted.").add(
        statistics.aborted_count
    )
    yield Family(
        "ckpt_committed_bytes_total", Kind.COUNTER, "Bytes of committed saves, without parity."
    ).add(statistics.bytes)
    yield Family(
        "ckpt_rank_seconds_lost_total",
        Kind.COUNTER,
        "Rank-seconds blocked by saves: world size times stall, summed over commits.",
    ).add(statistics.rank_seconds_lost)


def _runs(checkpoints: Checkpoints, drains: DrainQueue) -> Iterator[Family]:
    newest: dict[str, KeptCheckpoint] = {}
    states: Counter[str] = Counter()
    for checkpoint in checkpoints.all():
        state = state_text(drains, checkpoint)
        states[state] += 1
        if state in (RowState.COMMITTED.value, STORED) and not checkpoint.is_aside:
            newest[checkpoint.id.run] = checkpoint  # `all` is ascending within a run.
    by_state = Family(
        "ckpt_checkpoints", Kind.GAUGE,
        "Checkpoints in the catalog, by state; stored: lost from the tier, kept in an object store.",
    )  # fmt: skip
    for state in ("committed", STORED, "damaged", "tombstoned"):
        by_state.add(states[state], state=state)
    yield by_state
    steps = Family(
        "ckpt_last_committed_step", Kind.GAUGE, "Newest step that a load of the run finds."
    )
    times = Family(
        "ckpt_last_commit_timestamp_seconds", Kind.GAUGE, "Unix time of the newest commit of a run."
    )
    latest = sorted(newest.items(), key=lambda item: item[1].info.committed_at_s, reverse=True)
    for run, checkpoint in sorted(latest[:RUNS_LABELED_MAX]):
        steps.add(checkpoint.id.step, run=run)
        times.add(checkpoint.info.committed_at_s, run=run)
    yield from (steps, times)


def _survival(survey: Survey) -> Iterator[Family]:
    degraded = Family(
        "ckpt_checkpoints_degraded",
        Kind.GAUGE,
        "Committed checkpoints that lack columns, or copies of their index or record, including "
        "those that cannot be read.",
    )
    least = Family(
        "ckpt_targets_survivable_min",
        Kind.GAUGE,
        "How many more targets, whichever they are, can be lost while every committed checkpoint "
        "stays readable from the tier; -1: one is unreadable now; absent without checkpoints.",
    )
    degraded.add(len(survey.degraded) + len(survey.unreadable))
    if survey.survivable_min is not None:
        least.add(max(-1, survey.survivable_min))
    yield from (degraded, least)


def _targets(members: Membership) -> Iterator[Family]:
    up = Family("ckpt_target_up", Kind.GAUGE, "1 when the target is live.")
    capacity = Family("ckpt_capacity_bytes", Kind.GAUGE, "Space of live targets, by state.")
    columns = Family(
        "ckpt_target_columns",
        Kind.GAUGE,
        "Columns that the target has proved since its process started.",
    )
    devices = device_families()
    others = [family.name for family in devices]
    counters: dict[str, Family] = {}
    used = free = 0
    for target in members.all():
        live = target.state is TargetState.LIVE
        up.add(int(live), target=target.id)
        columns.add(len(target.proved), target=target.id)
        add_device(devices, target.id, target.device.errors, failing=target.is_failing)
        if live:
            used, free = used + target.bytes_used, free + target.bytes_free
        for family, value in _counted(target.counters, {up.name, columns.name, *others}):
            counters.setdefault(family.name, family).add(value, target=target.id)
    capacity.add(used, state="used").add(free, state="free")
    yield from (up, capacity, _device_bytes(members), columns, *devices)
    yield from (counters[name] for name in sorted(counters)[:COUNTERS_LABELED_MAX])


def _counted(counters: Mapping[str, int], taken: set[str]) -> Iterator[tuple[Family, int]]:
    """What one target counts, by the empty family of each. Names come from a peer: none that is
    taken, and none twice, or Prometheus would take nothing of the whole answer.
    """
    for name, value in sorted(counters.items())[:COUNTERS_LABELED_MAX]:
        if _COUNTER_NAME.fullmatch(name):
            family = family_of_counter(name)
            if family.name not in taken:
                taken.add(family.name)
                yield family, value


def _device_bytes(members: Membership) -> Family:
    family = Family(
        "ckpt_device_bytes",
        Kind.GAUGE,
        "Space of each device that has live targets, without its reserve: columns and documents, "
        "reserved for saves, other files, and free.",
    )
    for space in device_spaces(members.live()):
        device = str(space.domain)
        family.add(space.columns_bytes, device=device, state="columns")
        family.add(space.reserved_bytes, device=device, state="reserved")
        family.add(space.other_bytes, device=device, state="other")
        family.add(space.free_bytes, device=device, state="free")
    return family


def _repairs(view: RepairView) -> Iterator[Family]:
    yield Family(
        "ckpt_repair_due_columns",
        Kind.GAUGE,
        "Lost columns that can be repaired now and wait for it.",
    ).add(view.columns_due)
    yield Family(
        "ckpt_repair_left_bytes", Kind.GAUGE, "Bytes of lost columns that are still to be repaired."
    ).add(view.bytes_left)
    yield Family(
        "ckpt_repair_paused",
        Kind.GAUGE,
        "1 while repair is paused; `ckpt repair resume` lets it go on.",
    ).add(int(view.paused_at_s is not None))
    yield Family("ckpt_repair_tasks", Kind.GAUGE, "Payloads that workers are repairing.").add(
        len(view.tasks)
    )
    yield Family("ckpt_repair_columns_total", Kind.COUNTER, "Columns that were repaired.").add(
        view.columns_made
    )
    yield Family(
        "ckpt_repair_bytes_total", Kind.COUNTER, "Bytes of the columns that were repaired."
    ).add(view.bytes_made)
    yield Family(
        "ckpt_repair_documents_total",
        Kind.COUNTER,
        "Copies of indexes and commit records that were repaired.",
    ).add(view.documents_made)
    yield Family(
        "ckpt_repair_failures_total", Kind.COUNTER, "Repairs that failed for some of their columns."
    ).add(view.failed)


def _drains(stores: Sequence[StoreStatus]) -> Iterator[Family]:
    backlog = Family("ckpt_drain_backlog", Kind.GAUGE, "Checkpoints that are not in the store yet.")
    left = Family(
        "ckpt_drain_backlog_bytes",
        Kind.GAUGE,
        "Bytes of checkpoints that are not in the store yet.",
    )
    oldest = Family(
        "ckpt_drain_oldest_undrained_timestamp_seconds",
        Kind.GAUGE,
        "Commit time of the oldest checkpoint in the backlog; absent without a backlog.",
    )
    rate = Family(
        "ckpt_drain_bytes_per_second",
        Kind.GAUGE,
        "Bytes drained per second by all workers together.",
    )
    end = Family(
        "ckpt_drain_end_seconds",
        Kind.GAUGE,
        "Estimated time until the backlog is drained; absent while unknown.",
    )
    workers = Family("ckpt_drain_workers", Kind.GAUGE, "Workers that serve the store.")
    drained = Family(
        "ckpt_drain_checkpoints_total",
        Kind.COUNTER,
        "Checkpoints drained to the store, and verified there.",
    )
    failed = Family(
        "ckpt_drain_failures_total", Kind.COUNTER, "Attempts to drain a checkpoint that failed."
    )
    for store in stores:
        backlog.add(store.backlog, store=store.url)
        left.add(store.backlog_bytes, store=store.url)
        if store.backlog:
            oldest.add(store.oldest_undrained_at_s, store=store.url)
        rate.add(store.bytes_per_s, store=store.url)
        if store.end_in_s:
            end.add(store.end_in_s, store=store.url)
        workers.add(len(store.workers), store=store.url)
        drained.add(store.drained, store=store.url)
        failed.add(store.failed, store=store.url)
    yield from (backlog, left, oldest, rate, end, workers, drained, failed)


def _evictions(evictor: Evictor) -> Iterator[Family]:
    yield Family(
        "ckpt_evicted_total", Kind.COUNTER, "Drained checkpoints that were evicted to make room."
    ).add(evictor.evicted_count)
    yield Family(
        "ckpt_evicted_bytes_total", Kind.COUNTER, "Bytes of checkpoints that were evicted."
    ).add(evictor.evicted_bytes)


def _door(pressure: Pressure) -> Iterator[Family]:
    full = Family(
        "ckpt_connections_full", Kind.GAUGE, "1 while trainers and readers are turned away."
    )
    yield full.add(int(bool(pressure.need)))
    away = Family(
        "ckpt_peers_turned_away_total",
        Kind.COUNTER,
        "Connections turned away: unauthenticated ones that made room for others (stranger), no "
        "free descriptor (descriptors), or no room for another peer (full).",
    )
    away.add(pressure.evicted, reason="stranger").add(pressure.shortages, reason="descriptors")
    yield away.add(pressure.turned_away, reason="full")
