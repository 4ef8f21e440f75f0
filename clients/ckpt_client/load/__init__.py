"""From a committed checkpoint to the caller's arrays: out of the tier, or an object store."""
