"""What a checkpoint is written with. Each engine is one file with two sides:

the *storage*, made by the run: what must stand before ranks start (a cluster, a directory), what it
is worth when a save is done, and whose CPU time counts to it; and
the *engine*, made in each rank process: save, wait, load.

They all get the same state, so that their figures can be set side by side; what each one's "done"
means is said beside them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.extras import NotInstalled, install_command
from ckptbench.engines.base import Engine, EnginePlan, Storage
from ckptbench.job.options import JobOptions

PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "torch_save": ("torch",),
    "dcp": ("torch",),
    "safetensors": ("safetensors",),
    "fsspec": ("fsspec",),
    "zarr": ("zarr",),
    "s3": ("obstore",),
    "orbax": ("jax", "orbax"),
    "tensorstore": ("tensorstore",),
}
"""What an engine imports beyond our own dependencies."""
PIP_NAMES: Final[Mapping[str, str]] = {"orbax": "orbax-checkpoint"}
"""Of modules that pip knows by another name."""

RESHARDS: Final = frozenset({"ckpt", "posix", "dcp", "safetensors", "fsspec", "zarr", "s3"})
"""Engines that can read parts of what several ranks saved."""


def check_packages(engine: str, asked_by: str = "") -> None:
    """Raises NotInstalled naming the command that installs what is missing.

    asked_by: the option that needs the engine's packages, when it is not ioengine=.
    """
    for package in PACKAGES.get(engine, ()):
        if importlib.util.find_spec(package) is None:
            name = PIP_NAMES.get(package, package)
            who = asked_by or f"ioengine={engine}"
            raise NotInstalled(
                f"{who} needs the package {name}, which is not installed",
                hint=install_command("bench"),
            )


def make_storage(options: JobOptions) -> Storage:
    """What the run starts, not started yet. Raises Refused."""
    check_packages(options.ioengine)
    match options.ioengine:
        case "ckpt" if options.url:
            from ckptbench.engines.ckpt import ExistingCluster

            return ExistingCluster(options)
        case "ckpt":
            from ckptbench.engines.ckpt import OwnCluster

            return OwnCluster(options)
        case "fsspec" | "s3":
            from ckptbench.engines.storage import ObjectStorage

            return ObjectStorage(options)
        case _:
            from ckptbench.engines.storage import DirectoryStorage

            return DirectoryStorage(options)


def make_engine(plan: EnginePlan) -> Engine:
    """In a rank process; what the engine needs is imported here, before any clock runs."""
    match plan.engine:
        case "ckpt" if plan.settings.get("durable"):
            from ckptbench.engines.ckpt_stored import StoringCkptEngine

            return StoringCkptEngine(plan)
        case "ckpt" if plan.settings.get("ckpt_mode") == "torch":
            from ckptbench.engines.ckpt_torch import TorchCkptEngine

            return TorchCkptEngine(plan)
        case "ckpt":
            from ckptbench.engines.ckpt import CkptEngine

            return CkptEngine(plan)
        case "posix":
            from ckptbench.engines.posix import PosixEngine

            return PosixEngine(plan)
        case "torch_save":
            from ckptbench.engines.torch_save import TorchSaveEngine

            return TorchSaveEngine(plan)
        case "dcp":
            from ckptbench.engines.dcp import DcpEngine

            return DcpEngine(plan)
        case "safetensors":
            from ckptbench.engines.safetensors import SafetensorsEngine

            return SafetensorsEngine(plan)
        case "fsspec":
            from ckptbench.engines.fsspec import FsspecEngine

            return FsspecEngine(plan)
        case "zarr":
            from ckptbench.engines.zarr import ZarrEngine

            return ZarrEngine(plan)
        case "s3":
            from ckptbench.engines.s3 import S3Engine

            return S3Engine(plan)
        case "orbax":
            from ckptbench.engines.orbax import OrbaxEngine

            return OrbaxEngine(plan)
        case "tensorstore":
            from ckptbench.engines.tensorstore import TensorStoreEngine

            return TensorStoreEngine(plan)
        case other:
            raise Refused(f"no engine is called {other!r}")
