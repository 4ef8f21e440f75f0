"""The process beside each rank that owns the arena, encodes and sends;
a trainer's death does not stop it.
"""
