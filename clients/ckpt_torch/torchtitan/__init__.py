"""torchtitan over a store: `CkptManager.Config` in place of `CheckpointManager.Config`.

    config.checkpoint = CkptManager.Config(
        enable=True, folder="ckpt://10.0.0.1:7070/llama3", interval=500, async_mode="async"
    )

Its fields mean what they mean in torchtitan; a field that cannot is refused.
"""

from ckpt.base.extras import needing

with needing("ckpt_torch.torchtitan"):
    from ckpt_torch.torchtitan.manager import CkptManager

__all__ = ["CkptManager"]
