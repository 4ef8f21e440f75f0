"""Which extra of ckpt-burst brings a package that the base does without, and what is said where
that package is missing.

    with needing("ckpt_jax"):
        import jax
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ckpt.base.errors import Refused

EXTRA_OF: Final = {
    "accelerate": "huggingface",
    "aiohttp": "server",
    "google_crc32c": "zarr",
    "jax": "jax",
    "lightning": "lightning",
    "matplotlib": "bench",
    "numcodecs": "zarr",
    "nvidia_resiliency_ext": "nvrx",
    "orbax": "bench",
    "safetensors": "huggingface",
    "setproctitle": "server",
    "tensorstore": "bench",
    "torch": "torch",
    "torch_checkpointing": "torch-checkpointing",
    "transformers": "huggingface",
    "zarr": "zarr",
}
"""Import name -> the extra of pyproject.toml that a user needs for it. Stores' packages are not
here: their URL says which one (`ckpt.objects.sinks.sink`)."""


class NotInstalled(Refused, ModuleNotFoundError):
    """A package of an extra is not installed; the hint is the command that installs it, `name` what
    an ImportError says of it."""


@contextmanager
def needing(who: str) -> Iterator[None]:
    """Around imports of packages that an extra brings. Raises NotInstalled, naming `who` needs
    which package, instead of ModuleNotFoundError; of any other module that error stays."""
    try:
        yield
    except ModuleNotFoundError as error:
        # A dot: the package is here, but has no such module. That is another fault.
        extra = EXTRA_OF.get(error.name or "")
        if extra is None or isinstance(error, NotInstalled):
            raise
        message = f"{who} needs the package {error.name}, which is not installed"
        missing = NotInstalled(message, hint=install_command(extra))
        missing.name = error.name
        raise missing from None


def install_command(extra: str) -> str:
    """What installs an extra."""
    return f"pip install 'ckpt-burst[{extra}]'"
