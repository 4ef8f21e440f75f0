"""A coordinator's advice as it fits a cluster of one machine, whose secret is in its directory."""

from __future__ import annotations

from pathlib import Path

from ckpt.protocol.coordinator.reading.checks import START_WORKER, check, new_target
from ckpt_client.cli.advice import Local

HERE = Local(Path("/scratch/my burst"), restarts=True, targets=())


def test_a_local_cluster_starts_its_repair_by_itself() -> None:
    remedy = f"what reads it takes parity; {START_WORKER}"
    found = HERE.advise(check("ROT", "damaged", remedy, "ckptd repair --coordinator 127.0.0.1:7"))
    assert found.command == "ckpt repair --wait"
    assert found.remedy == "what reads it takes parity; its supervisor starts a worker: wait"


def test_a_drain_beside_a_local_cluster_is_told_where_the_secret_is() -> None:
    command = "ckptd drain --to s3://b/runs --coordinator 127.0.0.1:7"
    found = HERE.advise(check("DRAIN_STOPPED", "waits", "start a worker", command))
    assert found.command == f"{command} --secret-file '/scratch/my burst/secret'"


def test_a_local_cluster_takes_in_a_new_target_by_its_own_command() -> None:
    full = check("TARGET_FULL", "taken", "add targets", new_target("127.0.0.1:7"))
    assert HERE.advise(full).command == "ckpt target add NEW_DIR"


def test_other_advice_stays_as_it_is() -> None:
    said = check("ROT", "damaged", "save again", "ckpt rm r@1")
    assert HERE.advise(said) == said
