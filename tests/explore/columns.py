"""What one rank saves in the small world, and its columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ckpt.base.ids import PayloadId, RunName, Step
from ckpt.erasure.code import Code
from ckpt.format.checksum import xxh3_128
from ckpt.format.layout import Layout
from tests.sim.payloads import Cells, Job, content, encode_cells, manifest_of

RUN = RunName("run")
STEP = Step(10)
PAYLOAD_BYTES = 3000
JOB = Job(RUN, "key", "launch", 1, (int(STEP),), 0, PAYLOAD_BYTES)


@dataclass(frozen=True, slots=True)
class Columns:
    """What the columns of a payload are."""

    layout: Layout
    cells: Cells
    manifest: bytes

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, payload: PayloadId, launch: int, code: Code, seed: int = 0) -> Columns:
        """`seed`: another one is another payload."""
        layout = Layout(code, PAYLOAD_BYTES, 4096)
        data = content(JOB, int(payload.checkpoint.step), payload.rank, seed)
        cells = encode_cells(layout, data.ljust(layout.padded_bytes, b"\0"))
        return cls(layout, cells, manifest_of(payload, launch, layout, cells)[0])

    @property
    def digest(self) -> bytes:
        return xxh3_128(self.manifest)
