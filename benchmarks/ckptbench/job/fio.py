"""Which words of fio have no meaning for checkpoints, and what becomes of each?

Passed over is what changes nothing that is measured here: a fio user's job file runs, and the
report names what it did without. What says which bytes are measured, and where, is refused instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ckptbench.job.grammar import Setting

_FLIGHT: Final = "each engine decides how much it keeps in flight"
_CACHE: Final = "direct= and invalidate= say how the page cache is used"
_ORDER: Final = "checkpoints are written and read from end to end"
_FILES: Final = "the engine makes its files and removes them at the end"
_BYTES: Final = "say buffer_compress_percentage=, dedupe_percentage= or refill_buffers"
_SYNC: Final = "end_fsync= says whether a save is synced"
_CHECK: Final = "verify= compares every byte with what was saved"
_CLOCK: Final = "clocks are read only at a checkpoint's begin and end"
_REPORT: Final = "the report always has slat, clat, lat and bw"

PASSED_OVER: Final[Mapping[str, str]] = {
    "iodepth": _FLIGHT, "iodepth_batch": _FLIGHT, "iodepth_batch_submit": _FLIGHT,
    "iodepth_batch_complete": _FLIGHT, "iodepth_batch_complete_min": _FLIGHT,
    "iodepth_batch_complete_max": _FLIGHT, "iodepth_low": _FLIGHT, "hipri": _FLIGHT,
    "sqthread_poll": _FLIGHT, "registerfiles": _FLIGHT, "fixedbufs": _FLIGHT,
    "nonvectored": _FLIGHT, "io_submit_mode": _FLIGHT,
    "buffered": _CACHE, "iomem": _CACHE, "mem": _CACHE, "iomem_align": _CACHE,
    "lockmem": _CACHE, "pre_read": _CACHE, "fadvise_hint": _CACHE,
    "randrepeat": _ORDER, "allrandrepeat": _ORDER, "norandommap": _ORDER, "softrandommap": _ORDER,
    "random_generator": _ORDER, "random_distribution": _ORDER, "randommap": _ORDER,
    "percentage_random": _ORDER, "rw_sequencer": _ORDER, "unified_rw_reporting": _ORDER,
    "fallocate": _FILES, "overwrite": _FILES, "create_serialize": _FILES, "create_fsync": _FILES,
    "create_on_open": _FILES, "openfiles": _FILES, "file_service_type": _FILES,
    "filename_format": _FILES, "unique_filename": _FILES, "fill_device": _FILES,
    "unlink": _FILES, "unlink_each_loop": _FILES,
    "scramble_buffers": _BYTES, "zero_buffers": _BYTES, "buffer_pattern": _BYTES,
    "buffer_compress_chunk": _BYTES,
    "fsync": _SYNC, "fdatasync": _SYNC, "fsync_on_close": _SYNC, "sync": _SYNC,
    "sync_file_range": _SYNC,
    "do_verify": _CHECK, "verify_fatal": _CHECK, "verify_dump": _CHECK, "verify_async": _CHECK,
    "verify_backlog": _CHECK, "verify_interval": _CHECK, "verify_offset": _CHECK,
    "verify_pattern": _CHECK, "verify_state_save": _CHECK, "verify_state_load": _CHECK,
    "clocksource": _CLOCK, "gtod_reduce": _CLOCK, "gtod_cpu": _CLOCK, "disable_lat": _CLOCK,
    "disable_clat": _CLOCK, "disable_slat": _CLOCK, "disable_bw_measurement": _CLOCK,
    "clat_percentiles": _REPORT, "lat_percentiles": _REPORT, "slat_percentiles": _REPORT,
    "bwavgtime": _REPORT, "iopsavgtime": _REPORT, "write_lat_log": _REPORT,
    "write_iops_log": _REPORT, "log_hist_msec": _REPORT, "per_job_logs": _REPORT,
    "disk_util": _REPORT, "kb_base": _REPORT, "unit_base": _REPORT, "eta": _REPORT,
    "thread": "ranks are processes, as in training",
    "cpus_allowed": "numactl or taskset around ckptbench does it",
    "cpus_allowed_policy": "numactl or taskset around ckptbench does it",
    "numa_cpu_nodes": "numactl or taskset around ckptbench does it",
    "nice": "nice around ckptbench does it",
    "prio": "ionice around ckptbench does it",
    "prioclass": "ionice around ckptbench does it",
    "exitall_on_error": "a job that failed ends, the others end their own",
}  # fmt: skip
"""Options of fio that are named and passed over, with what stands in their place."""

SWITCHES: Final = frozenset(
    {
        "thread", "buffered", "randrepeat", "allrandrepeat", "norandommap", "softrandommap",
        "overwrite", "unlink", "unlink_each_loop", "gtod_reduce", "zero_buffers", "hipri",
        "scramble_buffers", "do_verify", "verify_fatal", "verify_dump", "fsync_on_close",
        "create_serialize", "create_fsync", "create_on_open", "disable_lat", "disable_clat",
        "disable_slat", "disable_bw_measurement", "exitall_on_error", "registerfiles", "fixedbufs",
        "sqthread_poll", "nonvectored", "pre_read", "fadvise_hint", "fill_device", "disk_util",
        "clat_percentiles", "lat_percentiles", "slat_percentiles", "per_job_logs",
        "unified_rw_reporting",
    }
)  # fmt: skip
"""Those of them that may stand without a value."""

REFUSED: Final[Mapping[str, str]] = {
    "filename": "files are named by the engine below directory=",
    "nrfiles": "say tensor_size=",
    "filesize": "say size=",
    "io_size": "say loops= or runtime=",
    "number_ios": "say loops=",
    "offset": "a rank writes and reads its whole state",
    "rate_iops": "say rate=, in bytes",
    "rwmixread": "say rw=mixed",
    "rwmixwrite": "say rw=mixed",
    "bsrange": "say bs=",
    "bssplit": "say bs=",
    "bs_unaligned": "say bs=",
}
"""Options of fio whose job would measure something else without them, with what to say."""

FILE_ENGINE: Final = "posix"
ENGINES: Final = dict.fromkeys(
    ("libaio", "io_uring", "sync", "psync", "vsync", "pvsync", "pvsync2", "posixaio", "mmap"),
    FILE_ENGINE,
)
"""Engines of fio -> the one that does the same."""


def kept(settings: Iterable[Setting]) -> tuple[Setting, ...]:
    """The settings without those that are passed over."""
    return tuple(one for one in settings if one.key not in PASSED_OVER)


def passed_over(settings: Iterable[Setting]) -> tuple[str, ...]:
    """The names of the others, each once, in the order in which they stand."""
    return tuple(dict.fromkeys(one.key for one in settings if one.key in PASSED_OVER))
