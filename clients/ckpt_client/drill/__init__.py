"""What would a loss do to a checkpoint? Tried by reading without what is said to be lost."""
