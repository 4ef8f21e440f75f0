"""Which extra of ckpt-burst brings a package that the base does without, and what is said where
that package is missing.

    with needing("ckpt_jax"):
        import jax
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
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
    "torchtitan": "torchtitan",
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
        raise _missing(who, str(error.name), extra) from None


def check_installed(who: str, extra: str) -> None:
    """Ahead of long work that needs an extra in the end: raises NotInstalled as `needing` does, and
    imports nothing.
    """
    for package, brings_it in EXTRA_OF.items():
        if brings_it == extra and find_spec(package) is None:
            raise _missing(who, package, extra)


def _missing(who: str, package: str, extra: str) -> NotInstalled:
    found = NotInstalled(
        f"{who} needs the package {package}, which is not installed", hint=install_command(extra)
    )
    found.name = package
    return found


def install_command(extra: str) -> str:
    """What installs an extra."""
    return f"pip install 'ckpt-burst[{extra}]'"
