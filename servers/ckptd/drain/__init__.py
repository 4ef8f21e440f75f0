"""`ckptd drain`: committed checkpoints go to object stores."""
