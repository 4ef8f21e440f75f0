"""Which options does a job have? The one table: type, unit, default, help and alias of each.

Ini keys, flags, `--cmdhelp`, `--showcmd` and the docs come from the fields of JobOptions. A word
that fio has means what it means there; what is different is said in its help.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeVar

from ckpt.base.errors import Refused
from ckpt.base.near import did_you_mean
from ckpt.base.units import MiB
from ckptbench.job import fio
from ckptbench.job.values import (
    ValueKind,
    choice_kind,
    count_kind,
    flag_kind,
    list_kind,
    pair_kind,
    range_kind,
    ratio_kind,
    size_kind,
    text_kind,
    think_kind,
    time_kind,
)
from ckptbench.models import MODELS

T = TypeVar("T")

ENGINES: Final = {
    "ckpt": "the tier: staged, erasure coded, committed",
    "posix": "a file for each rank; direct, end_fsync",
    "torch_save": "torch.save into a file for each rank",
    "dcp": "torch.distributed.checkpoint, see dcp_mode",
    "safetensors": "safetensors.numpy into a file for each rank",
    "fsspec": "one object for each rank through fsspec, see url",
    "zarr": "one Zarr v3 group for each rank",
    "s3": "one object for each rank through obstore, see url",
    "orbax": "Orbax's AsyncCheckpointer in a JAX job on CPUs, see orbax_mode",
    "tensorstore": "an OCDBT database of zarr3 arrays for each rank",
}
VERBS: Final = {
    "save": "all ranks save at one moment",
    "load": "fresh processes load what the ranks saved",
    "reshard": "another number of processes loads, each its box of every tensor",
    "degraded": "pairs of loads: healthy, then with targets dead",
    "mixed": "ranks save a step while other processes load the step before",
    "drain": "ranks save a step, then `ckptd drain` copies it into an object store, see durable",
    "fetch": "what only an object store holds is brought back into the tier, see durable",
    "stored": "fresh processes load from an object store alone, see durable",
    "aside": "pairs of saves: alone, then while a drain copies the step before, see durable",
}
STORE_VERBS: Final = ("drain", "fetch", "stored", "aside")
"""Those that need an object store beside the run's own cluster."""
DIRECT_ENGINES: Final = ("ckpt", "posix")
MISSING_VERBS: Final = {
    "rebuild": "lost columns are not rebuilt yet: a checkpoint keeps those that it has. "
    "rw=degraded measures loads without them"
}
"""What one may look for, and why it is not there."""
FIO_VERBS: Final = {"write": "save", "read": "load", "rw": "mixed", "readwrite": "mixed"}
SHORT_MODELS: Final = {name.removeprefix("llama3-"): name for name in MODELS}
"""As `ckptbench plan` takes them."""
DTYPES: Final = {
    "bfloat16": "2 bytes", "float16": "2 bytes", "float32": "4 bytes", "uint8": "1 byte",
}  # fmt: skip
PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9)
VERIFY: Final = {
    "0": "nothing is compared",
    "bytes": "a last load by fresh processes, every byte compared",
}
FIO_VERIFY: Final = dict.fromkeys(
    ("1", "crc32c", "crc32", "crc64", "md5", "sha1", "sha256", "sha512", "xxhash", "meta"), "bytes"
)


@dataclass(frozen=True, slots=True)
class Option:
    """What one option is, apart from its name and its default."""

    kind: ValueKind[object]
    help: str
    aliases: tuple[str, ...] = ()


def option(default: T, kind: ValueKind[T], help_text: str, *aliases: str) -> T:
    """A field of JobOptions. Typed as its default, as dataclasses.field itself is."""
    found: T = dataclasses.field(
        default=default, metadata={"option": Option(kind, help_text, aliases)}
    )
    return found


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Every option of a job."""

    # --- what is done
    description: str = option("", text_kind(), "why this job is worth running")
    rw: str = option(
        "save", choice_kind(VERBS, FIO_VERBS, MISSING_VERBS), "what the ranks do", "readwrite"
    )
    ioengine: str = option("ckpt", choice_kind(ENGINES, fio.ENGINES), "what they do it with")
    numjobs: int = option(
        0,
        count_kind(least=1, most=4096),
        "ranks on each host; without it: one, or as many as the model has",
    )
    preset: str = option(
        "", choice_kind({"mlperf": "MLPerf Storage: 10 writes, then 10 reads, rules checked"}),
        "rules of others; needs model=",
    )  # fmt: skip

    # --- the state
    size: int = option(0, size_kind(least=4096), "bytes of each rank's state")
    model: str = option(
        "", choice_kind(dict.fromkeys(MODELS, "sizes of MLPerf Storage"), SHORT_MODELS),
        "sizes of all ranks, in place of size=; numjobs= cuts the ranks down",
    )  # fmt: skip
    scale: Fraction = option(  # noqa: RUF009 (a Fraction does not change)
        Fraction(1), ratio_kind(), "of the model's bytes: 1/1000"
    )
    tensor_size: tuple[int, int] = option(
        (32 * MiB, 32 * MiB), range_kind(least=16),
        "bytes of a tensor; from a range each is drawn by randseed",
    )  # fmt: skip
    dtype: str = option("float32", choice_kind(DTYPES), "of the tensors")
    buffer_compress_percentage: int = option(
        0, count_kind(most=100), "part of each 4 KiB that is zeros"
    )
    dedupe_percentage: int = option(
        0, count_kind(most=100), "part of the 4 KiB pieces that are copies of others"
    )
    refill_buffers: bool = option(
        False, flag_kind(),
        "make new bytes for every save; else each save adds to the old ones. Outside the clock",
    )  # fmt: skip
    randseed: int = option(0, count_kind(), "the bytes come from it, the rank and the step")

    # --- how often
    loops: int = option(1, count_kind(least=1), "checkpoints that count")
    warmups: int = option(
        0, count_kind(), "checkpoints before them that do not; the first is reported apart"
    )
    time_based: bool = option(False, flag_kind(), "go on until runtime= is over")
    runtime: float = option(
        0.0, time_kind("s"), "with time_based: at least; else: at most (no loop begins later)"
    )
    ramp_time: float = option(
        0.0, time_kind("s"), "loops that begin in it are not counted; adds to runtime"
    )
    startdelay: float = option(0.0, time_kind("s"), "before the first loop")
    thinktime: float = option(0.0, time_kind("us"), "training between two checkpoints")
    rate: tuple[int, int] = option(
        (0, 0), pair_kind(), "cap of each rank, kept by pausing between checkpoints"
    )
    stonewall: bool = option(
        False, flag_kind(), "wait for the jobs above it; without, they run at the same time",
        "wait_for_previous",
    )  # fmt: skip
    interleave: bool = option(
        False, flag_kind(),
        "jobs of a group take turns, a checkpoint of each, instead of running at the same time",
    )  # fmt: skip

    # --- durability and caches
    direct: bool = option(False, flag_kind(), "O_DIRECT (posix); what targets do anyway (ckpt)")
    end_fsync: bool = option(
        True, flag_kind(), "sync files before a save counts as done; inside the clock, as in fio"
    )
    invalidate: bool = option(True, flag_kind(), "drop the page cache before each load")
    bs: int = option(
        MiB,
        size_kind(least=512),
        "bytes of one write or read (posix); of a part, 5 MiB or more (s3)",
        "blocksize",
    )
    verify: str = option(
        "bytes", choice_kind(VERIFY, FIO_VERIFY),
        "compare what is loaded. Checksum names of fio: every byte is compared just the same",
    )  # fmt: skip

    # --- where
    directory: str = option(
        "", text_kind(), "on the device to measure, made when it is missing; empty: temporary"
    )
    url: str = option(
        "", text_kind(),
        "ckpt: an existing cluster, ckpt://HOST:PORT; fsspec, s3: where to write",
    )  # fmt: skip
    durable: str = option(
        "", text_kind(),
        "the object store of drain, fetch, stored, aside: file:///DIR or s3://BUCKET/PREFIX; empty: "
        "beside targets",
    )  # fmt: skip
    run: str = option("bench", text_kind(), "the run's name; load finds there what save left")
    code: str = option("4+2", text_kind(), "ckpt: erasure code of the cluster that the run makes")
    targets: int = option(6, count_kind(least=1, most=256), "ckpt: its targets")
    cell: int = option(
        0, size_kind(least=0), "ckpt: bytes of a fragment; 0: what a cluster takes by itself"
    )
    tcp: bool = option(
        True, flag_kind(), "ckpt: 0 lends to targets by Unix sockets, a shortcut of one host"
    )
    sink: str = option(
        "disk", choice_kind({"disk": "targets as they are",
                             "null": "targets drop fragments once their checksum was verified"}),
        "ckpt: what targets do with fragments",
    )  # fmt: skip
    dcp_mode: str = option(
        "default", choice_kind({"default": "dcp.save as it is",
                                "tuned": "a thread and a file for each tensor group, no sync apart",
                                "async": "dcp.async_save",
                                "process": "async, tuned: by a process, from shared memory, with "
                                           "a cached plan"}),
        "how DCP is used",
    )  # fmt: skip

    ckpt_mode: str = option(
        "default", choice_kind({"default": "ckpt.Store, of numpy arrays",
                                "torch": "ckpt_torch.async_save and load, of DTensors"}),
        "how the tier is used",
    )  # fmt: skip
    staging: str = option(
        "copy", choice_kind({"copy": "a save returns when it is copied",
                             "overlap": "before: the copy is beside the training"}),
        "when ckpt's saves return",
    )  # fmt: skip
    prepare: bool = option(
        False, flag_kind(), "ckpt makes each rank ready for its first save ahead of it, untimed"
    )
    orbax_mode: str = option(
        "default", choice_kind({"default": "as it is: zstd level 1", "plain": "without a codec"}),
        "how Orbax is used",
    )  # fmt: skip

    # --- readers and faults
    reader: str = option(
        "same", choice_kind({"same": "a process loads what its own rank saved",
                             "rotate": "it loads what a rank of the next host saved"}),
        "who reads what",
    )  # fmt: skip
    readers: int = option(0, count_kind(most=4096), "processes that load; 0: as many as saved")
    fault: str = option(
        "", text_kind(),
        "kill|stop|slow|device|netem:target=N[:20x|:delay=TIME][@50%|@TIME|@before], several with "
        "commas; targets=N: so many, others in each loop",
    )  # fmt: skip
    continue_on_error: bool = option(
        False, flag_kind(), "go on after a checkpoint that failed; it still makes the exit code 1"
    )

    # --- what is reported
    group_reporting: bool = option(
        True, flag_kind(), "one report for all ranks of a job; 0: one for each"
    )
    new_group: bool = option(False, flag_kind(), "begin a reporting group")
    percentile_list: tuple[float, ...] = option(PERCENTILES, list_kind(), "of latencies")
    baseline: bool = option(
        False, flag_kind(), "before each save: as many warm copies at once, and raw O_DIRECT writes"
    )
    think: float = option(
        0.0, think_kind(),
        "train for so long after each stall, by products of matrices; the report has its pace, of "
        "alone, and the loop's loss. The save counts as durable no sooner",
        "pace",
    )  # fmt: skip
    roofline: bool = option(
        False, flag_kind(), "measure each stage alone in this run, for eta (about 20 s)"
    )
    quick: bool = option(False, flag_kind(), "small probes for the roofline: figures are rough")
    write_bw_log: str = option(
        "",
        text_kind(),
        "prefix of PREFIX_bw.N.log, one for each rank: msec, KiB/s, direction, bytes",
    )
    log_avg_msec: int = option(0, count_kind(), "average the log over so many ms; 0: each save")

    @property
    def ranks(self) -> int:
        """How many save on each host."""
        return self.numjobs or (MODELS[self.model].ranks if self.model else 1)


TABLE: Final[Mapping[str, Option]] = {
    one.name: one.metadata["option"] for one in dataclasses.fields(JobOptions)
}
DEFAULTS: Final[Mapping[str, object]] = {
    one.name: one.default for one in dataclasses.fields(JobOptions)
}
NAMES: Final[Mapping[str, str]] = {
    **{name: name for name in TABLE},
    **{alias: name for name, one in TABLE.items() for alias in one.aliases},
}
"""Every spelling -> the option."""


def find_option(word: str) -> str:
    """The option of this spelling. Raises Refused that names the nearest one."""
    if word in NAMES:
        return NAMES[word]
    if word in fio.REFUSED:
        raise Refused(
            f"option {word}= of fio has no meaning for checkpoints", hint=fio.REFUSED[word]
        )
    known = (*NAMES, *fio.PASSED_OVER)
    hint = did_you_mean(word, known, "ckptbench --cmdhelp lists all of them")
    raise Refused(f"no option is called {word!r}", hint=hint)
