"""The demo's own cluster: started in a directory, asked, and ended."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ckpt.base.errors import NotFound
from ckpt.base.ids import RunName, Step
from ckpt.protocol.coordinator.reading.answers import StepView
from ckpt_client.control import Control
from ckpt_client.demo.strike import ShowNow, StatusNow
from ckpt_client.demo.words import RUN_NAME
from ckpt_client.local.cluster import opened_cluster
from ckpt_client.local.processes import kill_processes
from ckpt_client.locate import Locator, read_ready
from ckpt_client.url import LocalUrl, parse_url

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0
RUN: Final = RunName(RUN_NAME)

_status: Final = msgspec.json.Decoder(StatusNow)
_show: Final = msgspec.json.Decoder(ShowNow)
_steps: Final = msgspec.json.Decoder(list[StepView])


@dataclass(slots=True)
class DemoCluster:
    """I am connected to a running cluster; `stop` ends it."""

    directory: Path
    control: Control

    def status(self) -> StatusNow:
        return _status.decode(self.control.ask("status"))

    def committed(self) -> list[StepView]:
        """Of the demo's run, ascending by step."""
        views = _steps.decode(self.control.ask("steps", RUN))
        return sorted((v for v in views if v.state == "committed"), key=lambda view: view.step)

    def show(self, step: int) -> ShowNow:
        """Where the columns of a committed step are; of none, when it is gone."""
        try:
            return _show.decode(self.control.ask("show", RUN, Step(step)))
        except NotFound:
            return ShowNow(())

    def stop(self) -> bool:
        """Have the supervisor end everything it started; False when it does not end in time."""
        self.control.close()
        ready = read_ready(self.directory)
        if ready is None:
            return True
        with suppress(ProcessLookupError):
            return not kill_processes([ready.pid], signal.SIGTERM, STOP_TIMEOUT_S)
        return True


def start_cluster(directory: Path, targets: int, code: str) -> tuple[str, DemoCluster]:
    """The URL for trainers, and the cluster. A target that dies stays dead."""
    url = f"ckpt+local://{directory}?targets={targets}&code={code}&restart=never"
    parsed = parse_url(url, os.environ)
    assert isinstance(parsed, LocalUrl)
    with opened_cluster(parsed, START_TIMEOUT_S) as cluster:
        control = Control(Locator(str(cluster.directory), ""), cluster.secret_file, None)
        try:
            control.ask("status")
        except BaseException:
            control.close()
            raise
    return url, DemoCluster(cluster.directory, control)
