"""Hugging Face's Trainer over a store: `CkptCallback` saves without a local copy; `fetch` resumes.

    Trainer(args=TrainingArguments(save_strategy="no", ...),
            callbacks=[CkptCallback("ckpt://10.0.0.1:7070/bert", every=100)])

    folder = fetch("ckpt://10.0.0.1:7070/bert", output_dir)     # None when there is nothing yet
    trainer.train(resume_from_checkpoint=folder)

    model = from_pretrained(AutoModelForCausalLM, "ckpt://10.0.0.1:7070/bert")   # for inference
    save_pretrained(model, "ckpt://10.0.0.1:7070/tuned/1")

The Trainer resumes from a folder of its own layout and from nothing else, so `fetch` writes one
from the newest committed step; nothing is written while training. A model needs no folder.
"""

from ckpt.base.extras import needing

# Before the others: without safetensors, which this one imports itself, transformers says only
# that something is away.
with needing("ckpt_torch.transformers"):
    from ckpt_torch.transformers.folder import fetch
with needing("ckpt_torch.transformers"):
    from ckpt_torch.transformers.callback import CkptCallback
    from ckpt_torch.transformers.pretrained import from_pretrained, save_pretrained

__all__ = ["CkptCallback", "fetch", "from_pretrained", "save_pretrained"]
