"""Checkpoints as files: the fsspec filesystems `ckpt` and `ckpt+local`.

Loaded only by fsspec's registry (entry point group `fsspec.specs`) or by name; `import ckpt` never
comes here. docs/filesystem.md is the user's page.
"""
