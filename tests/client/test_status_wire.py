"""What `ckpt status` says of daemons whose words can be changed or read on the way."""

from __future__ import annotations

import pytest

from ckpt_client.cli.cluster_status import CoordinatorStatus, Status, TargetStatus
from ckpt_client.cli.verbs.status import wire_notes


def status(coordinator: str, *targets: str) -> Status:
    return Status(
        coordinator=CoordinatorStatus("h:1", 1, wire=coordinator),
        targets=tuple(
            TargetStatus(f"t{number}", "live", "", None, None, "", 0, 0, 0, wire=wire)
            for number, wire in enumerate(targets)
        ),
        cluster="c", running=True, health="OK", checks=(), code="2+1",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wires", "notes"),
    [
        (("auto", "mac", ""), []),
        (("encrypt", "encrypt", "encrypt"), []),
        (("encrypt", "encrypt", ""), []),
        (
            ("plain", "auto", "plain"),
            [
                'bulks have no tags: wire = "plain" on coordinator, t1; '
                "whoever is on the way can change them"
            ],
        ),
        (
            ("auto", "encrypt", "mac"),
            ['names and bytes can be read on the way: wire = "encrypt" not on coordinator, t1'],
        ),
    ],
)
def test_daemons_that_say_less_than_others_are_named(
    wires: tuple[str, ...], notes: list[str]
) -> None:
    assert wire_notes(status(*wires)) == notes
