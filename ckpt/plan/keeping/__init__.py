"""What stays of a run, for how long, and what time it is for that. Pure."""
