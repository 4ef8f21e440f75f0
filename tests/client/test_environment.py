"""Rank, world size and launch key come from arguments, else from one launcher,
and are never guessed.
"""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from ckpt.base.errors import Refused
from ckpt.base.ids import Rank, check_run_name, check_step
from ckpt_client import default
from ckpt_client.environment import (
    RankPlace,
    find_launch_key,
    find_place,
    next_save_number,
    process_name,
)
from tests.client import clikit


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, (1, 4)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, (2, 3)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2)),
        ({"PALS_RANKID": "5", "PMI_SIZE": "6"}, (5, 6)),
        ({"PALS_RANKID": "5", "PALS_SIZE": "6"}, (5, 6)),
        ({"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, (0, 1)),
    ],
)
def test_each_launcher_names_the_rank(environ: dict[str, str], expected: tuple[int, int]) -> None:
    assert find_place(environ=environ) == RankPlace(Rank(expected[0]), expected[1])


def test_a_command_under_test_may_be_given_this_very_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was emptied: no variable reached the command."""
    monkeypatch.setenv("CKPT_STORE", "nonsense")
    assert "store 'nonsense' is not of the form" in clikit.run("ls", environ=os.environ).err
    assert os.environ["CKPT_STORE"] == "nonsense"


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"WORLD_SIZE": "8"}, "RANK"),
        ({"RANK": "3"}, "WORLD_SIZE"),
        ({"SLURM_NTASKS": "8"}, "SLURM_PROCID"),
        ({"SLURM_PROCID": "8"}, "SLURM_NTASKS"),
        ({"PMI_SIZE": "8"}, "PMI_RANK"),
        ({"PALS_RANKID": "8"}, "PALS_SIZE"),
        ({"RANK": "x", "WORLD_SIZE": "8"}, "RANK"),
        ({"RANK": "8", "WORLD_SIZE": "8"}, "RANK"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE"),
    ],
)
def test_one_without_the_other_is_refused_by_name(environ: dict[str, str], named: str) -> None:
    with pytest.raises(Refused, match=named):
        find_place(environ=environ)


def test_arguments_stand_before_the_environment() -> None:
    assert find_place(1, 2, {"RANK": "7", "WORLD_SIZE": "8"}) == RankPlace(Rank(1), 2)


def test_numbers_of_other_types_are_ranks_and_what_is_no_number_is_named() -> None:
    place = find_place(np.int64(1), np.uint8(4))
    assert (type(place.rank), type(place.world_size)) == (int, int)
    assert place == RankPlace(Rank(1), 4)
    for rank in ("1", 1.0, True, None):
        with pytest.raises(Refused, match="rank="):
            find_place(rank, 4)  # type: ignore[arg-type]


def test_a_step_may_be_of_another_type_of_integers() -> None:
    """As a loop over numpy's arange has them."""
    for step in (np.int64(7), np.uint8(7), np.array(7)):
        checked = check_step(step)
        assert (checked, type(checked)) == (7, int)
    for wrong in (7.0, True, np.True_, np.float32(7), np.array([7, 8]), "7", -1, np.int8(-1), None):
        with pytest.raises(Refused, match="not an integer from 0"):
            check_step(wrong)  # type: ignore[arg-type]


def test_who_mixes_up_run_step_and_state_hears_their_order() -> None:
    """As torch.save has the state first. A whole state is named by its type, not written out."""
    state = {"w": np.ones(3)}
    for wrong, check in ((state, check_run_name), (state, check_step), (7, check_run_name)):
        with pytest.raises(Refused, match=r"of type dict|run name 7") as refused:
            check(wrong)  # type: ignore[operator]
        assert "save(RUN, STEP, STATE)" in refused.value.hint
        assert "array(" not in refused.value.message


@pytest.mark.parametrize(
    ("step", "hint"),
    [
        ("12", "write int('12')"), (2.0, "write int(2.0)"), (2.5, ""), ("last", ""), (True, ""),
        (-1, "a load without a step takes the newest"),
    ],
)  # fmt: skip
def test_a_step_that_is_nearly_a_number_says_what_to_write(step: object, hint: str) -> None:
    with pytest.raises(Refused, match="not an integer from 0") as refused:
        check_step(step)  # type: ignore[arg-type]
    assert refused.value.hint == hint


def test_a_run_that_is_no_text_is_named() -> None:
    for run in (7, None, b"gpt"):
        with pytest.raises(Refused, match="is no text"):
            check_run_name(run)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rank", "world_size"), [(0, None), (None, 2), (2, 2), (-1, 2)])
def test_half_an_argument_is_not_completed_from_the_environment(
    rank: int | None, world_size: int | None
) -> None:
    with pytest.raises(Refused):
        find_place(rank, world_size, {"RANK": "0", "WORLD_SIZE": "2"})


def test_a_launch_key_differs_between_starts_and_not_between_ranks() -> None:
    base = {"SLURM_JOB_ID": "17", "SLURM_PROCID": "0"}
    assert find_launch_key(environ=base) == find_launch_key(environ={**base, "SLURM_PROCID": "1"})
    assert find_launch_key(environ=base) != find_launch_key(
        environ={**base, "SLURM_RESTART_COUNT": "1"}
    )
    assert find_launch_key(environ=base) != find_launch_key(environ={**base, "SLURM_STEP_ID": "1"})


def test_torchrun_restarts_are_launches_of_their_own() -> None:
    first = {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "0"}
    assert find_launch_key(environ=first) == "torchelastic:job:0"
    assert (
        find_launch_key(environ={**first, "TORCHELASTIC_RESTART_COUNT": "1"})
        == "torchelastic:job:1"
    )


def test_a_port_that_rank_0_makes_for_each_start_names_it() -> None:
    """Each node counts its own restarts: one in the place of a dead one begins at 0."""
    met = {"MASTER_ADDR": "node3", "MASTER_PORT": "40001", "TORCHELASTIC_RUN_ID": "job"}
    start = {**met, "TORCHELASTIC_USE_AGENT_STORE": "False", "GROUP_WORLD_SIZE": "2"}
    keys = {find_launch_key(environ={**start, "TORCHELASTIC_RESTART_COUNT": n}) for n in "012"}
    assert keys == {"torchelastic:job:node3:40001"}
    others = [{**start, "MASTER_PORT": "40002"}, {**start, "GROUP_WORLD_SIZE": "1"}]
    assert len({find_launch_key(environ=other) for other in others} - keys) == 2


def test_two_torchruns_of_one_id_are_two_starts() -> None:
    """As of a job that Slurm starts again, with its number as the id: each counts from 0."""
    first = {
        "TORCHELASTIC_RUN_ID": "17", "TORCHELASTIC_RESTART_COUNT": "0", "MASTER_ADDR": "node3",
        "MASTER_PORT": "40001", "TORCHELASTIC_USE_AGENT_STORE": "True", "SLURM_JOB_ID": "17",
    }  # fmt: skip
    others = [{"MASTER_PORT": "40002"}, {"MASTER_ADDR": "node4"}]
    # The agents' port stays, however often they start the ranks.
    others.append({"TORCHELASTIC_RESTART_COUNT": "1"})
    keys = {find_launch_key(environ=first | other) for other in ({}, *others)}
    assert len(keys) == 4


def test_where_ranks_meet_says_nothing_without_torchrun() -> None:
    """A script sets it for itself, and perhaps another one on each node."""
    job = {"SLURM_JOB_ID": "17", "MASTER_ADDR": "node3", "MASTER_PORT": "40001"}
    assert find_launch_key(environ=job) == find_launch_key(environ={"SLURM_JOB_ID": "17"})


def test_the_default_id_of_torchrun_names_nothing() -> None:
    assert find_launch_key(environ={"TORCHELASTIC_RUN_ID": "none"}) is None


def test_without_any_sign_there_is_no_key() -> None:
    assert find_launch_key(environ={}) is None
    assert find_launch_key("mine", environ={"SLURM_JOB_ID": "17"}) == "mine"
    with pytest.raises(Refused):
        find_launch_key("", environ={})


def test_a_forked_child_is_another_process() -> None:
    ours = process_name()
    assert ours == process_name()
    assert f"/{os.getpid()}/" in ours
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, process_name().encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() not in ("", ours)
    os.waitpid(child, 0)


def test_threads_that_are_the_first_to_ask_are_one_process() -> None:
    """Ranks of one process start their stagers side by side. Under two names of it a run without a
    launch key was two starts at the next save, of which one fenced the other.
    """
    for _ in range(20):
        names, numbers = _asked_by_eight_threads_of_a_child()
        assert len(set(names)) == 1
        assert sorted(numbers) == list(range(1, 9))


def _asked_by_eight_threads_of_a_child() -> tuple[list[str], list[int]]:
    """The names and the save numbers that they got."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(30)
        os.write(writer, json.dumps(_asked_by_eight_threads()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        names, numbers = json.loads(pipe.read())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return names, numbers


def _asked_by_eight_threads() -> tuple[list[str], list[int]]:
    together = Barrier(8)

    def ask(_: int) -> tuple[str, int]:
        together.wait()
        return process_name(), next_save_number()

    with ThreadPoolExecutor(8) as threads:
        asked = list(threads.map(ask, range(8)))
    return [name for name, _ in asked], [number for _, number in asked]


def test_a_child_that_was_forked_inside_an_opening_of_another_thread_opens_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CKPT_STORE", raising=False)
    with default._stores_lock:
        child = os.fork()
        if not child:
            signal.alarm(30)
            try:
                default.process_store()
            except Refused:
                os._exit(7)
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_save_numbers_ascend() -> None:
    assert next_save_number() < next_save_number()
