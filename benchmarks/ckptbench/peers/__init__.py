"""ckpt beside what a user would take instead, in one run: `python -m ckptbench.peers`."""
