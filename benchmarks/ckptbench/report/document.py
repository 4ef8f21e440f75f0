"""The report as JSON: fio's keys and units, and what is ours under the one key `checkpoint`.

Units are fio's: runtime in ms, bw in KiB/s, latencies in ns. json+ adds the histograms' bins, which
can be merged, the ranks' times and the timeline.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ckptbench.report.entries import DIRECTIONS, Entry, Flow, entries, host_entries, make_entry
from ckptbench.report.mlperf import submissions
from ckptbench.report.summary import summarize
from ckptbench.report.text import latency_shares
from ckptbench.results import CheckpointFigures, JobResult, RunResult
from ckptbench.stats import LatencyHistogram

Document = dict[str, object]
VERSION: Final = "ckptbench-1 (keys of fio-3.33)"
"""Ours counts changes of what stands under `checkpoint`."""


def run_document(found: RunResult, *, plus: bool) -> Document:
    """Everything, ready for msgspec.json; `plus` for json+."""
    many = any(host_entries(job) for job in found.jobs)
    jobs = [one for job in found.jobs for one in _job_documents(job, plus)]
    return {
        "fio version": VERSION,
        "timestamp": int(found.finished_at_s),
        "timestamp_ms": int(found.finished_at_s * 1000),
        "time": time.asctime(time.gmtime(found.finished_at_s)),
        "global options": dict(found.shared),
        # fio in client mode: an entry for each host, the last one for all of them.
        **({"client_stats": _client_documents(found, plus)} if many else {"jobs": jobs}),
        "disk_util": [],
        "checkpoint": {
            "machine": msgspec.to_builtins(found.machine),
            "errors": found.errors,
            "passed_over": list(found.passed_over),
            "rules": [{**msgspec.to_builtins(one), "met": one.met} for one in found.rules],
            "mlperf": [
                {**msgspec.to_builtins(one), "valid": one.is_valid} for one in submissions(found)
            ],
        },
    }


def encode(document: Document) -> str:
    """Indented, as fio prints it."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _job_documents(job: JobResult, plus: bool) -> list[Document]:
    return [_entry_document(one, job.name, plus) for one in entries(job)]


def _client_documents(found: RunResult, plus: bool) -> list[Document]:
    documents: list[Document] = []
    for job in found.jobs:
        for entry in host_entries(job):
            host, _, port = entry.host.rpartition(":")
            documents.append(
                {**_entry_document(entry, job.name, plus), "hostname": host, "port": int(port or 0)}
            )
        everyone = make_entry(job, None)
        documents.append(_entry_document(everyone, "All clients", plus))
    return documents


def _entry_document(entry: Entry, name: str, plus: bool) -> Document:
    job = entry.job
    merged = LatencyHistogram()
    for flow in entry.flows.values():
        merged.merge(flow.lat)
    shares = latency_shares(merged)
    return {
        "jobname": name,
        "groupid": job.group,
        "job_start": int(job.started_at_s * 1000),
        "error": job.exit_code,
        "eta": 0,
        "elapsed": max(1, round(job.elapsed_s)),
        "job options": dict(job.given),
        **{one: _flow_document(entry.flows[one], job.percentiles, plus) for one in DIRECTIONS},
        "trim": _flow_document(_EMPTY, (), plus=False),
        "sync": {"total_ios": 0, "lat_ns": _plain(LatencyHistogram())},
        "job_runtime": entry.runtime_ns // 1_000_000,
        "usr_cpu": entry.user_percent,
        "sys_cpu": entry.system_percent,
        "ctx": entry.usage.switches,
        "majf": entry.usage.major_faults,
        "minf": entry.usage.minor_faults,
        "iodepth_level": {"1": 100.0},
        "iodepth_submit": {"4": 100.0},
        "iodepth_complete": {"4": 100.0},
        "latency_ns": shares["nsec"],
        "latency_us": shares["usec"],
        "latency_ms": shares["msec"],
        "latency_depth": 1,
        "latency_target": 0,
        "latency_percentile": 100.0,
        "latency_window": 0,
        "checkpoint": _ours(job, plus),
    }


def _flow_document(flow: Flow, percentiles: Sequence[float], plus: bool) -> Document:
    rates = flow.rates or (0.0,)
    count = len(flow.rates)
    return {
        "io_bytes": flow.io_bytes,
        "io_kbytes": flow.io_bytes // 1024,
        "bw_bytes": round(flow.bytes_per_s),
        "bw": round(flow.bytes_per_s) // 1024,
        "iops": flow.iops,
        "runtime": flow.runtime_ns // 1_000_000,
        "total_ios": flow.total,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": _plain(flow.slat),
        "clat_ns": _with_percentiles(flow.clat, percentiles, plus),
        "lat_ns": _with_percentiles(flow.lat, percentiles, plus),
        "bw_min": round(min(rates)),
        "bw_max": round(max(rates)),
        "bw_agg": 100.0 if count else 0.0,
        "bw_mean": statistics.fmean(rates),
        "bw_dev": flow.rate_deviation,
        "bw_samples": count,
        "iops_min": 0,
        "iops_max": 0,
        "iops_mean": flow.iops,
        "iops_stddev": 0.0,
        "iops_samples": count,
    }


def _plain(found: LatencyHistogram) -> Document:
    return {
        "min": found.least,
        "max": found.most,
        "mean": round(found.mean, 6),
        "stddev": round(found.stddev, 6),
        "N": found.count,
    }


def _with_percentiles(found: LatencyHistogram, wanted: Sequence[float], plus: bool) -> Document:
    document = _plain(found)
    if found.count:
        document["percentile"] = {f"{one:.6f}": found.percentile(one) for one in wanted}
        if plus:
            document["bins"] = {str(value): many for value, many in found.by_value().items()}
    return document


def _ours(job: JobResult, plus: bool) -> Document:
    summary: Mapping[str, object] = msgspec.to_builtins(summarize(job))
    document: Document = {
        **summary,
        "given": dict(job.given),
        "model": job.model,
        "scale": job.scale,
        "preset": job.preset,
        "hosts": list(job.hosts),
        "start_skew_s": job.start_skew_s,
        "transport": job.transport,
        "code": job.code,
        "targets": job.targets,
        "reader": job.reader,
        "readers": job.readers,
        "raw": msgspec.to_builtins(job.raw),
        "bounds": msgspec.to_builtins(job.bounds),
        "errors": list(job.errors),
    }
    if plus:
        document["checkpoints"] = [_checkpoint_document(one) for one in job.checkpoints]
    return document


def _checkpoint_document(one: CheckpointFigures) -> Document:
    found: Document = msgspec.to_builtins(one)
    return found


_EMPTY: Final = Flow(0, 0, 0, LatencyHistogram(), LatencyHistogram(), LatencyHistogram(), ())
