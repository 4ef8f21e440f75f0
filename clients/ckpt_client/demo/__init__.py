"""`ckpt demo`: a real training run that loses storage targets, all its trainers and their stagers, and nothing else."""
