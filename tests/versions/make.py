"""Freeze a version: run by it, once, before the next one changes anything.

    python -m tests.versions.make tests/versions/v0_1_0

writes into a directory that must not exist yet:

    messages.jsonl       each message type with all fields, and with the required ones only
    conversation.jsonl   what a coordinator, targets, stagers and a trainer said to each other in
                         one life: start, saves, a reference, a load, a deletion; one frame a line,
                         each kind at most TOLD_MAX times
    cluster.tar.xz       the directory of the local cluster of that life, at rest
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import ckpt
from tests.versions import states
from tests.versions.specimens import specimens

TOLD_MAX: Final = 6
TIMEOUT_S: Final = 120.0
_TAP: Final = """
import os, sys
from ckpt.format import frame
_encode = frame.FrameWriter.encode
def encode(self, message, request, bulk=b"", epoch=0, lent=None):
    number = frame._NUMBERS[type(message)]
    line = f"{number} {frame._ENCODER.encode(message).hex()}\\n"
    with open(os.path.join(os.environ["CKPT_TAP"], str(os.getpid())), "a") as file:
        file.write(line)
    return _encode(self, message, request, bulk, epoch, lent)
frame.FrameWriter.encode = encode
"""
"""As `usercustomize` of every process of the cluster."""


def main(directory: Path) -> None:
    directory.mkdir(parents=True)
    _write_messages(directory / "messages.jsonl")
    with tempfile.TemporaryDirectory() as folder:
        tap, said = Path(folder) / "tap", Path(folder) / "said"
        tap.mkdir()
        said.mkdir()
        (tap / "sitecustomize.py").write_text(_TAP)
        environ = dict(os.environ, PYTHONPATH=f"{tap}:{os.getcwd()}", CKPT_TAP=str(said))
        cluster = Path(folder) / "cluster"
        line = [sys.executable, "-m", "tests.versions.make", "live", str(cluster)]
        subprocess.run(line, env=environ, check=True, timeout=TIMEOUT_S)
        subprocess.run(["ckpt", "local", "stop", str(cluster)], check=True, timeout=TIMEOUT_S)
        _write_conversation(said, directory / "conversation.jsonl")
        _pack(cluster, directory / "cluster.tar.xz")


def live(cluster: Path) -> None:
    """One life of a job."""
    with ckpt.open(f"ckpt+local://{cluster}?targets=4&code=2+1") as store:
        for step in states.STEPS:
            saves = [
                store.save(
                    states.RUN, step, states.state(step, rank), rank=rank, world_size=states.RANKS
                )
                for rank in range(states.RANKS)
            ]
            for save in saves:
                save.wait(TIMEOUT_S)
        store.save(states.OTHER_RUN, 1, {"x": 1}).wait(TIMEOUT_S)
        store.load(states.OTHER_RUN, 1)
        for rank in range(states.RANKS):
            store.load(states.RUN, 300, rank=rank, world_size=states.RANKS)
    verbs = (["rm", f"{states.RUN}@{states.DELETED}"], ["verify", f"{states.RUN}@300"])
    for verb in verbs:
        command = ["ckpt", *verb, "--store", f"ckpt+local://{cluster}"]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S)


def _write_messages(path: Path) -> None:
    from ckpt.format.frame import _ENCODER

    with path.open("w") as file:
        for number, (whole, least) in sorted(specimens().items()):
            for filled, message in (("all", whole), ("required", least)):
                row = {
                    "number": number,
                    "name": type(message).__name__,
                    "fields": filled,
                    "meta": _ENCODER.encode(message).hex(),
                }
                file.write(json.dumps(row) + "\n")


def _write_conversation(said: Path, path: Path) -> None:
    counts: dict[str, int] = {}
    with path.open("w") as file:
        for process, log in enumerate(sorted(said.iterdir(), key=lambda log: int(log.name))):
            for line in log.read_text().splitlines():
                number, meta = line.split()
                counts[number] = counts.get(number, 0) + 1
                if counts[number] <= TOLD_MAX:
                    row = {"process": process, "number": int(number), "meta": meta}
                    file.write(json.dumps(row) + "\n")


def _pack(cluster: Path, path: Path) -> None:
    """Without logs, sockets and locks; names sorted, times and owners left out."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (member.isfile() or member.isdir()) or "/logs" in member.name:
            return None
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(path, "w:xz", preset=9) as archive:
        archive.add(cluster, "cluster", filter=kept)


if __name__ == "__main__":
    if sys.argv[1] == "live":
        live(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
