"""Waiting for saves that go on beside the training: futures that nobody asks, Ctrl-C in a wait."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from transformers import TrainerControl, TrainerState, TrainingArguments

import ckpt
import ckpt_jax
import ckpt_torch
from ckpt_client.default import process_store
from ckpt_torch.accelerate import CkptHooks
from ckpt_torch.dcp_stager import CkptStager
from ckpt_torch.lightning import CkptIO
from ckpt_torch.transformers import CkptCallback
from tests.no_threads import no_threads
from tests.waiting import wait_until

STATE = {"w": torch.arange(1000.0)}


@contextmanager
def still(cluster: str) -> Iterator[None]:
    """The coordinator answers nobody: nothing commits."""
    ready = json.loads((Path(cluster.removeprefix("ckpt+local://")) / "ready.json").read_text())
    os.kill(ready["coordinator_pid"], signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(ready["coordinator_pid"], signal.SIGCONT)


def kill_stager(cluster: str) -> None:
    (link,) = process_store(cluster)._stagers.links.values()
    os.kill(link.pid, signal.SIGKILL)
    wait_until(lambda: not link.alive, "the stager's end")


def fail_save(cluster: str, name: str) -> Future[ckpt.Commit]:
    """A save whose stager is killed."""
    ckpt_torch.save(STATE, checkpoint_id=f"{cluster}/{name}/1")
    with still(cluster):
        future = ckpt_torch.async_save(STATE, checkpoint_id=f"{cluster}/{name}/2")
        kill_stager(cluster)
    wait_until(future.done, "the future's end")
    return future


def test_the_next_save_raises_an_error_that_nobody_asked_the_future_for(cluster: str) -> None:
    fail_save(cluster, "dropped")
    with pytest.raises(ckpt.Aborted, match=r"dropped@2: the stager of rank 0 .* ended before"):
        ckpt_torch.save(STATE, checkpoint_id=f"{cluster}/dropped/3")
    ckpt_torch.save(STATE, checkpoint_id=f"{cluster}/dropped/3")
    assert [commit.step for commit in process_store(cluster).steps("dropped")] == [1, 3]


def test_a_save_that_gets_no_thread_waits_for_its_commit_in_the_call(cluster: str) -> None:
    """It is handed over by then: to raise would say that it is not saved."""
    with ckpt.open(cluster) as store:
        ckpt_torch.save(STATE, checkpoint_id="threadless/1", store=store)
        with no_threads():
            ckpt_torch.prepare(STATE, store=store).result(0)
            future = ckpt_torch.async_save(STATE, checkpoint_id="threadless/2", store=store)
            assert future.done()
            assert ckpt_torch.save(STATE, checkpoint_id="threadless/3", store=store).step == 3
        assert future.result().step == 2
        assert [commit.step for commit in store.steps("threadless")] == [1, 2, 3]


@pytest.mark.parametrize("way", ["result", "exception"])
def test_who_asked_the_future_is_told_by_nobody_else(cluster: str, way: str) -> None:
    future = fail_save(cluster, f"asked-{way}")
    if way == "result":
        with pytest.raises(ckpt.Aborted):
            future.result()
    else:
        assert isinstance(future.exception(), ckpt.Aborted)
    ckpt_torch.save(STATE, checkpoint_id=f"{cluster}/asked-{way}/3")


def test_closing_the_store_raises_it_too(cluster: str) -> None:
    future = fail_save(cluster, "closed")
    with pytest.raises(ckpt.Aborted, match="closed@2"):
        process_store(cluster).close()
    assert isinstance(future.exception(), ckpt.Aborted)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_s_future_that_nobody_asks_is_told_in_the_log(
    cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    dcp.save(STATE, storage_writer=ckpt_torch.CkptWriter(f"{cluster}/dcp/1"))
    with still(cluster):
        writer = ckpt_torch.CkptWriter(f"{cluster}/dcp/2")
        answer = dcp.async_save(STATE, storage_writer=writer, async_stager=CkptStager(writer))
        kill_stager(cluster)
    wait_until(answer.upload_completion.done, "the future's end")
    (told,) = [record.getMessage() for record in caplog.records if record.name == "ckpt.save"]
    assert told.startswith(f"rank 0: {cluster}/dcp/2 is not saved: dcp@2: the stager of rank 0")


Adapter = tuple[Callable[[int], object], Callable[[], object]]


def lightning(run: str, folder: Path) -> Adapter:
    io = CkptIO(run)
    return lambda step: io.save_checkpoint({**STATE, "global_step": step}, "last"), io.wait


def accelerate(run: str, folder: Path) -> Adapter:
    accelerator = Accelerator(cpu=True)
    hooks = CkptHooks(run).attach(accelerator)
    accelerator.prepare(torch.nn.Linear(3, 4))
    return lambda step: accelerator.save_state(str(folder / f"step_{step}")), hooks.wait


def transformers(run: str, folder: Path) -> Adapter:
    callback, model = CkptCallback(run, every=1), torch.nn.Linear(3, 4)
    held = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}

    arguments = TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[])

    def save(step: int) -> None:
        state = TrainerState(global_step=step, max_steps=100)
        callback.on_step_end(arguments, state, TrainerControl(), **held)

    return save, callback.wait


def jax(run: str, folder: Path) -> Adapter:
    manager = ckpt_jax.CheckpointManager(run)
    state = {"w": np.arange(1000.0)}
    return lambda step: manager.save(step, state, force=True), manager.wait_until_finished


@pytest.mark.parametrize("adapter", [lightning, accelerate, transformers, jax])
def test_a_wait_that_was_interrupted_is_waited_again(
    cluster: str, tmp_path: Path, adapter: Callable[[str, Path], Adapter]
) -> None:
    name = f"interrupted-{adapter.__name__}"
    save, wait = adapter(f"{cluster}/{name}", tmp_path)
    save(1)
    wait()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with still(cluster):
            save(2)
            for _ in range(2):  # The second one is not let through either.
                with pytest.raises(KeyboardInterrupt), interrupting(wait):
                    wait()
    finally:
        signal.signal(signal.SIGINT, before)
    wait()
    assert process_store(cluster).latest(name) == 2


@contextmanager
def interrupting(wait: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C once this thread stands in a lock or a poll below that function."""
    code = wait.__func__.__code__  # type: ignore[attr-defined]
    thread, ended = threading.get_ident(), threading.Event()

    def waits() -> bool:
        frame = sys._current_frames()[thread]
        inside = frame.f_code.co_name in ("wait", "receive")
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        return (inside and frame is not None) or ended.is_set()

    def interrupt() -> None:
        wait_until(waits, "the main thread waits")
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()
    try:
        yield
    finally:
        ended.set()
        other.join()
