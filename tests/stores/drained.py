"""One whole checkpoint: saved, drained by `ckptd drain`, loaded from the store alone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import zarr

import ckpt
from ckpt.base.ids import RunName, Step
from ckpt.objects.reader import open_stored
from ckpt.objects.sink import Sink
from ckpt.objects.stores import OBSTORE
from tests.e2e.cluster import Cluster
from tests.objects.drainkit import (
    ROWS,
    Drain,
    assert_once_and_whole,
    assert_same,
    save,
    wait_drained,
)
from tests.objects.sources import same_bits


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr's own, of sessions that end with the process
        group = zarr.open_group(stored.url, mode="r", storage_options=dict(options))
        array = group["tensors/w"]
        assert isinstance(array, zarr.Array)
        expected = np.arange(2 * ROWS * 500, dtype="f4").reshape(2 * ROWS, 500) + np.float32(1)
        assert same_bits(np.asarray(array[...]), expected)
    stored.close()
