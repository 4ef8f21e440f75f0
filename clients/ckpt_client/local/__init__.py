"""A cluster on this machine: started by whoever opens it first; and every process we start."""
