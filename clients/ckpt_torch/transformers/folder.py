"""`fetch`: a committed step as the folder that the Trainer resumes from."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors.torch import save_file

from ckpt.base.errors import NotFound, Refused
from ckpt_client.store import Store
from ckpt_torch.fetched import put_folder
from ckpt_torch.place import find_where
from ckpt_torch.reading.whole import whole_of
from ckpt_torch.transformers.random_states import as_saved_by_trainer


def fetch(run: str, output_dir: str | Path, *, store: Store | str | None = None) -> str | None:
    """Write the newest committed step as a folder that `Trainer.train(resume_from_checkpoint=)`
    takes; returns its path, or None when nothing is committed.

    output_dir: where the folder `checkpoint-STEP` goes. A folder that was made from the same
        checkpoint stays; one made from another is replaced. All ranks may call this: they get the
        same step.

    Raises Unavailable, Lost, and Refused for a folder of that name that somebody else made, and for
    an output_dir that is a URL.
    """
    check_is_folder(output_dir)
    where = find_where(run, store)
    try:
        with where.store.resolve(where.run, where.step) as checkpoint:
            state = whole_of(checkpoint)
            info = checkpoint.info  # The same for all ranks of a launch.
    except NotFound:
        return None
    folder = Path(output_dir) / f"checkpoint-{info.checkpoint.step}"
    put_folder(folder, info, lambda aside: _write(state, aside))
    return str(folder)


def check_is_folder(output_dir: str | Path | None) -> None:
    """Raises Refused for a URL."""
    # One slash is what a Path leaves of two.
    if re.match(r"[a-z0-9+]+:/", str(output_dir)):
        raise Refused(
            f"output_dir={str(output_dir)!r} would become a folder of that name here",
            hint="name a folder of this machine; checkpoints go to the run of CkptCallback",
        )


def _write(state: object, folder: Path) -> None:
    """A folder as the Trainer writes it."""
    assert isinstance(state, dict), "as CkptCallback saves it"
    save_file(_unshared(state["model"]), folder / "model.safetensors", {"format": "pt"})
    torch.save(state["optimizer"], folder / "optimizer.pt")
    for name in ("scheduler", "scaler"):
        if name in state:
            torch.save(state[name], folder / f"{name}.pt")
    alone = len(state["rng"]) == 1
    for rank, states in state["rng"].items():
        name = "rng_state.pth" if alone else f"rng_state_{rank}.pth"
        torch.save(as_saved_by_trainer(states), folder / name)
    (folder / "trainer_state.json").write_text(state["trainer_state"], "utf-8")


def _unshared(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """safetensors wants each tensor in memory of its own."""
    return {name: tensor.clone() for name, tensor in model.items()}
