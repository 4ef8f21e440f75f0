"""What `CheckpointManager.save` and `restore` take as `args`, as Orbax has them in `ocp.args`.

manager.save(step, args=ckpt_jax.args.StandardSave(state))
state = manager.restore(step, args=ckpt_jax.args.StandardRestore(like))
manager.save(step, args=Composite(params=StandardSave(params), data=StandardSave({"at": 3})))
params = manager.restore(step, args=Composite(params=StandardRestore(like))).params
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ckpt.base.errors import Refused

_OTHERS: Final = {
    "PyTreeSave": "StandardSave(item)",
    "PyTreeRestore": "StandardRestore(item), with each array's sharding in `item`",
    "ArraySave": "StandardSave(array)",
    "ArrayRestore": "StandardRestore(array)",
    "JsonSave": "StandardSave(item): plain values are kept as they are",
    "JsonRestore": "StandardRestore(), which gives plain values as they were saved",
    "ProtoSave": "StandardSave(message.SerializeToString())",
    "ProtoRestore": "StandardRestore(b''), and parse the bytes",
    "JaxRandomKeySave": "StandardSave(jax.random.key_data(key))",
    "JaxRandomKeyRestore": "StandardRestore(...), and jax.random.wrap_key_data",
    "NumpyRandomKeySave": "StandardSave(numpy.random.get_state())",
    "NumpyRandomKeyRestore": "StandardRestore(), and numpy.random.set_state",
}
"""Orbax's other arguments, and what to write in their place."""


def __getattr__(name: str) -> object:
    if name in _OTHERS:
        raise AttributeError(f"ckpt_jax.args has no {name}: write {_OTHERS[name]}")
    raise AttributeError(f"ckpt_jax.args has no {name}")


@dataclass(frozen=True, slots=True)
class StandardSave:
    """Save `item`, as `ckpt_jax.save` takes a state.

    Raises Refused for `save_args` and `custom_metadata`, which only Orbax has.
    """

    item: object
    save_args: None = None
    custom_metadata: None = None

    def __post_init__(self) -> None:
        if self.save_args is not None:
            raise Refused("StandardSave(save_args=...)", hint="cast the arrays of `item` yourself")
        if self.custom_metadata is not None:
            raise Refused(
                "StandardSave(custom_metadata=...)",
                hint="put it into `item`, or Composite(state=..., more=StandardSave({...}))",
            )


@dataclass(frozen=True, slots=True)
class StandardRestore:
    """Restore a new state like `item`, as `ckpt_jax.load` takes `like`. Without `item`, the whole
    state in dicts, lists and tuples, its arrays as numpy's: neither nodes nor shardings are saved.

    Raises Refused for strict=False, `fallback_sharding` and `support_layout`, which only Orbax has.
    """

    item: object = None
    strict: bool = True
    fallback_sharding: None = None
    support_layout: bool = False

    def __post_init__(self) -> None:
        if not self.strict:
            raise Refused(
                "StandardRestore(strict=False) would cut or pad arrays",
                hint="restore the saved shapes, and cut or pad what comes",
            )
        if self.fallback_sharding is not None or self.support_layout:
            raise Refused(
                "StandardRestore(fallback_sharding=..., support_layout=...)",
                hint="give each array of `item` the sharding that it is to have",
            )


class Composite(Mapping[str, object]):
    """Several items of one step, by name: each a StandardSave or StandardRestore, and what comes
    back. `each.name` and `each["name"]` are the same.

    A step holds them as one dict, so that `Store.load` and `ckpt show` name them `NAME/...`.
    """

    def __init__(self, **items: object) -> None:
        self._items = items

    def __getitem__(self, name: str) -> object:
        return self._items[name]

    def __getattr__(self, name: str) -> object:
        if name.startswith("_") or name not in self._items:
            raise AttributeError(f"no item {name!r}; there are {', '.join(self) or 'none'}")
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Composite({', '.join(f'{name}={item!r}' for name, item in self._items.items())})"


def state_of(args: object) -> object:
    """The state that a save's `args` ask to store. Raises Refused for other objects."""
    match args:
        case StandardSave(item):
            return item
        case Composite():
            return {name: state_of(item) for name, item in args.items()}
    raise _unknown(args, "StandardSave(state)")


def like_of(args: object) -> object:
    """The `like` that a restore's `args` ask for; None for all. Raises Refused for other
    objects.
    """
    match args:
        case StandardRestore(item):
            return item
        case Composite():
            likes = {name: like_of(item) for name, item in args.items()}
            for name, like in likes.items():
                if like is None:
                    raise Refused(
                        f"Composite({name}=StandardRestore()) does not say what {name} is like",
                        hint=f"StandardRestore(manager.item_metadata(step)[{name!r}])",
                    )
            return likes
    raise _unknown(args, "StandardRestore(like)")


def _unknown(args: object, known: str) -> Refused:
    kind = f"{type(args).__module__}.{type(args).__qualname__}"
    return Refused(f"args is a {kind}", hint=f"args=ckpt_jax.args.{known}, or a Composite of these")
