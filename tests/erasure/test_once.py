"""A process has one ISA-L for its erasure code: pyeclib, which would load its own, stays out."""

from __future__ import annotations

import subprocess
import sys

_ENCODES = """
import sys
from ckpt.erasure.code import Code
from ckpt.erasure.selftest import trusted_codec

trusted_codec(Code.parse("4+2"))
with open("/proc/self/maps") as maps:
    libraries = {line.split()[-1] for line in maps if "libisal" in line or "erasurecode" in line}
print(len(libraries), "pyeclib" in sys.modules)
"""


def test_a_process_that_encodes_has_loaded_one_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ENCODES], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["1", "False"]
