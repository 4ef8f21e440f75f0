"""One whole checkpoint: saved, drained by `ckptd drain`, loaded from the store alone."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import ckpt
from ckpt.base.ids import RunName, Step
from ckpt.objects.reader import open_stored
from ckpt.objects.sinks.sink import Sink
from ckpt.objects.sinks.stores import OBSTORE
from tests.e2e.cluster import Cluster
from tests.objects.drainkit import (
    ROWS,
    Drain,
    assert_once_and_whole,
    assert_same,
    save,
    wait_drained,
)

PROBE = """
import json, sys, zlib
import numpy, zarr
group = zarr.open_group(sys.argv[1], mode="r", storage_options=json.loads(sys.argv[2]))
array = group[sys.argv[3]]
shape = str(array.shape).replace(" ", "")
print(array.dtype, shape, zlib.crc32(numpy.asarray(array[...]).tobytes()))
"""


def assert_drained_and_loaded(
    *,
    cluster: Cluster,
    store: ckpt.Store,
    sink: Sink,
    options: Mapping[str, object],
    environment: Mapping[str, str],
    run: str,
    log: Path,
) -> None:
    """`environment` is all that the drain knows of the store; `options` are what `load` is told."""
    save(store, run, 1)
    to = f"{sink.url}?runs={run}"
    drain = Drain(Path(cluster.directory), to, environment=environment, log=log)
    try:
        wait_drained(sink, run, 1)
        assert_once_and_whole(sink, run, 1)
    finally:
        assert drain.stop() == 0, log.read_text()
    assert "conditionally" not in log.read_text()
    assert_same(ckpt.load(f"{sink.url}//{run}@1", whole=True, storage_options=options), 1)
    if not sink.url.startswith(OBSTORE):
        _assert_zarr_opens(sink, options, run)


def _assert_zarr_opens(sink: Sink, options: Mapping[str, object], run: str) -> None:
    stored = open_stored(sink, RunName(run), Step(1))
    stored.close()
    # A process of its own: adlfs ends its sessions at exit, on a loop that zarr has closed by then.
    line = [sys.executable, "-c", PROBE, stored.url, json.dumps(dict(options)), "tensors/w"]
    found = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    expected = np.arange(2 * ROWS * 500, dtype="f4").reshape(2 * ROWS, 500) + np.float32(1)
    assert found.split() == ["float32", f"({2 * ROWS},500)", str(zlib.crc32(expected.tobytes()))]
