"""A script of a test's own that is forked warm, as its stagers are, where no test is about how it
starts: `python -m tests.warm_script FILE ARGUMENT...` runs FILE with these arguments.
"""

from __future__ import annotations

import runpy
import sys

from tests.warm_start import start_warm

if __name__ == "__main__":
    start_warm()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
