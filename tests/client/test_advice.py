"""A coordinator's advice as it fits a cluster of one machine, whose secret is in its directory."""

from __future__ import annotations

from pathlib import Path

from ckpt.protocol.coordinator.reading.checks import START_WORKER, check, new_target
from ckpt.protocol.coordinator.reading.local_advice import for_its_page
from ckpt_client.cli.advice import Local

HERE = Local(Path("/scratch/my burst"), restarts=True, targets=())


def test_a_local_cluster_starts_its_repair_by_itself() -> None:
    remedy = f"what reads it takes parity; {START_WORKER}: it makes it again"
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


def test_the_page_of_a_local_cluster_names_its_store_and_leaves_processes_to_status() -> None:
    start = "ckptd target --id t1 --directory /d/targets/t1 --coordinator 127.0.0.1:7"
    away = for_its_page(check("TARGET_DOWN", "t1 is away", "start it", start), "/d")
    assert away.command == "ckpt status --store ckpt+local:///d"
    full = for_its_page(check("TARGET_FULL", "taken", "add", new_target("127.0.0.1:7")), "/d")
    assert full.command == "ckpt target add NEW_DIR --store ckpt+local:///d"
    lost = for_its_page(check("ROT", "damaged", "save again", "ckpt rm r@1 && kill 7"), "/my d")
    assert lost.command == "ckpt rm r@1 --store 'ckpt+local:///my d' && kill 7"
