"""Looking into checkpoints: what tensors they have, what values, and how two of them differ."""
