"""Within what of torch is nothing saved or loaded, or not as part of it?

Where torch traces or transforms a program it makes tensors that stand for others and have no memory
of their own, and a copy copies nothing. What a save prepares there, such as its places in the
staging memory, would serve all later saves of that form.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ckpt.base.errors import Refused

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def refuse_modes() -> None:
    """Raises Refused within a transform of torch.func, such as grad or functionalize, and within a
    FakeTensorMode or its like. Modes that only look on, such as a profiler's, are none of these.
    """
    transform = torch._C._functorch.peek_interpreter_stack()
    if transform is not None:
        raise Refused(
            f"called within a transform of torch.func ({transform.key().name.lower()}), where "
            "tensors have no memory",
            hint="save and load outside of the function that is transformed",
        )
    for mode in _get_current_dispatch_mode_stack():
        # Torch's own that trace have a key.
        if getattr(mode, "_mode_key", None) is not None:
            raise Refused(
                f"called within a {type(mode).__name__}, where nothing is copied",
                hint="save and load outside of it",
            )


def uncompiled(call: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """The call as it is, also from what `torch.compile` compiles: as torch's own saves it is left
    out of the graph.
    """

    @wraps(call)
    def left_out(*given: Arguments.args, **named: Arguments.kwargs) -> Answer:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(call)(*given, **named)
        return call(*given, **named)

    return left_out
