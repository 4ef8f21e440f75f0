"""From the trainer's arrays to its stager's memory: what a save walks through in the trainer."""
