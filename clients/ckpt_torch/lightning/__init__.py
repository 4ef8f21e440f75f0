"""Lightning over a store: `CkptIO`, a CheckpointIO; `CkptModelParallelStrategy` for FSDP2 and TP;
`CkptModelCheckpoint` for paths that are taken; `CkptPreemption` for signals; `CkptMetrics` for what
is measured; `load` and `as_file` without a Trainer.

    io = CkptIO("ckpt://10.0.0.1:7070/gpt")
    Trainer(plugins=[io], ...)                                           single device, DDP
    Trainer(strategy=CkptModelParallelStrategy(io), ...)                 sharded, each rank its part

A checkpoint's step is the trainer's global step, and Lightning's path is its name: any path that
was saved is listed, loaded and removed by it.
"""

from ckpt.base.extras import needing

with needing("ckpt_torch.lightning"):
    from ckpt_torch.lightning.io import CkptIO
    from ckpt_torch.lightning.metrics import CkptMetrics
    from ckpt_torch.lightning.model_checkpoint import CkptModelCheckpoint
    from ckpt_torch.lightning.plain import as_file, load
    from ckpt_torch.lightning.preemption import CkptPreemption
    from ckpt_torch.lightning.strategy import CkptModelParallelStrategy

__all__ = [
    "CkptIO",
    "CkptMetrics",
    "CkptModelCheckpoint",
    "CkptModelParallelStrategy",
    "CkptPreemption",
    "as_file",
    "load",
]
