"""Other people's readers open what we store, bit by bit: TensorStore, xarray, and zarr over S3."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import ckpt.objects.dtypes  # noqa: F401  # zarr 3.1 loads no entry points
from ckpt.objects import names
from ckpt.objects.elements import EXTENSIONS, UNREAD
from ckpt.objects.planning import WriteOptions
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.sinks.fsspec_sink import FsspecSink
from ckpt.objects.writer import WriteLimits, write_checkpoint
from tests.objects.foreign import READERS, seen_by
from tests.objects.sources import HEADER, MemorySource, every_type, many_kinds, same_bits
from tests.stores.gateway import S3

KINDS = many_kinds()
PREFIX = names.generation_prefix(*HEADER.key)
LARGE = ("model/big", "model/bf16", "model/f8", "model/zeros")


@pytest.fixture(scope="module", params=["none", "always"])
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one checkpoint, its chunks raw or all compressed."""
    place = tmp_path_factory.mktemp("store")
    options = WriteOptions(compression=request.param, chunk_bytes=4 << 20)
    write_checkpoint(FileSink(place), MemorySource(KINDS), options, WriteLimits())
    return place / PREFIX


@pytest.mark.parametrize("reader", READERS)
def test_each_reader_alone_finds_every_tensor_by_its_name(
    group: Path, reader: str, tmp_path: Path
) -> None:
    pytest.importorskip(reader)
    seen = seen_by(reader, group, tmp_path)
    for name, array in KINDS.items():
        assert seen.pop(f"tensors/{names.node_path(name)}").holds(array), name
    assert not seen, "and nothing that is no tensor"


@pytest.mark.parametrize("reader", READERS)
def test_each_reader_alone_finds_every_type(reader: str, tmp_path: Path) -> None:
    pytest.importorskip(reader)
    source = MemorySource(every_type())
    write_checkpoint(FileSink(tmp_path / "store"), source, WriteOptions(), WriteLimits())
    seen = seen_by(reader, tmp_path / "store" / PREFIX, tmp_path)
    for name, array in source.whole.items():
        found = seen[f"tensors/{names.node_path(name)}"]
        assert found.holds(array), name
        type = name.removeprefix("every/")
        if reader == "tensorstore" and type in EXTENSIONS and type not in UNREAD:
            assert found.dtype == type


@pytest.mark.parametrize("name", LARGE)
def test_tensorstore_reads_every_bit(group: Path, name: str) -> None:
    ts = pytest.importorskip("tensorstore")
    folder = {"driver": "file", "path": str(group / "tensors" / name)}
    found = ts.open({"driver": "zarr3", "kvstore": folder}).result().read().result()
    assert found.dtype == KINDS[name].dtype
    assert same_bits(found, KINDS[name])


def test_tensorstore_reads_a_slice(group: Path) -> None:
    ts = pytest.importorskip("tensorstore")
    folder = {"driver": "file", "path": str(group / "tensors/model/bf16")}
    opened = ts.open({"driver": "zarr3", "kvstore": folder}).result()
    assert same_bits(opened[700:703, 100:].read().result(), KINDS["model/bf16"][700:703, 100:])


def test_xarray_opens_the_arrays_as_one_dataset(group: Path) -> None:
    xarray = pytest.importorskip("xarray")
    found = xarray.open_zarr(group, group="tensors/model", consolidated=False, decode_cf=False)
    assert set(found.data_vars) == {name.rpartition("/")[2] for name in KINDS if "model/" in name}
    for name in LARGE:
        assert same_bits(found[name.rpartition("/")[2]].values, KINDS[name]), name


def test_a_portable_checkpoint_needs_no_data_type_of_ours(tmp_path: Path) -> None:
    ts = pytest.importorskip("tensorstore")
    write_checkpoint(
        FileSink(tmp_path), MemorySource(KINDS), WriteOptions(portable=True), WriteLimits()
    )
    folder = {"driver": "file", "path": str(tmp_path / PREFIX / "tensors/model/bf16")}
    found = ts.open({"driver": "zarr3", "kvstore": folder}).result().read().result()
    assert found.dtype == np.uint16
    assert same_bits(found.view(KINDS["model/bf16"].dtype), KINDS["model/bf16"])


def test_zarr_opens_a_checkpoint_in_s3(s3: S3, bucket: str) -> None:
    import zarr

    sink = FsspecSink(f"s3://{bucket}/place", s3.fsspec_options)
    write_checkpoint(sink, MemorySource(KINDS), WriteOptions(), WriteLimits())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr's own, of sessions that end with the process
        url = f"s3://{bucket}/place/{PREFIX}"
        opened = zarr.open_group(url, mode="r", storage_options=s3.fsspec_options)
        array = opened["tensors/model/bf16"]
        assert isinstance(array, zarr.Array)
        assert array.attrs["logical_dtype"] == "bfloat16"
        assert same_bits(np.asarray(array[...]).view("bfloat16"), KINDS["model/bf16"])
        options = {"s3": s3.fsspec_options}
        opened = zarr.open_group(f"zip::{url}packed/0.zip", mode="r", storage_options=options)
        array = opened["tensors/small/=3Cf2"]
        assert isinstance(array, zarr.Array)
        assert same_bits(array[...], KINDS["small/<f2"])
