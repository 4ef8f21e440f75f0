"""`ckptd coordinator`: the shell around the coordinator's machine, and what it counts."""
