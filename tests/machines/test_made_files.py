"""What a store, an export or a command has said to be there is there after a loss of power."""

from __future__ import annotations

from ckptd.catalog.backup import read_backup
from ckptd.catalog.sqlite import read_image
from tests.machines.recorded import left, run
from tests.machines.recorder import Recorder

PUT = [
    "from pathlib import Path",
    "from ckpt.objects.sinks.file_sink import FileSink",
    "FileSink(Path('store').absolute()).put('run/1/array', b'x')",
]
MARKED = [*PUT[:2], "assert FileSink(Path('store').absolute()).put_if_absent('run/1/MARK', b'x')"]
SHOWN = [
    "os.makedirs('store/run/1'); sync()",
    "write('store/run/1/MARK.part-1', b'x', sync=True)",
    "os.link('store/run/1/MARK.part-1', 'store/run/1/MARK')",
]
"""A writer that is killed before it has synced what others see already."""
RELIED_ON = [
    *PUT[:2],
    "from ckpt.objects.sinks.sink import create_once",
    "assert create_once(FileSink(Path('store').absolute()), 'run/1/MARK', b'x') is None",
]
EXPORTED = [
    "from pathlib import Path",
    "from ckpt_client.exchange.whole_file import WholeFile",
    "with WholeFile(Path('to/here/state.npz').absolute()) as file:",
    "    file.write(b'x'); file.complete()",
]
MAKES_CATALOGS = [
    "from pathlib import Path",
    "from ckpt.protocol.coordinator.image import CatalogImage",
    "from ckptd.catalog.sqlite import create_catalog, write_copy",
]


def test_an_object_of_a_folder_s_store_stays(recorder: Recorder) -> None:
    run(recorder, *PUT)
    assert left(recorder, ordered=False) == {"store/run/1/array": b"x"}


def test_a_marker_of_a_folder_s_store_stays(recorder: Recorder) -> None:
    run(recorder, *MARKED)
    # Its other name, under which it was written, may be back.
    assert left(recorder, ordered=False)["store/run/1/MARK"] == b"x"


def test_a_marker_that_a_killed_writer_has_shown_stays_once_another_relies_on_it(
    recorder: Recorder,
) -> None:
    run(recorder, *SHOWN, *RELIED_ON)  # The journal that says what is synced is a process's.
    assert left(recorder, ordered=False)["store/run/1/MARK"] == b"x"


def test_an_exported_file_stays(recorder: Recorder) -> None:
    run(recorder, *EXPORTED)
    assert left(recorder, ordered=False) == {"to/here/state.npz": b"x"}


def test_a_daemon_s_directory_stays(recorder: Recorder) -> None:
    run(
        recorder,
        "from pathlib import Path",
        "from ckpt.aio.private import make_private_directory",
        "make_private_directory(Path('srv/ckpt/target').absolute())",
        "write('srv/ckpt/target/target.toml', b'x', sync=True); sync('srv/ckpt/target')",
    )
    assert left(recorder, ordered=False) == {"srv/ckpt/target/target.toml": b"x"}


def test_a_small_file_that_was_replaced_is_the_new_one_whole(recorder: Recorder) -> None:
    run(
        recorder,
        "from pathlib import Path",
        "from ckpt.aio.durable import write_aside",
        "write('target.toml', b'old', sync=True); sync()",
        "write_aside(Path('target.toml').absolute(), b'the new one')",
    )
    assert left(recorder, ordered=False) == {"target.toml": b"the new one"}


def test_a_copy_of_a_catalog_stays(recorder: Recorder) -> None:
    run(
        recorder,
        *MAKES_CATALOGS,
        "write_copy(Path('backups/catalog-3.sqlite').absolute(), 'c1', CatalogImage(3))",
    )
    assert list(left(recorder, ordered=False)) == ["backups/catalog-3.sqlite"]
    assert read_backup(recorder.root / "backups/catalog-3.sqlite", "c1").term == 3


def test_a_catalog_that_was_made_again_is_in_the_old_one_s_place(recorder: Recorder) -> None:
    """The old one under its name would be a catalog that is older than its targets."""
    run(
        recorder,
        *MAKES_CATALOGS,
        "create_catalog(Path('catalog').absolute(), 'c1', CatalogImage(3))",
        "create_catalog(Path('catalog').absolute(), 'c1', CatalogImage(9), keep_old=True)",
    )
    left(recorder, ordered=False)
    cluster, image = read_image(recorder.root / "catalog")
    assert (cluster, image.term) == ("c1", 9)
