"""On an accelerator: skipped, loudly, where there is none."""
