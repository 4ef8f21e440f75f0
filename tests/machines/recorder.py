"""A process whose unsynced bytes can be taken away: builds `recorder.c` and preloads it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("recorder.c")
COMPILE_TIMEOUT_S: Final = 60.0


def build_recorder(directory: Path) -> Path | None:
    """The shared object, or None where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    made = directory / "recorder.so"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(
        [compiler, *flags, "-o", str(made), str(SOURCE), "-ldl", "-lpthread"],
        check=True,
        timeout=COMPILE_TIMEOUT_S,
    )
    return made


@dataclass(frozen=True, slots=True)
class Recorder:
    """Of one daemon's directory `root`. The journals lie beside it, on the same file system."""

    library: Path
    root: Path
    lying: bool = False
    """The disk says that it has synced, and has not."""

    @property
    def journals(self) -> Path:
        return self.root.with_name(f"{self.root.name}.journals")

    def environment(self) -> dict[str, str]:
        """What a process must be started with, beside the library's preload."""
        self.root.mkdir(mode=0o700, exist_ok=True)
        self.journals.mkdir(exist_ok=True)
        lying = {"CKPT_TEST_LYING": "1"} if self.lying else {}
        return {
            "CKPT_TEST_ROOT": str(self.root),
            "CKPT_TEST_JOURNALS": str(self.journals),
            **lying,
        }
