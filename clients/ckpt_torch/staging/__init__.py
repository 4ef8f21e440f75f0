"""How a state of tensors gets into the arena, and what must not change meanwhile."""
