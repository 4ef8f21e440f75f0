"""How much an object holds: the entries of every container that can be reached from it, by the way
to it. What grows there while nothing is left to do has nobody who takes it out.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType, ModuleType

ATOMS = (int, float, str, bytes, bytearray, memoryview, type, ModuleType, type(None))
Held = Counter[str]


def held(root: object, *, without: tuple[type, ...] = ()) -> Held:
    """By path; what has a key is at `{}`, members of all else are at `[]`. Nothing that is, or is
    reached through, one of `without`: a callback may hold the test itself.
    """
    counts: Held = Counter()
    seen: dict[int, object] = {}
    waiting: deque[tuple[str, object]] = deque([("", root)])
    while waiting:
        path, thing = waiting.popleft()
        if isinstance(thing, (*ATOMS, *without)) or id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, Mapping | list | tuple | set | frozenset | deque):
            counts[path] += len(thing)
        waiting.extend((path + way, part) for way, part in _parts(thing))
    return counts


def grown(before: Held, after: Held) -> list[str]:
    """What has more entries now, the most first."""
    more = sorted(((after[path] - before[path], path) for path in after), reverse=True)
    return [f"{path}: {count} more" for count, path in more if count > 0]


def _parts(thing: object) -> Iterator[tuple[str, object]]:
    match thing:
        case Mapping():
            yield from (("{key}", key) for key in thing)
            yield from (("{}", value) for value in thing.values())
        case list() | tuple() | set() | frozenset() | deque():
            yield from (("[]", member) for member in thing)
        case FunctionType():
            cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True)
            yield from ((f"<{name}>", cell.cell_contents) for name, cell in cells)
        case MethodType():
            yield ".self", thing.__self__
        case _:
            yield from ((f".{name}", value) for name, value in _attributes(thing))


def _attributes(thing: object) -> Iterator[tuple[str, object]]:
    yield from getattr(thing, "__dict__", {}).items()
    for base in type(thing).__mro__:
        named = getattr(base, "__slots__", ())
        for name in (named,) if isinstance(named, str) else named:
            if hasattr(thing, name):
                yield name, getattr(thing, name)
