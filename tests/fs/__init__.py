"""The fsspec filesystems: what paths mean, and files on a real cluster."""
