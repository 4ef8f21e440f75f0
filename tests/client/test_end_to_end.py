"""Saves through a real local cluster: supervisor, coordinator, targets, stagers,
and signals to each of them.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.ids import Rank
from ckpt.format.index.pages import IndexTensor
from ckpt_client.load import plan
from ckpt_client.load.contents import Contents, Want
from ckpt_client.load.plan import TensorIndex
from tests.client.daemonic import save_once
from tests.client.test_stager_process import runs
from tests.waiting import wait_until
from tests.warm_child import answer_of_script, run_script, start_script

RANKS = 4
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of 7 targets; its supervisor is ended with the module.

    Its directory goes, too: that is how stagers with a save that never committed learn that
    nobody will come back for it.
    """
    directory = tmp_path_factory.mktemp("burst")
    yield f"ckpt+local://{directory}?targets=7&code=4+2&pretend_domains=1"
    stop(directory)
    shutil.rmtree(directory)


def stop(directory: Path) -> None:
    ready = json.loads((directory / "ready.json").read_text())
    os.kill(ready["pid"], signal.SIGTERM)
    wait_until(lambda: not runs(ready["pid"]), "the supervisor's end")


def directory_of(url: str) -> Path:
    return Path(url.removeprefix("ckpt+local://").partition("?")[0])


def state_of(rank: int, version: int, *, replica: float = 0.0) -> dict[str, object]:
    return {
        "own": np.full(50_000, version * 10 + rank, "f4"),
        "same": ckpt.Replicated({"p": np.full(400_000, version + replica), "lr": 0.1}),
        "m": ckpt.Shard(np.full((10, 100), rank), (10 * RANKS, 100), (10 * rank, 0)),
        "step": version,
    }


def save_all(
    store: ckpt.Store, run: str, step: int, states: list[dict[str, object]]
) -> list[ckpt.Save]:
    return [
        store.save(run, step, state, rank=rank, world_size=len(states))
        for rank, state in enumerate(states)
    ]


def errors_of(saves: list[ckpt.Save]) -> list[str]:
    texts = []
    for save in saves:
        with pytest.raises(ckpt.CkptError) as caught:
            save.wait(TIMEOUT_S)
        texts.append(str(caught.value))
    return texts


def test_a_save_of_all_ranks_commits_and_is_listed(url: str) -> None:
    with ckpt.open(url) as store:
        assert store.latest("a/run") is None
        for step in (1, 2, 3):
            saves = save_all(store, "a/run", step, [state_of(r, step) for r in range(RANKS)])
            commits = [save.wait(TIMEOUT_S) for save in saves]
            assert len(set(commits)) == 1
            assert (commits[0].run, commits[0].step) == ("a/run", step)
            assert (commits[0].targets_survivable, commits[0].domains_survivable) == (2, 2)
            replica_bytes = 400_000 * 8
            own_bytes = RANKS * (50_000 * 4 + 10 * 100 * 8)
            assert 0 <= commits[0].bytes - own_bytes - replica_bytes < 32_768
        assert [commit.step for commit in store.steps("a/run")] == [1, 2, 3]
        assert store.latest("a/run") == 3


def test_nan_is_refused_by_name_when_asked_and_nothing_is_staged(url: str) -> None:
    with ckpt.open(url) as store:
        state = {"m": {"w": np.array([[1.0, 2.0], [np.nan, 3.0]])}, "step": 1}
        with pytest.raises(ckpt.Refused, match=r"m/w: element \[1, 0\] of \(2, 2\) is nan"):
            store.save("finite", 1, state, check_finite=True)
        assert store.latest("finite") is None
        store.save("finite", 1, state).wait(TIMEOUT_S)
        assert store.latest("finite") == 1


def test_a_step_that_is_saved_again_has_a_newer_generation(url: str) -> None:
    with ckpt.open(url) as store:
        first = store.save("again", 1, state_of(0, 1)["own"]).wait(TIMEOUT_S)
        second = store.save("again", 1, state_of(0, 2)["own"]).wait(TIMEOUT_S)
        assert second.generation > first.generation
        assert [commit.generation for commit in store.steps("again")] == [second.generation]


def test_a_replica_that_differs_aborts_the_save_by_path_and_rank(url: str) -> None:
    with ckpt.open(url) as store:
        states = [state_of(r, 1, replica=float(r == 2)) for r in range(RANKS)]
        for text in errors_of(save_all(store, "replicas", 1, states)):
            assert "same/p" in text
            assert "rank 2" in text
        assert store.latest("replicas") is None


def test_a_replicated_scalar_that_differs_aborts_the_save_too(url: str) -> None:
    with ckpt.open(url) as store:
        states: list[dict[str, object]] = [
            {"c": ckpt.Replicated({"k": int(r == 1)})} for r in range(3)
        ]
        for text in errors_of(save_all(store, "scalars", 1, states)):
            assert "c/k" in text


def test_overlapping_shards_must_agree(url: str) -> None:
    def shards(difference: int) -> list[dict[str, object]]:
        boxes = [np.zeros((20, 50)) + difference * rank for rank in range(2)]
        return [{"m": ckpt.Shard(box, (30, 50), (rank * 10, 0))} for rank, box in enumerate(boxes)]

    with ckpt.open(url) as store:
        for save in save_all(store, "overlap", 1, shards(0)):
            save.wait(TIMEOUT_S)
        for text in errors_of(save_all(store, "overlap", 2, shards(1))):
            assert "overlap" in text


def test_a_hole_in_a_global_tensor_is_refused(url: str) -> None:
    with ckpt.open(url) as store:
        states: list[dict[str, object]] = [
            {"m": ckpt.Shard(np.zeros((5, 4)), (20, 4), (rank * 10, 0))} for rank in range(2)
        ]
        for text in errors_of(save_all(store, "hole", 1, states)):
            assert "'m'" in text


def test_a_rank_that_goes_on_aborts_the_step_it_left_out_and_is_named(url: str) -> None:
    with ckpt.open(url) as store:
        early = store.save("late", 1, {"a": 1}, rank=0, world_size=2)
        later = store.save("late", 2, {"a": 1}, rank=1, world_size=2)
        assert "rank 1" in errors_of([early])[0]
        store.save("late", 2, {"a": 1}, rank=0, world_size=2).wait(TIMEOUT_S)
        later.wait(TIMEOUT_S)


def test_an_error_nobody_waited_for_is_raised_by_the_next_save_and_by_close(url: str) -> None:
    def fail(store: ckpt.Store, step: int) -> None:
        saves = save_all(store, "untold", step, [{"a": ckpt.Replicated(r)} for r in range(2)])
        wait_until(lambda: _ended(saves), "the abort")

    def _ended(saves: list[ckpt.Save]) -> bool:
        for save in saves:
            if not save.ended:
                save._stager.take_news()  # type: ignore[union-attr]
        return all(save.ended for save in saves)

    store = ckpt.open(url)
    fail(store, 1)
    for _ in range(2):  # Each rank's own.
        with pytest.raises(ckpt.Refused, match="'a'"):
            store.save("untold", 2, {"a": 1}, rank=0, world_size=2)
    fail(store, 3)
    with pytest.raises(ckpt.Refused, match="'a'"):
        store.close()
    store.close()


def test_a_state_that_cannot_be_stored_is_refused_before_anything_is_staged(url: str) -> None:
    with ckpt.open(url) as store:
        with pytest.raises(ckpt.Refused, match="layers/"):
            store.save("refused", 1, {"layers": [object()]})
        assert store.latest("refused") is None


def test_a_killed_stager_is_an_error_and_the_next_save_starts_a_new_one(url: str) -> None:
    with ckpt.open(url) as store:
        save = store.save("killed", 1, {"a": np.zeros(1000)}, rank=0, world_size=2)
        (link,) = store._stagers.links.values()
        os.kill(link.pid, signal.SIGKILL)
        assert f"pid {link.pid}" in errors_of([save])[0]
        for save in save_all(store, "killed", 2, [{"a": np.zeros(1000)}, {}]):
            assert save.wait(TIMEOUT_S).step == 2
        (renewed,) = (one for place, one in store._stagers.links.items() if place.rank == 0)
        assert renewed.pid != link.pid


_TRAINER = """
import os, signal, sys
import numpy as np
import ckpt
store = ckpt.open(sys.argv[1])
store.save("orphan", 7, {"a": np.arange(5_000_000), "b": 3})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_trainer_killed_after_save_has_returned_does_not_stop_the_save(
    url: str, tmp_path: Path
) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(_TRAINER)
    assert run_script(script, url, environment=os.environ) == -signal.SIGKILL
    with ckpt.open(url) as store:
        wait_until(lambda: store.latest("orphan") == 7, "the orphan's commit", TIMEOUT_S)


def test_a_coordinator_that_is_killed_only_delays_the_commit(url: str) -> None:
    with ckpt.open(url) as store:
        store.save("restart", 1, {"a": np.zeros(1000)}).wait(TIMEOUT_S)
        ready = json.loads((directory_of(url) / "ready.json").read_text())
        os.kill(ready["coordinator_pid"], signal.SIGKILL)
        assert store.save("restart", 2, {"a": np.ones(1000)}).wait(TIMEOUT_S).step == 2
        assert [commit.step for commit in store.steps("restart")] == [1, 2]


def test_a_full_arena_skips_or_refuses_as_asked(url: str) -> None:
    for policy in ("skip", "error"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            store = ckpt.open(url, when_full=policy, stager_idle_s=1.0)
            for step in (1, 2):  # Rank 1 never comes: both halves stay held.
                store.save(f"full {policy}", step, {"a": 1}, rank=0, world_size=2)
            if policy == "skip":
                skipped = store.save(f"full {policy}", 3, {"a": 1}, rank=0, world_size=2)
                assert skipped.skipped
                with pytest.raises(ckpt.Busy):
                    skipped.wait()
            else:
                with pytest.raises(ckpt.CkptError):
                    store.save(f"full {policy}", 3, {"a": 1}, rank=0, world_size=2)
            with pytest.raises(ckpt.CkptError):
                store.close(timeout_s=0.0)


def arena_bytes() -> int:
    """Of all stagers' memory that is mapped here."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "ckpt-arena" in line:
            begin, end = line.split()[0].split("-")
            total += int(end, 16) - int(begin, 16)
    return total


def test_a_state_that_grew_once_lets_the_arena_grow_once(url: str) -> None:
    with ckpt.open(url) as store:
        before = arena_bytes()
        sizes = []
        for step, size in enumerate([1 << 20] * 2 + [5 << 20] * 8):
            store.save("arena-growth", step, {"a": np.full(size, step, "u1")}).wait(TIMEOUT_S)
            sizes.append(arena_bytes() - before)
    assert 2 * (5 << 20) <= sizes[3] == sizes[-1] <= 3 * (5 << 20)


def test_a_forked_child_must_open_a_store_of_its_own(url: str) -> None:
    with ckpt.open(url) as store:
        child = os.fork()
        if not child:
            try:
                store.save("forked", 1, {"a": 1})
            except ckpt.Refused as error:
                os._exit(0 if "forked child" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert store.save("forked", 1, {"a": 1}).wait(TIMEOUT_S).step == 1


def test_what_belongs_to_its_process_says_so_to_who_would_hand_it_to_another(url: str) -> None:
    """A spawned worker of a data loader gets all that its data set holds."""
    spawn = multiprocessing.get_context("spawn")
    with ckpt.open(url) as store:
        save = store.save("handed", 1, {"a": 1})
        commit = save.wait(TIMEOUT_S)
        again = f"ckpt.open('ckpt+local://{directory_of(url)}')"
        with pytest.raises(ckpt.Refused, match=f"a Store can be neither.*{re.escape(again)}"):
            spawn.Process(target=print, args=(store,)).start()
        with store.resolve("handed") as checkpoint:
            with pytest.raises(ckpt.Refused, match=r"a Checkpoint can be neither.*resolve"):
                ForkingPickler.dumps(checkpoint)
            with pytest.raises(ckpt.Refused, match=r"a Save can be neither.*hand on the Commit"):
                copy.deepcopy({"last": save})
        assert copy.deepcopy(commit) == commit
        assert store.latest("handed") == 1, "it goes on"


_CLOSES = """
import os, pathlib, sys
import numpy as np
import ckpt

state = {"a": np.arange(1000)}
store = ckpt.open(sys.argv[1])
store.save("closed-under", 1, state).wait(60)
under_way = store.save("closed-under", 2, state)
os.closerange(3, 4096)  # As libraries that make daemons do; then they open files of their own.
mine = [open(pathlib.Path(sys.argv[2]) / str(number), "wb", buffering=0) for number in range(40)]
try:
    under_way.wait(60)
except ckpt.Refused as error:
    assert "os.closerange" in str(error), error
else:
    raise AssertionError("nobody has told")
assert store.latest("closed-under") in (1, 2)
assert store.save("closed-under", 3, state).wait(60).step == 3
assert (store.load("closed-under", 3)["a"] == state["a"]).all()
store.close()
for file in mine:
    assert os.fstat(file.fileno()).st_size == 0, "written into a file of others"
    file.write(b"x")
    file.close()
"""


def test_a_store_whose_descriptors_other_code_closes_goes_on_and_touches_nothing_of_it(
    url: str, tmp_path: Path
) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(_CLOSES)
    assert answer_of_script(script, url, str(tmp_path), environment=os.environ) == ""


def test_an_option_that_contradicts_the_directory_names_both(url: str) -> None:
    with pytest.raises(ckpt.Refused, match=r"code=2\+1.*code=4\+2"):
        ckpt.open(url.replace("4+2", "2+1"))
    with ckpt.open(url.partition("?")[0]) as store:
        assert store.steps("nothing") == []


def test_many_opens_at_once_start_one_supervisor(tmp_path: Path) -> None:
    script = tmp_path / "opener.py"
    script.write_text(
        "import sys, ckpt\nwith ckpt.open(sys.argv[1]) as s: print(s._control.cluster)"
    )
    url = f"ckpt+local://{tmp_path}/burst?targets=2"
    openers = [start_script(script, url, environment=os.environ) for _ in range(4)]
    clusters = set()
    for opener in openers:
        assert opener.stdout is not None
        with opener.stdout:
            clusters.add(opener.stdout.read())
        assert opener.wait(TIMEOUT_S) == 0
    stop(tmp_path / "burst")
    assert len(clusters) == 1
    log = (tmp_path / "burst" / "logs" / "supervisor.log").read_text()
    assert log.count('"child": "coordinator"') == 1


def test_a_stopped_cluster_is_started_again_by_the_next_open(tmp_path: Path) -> None:
    url = f"ckpt+local://{tmp_path}?targets=2"
    with ckpt.open(url) as store:
        store.save("r", 1, {"a": 1}).wait(TIMEOUT_S)
    stop(tmp_path)
    with ckpt.open(url) as store:
        assert store.latest("r") == 1
    stop(tmp_path)


def test_the_module_level_functions_use_the_named_store(url: str, tmp_path: Path) -> None:
    script = tmp_path / "trainer.py"
    script.write_text("import ckpt; print(ckpt.save('module', 4, {'a': 1}).wait(60).step)")
    environ = {**os.environ, "CKPT_STORE": url}
    assert answer_of_script(script, environment=environ) == "4\n"


def test_the_module_saves_and_loads_in_the_store_that_the_environment_names(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPT_STORE", url)
    state = {"w": np.arange(300_000.0)}
    first = ckpt.save("by environment", 1, state).wait(TIMEOUT_S)
    again = [ckpt.save("by environment", step, state).wait(TIMEOUT_S) for step in (2, 3, 4)]
    loaded = ckpt.load("by environment")
    np.testing.assert_array_equal(loaded["w"], state["w"])
    assert first.fault_in_s > 0, "the arena was faulted in by the first save"
    assert again[-1].fault_in_s == 0


_FIRST = """
import sys
import numpy as np
import ckpt
state = {"w": np.zeros(2_000_000), "same": ckpt.Replicated({"p": np.ones(1_000_000)})}
with ckpt.open(sys.argv[1]) as store:
    if sys.argv[2] == "prepared":
        store.prepare(state).result()
    commit = store.save(sys.argv[2], 1, state).wait(60)
    store.load(sys.argv[2], 1)
slow = {"ckpt_client.stager.fingerprint", "numpy.ma"} & set(sys.modules)
print(commit.fault_in_s == 0, sorted(slow))
"""


@pytest.mark.parametrize(("run", "faulted_before"), [("prepared", True), ("unprepared", False)])
def test_prepare_pays_for_the_arena_and_the_trainer_imports_nothing_for_it(
    url: str, run: str, faulted_before: bool
) -> None:
    command = [sys.executable, "-W", "error", "-c", _FIRST, url, run]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{faulted_before} []\n"


def test_what_is_prepared_begins_nothing_and_may_be_saved_at_once(url: str) -> None:
    state = {"w": np.arange(600_000.0), "step": 1}
    grown = {**state, "m": np.ones(900_000)}
    with ckpt.open(url, launch="prepared", arena_bytes_max=200 << 20) as store:
        prepared = [store.prepare(each) for each in (state, grown, state)]
        for each in prepared:
            assert each.result(TIMEOUT_S) is None
        assert store.steps("nothing begun") == []
        first, second = store.prepare(grown), store.save("nothing begun", 1, grown)
        assert second.wait(TIMEOUT_S).step == 1
        assert first.result(TIMEOUT_S) is None
        np.testing.assert_array_equal(store.load("nothing begun")["m"], grown["m"])


def test_what_cannot_be_prepared_raises_what_its_save_would(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ckpt.open(url, arena_bytes_max=8 << 20) as store:
        with pytest.raises(ckpt.Refused, match="arena_bytes_max"):
            store.prepare({"w": np.zeros(2_000_000)})
        with pytest.raises(ckpt.Refused, match="w/f"):
            store.prepare({"w": {"f": print}})
    with pytest.raises(ckpt.Refused, match="closed"):
        store.prepare({"w": np.zeros(3)})
    store = ckpt.open(url)
    preparation = store.preparation()
    packing = preparation.lay_out({"w": np.zeros(3)})
    store.close()
    with pytest.raises(ckpt.Refused, match="closed"):
        preparation.begin(packing).result(TIMEOUT_S)
    assert "rank 0 is not prepared for its saves: this store is closed" in caplog.text


def test_a_load_looks_each_name_up_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []

    def variants_of(index: TensorIndex, name: str) -> tuple[IndexTensor, ...]:
        looked_up.append(name)
        return plan.variants_of(index, name)

    monkeypatch.setattr("ckpt_client.load.contents.variants_of", variants_of)
    with ckpt.open(url) as store:
        store.save("looked up", 1, {"a": np.arange(5), "b": np.ones(3)}).wait(TIMEOUT_S)
        array = np.zeros(5, np.int64)

        def read(contents: Contents) -> None:
            want = Want("a", array, (0,), Rank(0))
            assert contents.variants("c") == contents.variants("c") == ()
            assert contents.variants("a") == contents.variants("a")
            assert not contents.is_shared(want)
            contents.fill([want])

        with store.resolve("looked up") as checkpoint:
            checkpoint.read(read)
    assert array.tolist() == [0, 1, 2, 3, 4]
    assert looked_up == ["c", "a"]


def test_a_daemonic_trainer_saves_too(url: str) -> None:
    """A process that may have no children of multiprocessing's: the stager is none of them."""
    trainer = multiprocessing.get_context("spawn").Process(
        target=save_once, args=(url, "daemonic"), daemon=True
    )
    trainer.start()
    trainer.join(TIMEOUT_S)
    assert trainer.exitcode == 0
    with ckpt.open(url) as store:
        assert [commit.step for commit in store.steps("daemonic")] == [1]
