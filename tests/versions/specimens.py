"""One of each message: with all its fields, and with those only that it cannot do without."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, cast

import msgspec
from msgspec import inspect

from ckpt.format.messages import MESSAGE_TYPES, Message

_PLAIN: Final[dict[type, object]] = {
    inspect.BoolType: True,
    inspect.IntType: 7,
    inspect.FloatType: 0.5,
    inspect.StrType: "größe 7b",
    inspect.BytesType: bytes(range(16)),
    inspect.NoneType: None,
}


def specimens() -> dict[int, tuple[Message, Message]]:
    """Number -> (all fields, required fields only)."""
    return {
        number: (cast(Message, _made(kind, whole=True)), cast(Message, _made(kind, whole=False)))
        for number, kind in MESSAGE_TYPES.items()
    }


def _made(kind: type, *, whole: bool) -> object:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    given = {
        field.name: _value(field.type, whole=whole)
        for field in info.fields
        if whole or field.required
    }
    return kind(**given)


def _value(kind: inspect.Type, *, whole: bool) -> object:
    match kind:
        case inspect.StructType(cls=cls):
            return _made(cls, whole=whole)
        case inspect.EnumType(cls=cls):
            return next(iter(cast(type[Enum], cls)))
        case inspect.UnionType(types=types):
            return _value(_fullest(types), whole=whole)
        case inspect.VarTupleType(item_type=item):
            return (_value(item, whole=whole),) * 2 if whole else ()
        case inspect.TupleType(item_types=items):
            return tuple(_value(item, whole=whole) for item in items)
        case inspect.ListType(item_type=item):
            return [_value(item, whole=whole)] if whole else []
        case inspect.DictType(key_type=key, value_type=value):
            return {_value(key, whole=whole): _value(value, whole=whole)} if whole else {}
        case inspect.LiteralType(values=values):
            return values[0]
    return _PLAIN[type(kind)]


def _fullest(types: tuple[inspect.Type, ...]) -> inspect.Type:
    """Of what a field may be, what says most."""
    return next(each for each in types if not isinstance(each, inspect.NoneType))


def fields_of(meta: bytes) -> Any:
    """A message's fields by name, as any reader of MessagePack sees them."""
    return msgspec.msgpack.decode(meta)
