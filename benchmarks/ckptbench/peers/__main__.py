"""`python -m ckptbench.peers`: ckpt beside torch.distributed.checkpoint."""

import sys

from ckptbench.peers.dcp import main

if __name__ == "__main__":  # Ranks that are spawned import this too.
    sys.exit(main())
