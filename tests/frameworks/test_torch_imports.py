"""What `import ckpt_torch` loads: a trainer pays for it at each start."""

from __future__ import annotations

import subprocess
import sys

DEAR = ("torch.distributed.tensor", "torch.distributed.checkpoint", "sympy")
"""Together a second of CPU, without which no process has a DTensor or calls DCP."""
SCRIPT = """
import sys
import torch
import ckpt_torch

name, *dear = sys.argv[1:]
loaded = lambda: [one for one in dear if one in sys.modules]
state, found = {"w": torch.ones(8), "step": 3}, {"w": torch.zeros(8), "step": 0}
ckpt_torch.save(state, checkpoint_id=name)
ckpt_torch.load(found, checkpoint_id=name)
print(found["step"], torch.equal(found["w"], state["w"]), loaded())
ckpt_torch.CkptWriter, ckpt_torch.CkptReader, ckpt_torch.CkptStager
print(loaded() == dear, sorted(set(ckpt_torch.__all__) - set(dir(ckpt_torch))))
"""


def test_who_saves_plain_tensors_loads_neither_dtensor_nor_dcp(cluster: str) -> None:
    command = [sys.executable, "-c", SCRIPT, f"{cluster}/light/1", *DEAR]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.splitlines() == ["3 True []", "True []"]
