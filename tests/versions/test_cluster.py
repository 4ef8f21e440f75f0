"""The frozen cluster of 0.1.0 is started, read, verified, written and rebuilt by this version."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import ckpt
from ckpt.format.messages.hello import PROTOCOL_VERSION
from ckptd.catalog.sqlite import SqliteCatalog, read_image
from tests.client.bits import bits_of
from tests.client.clikit import environment, run
from tests.unpacking import unpack
from tests.versions import states

ARCHIVE: Final = Path(__file__).parent / "v0_1_0" / "cluster.tar.xz"
TIMEOUT_S: Final = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    """At rest, as 0.1.0 left it, but for the host's name: it is refused on another one."""
    unpack(ARCHIVE, tmp_path)
    directory = tmp_path / "cluster"
    made = directory / "cluster.toml"
    made.write_text(re.sub(r'host = ".*"', f'host = "{socket.gethostname()}"', made.read_text()))
    (directory / "secret").chmod(0o600)
    try:
        yield directory
    finally:
        run("local", "stop", str(directory))


def url(directory: Path) -> str:
    return f"ckpt+local://{directory}"


def check_step(store: ckpt.Store, step: int) -> None:
    """Bit by bit, on every rank."""
    for rank in range(states.RANKS):
        found = store.load(states.RUN, step, rank=rank, world_size=states.RANKS)
        assert isinstance(found, dict)
        wanted = states.state(step, rank)
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            check_value(found[name], value, name)


def check_value(found: object, wanted: object, name: str) -> None:
    match wanted:
        case ckpt.Shard():
            assert isinstance(found, ckpt.Shard)
            assert (found.global_shape, found.offset) == (wanted.global_shape, wanted.offset)
            assert bits_of(found.array) == bits_of(wanted.array)
        case ckpt.Replicated(tree=value):
            assert bits_of(found) == bits_of(value), name
        case np.ndarray():
            assert bits_of(found) == bits_of(wanted), name
        case _:
            assert (found, type(found)) == (wanted, type(wanted)), name


def test_all_that_the_first_version_kept_is_read_bit_by_bit(cluster: Path) -> None:
    with ckpt.open(url(cluster)) as store:
        assert [each.step for each in store.steps(states.RUN)] == [200, 300]
        assert store.latest(states.RUN) == 300
        for step in (200, 300):
            check_step(store, step)
        assert store.load(states.OTHER_RUN) == {"x": 1}


def test_it_is_verified_written_deleted_and_told_as_its_own(cluster: Path) -> None:
    environ = environment(CKPT_STORE=url(cluster))
    assert run("verify", f"{states.RUN}@200", environ=environ).code == 0
    assert run("verify", f"{states.RUN}@300", environ=environ).code == 0
    with ckpt.open(url(cluster)) as store:
        saves = [
            store.save(states.RUN, 400, states.state(400, r), rank=r, world_size=states.RANKS)
            for r in range(states.RANKS)
        ]
        for save in saves:
            save.wait(TIMEOUT_S)
    assert run("rm", f"{states.RUN}@200", environ=environ).code == 0
    status = run("status", "--json", environ=environ).document()
    assert [each["name"] for each in status["checks"]] == ["UPGRADE_UNFINISHED"]
    finish(environ)
    status = run("status", "--json", environ=environ).document()
    assert (status["health"], status["checks"]) == ("HEALTH_OK", [])
    with ckpt.open(url(cluster)) as store:
        assert [each.step for each in store.steps(states.RUN)] == [300, 400]
        for step in (300, 400):
            check_step(store, step)


def finish(environ: dict[str, str]) -> None:
    """As a person does, who looks first."""
    view = run("upgrade", "--json", environ=environ).document()
    assert (view["protocol"], view["needs"], view["finished"]) == (PROTOCOL_VERSION, 1, False)
    kinds = Counter((one["kind"], one["protocol"]) for one in view["members"])
    assert kinds["coordinator", PROTOCOL_VERSION] == 1
    assert kinds["target", PROTOCOL_VERSION] == 4
    shown = run("upgrade", environ=environ).out
    assert "nothing stands against finishing: ckpt upgrade finish" in shown
    asked = run("upgrade", "finish", "--dry-run", environ=environ)
    assert (asked.code, asked.out.startswith("would finish")) == (0, True)
    assert not run("upgrade", "--json", environ=environ).document()["finished"]
    for _ in range(2):  # Said again, it is no error.
        said = run("upgrade", "finish", "--json", environ=environ)
        assert (said.code, said.document()["protocol"]) == (0, PROTOCOL_VERSION)
    assert run("upgrade", environ=environ).out.endswith("3 is not let in\n")


def test_its_catalog_is_taken_over_whole(cluster: Path) -> None:
    path = cluster / "catalog.sqlite"
    (columns,) = ask(path, "SELECT group_concat(name) FROM pragma_table_info('checkpoint')")
    kept = ",".join(name for name in columns[0].split(",") if name != "placement")
    before = ask(path, f"SELECT {kept} FROM checkpoint")
    assert "placement" in columns[0]
    assert ask(path, "PRAGMA user_version") == [(1,)]
    # Reading changes nothing; a coordinator that begins does.
    _, image = read_image(cluster)
    assert len(image.rows) == len(before)
    assert ask(path, "PRAGMA user_version") == [(1,)]
    with closing_now(SqliteCatalog.open(cluster, None, "")) as catalog:
        assert catalog.image.rows == image.rows
    assert ask(path, f"SELECT {kept} FROM checkpoint") == before
    assert ask(path, "PRAGMA user_version") == [(2,)]
    tables = {name for (name,) in ask(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables.isdisjoint({"repair", "checkpoint_1"})


@contextmanager
def closing_now(catalog: SqliteCatalog) -> Iterator[SqliteCatalog]:
    try:
        yield catalog
    finally:
        asyncio.run(catalog.close())


def ask(path: Path, question: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(question).fetchall()
    finally:
        connection.close()


def test_a_lost_target_of_it_is_made_up_for_and_its_catalog_is_made_again(cluster: Path) -> None:
    shutil.rmtree(cluster / "targets" / "t3" / "columns")
    for file in cluster.glob("catalog.sqlite*"):
        file.unlink()
    rebuilt = run("catalog", "rebuild", str(cluster), "--json")
    assert rebuilt.code == 0, rebuilt.err
    (catalog,) = json.loads(rebuilt.out)["catalogs"]
    assert len(catalog["committed"]) == 3
    with ckpt.open(url(cluster)) as store:
        for step in (200, 300):
            check_step(store, step)
