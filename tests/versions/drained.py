"""The drained checkpoints that are frozen: what they hold, and how their archives are made.

    python -m tests.versions.drained tests/versions/drained_1_0.tar.xz

writes three steps into a file that must not exist yet: one stored as it is, one compressed, one
of which a worker had written the plan alone.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import ml_dtypes
import msgspec
import numpy as np

from ckpt.base.ids import Step
from ckpt.objects.planning import WriteOptions
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.sinks.sink import Sink
from ckpt.objects.source import Array
from ckpt.objects.writer import WriteJob, WriteLimits, write_checkpoint
from tests.objects.sources import HEADER, MemorySource, random_bits

AS_IT_IS: Final = Step(500)
COMPRESSED: Final = Step(501)
BEGUN: Final = Step(502)
LIMITS: Final = WriteLimits(threads=1, memory_bytes=128 << 20)
VALUES: Final = {"lr": 0.1, "nan": float("nan"), "big": 1 << 200, "z": 1 - 2j, "raw": b"\0\xff"}


def source(step: int) -> MemorySource:
    """Small tensors of every kind, and two above a mebibyte that pack well."""
    whole: dict[str, Array] = {
        f"small/{name.strip('<>')}": random_bits(name, (3, 2))
        for name in ("?", "i1", "<u2", ">i4", "<i8", "<f2", "<f4", ">f8", "<c16")
    }
    whole["small/bf16"] = random_bits(ml_dtypes.bfloat16, (5,))
    whole["small/f8"] = random_bits(ml_dtypes.float8_e4m3fn, (2, 2))
    whole["odd/text"] = np.array(["a", "züge", ""], "U4")
    whole["odd/when"] = random_bits("<M8[ns]", (4,))
    whole["odd/int4"] = np.arange(-8, 8).astype(ml_dtypes.int4)
    whole["odd/#0/~.="] = np.zeros((0, 3), "f4")
    whole["scalar"] = np.array(step, "<i8")
    whole["model/wide"] = np.repeat(np.arange(600, dtype="<f4"), 512).reshape(600, 512)
    whole["model/bf16"] = np.repeat(np.arange(700), 800).astype(ml_dtypes.bfloat16)
    own = {"rng": random_bits("<u4", (4,)), "model/wide": whole["model/wide"] + np.float32(step)}
    header = msgspec.structs.replace(HEADER, step=step)
    return MemorySource(whole, own, header=header, values=VALUES)


def write(sink: Sink) -> None:
    """All three steps."""
    for step, compression in ((AS_IT_IS, "none"), (COMPRESSED, "always")):
        write_checkpoint(sink, source(step), WriteOptions(compression=compression), LIMITS)
    WriteJob.begin(sink, source(BEGUN), WriteOptions(compression="none"), LIMITS)


def main(archive: Path) -> None:
    """Names sorted, times and owners left out."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive, "x:xz", preset=9) as file:
        write(FileSink(Path(folder)))
        file.add(folder, "store", filter=kept)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
