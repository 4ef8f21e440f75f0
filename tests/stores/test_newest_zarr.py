"""The newest zarr-python and xarray need a newer Python than ours may be: opened where one is
found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest

from ckpt.objects import names
from ckpt.objects.planning import WriteOptions
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.writer import WriteLimits, write_checkpoint
from tests.objects.foreign import seen_by
from tests.objects.sources import HEADER, MemorySource, many_kinds

ROOT = Path(__file__).resolve().parent.parent.parent
PROBE = """
import sys, zlib
import numpy, zarr
assert tuple(map(int, zarr.__version__.split(".")[:2])) >= (3, 3), zarr.__version__
group = zarr.open_group(sys.argv[1], mode="r", use_consolidated=False)
for name in sys.argv[2:]:
    array = group["tensors/" + name]
    print(name, array.dtype, zlib.crc32(numpy.asarray(array[...]).tobytes()))
"""


def newer_python() -> str | None:
    """One of 3.12 or later that runs: $CKPT_NEWER_PYTHON, one on the path, or pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    candidates = [
        os.environ.get("CKPT_NEWER_PYTHON"),
        *(f"python3.{n}" for n in (15, 14, 13, 12)),
        *map(str, sorted(pyenv.glob("versions/3.1[2-9]*/bin/python"))),
    ]
    for name in candidates:
        path = shutil.which(name) if name else None
        if path is not None:
            check = [path, "-c", "import sys, venv; sys.exit(sys.version_info < (3, 12))"]
            if subprocess.run(check, capture_output=True, check=False).returncode == 0:
                return path
    return None


@pytest.mark.timeout(600)
def test_the_newest_zarr_opens_it_alone_and_by_the_entry_points(tmp_path: Path) -> None:
    python = newer_python()
    if python is None:
        pytest.skip("NO PYTHON 3.12 OR NEWER: name one in CKPT_NEWER_PYTHON")
    subprocess.run([python, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    inside = str(tmp_path / "venv" / "bin" / "python")
    # Our pip, for the other interpreter: Debian's Pythons come without one.
    pip = [sys.executable, "-m", "pip", "--python", inside, "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-compile"]
    kinds = many_kinds()
    write_checkpoint(
        FileSink(tmp_path / "store"), MemorySource(kinds), WriteOptions(), WriteLimits()
    )
    folder = tmp_path / "store" / names.generation_prefix(*HEADER.key)

    subprocess.run([*install, "zarr", "xarray"], check=True)
    for reader in ("zarr", "xarray"):
        seen = seen_by(reader, folder, tmp_path, inside)
        for name, array in kinds.items():
            assert seen[f"tensors/{names.node_path(name)}"].holds(array), (reader, name)

    subprocess.run([*install, str(ROOT)], check=True)
    large = ("model/big", "model/bf16", "model/f8", "model/zeros")
    group = str(folder)
    done = subprocess.run(
        [inside, "-c", PROBE, group, *large], check=True, capture_output=True, text=True
    )
    expected = [f"{name} {kinds[name].dtype} {crc32(kinds[name].tobytes())}" for name in large]
    assert done.stdout.splitlines() == expected
