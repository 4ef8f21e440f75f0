"""Is it a DTensor? Asked without torch.distributed.tensor, whose import takes a second of CPU, with
sympy and all: who has a DTensor has imported it, and where nobody has, nothing is one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, TypeGuard

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

MODULE: Final = "torch.distributed.tensor"


def dtensor_type() -> type[DTensor] | None:
    """None as long as nothing can be one; a module that is being imported has no type yet."""
    found: type[DTensor] | None = getattr(sys.modules.get(MODULE), "DTensor", None)
    return found


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Whether it is one, or of a class derived from it."""
    kind = dtensor_type()
    return kind is not None and isinstance(value, kind)
