"""Space before bytes: what is reserved for a save, what stands for the next, what is nobody's."""
