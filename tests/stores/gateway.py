"""A real S3-compatible store of this machine: Ceph's monitor, manager, one OSD and its gateway.

Needs root and Debian's ceph-mon, ceph-mgr, ceph-osd, ceph-common and radosgw. Everything lives in
one directory and on 127.0.0.1; it is up in about 20 s and takes 0.6 GB of memory.

What it honours: If-None-Match on a plain PUT, Content-MD5, ranges, multipart. What it does not:
conditions when a multipart upload is completed, and x-amz-checksum-* (taken, not checked).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.meeting import shared
from tests.waiting import wait_until

PROGRAMS = (
    "ceph",
    "ceph-mon",
    "ceph-mgr",
    "ceph-osd",
    "radosgw",
    "radosgw-admin",
    "monmaptool",
    "setpriv",
)
START_TIMEOUT_S = 120.0
CONFIGURATION = """[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon_port}
mon initial members = a
auth cluster required = none
auth service required = none
auth client required = none
ms bind ipv6 = false
public addr = 127.0.0.1
run dir = {directory}
admin socket = {directory}/$name.asok
log file = {directory}/$name.log
mon data = {directory}/mon
mgr data = {directory}/mgr
osd data = {directory}/osd
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
mon allow pool size one = true
osd crush chooseleaf type = 0
mon data avail warn = 1
mon data avail crit = 1
mon warn on pool no redundancy = false
osd memory target = 939524096
bluestore block size = 8589934592
bluestore block create = true
mgr modules =
[client]
log file = /dev/null
admin socket =
[client.rgw.x]
rgw frontends = beast endpoint=127.0.0.1:{port}
log file = {directory}/rgw.log
ms mon client mode = crc secure
rgw data = {directory}/rgw
rgw dns name = localhost
rgw enable usage log = false
rgw enable ops log = false
"""


@dataclass(frozen=True, slots=True)
class S3:
    """Where it listens, and who may."""

    port: int
    access_key: str = "testkey"
    secret_key: str = "testsecret"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def at(self, port: int) -> S3:
        """The same store through a proxy."""
        return S3(port, self.access_key, self.secret_key)

    @property
    def environment(self) -> dict[str, str]:
        """For processes that find their store by their environment."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    @property
    def fsspec_options(self) -> dict[str, object]:
        return {"key": self.access_key, "secret": self.secret_key, "endpoint_url": self.endpoint}

    @property
    def obstore_options(self) -> dict[str, object]:
        return {
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "endpoint": self.endpoint,
            "region": "us-east-1",
        }


def why_not() -> str:
    """Why no gateway can be started here; empty when one can."""
    for package in ("s3fs", "obstore"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed: pip install 'ckpt-burst[s3]'"
    if os.geteuid() != 0:
        return "a real S3 server needs root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        packages = "ceph-mon ceph-mgr ceph-osd ceph-common radosgw"
        return f"{', '.join(missing)} not found: apt-get install --no-install-recommends {packages}"
    return ""


class Gateway:
    """I start all of it in a directory, and end exactly what I started."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._configuration = directory / "ceph.conf"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> S3:
        for name in ("mon", "mgr", "osd", "rgw"):
            (self._directory / name).mkdir(parents=True)
        fsid, mon_port, port = str(uuid.uuid4()), free_port(), free_port()
        self._configuration.write_text(
            CONFIGURATION.format(fsid=fsid, mon_port=mon_port, port=port, directory=self._directory)
        )
        monmap = str(self._directory / "monmap")
        address = f"[v2:127.0.0.1:{mon_port}]"
        _run("monmaptool", "--create", "--clobber", "--addv", "a", address, "--fsid", fsid, monmap)
        self._once("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap)
        self._keep("ceph-mon", "-i", "a")
        self._wait("the monitor", lambda: "quorum" in self._ceph("mon", "stat"))
        self._keep("ceph-mgr", "-i", "x")
        osd = str(uuid.uuid4())
        self._ceph("osd", "new", osd)
        self._once("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        self._keep("ceph-osd", "-i", "0")
        self._wait("the OSD", lambda: "1 up" in self._ceph("osd", "stat"))
        self._keep("radosgw", "-n", "client.rgw.x")
        self._wait("the gateway", lambda: answers(port))
        s3 = S3(port)
        keys = (f"--access-key={s3.access_key}", f"--secret={s3.secret_key}")
        who = ("--uid=test", "--display-name=test", *keys)
        self._once("radosgw-admin", "-n", "client.rgw.x", "user", "create", *who)
        return s3

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        shutil.rmtree(self._directory)

    def _ceph(self, *arguments: str) -> str:
        with suppress(subprocess.CalledProcessError):
            return self._once("ceph", "--connect-timeout", "20", *arguments)
        return ""

    def _once(self, program: str, *arguments: str) -> str:
        return _run(program, "-c", str(self._configuration), *arguments)

    def _keep(self, program: str, *arguments: str) -> None:
        with (self._directory / f"{program}.out").open("ab") as out:
            # Also when pytest is killed, or ends itself at a timeout, nothing of it stays.
            alone = ("setpriv", "--pdeathsig", "KILL")
            line = [*alone, program, "-c", str(self._configuration), *arguments, "-f"]
            self._processes.append(
                subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            )

    def _wait(self, what: str, holds: object) -> None:
        assert callable(holds)
        wait_until(holds, f"{what} in {self._directory}", START_TIMEOUT_S)


def shared_gateway(meeting: Path) -> AbstractContextManager[str]:
    """The port of the gateway of all who meet in this folder."""
    return shared(meeting, "s3", _gateway)


@contextmanager
def _gateway() -> Iterator[str]:
    # Not below the folder of a test: the path of a Unix socket has 107 bytes.
    gateway = Gateway(Path(tempfile.mkdtemp(prefix="ckpt-rgw-")))
    port = gateway.start().port
    try:
        yield str(port)
    finally:
        gateway.stop()


def free_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _run(*line: str) -> str:
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True
