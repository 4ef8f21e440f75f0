"""Models for use, from memory to memory: `save_pretrained` and `from_pretrained`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, SupportsFloat, TypeVar, cast

import torch
from transformers import AutoConfig, PretrainedConfig

from ckpt.base.errors import Refused
from ckpt_client.save.handle import Commit
from ckpt_client.store import Store
from ckpt_torch.buffers import weights_of_rank
from ckpt_torch.place import find_where, find_who
from ckpt_torch.reading.whole import whole_of
from ckpt_torch.saving import async_save

Model = TypeVar("Model", bound=torch.nn.Module)
COMPILED: Final = "_orig_mod."
"""What torch.compile puts before the names of a module's weights."""


def save_pretrained(
    model: torch.nn.Module,
    name: str,
    *,
    store: Store | str | None = None,
    metrics: Mapping[str, SupportsFloat] | None = None,
) -> Commit:
    """Save a model and its configuration as a step, `ckpt://HOST:PORT/RUN/STEP` or RUN/STEP in
    `store`, and wait until it is committed. All ranks of a process group call it. `metrics` and
    what is raised: as in `ckpt_torch.save`.
    """
    held = described(model, find_who(None, no_dist=False).rank)
    return async_save(held, checkpoint_id=name, store=store, metrics=metrics).result()


def from_pretrained(
    kind: type[Model], name: str, *, store: Store | str | None = None, **options: object
) -> Model:
    """The model that `save_pretrained` or a CkptCallback has saved, from memory to memory.

    kind: a model's class, or an Auto class, such as AutoModelForCausalLM.
    name: `ckpt://HOST:PORT/RUN[/STEP]`, or RUN[/STEP] in `store`; the newest step without one.
    options: as the library's own from_pretrained takes them; `config` in place of the saved one.

    Raises NotFound, Unavailable, Lost; Refused when no configuration was saved and none is given,
    and when it has none of the model's weights, such as one of a PEFT model, whose names differ:
    the library fills what is missing at random.
    """
    where = find_where(name, store)
    with where.store.resolve(where.run, where.step) as checkpoint:
        state = whole_of(checkpoint)
    if not isinstance(state, dict) or "model" not in state:
        raise Refused(f"{name} holds no model of transformers", hint="see ckpt show --tensors")
    config = options.pop("config", None) or _configured(name, state)
    # Which class an Auto class stands for: asked of a model without memory.
    with torch.device("meta"):
        shell = kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
    weights = {key.replace(COMPILED, ""): weight for key, weight in state["model"].items()}
    made, report = type(shell).from_pretrained(
        None, config=config, state_dict=weights, output_loading_info=True, **options
    )
    if {name for name, _ in made.named_parameters()} <= set(report["missing_keys"]):
        raise Refused(
            f"{name} has no weight of a {type(shell).__name__}; it has {', '.join([*weights][:4])}",
            hint="make the model as it was at the save, such as with its adapters, and fill its "
            "state_dict by ckpt_torch.load",
        )
    made.config.name_or_path = made.name_or_path = name
    return cast(Model, made)


def described(model: torch.nn.Module, rank: int) -> dict[str, object]:
    """What the rank saves of its weights, and its configuration if it has one."""
    weights = weights_of_rank(model, model.state_dict(), rank)
    config = getattr(model, "config", None)
    if not isinstance(config, PretrainedConfig):
        return {"model": weights}
    return {"model": weights, "config": config.to_json_string(use_diff=False)}


def _configured(name: str, state: dict[str, object]) -> PretrainedConfig:
    if "config" not in state:
        raise Refused(f"{name} was saved without a configuration", hint="pass config=")
    values = json.loads(cast(str, state["config"]))
    return AutoConfig.for_model(**values)
