"""A fetched folder is there, whole, after a loss of power: another fetch keeps it by its mark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machines.recorded import left, run
from tests.machines.recorder import Recorder, build_recorder

FETCHED = """
from pathlib import Path
from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.format.messages.saving import CommitInfo
from ckpt_torch.fetched import put_folder
of = CheckpointId(RunName('run'), Step(7), Generation(1, 1))
info = CommitInfo(of, 1, 1, '4+2', 1, 2, 2, 'host', 0.0, 1, 1, 0, '')
def put(folder):
    (folder / 'more').mkdir()
    write(folder / 'state.pt', b'x')
    write(folder / 'more' / 'rng.pt', b'y')
put_folder(Path('out/checkpoint-7').absolute(), info, put)
"""


def test_a_fetched_folder_that_names_its_checkpoint_is_whole(tmp_path: Path) -> None:
    library = build_recorder(tmp_path)
    if library is None:
        pytest.skip("no C compiler here: loss of power is NOT tried; install cc")
    recorder = Recorder(library, tmp_path / "disk")
    run(recorder, FETCHED)
    found = left(recorder, ordered=False)
    assert found.pop("out/checkpoint-7/ckpt.json").startswith(b'{"checkpoint": "run@7')
    assert found == {"out/checkpoint-7/state.pt": b"x", "out/checkpoint-7/more/rng.pt": b"y"}
