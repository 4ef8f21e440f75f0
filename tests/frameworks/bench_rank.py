"""A rank of `ckptbench`, as a script for warm servers.

Processes of its own (dcp_mode=process) import this file, and none of the engines.
"""

from __future__ import annotations

import sys

from ckptbench.rank import main

if __name__ == "__main__":
    import ckptbench.engines.ckpt_torch
    import ckptbench.engines.dcp
    import ckptbench.engines.orbax
    import ckptbench.engines.tensorstore
    import ckptbench.engines.torch_save
    import ckptbench.engines.zarr  # noqa: F401

    main(sys.argv[1])
