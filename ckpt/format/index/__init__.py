"""The index of a checkpoint: its bytes, how pages are filled, how one is read and mended."""
