"""`ckpt export --format dcp`: stock torch loads what it wrote, bit by bit."""

from __future__ import annotations

import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ckpt.base.errors import Refused
from ckpt_client.exchange.dcp_directory import write_dcp
from ckpt_client.exchange.tensors import named_arrays
from tests.objects.sources import MemorySource, random_bits

torch = pytest.importorskip("torch")

WEIGHTS = {
    "model/embed": random_bits(ml_dtypes.bfloat16, (200, 101)),
    "model/f8": random_bits(ml_dtypes.float8_e4m3fn, (30, 7)),
    "model/weight": random_bits("<f4", (300, 20)),
    "model/scale": np.array(0.5, "f8"),
    "model/none": np.zeros((0, 4), "f4"),
    "model/mask": random_bits("?", (9,)),
}


def test_stock_dcp_loads_every_tensor(tmp_path: Path) -> None:
    from torch.distributed import checkpoint as dcp

    source = MemorySource(WEIGHTS)
    arrays = named_arrays(source, "model/", ".")
    size = write_dcp(source, arrays, tmp_path / "dcp")
    assert size == sum(array.nbytes for array in WEIGHTS.values())
    metadata = dcp.FileSystemReader(tmp_path / "dcp").read_metadata().state_dict_metadata
    state = {
        name: torch.zeros(entry.size, dtype=entry.properties.dtype)
        for name, entry in metadata.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: that no process group is meant
        dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert set(state) == {name.removeprefix("model/") for name in WEIGHTS}
    for name, array in WEIGHTS.items():
        found = state[name.removeprefix("model/")]
        assert tuple(found.shape) == array.shape
        assert found.flatten().view(torch.uint8).numpy().tobytes() == array.tobytes(), name


def test_a_type_that_torch_lacks_is_refused_by_name(tmp_path: Path) -> None:
    source = MemorySource({"when": random_bits("<M8[s]", (4,))})
    with pytest.raises(Refused, match=r"when: torch has no <M8\[s\]"):
        write_dcp(source, named_arrays(source, "", "."), tmp_path / "dcp")
    assert not (tmp_path / "dcp").exists()
