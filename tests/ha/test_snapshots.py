"""etcd is put back to an earlier snapshot of itself, under its coordinators or while none runs: the
targets prove its catalog old, and the command that `ckpt status` names brings all that was saved.
"""

from __future__ import annotations

import shlex
import shutil
import signal
from pathlib import Path

import pytest

import ckpt
from ckpt_client.cli.main import main
from tests.ha.members import Etcd, Member
from tests.ha.places import Prefix
from tests.ha.test_mistakes import OLD, said, sharing
from tests.ha.test_takeovers import RUN, WAIT_S, check_loads, state
from tests.landing import in_turn
from tests.waiting import ASKED_S, wait_until


def kept(member: Member, folder: Path) -> Path:
    """What it has now."""
    member.kill()
    copy = shutil.copytree(member.log.with_suffix(".data"), folder)
    member.start()
    member.wait_up()
    return Path(copy)


def put_back(member: Member, copy: Path) -> None:
    """All that came after the copy was made is gone."""
    data = member.log.with_suffix(".data")
    member.kill()
    data.rename(data.with_suffix(".gone"))
    copy.rename(data)
    member.start()
    member.wait_up()


@pytest.mark.parametrize(
    ("runs", "saves"),
    in_turn([(True, True), (True, False), (False, False), (False, True)], every=2),
    ids=["running-saving", "running-idle", "ended-idle", "ended-saving"],
)
def test_what_was_saved_after_the_snapshot_is_brought_by_the_targets(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    runs: bool,
    saves: bool,
) -> None:
    with (
        Etcd(tmp_path / "etcd") as etcd,
        sharing(tmp_path / "shared", etcd, Prefix(etcd.addresses), monkeypatch) as cluster,
        ckpt.open(cluster.url) as store,
    ):
        (member,) = etcd.members
        store.save(RUN, 1, state(1)).wait(WAIT_S)
        copy = kept(member, tmp_path / "snapshot")
        store.save(RUN, 2, state(2)).wait(WAIT_S)
        if not runs:
            for id in "ab":
                cluster.kill(id, signal.SIGTERM)
        put_back(member, copy)
        if not runs:
            for id in "ab":
                cluster.start(id)
        save = store.save(RUN, 3, state(3)) if saves else None
        wait_until(lambda: OLD in said(capsys, cluster), "it is proved old", poll_s=ASKED_S)
        assert save is None or not save.ended
        main(["status", "--store", cluster.url])
        (line,) = (each for each in capsys.readouterr().out.splitlines() if "rebuild" in each)
        _, _, command = line.partition("ckpt catalog")
        for id in "ab":
            assert cluster.kill(id, signal.SIGTERM) == 0
        assert main(["catalog", *shlex.split(command)]) == 0
        cluster.place = Prefix(etcd.addresses, f"{cluster.place.name}-2")
        for id in "ab":
            cluster.start(id)
        save = save or store.save(RUN, 3, state(3))
        save.wait(WAIT_S)
        for step in (1, 2, 3):
            check_loads(store, step)
