"""A rank of `tests.frameworks.gloo.Ranks`, as a script. Its jobs come through stdin, a socket."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

import pytest  # noqa: F401
import torch.distributed.checkpoint
import torch.distributed.checkpoint.state_dict
import torch.distributed.device_mesh
import torch.distributed.fsdp
import torch.distributed.tensor.parallel  # noqa: F401

import ckpt_torch  # noqa: F401
from tests.frameworks.gloo import serve

if __name__ == "__main__":
    serve(Connection(os.dup(0)))
