"""`ckpt demo`: a real training run that loses targets, trainers and stagers, and nothing else."""
