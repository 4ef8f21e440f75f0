"""`ckptbench gpu`: what a save costs a training on an accelerator, or on a CPU alike."""
