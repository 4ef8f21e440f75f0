"""`ckptbench agent`: let another host's ckptbench run ranks here."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from ckpt.aio.secret import find_secret_file, read_secret
from ckptbench.hosts.agent import run_agent
from ckptbench.hosts.words import PORT_DEFAULT
from ckptd.config import host_and_port


def main(argv: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="ckptbench agent",
        description="Runs ranks here for a `ckptbench --hosts=…` that has the same secret file. "
        "Prints one line of JSON when it is ready; SIGTERM ends it and all its ranks.",
        epilog="example:\n  CKPT_SECRET_FILE=~/bench.secret ckptbench agent --listen 10.0.0.7:8765",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen", default=f"127.0.0.1:{PORT_DEFAULT}", metavar="HOST:PORT", help="[%(default)s]"
    )
    parser.add_argument("--secret-file", type=Path, metavar="FILE", help="as ckpt finds it")
    options = parser.parse_args(argv)
    host, port = host_and_port(options.listen)
    secret = read_secret(find_secret_file(named=options.secret_file))

    def ready(bound: int) -> None:
        print(json.dumps({"ready": "agent", "address": f"{host}:{bound}"}), flush=True)

    asyncio.run(run_agent((host, port), secret, ready))
    return 0
