"""Hosts that are network namespaces on one bridge, and links between them that lose frames: all in
one direction, or some. For root; what is made is gone after the block, and nothing else is touched.

A frame to a wrong hardware address is lost without a word, as in a switch that has lost a port: so
`cut` needs no packet filter.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

NONE: Final = "no network namespaces here (they need root, ip and tc): skipped"
_NOBODY: Final = "02:00:00:00:00:99"
"""A hardware address that no host has."""
_RANDOM: Final = 0xFFFFF000 + 56
"""Where a packet filter of the kernel reads a number by chance: SKF_AD_OFF + SKF_AD_RANDOM."""


class Network:
    """The test's own namespace is the host "", beside those that are named."""

    def __init__(self, *hosts: str) -> None:
        self._tag = f"ckpt{os.getpid() % 100_000}"
        # What is set aside for benchmarks of networks is no host's.
        self._net = f"198.18.{os.getpid() % 250}"
        self._numbers = {host: number for number, host in enumerate(("", *hosts), 1)}

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._numbers:
            if host:
                # The kernel takes its time with what a namespace leaves: its link goes first.
                for words in (
                    ("link", "del", self._port(host)),
                    ("netns", "del", self._name(host)),
                ):
                    with suppress(RuntimeError):
                        _do("ip", *words)
        with suppress(RuntimeError):
            _do("ip", "link", "del", self._tag)

    def address(self, host: str) -> str:
        return f"{self._net}.{self._numbers[host]}"

    def within(self, host: str) -> Sequence[str]:
        """The command that brings another one to that host."""
        return ("ip", "netns", "exec", self._name(host)) if host else ()

    def cut(self, source: str, target: str) -> None:
        """What is sent from there to there is lost."""
        self._neighbour(
            source, "replace", self.address(target), "lladdr", _NOBODY, "nud", "permanent"
        )

    def mend(self, source: str, target: str) -> None:
        self._neighbour(source, "del", self.address(target))

    def lose(self, percent: float) -> None:
        """Of all frames that leave a named host, by chance."""
        below = round(percent / 100 * (1 << 32))
        # Load a number by chance; at least so large: ret -1, nothing to say; else ret 2, drop.
        program = f"4,32 0 0 {_RANDOM},53 1 0 {below},6 0 0 2,6 0 0 4294967295,"
        for host in self._numbers:
            if host:
                _do(*self.within(host), "tc", "qdisc", "add", "dev", "eth0", "clsact")
                _do(
                    *self.within(host), "tc", "filter", "add", "dev", "eth0", "egress",
                    "bpf", "direct-action", "bytecode", program,
                )  # fmt: skip

    def _make(self) -> None:
        _do("ip", "link", "add", self._tag, "type", "bridge")
        _do("ip", "addr", "add", f"{self.address('')}/24", "dev", self._tag)
        _do("ip", "link", "set", self._tag, "up")
        for host in self._numbers:
            if host:
                self._make_host(host)

    def _make_host(self, host: str) -> None:
        name, port = self._name(host), self._port(host)
        _do("ip", "netns", "add", name)
        _do("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        _do("ip", "link", "set", port, "master", self._tag, "up")
        _do("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _do("ip", "-n", name, "link", "set", link, "up")

    def _name(self, host: str) -> str:
        return f"{self._tag}-{host}"

    def _port(self, host: str) -> str:
        """The bridge's end of its link."""
        return f"{self._tag}v{self._numbers[host]}"

    def _neighbour(self, source: str, *words: str) -> None:
        device = "eth0" if source else self._tag
        _do(*self.within(source), "ip", "neigh", *words, "dev", device)


def why_not() -> str:
    """Why there are no such hosts here; empty where there are."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return NONE
    try:
        with Network("probe") as network:
            network.lose(1.0)
    except RuntimeError as error:
        return f"{NONE}: {error}"
    return ""


def _do(*command: str) -> None:
    """Raises RuntimeError with what it says."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [str(done.returncode)]
        raise RuntimeError(f"{' '.join(command[:6])}: {said[0]}")


def leftovers() -> list[str]:
    """Namespaces of this process that are still there."""
    folder, tag = Path("/run/netns"), f"ckpt{os.getpid() % 100_000}-"
    return sorted(each.name for each in folder.glob(f"{tag}*")) if folder.exists() else []
