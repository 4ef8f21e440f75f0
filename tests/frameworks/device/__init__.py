"""An accelerator made for tests: memory of its own, streams that run truly beside the caller,
events, a link of a stated pace, faults, and counters of what an adapter may not do.
"""
