"""The verbs of `ckpt`, a module each: its help, its arguments, what it does. `upkeep` has more."""
