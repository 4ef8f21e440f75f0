"""Certificates of members and coordinators, and the authority that has signed them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

EXTENSIONS: Final = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"


class Certificates:
    """An authority, and what it has signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "extensions").write_text(EXTENSIONS)
        self.renew()

    def renew(self) -> None:
        """Another authority, and what it has signed, in the same files."""
        self._openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ca"),
            *("-keyout", "ca.key", "-out", "ca.pem"),
        )
        for name in ("server", "client"):
            self._openssl(
                *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
                *("-keyout", f"{name}.key", "-out", f"{name}.csr"),
            )
            self.sign(name)

    def sign(self, name: str, days: int = 2) -> None:
        """Its certificate ends after so many days; below 0 it has ended."""
        self._openssl(
            *("x509", "-req", "-days", str(days), "-in", f"{name}.csr", "-out", f"{name}.pem"),
            *("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions"),
        )

    def path(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def flags(self) -> list[str]:
        """Of a member that asks for one."""
        authority = ["--client-cert-auth", "--trusted-ca-file", self.path("ca.pem")]
        own = ["--cert-file", self.path("server.pem"), "--key-file", self.path("server.key")]
        return authority + own

    @property
    def shown(self) -> str:
        """The options of a coordinator that has one."""
        own = f"cert={self.path('client.pem')}&key={self.path('client.key')}"
        return f"?ca={self.path('ca.pem')}&{own}"

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)
