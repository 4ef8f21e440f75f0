"""What tests/gpu asks of an accelerator, asked of the emulated one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

import ckpt
from ckpt_torch.device import gathering
from ckpt_torch.reading import device_reads
from tests.frameworks.device.emulated import Emulated
from tests.frameworks.test_torch_restarts import under_torchrun
from tests.frameworks.warm import Warm
from tests.gpu import test_loads, test_preparing, test_ranks, test_saves
from tests.gpu.finding import is_for_cpus_alone, said
from tests.gpu.test_guard import (  # noqa: F401
    Training,
    test_every_save_of_a_guarded_training_is_the_state_of_its_step,
)
from tests.gpu.test_loads import (  # noqa: F401
    test_a_part_can_be_computed_with_before_the_rest_is_there,
    test_every_bit_comes_in_through_a_small_ring,
    test_the_ring_is_refused_where_it_holds_nothing,
)
from tests.gpu.test_preparing import (  # noqa: F401
    locks,
    test_the_first_steps_train_while_it_is_prepared,
)
from tests.gpu.test_saves import (  # noqa: F401
    test_a_state_that_grows_has_its_new_memory_locked,
    test_memory_whose_pages_cannot_be_locked_is_slower_and_whole,
    test_what_is_not_finite_is_refused_by_name,
)
from tests.landing import at_turn, in_turn, unmarked

one_staging = pytest.mark.parametrize("staging", in_turn(test_saves.STAGINGS, every=2))
test_a_first_save_finds_its_memory_locked = one_staging(
    unmarked(test_preparing.test_a_first_save_finds_its_memory_locked)
)
test_every_bit_comes_back_by_the_long_way_and_by_the_known_form = one_staging(
    unmarked(test_saves.test_every_bit_comes_back_by_the_long_way_and_by_the_known_form)
)
test_thousands_of_small_tensors_come_back = one_staging(
    unmarked(test_saves.test_thousands_of_small_tensors_come_back)
)
# At the other landings test_torch_restarts.py kills ranks twice.
test_ranks_that_share_an_accelerator_go_on_with_the_same_bits = at_turn(1, every=2)(
    unmarked(test_ranks.test_ranks_that_share_an_accelerator_go_on_with_the_same_bits)
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device computes on the CPU."""
    monkeypatch.setattr(Training.__init__, "__defaults__", (128, 4))
    # test_torch_restarts.py kills more of them.
    monkeypatch.setattr(test_ranks, "KILLS", 1)
    monkeypatch.setattr(test_ranks, "STEPS", 8)
    monkeypatch.setattr(test_saves, "SMALL", 300)
    # Tensors are as large as on an accelerator beside buffers that small ones meet in, and rings.
    sizes = [(module, "MIB") for module in (test_saves, test_loads, test_preparing)]
    sizes += [(gathering, name) for name in ("GATHER_BYTES", "GATHERED_BYTES")]
    sizes += [(device_reads, "RING_BYTES_MIN")]
    for module, name in sizes:
        monkeypatch.setattr(module, name, getattr(module, name) // 4)


@pytest.fixture
def store(cluster: str, device: Emulated, request: pytest.FixtureRequest) -> Iterator[ckpt.Store]:
    """Of a launch of its own: no stager is there for it."""
    with ckpt.open(cluster, launch=request.node.name) as found:
        yield found


@pytest.fixture
def url(cluster: str) -> str:
    """Of ranks that are processes of their own: they have no emulated device, and use the CPU."""
    return cluster


@pytest.fixture
def torchrun(warm: Warm) -> test_ranks.Torchrun:
    return partial(under_torchrun, warm)


def test_make_test_gpu_says_first_what_it_runs_on_or_that_there_is_nothing(
    emulated: Emulated,
) -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    recipe = makefile.partition("\ntest-gpu:")[2].partition("\n\n")[0].splitlines()[1:]
    assert recipe[0] == "\t$(BIN)/python -m tests.gpu.finding"
    assert recipe[1].endswith(" tests/gpu")
    with emulated.attached():
        assert said() == "ACCELERATOR: emulated:0"
    if not torch.accelerator.is_available():
        assert said() == "NO ACCELERATOR: its tests are SKIPPED"


BUILDS = [
    ("cuda = hip = xpu = None", True),
    ("cuda = '13.0'; hip = xpu = None", False),
    ("cuda = xpu = None; hip = '7.1'", False),
    ("cuda = hip = None", False),
]
"""What torch says that it was built for, and whether that is enough to ask it for nothing."""


@pytest.mark.parametrize(("built", "is_enough"), BUILDS)
def test_torch_is_imported_where_it_may_know_an_accelerator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: str, is_enough: bool
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "torch" / "version.py").write_text(built)
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_for_cpus_alone(), "it was imported, and can be asked"
    monkeypatch.delitem(sys.modules, "torch")
    assert is_for_cpus_alone() is is_enough


def test_where_torch_knows_none_all_are_skipped_by_name_and_nothing_is_imported() -> None:
    if torch.accelerator.is_available():
        pytest.skip("here they run")
    run = "import pytest, sys; pytest.main(sys.argv[1:]); print('torch' in sys.modules)"
    words = [sys.executable, "-c", run, "-q", "-n", "0", "-m", "not slow", "tests/gpu"]
    root = Path(__file__).parents[2]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True)
    count = sum(path.read_text().count("\ndef test_") for path in (root / "tests/gpu").glob("*.py"))
    assert f"\n{count} skipped in " in done.stdout
    assert done.stdout.endswith("\nFalse\n") is (torch.version.cuda is None)
