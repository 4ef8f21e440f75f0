"""ckpt under JAX: states of any sharding, and a manager with Orbax's calls.

manager = ckpt_jax.CheckpointManager("ckpt://10.0.0.1:7070/gpt")
state = manager.restore(None, like=state)
manager.save(step, state)
manager.wait_until_finished()
"""

from ckpt.base.extras import needing

with needing("ckpt_jax"):
    from ckpt_jax import args
    from ckpt_jax.manager import CheckpointManager
    from ckpt_jax.state import load, prepare, save

__all__ = ["CheckpointManager", "args", "load", "prepare", "save"]
