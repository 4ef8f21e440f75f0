"""Job files of ckptbench that drain into an object store or fetch from it, as users run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from ckpt.objects.sinks.fsspec_sink import FsspecSink
from tests.stores.gateway import S3

JOBS = Path(__file__).parents[2] / "benchmarks" / "jobs"
SMALL = {"numjobs": "2", "loops": "1", "warmups": "0", "code": "2+1", "targets": "4"}
FEWER_LOST = ("kill:targets=2", "kill:targets=1")
TIMEOUT_S = 300.0


def ckptbench(
    job: str, durable: str, place: Path, s3: S3, *flags: str, size: str = "4Mi"
) -> subprocess.CompletedProcess[str]:
    """The job file as a user runs it, with less of everything."""
    text = (JOBS / job).read_text().replace(*FEWER_LOST)
    for word, value in {**SMALL, "size": size}.items():
        text = re.sub(rf"^{word}=.*$", f"{word}={value}", text, flags=re.MULTILINE)
    small = place.parent / job
    small.write_text(text)
    where = {"CKPTBENCH_DIR": str(place), "CKPTBENCH_DURABLE": durable}
    return subprocess.run(
        [sys.executable, "-m", "ckptbench.cli", str(small), *flags],
        env={**os.environ, **s3.environment, **where},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def assert_nothing_left(s3: S3, bucket: str) -> None:
    sink = FsspecSink(f"s3://{bucket}", s3.fsspec_options)
    assert list(sink.list("")) == []
    assert sink.pending_uploads("") == []
