"""ckpt beside Orbax and TensorStore, in turns: stall, time to durable, cold load.

    python benchmarks/peers/orbax_tensorstore.py --ranks 4 --mib 512 --rounds 3

Every rank is a process of one JAX job on CPUs, and holds the rows of a model's weights (bf16) and
Adam state (fp32) that are its own: random bits, which no codec makes smaller. All ways save the
same memory to the same disk:

    ckpt          `store.save`; done when committed, 4+2 on 6 targets of this disk
    tensorstore   OCDBT + zarr3, a database for each process, a transaction; no codec
    orbax         AsyncCheckpointer at its defaults (OCDBT, zstd level 1)
    orbax-plain   the same without a codec

Loads are done by other processes than those that saved, so that nothing but the disk has the
bytes; caches are dropped before each where that is allowed (root), else the report says so. What
was loaded is compared by digests. Figures are of the slowest rank; `synced` of Orbax counts an
fsync of all that it left to the page cache: small files and names, its data it syncs itself.
Exit codes: 0 done, 1 a process failed or bytes differ, 2 a wrong option, 69 a package is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import ml_dtypes
import numpy as np
import xxhash
from beside import EXIT_MISSING, PeerProgress, cluster, drop_caches, middle, missing

import ckpt
from ckpt.base.units import MiB

PACKAGES = {"jax": "jax", "orbax.checkpoint": "orbax-checkpoint", "tensorstore": "tensorstore"}
COLUMNS = 4096
LAYERS = 8
ROW_BYTES = COLUMNS * 14
"""Of a layer: 2 bytes of weight, 12 of Adam's."""
KINDS = {"w": ml_dtypes.bfloat16, "master": np.float32, "m": np.float32, "v": np.float32}
RUN = "peers"
END_TIMEOUT_S = 60.0
DURABILITY = {
    "ckpt": "fsynced on 6 targets, survives two of them",
    "tensorstore": "fsynced, files and directories: one copy",
    "orbax": "arrays fsynced, small files and the final name not: one copy",
    "orbax-plain": "as orbax",
}
"""Of what each calls done; of TensorStore 0.1.86 and Orbax 0.12.8 seen in their system calls."""
Arrays = dict[str, np.ndarray]
Digests = dict[str, str]
Figures = dict[str, float]
Rounds = dict[str, list[Figures]]
"""Way -> figures of each round."""


class OrbaxJob:
    """One rank of the job that saves, or of the one that loads."""

    def __init__(self, options: argparse.Namespace, place: Path, url: str, rank: int) -> None:
        import jax
        import orbax.checkpoint as ocp
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        self.place = place
        self.rank = rank
        self.ranks = options.ranks
        self.rows = max(1, options.mib * MiB // (ROW_BYTES * LAYERS))
        self.cut = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
        # The states repeat; what is measured is writing.
        self.store = ckpt.open(url, unchanged="ignore", references=False)
        self.arrays: Arrays = {}
        self.state: dict[str, jax.Array] = {}
        self.writers = {
            "orbax": ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler()),
            "orbax-plain": ocp.AsyncCheckpointer(
                ocp.PyTreeCheckpointHandler(use_compression=False)
            ),
        }

    def names(self) -> Iterator[tuple[str, type]]:
        """Of every array, with its dtype."""
        for layer in range(LAYERS):
            for name, kind in KINDS.items():
                yield f"{layer}/{name}", kind

    def make(self) -> Digests:
        """Random rows, as JAX holds them; `arrays` are views of the same memory."""
        import jax

        generator = np.random.default_rng(self.rank)
        whole = (self.rows * self.ranks, COLUMNS)
        for name, kind in self.names():
            count = self.rows * COLUMNS * np.dtype(kind).itemsize
            local = np.frombuffer(generator.bytes(count), kind).reshape(self.rows, COLUMNS)
            part = jax.device_put(local, jax.local_devices()[0])
            self.state[name] = jax.make_array_from_single_device_arrays(whole, self.cut, [part])
        jax.block_until_ready(self.state)
        self.arrays = self.local_parts(self.state)
        return digests(self.arrays)

    def local_parts(self, state: dict) -> Arrays:
        """What this process holds of each."""
        return {name: np.asarray(one.addressable_shards[0].data) for name, one in state.items()}

    def copy_s(self) -> Figures:
        """A warm copy of the same arrays."""
        targets = [np.empty_like(part) for part in self.arrays.values()]
        for _ in range(2):  # The first one pays the first touch.
            begun = time.perf_counter()
            for target, part in zip(targets, self.arrays.values(), strict=True):
                np.copyto(target, part)
            found = time.perf_counter() - begun
        return {"copy": found}

    # ----------------------------------------------------------------------- saves

    def save(self, way: str, step: int) -> Figures:
        """Seconds until the call returns, until it is done, and until it is durable."""
        if way == "tensorstore":
            return self.save_tensorstore(step)
        return self.save_ckpt(step) if way == "ckpt" else self.save_orbax(way, step)

    def save_ckpt(self, step: int) -> Figures:
        shape, offset = (self.rows * self.ranks, COLUMNS), (self.rows * self.rank, 0)
        begun = time.perf_counter()
        state = {name: ckpt.Shard(part, shape, offset) for name, part in self.arrays.items()}
        save = self.store.save(RUN, step, state, rank=self.rank, world_size=self.ranks)
        stall_s = time.perf_counter() - begun
        save.wait()
        done_s = time.perf_counter() - begun
        return {"stall": stall_s, "done": done_s, "synced": done_s}

    def save_tensorstore(self, step: int) -> Figures:
        """It reads the arrays to the end, without a copy: there is no stall to tell apart."""
        import tensorstore as ts

        begun = time.perf_counter()
        context, all_or_none = ts.Context(), ts.Transaction()
        writes = []  # Kept: a write whose future is dropped is cancelled.
        for name, part in self.arrays.items():
            opened = ts.open(
                self.spec(step, name) | {"metadata": zarr3_metadata(part)},
                create=True, context=context, transaction=all_or_none,
            )  # fmt: skip
            writes.append(opened.result().write(part, can_reference_source_data_indefinitely=True))
        all_or_none.commit_async().result()
        for write in writes:
            write.result()
        done_s = time.perf_counter() - begun
        return {"done": done_s, "synced": done_s}

    def spec(self, step: int, name: str) -> dict:
        """Of one array in this rank's database."""
        base = f"file://{self.place}/tensorstore/{step}/{self.rank}/"
        return {
            "driver": "zarr3",
            "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"},
        }

    def save_orbax(self, way: str, step: int) -> Figures:
        import orbax.checkpoint as ocp

        place = self.place / way / str(step)
        begun = time.perf_counter()
        self.writers[way].save(place, args=ocp.args.PyTreeSave(self.state))
        stall_s = time.perf_counter() - begun
        self.writers[way].wait_until_finished()
        done_s = time.perf_counter() - begun
        if self.rank == 0:  # One is enough: the others' files lie below the same directory.
            sync_all(place)
        return {"stall": stall_s, "done": done_s, "synced": time.perf_counter() - begun}

    # ----------------------------------------------------------------------- loads

    def load(self, way: str, step: int) -> tuple[Figures, Digests]:
        """Into new memory; digests are taken outside the clock."""
        begun = time.perf_counter()
        if way == "tensorstore":
            found = self.load_tensorstore(step)
        else:
            found = self.load_ckpt(step) if way == "ckpt" else self.load_orbax(way, step)
        seconds = time.perf_counter() - begun
        return {"load": seconds}, digests(found)

    def load_ckpt(self, step: int) -> Arrays:
        found = self.store.load(RUN, step, rank=self.rank, world_size=self.ranks)
        assert isinstance(found, dict)
        return {name: shard.array for name, shard in found.items()}

    def load_tensorstore(self, step: int) -> Arrays:
        import tensorstore as ts

        context = ts.Context()
        opened = {
            name: ts.open(self.spec(step, name), open=True, context=context)
            for name, _ in self.names()
        }
        reads = {name: one.result().read() for name, one in opened.items()}
        return {name: one.result() for name, one in reads.items()}

    def load_orbax(self, way: str, step: int) -> Arrays:
        import jax
        import orbax.checkpoint as ocp

        whole = (self.rows * self.ranks, COLUMNS)
        like = {
            name: jax.ShapeDtypeStruct(whole, kind, sharding=self.cut)
            for name, kind in self.names()
        }
        restore_args = ocp.checkpoint_utils.construct_restore_args(like)
        args = ocp.args.PyTreeRestore(item=like, restore_args=restore_args)
        found = self.writers[way].restore(self.place / way / str(step), args=args)
        return self.local_parts(jax.block_until_ready(found))

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()
        self.store.close()


def zarr3_metadata(part: np.ndarray) -> dict:
    """One chunk, no codec."""
    chunk_grid = {"name": "regular", "configuration": {"chunk_shape": part.shape}}
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    return {
        "shape": part.shape,
        "data_type": part.dtype.name,
        "chunk_grid": chunk_grid,
        "codecs": codecs,
    }


def digests(arrays: Arrays) -> Digests:
    """Of the bytes of each array."""
    return {
        name: xxhash.xxh3_128_hexdigest(np.ascontiguousarray(part).view(np.uint8))
        for name, part in arrays.items()
    }


def sync_all(place: Path) -> None:
    """What lies below, and the name itself."""
    for path in (*place.rglob("*"), place, place.parent):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def serve(
    options: argparse.Namespace, place: Path, url: str, rank: int, port: int, calls: Connection
) -> None:
    """One process: what it is asked for, until it is asked for nothing more."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Gloo writes there; it is the report's.
    import jax

    logging.getLogger("absl").setLevel(logging.ERROR)
    jax.distributed.initialize(f"127.0.0.1:{port}", options.ranks, rank)
    job = OrbaxJob(options, place, url, rank)
    with contextlib.suppress(EOFError):  # The one who asked has gone.
        while (call := calls.recv()) is not None:
            name, *arguments = call
            calls.send(getattr(job, name)(*arguments))
    job.close()
    jax.distributed.shutdown()


class OrbaxRanks:
    """The processes of one job; what is asked of them begins on all at once."""

    def __init__(self, options: argparse.Namespace, place: Path, url: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        context = multiprocessing.get_context("spawn")
        self.calls: list[Connection] = []
        self.processes: list[SpawnProcess] = []
        for rank in range(options.ranks):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(options, place, url, rank, port, there))
            process.start()
            there.close()
            self.calls.append(here)
            self.processes.append(process)

    def ask(self, *call: object) -> list:
        """Each rank's answer. Raises EOFError or ConnectionError when one has ended."""
        for calls in self.calls:
            calls.send(call)
        answers: dict[Connection, object] = {}
        while left := [calls for calls in self.calls if calls not in answers]:
            for calls in connection.wait(left):
                assert isinstance(calls, Connection)
                answers[calls] = calls.recv()
        return [answers[calls] for calls in self.calls]

    def close(self) -> None:
        """Their own end; who does not come to it is killed."""
        for calls in self.calls:
            with contextlib.suppress(OSError):
                calls.send(None)
        for process in self.processes:
            process.join(END_TIMEOUT_S)
            process.kill()
            process.join()

    def kill(self) -> None:
        """Where one has failed, others wait for it in a barrier."""
        for process in self.processes:
            process.kill()


def measure(
    options: argparse.Namespace, place: Path, savers: OrbaxRanks, loaders: OrbaxRanks
) -> Rounds:
    """All figures, of the slowest rank. Raises ValueError when a way gives back other bytes."""
    progress = PeerProgress()
    progress.note("making the state")
    made = savers.ask("make")
    found: Rounds = {"copy": [], **{way: [] for way in DURABILITY}}
    for number in range(1 + options.rounds):  # The first one warms everything up.
        copied = slowest(savers.ask("copy_s"))
        ways = list(DURABILITY)
        turn = number % len(ways)
        for way in ways[turn:] + ways[:turn]:
            progress.note(f"round {number} of {options.rounds}: {way}")
            os.sync()
            figures = slowest(savers.ask("save", way, number))
            drop_caches()
            loads = loaders.ask("load", way, number)
            if [digest for _, digest in loads] != made:
                raise ValueError(f"{way} gave back other bytes than it was given")
            figures |= slowest([seconds for seconds, _ in loads])
            if number:
                found[way].append(figures)
            shutil.rmtree(place / way, ignore_errors=True)  # Ours keeps two steps by itself.
        if number:
            found["copy"].append(copied)
    return found


def slowest(each: list[Figures]) -> Figures:
    """The largest of each figure over ranks."""
    return {name: max(one[name] for one in each) for name in each[0]}


def table(found: Rounds) -> Iterator[str]:
    """Medians with spread; a ratio is of two figures of the same round."""
    columns = ("stall", "done", "synced", "load")
    row = "{:12}" + "{:>26}" * len(columns)
    yield row.format("seconds", *columns)
    for way in DURABILITY:
        figures = [[one[name] for one in found[way] if name in one] for name in columns]
        yield row.format(way, *(middle(values) if values else "-" for values in figures))
    yield row.format("ckpt / it", *columns)
    for way in list(DURABILITY)[1:]:
        ratios = [
            [
                ours[name] / its[name]
                for ours, its in zip(found["ckpt"], found[way], strict=True)
                if name in its
            ]
            for name in columns
        ]
        yield row.format(way, *(middle(values) if values else "-" for values in ratios))
    yield "Of the slowest rank, median [lowest - highest] over rounds; ratios of the same round."
    yield f"A warm copy of the same arrays: {middle([one['copy'] for one in found['copy']])} s"
    yield "tensorstore has no stall: it reads the arrays until it is done"
    for way, worth in DURABILITY.items():
        yield f"done of {way}: {worth}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=positive, default=4)
    parser.add_argument("--mib", type=positive, default=512, help="of state for each rank")
    parser.add_argument("--rounds", type=positive, default=3, help="after one that warms up")
    parser.add_argument("--directory", type=folder, help="on the disk to measure; default $TMPDIR")
    parser.add_argument("--json", action="store_true", help="every round's figures")
    return parser.parse_args()


def positive(text: str) -> int:
    """argparse says what is wrong with any other."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("it must be at least 1")
    return number


def folder(text: str) -> Path:
    """As above."""
    if not (path := Path(text)).is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {text}")
    return path


def main() -> int:
    """Run it and print the table."""
    options = parse()
    os.environ["JAX_PLATFORMS"] = "cpu"
    # A rank is one device, whatever a test of JAX has asked of this shell. The last one counts.
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=1".strip()
    if text := missing(PACKAGES):
        print(text, file=sys.stderr)
        return EXIT_MISSING
    cold = drop_caches()
    with contextlib.ExitStack() as stack:
        directory = tempfile.TemporaryDirectory(dir=options.directory, prefix="peers-")
        place = Path(stack.enter_context(directory)).resolve()
        found = in_jobs(options, place, stack, lambda *jobs: measure(options, place, *jobs))
    if found is None:
        return 1
    if options.json:
        given = {name: getattr(options, name) for name in ("ranks", "mib", "rounds")}
        print(json.dumps({**given, "cold": cold, "durability": DURABILITY, "seconds": found}))
        return 0
    print("\n".join(table(found)))
    if not cold:
        print("page caches could not be dropped (that needs root): loads were warm")
    return 0


def in_jobs(
    options: argparse.Namespace,
    place: Path,
    stack: contextlib.ExitStack,
    task: Callable[[OrbaxRanks, OrbaxRanks], Rounds],
) -> Rounds | None:
    """What the task finds with a job that saves and one that loads; None, and why, if it fails."""
    url = stack.enter_context(cluster(place / "burst"))
    # Another runtime directory: loads find no stager that has the bytes in its memory.
    hidden = stack.enter_context(tempfile.TemporaryDirectory(prefix="ckpt-"))
    savers = OrbaxRanks(options, place, url)
    stack.callback(savers.close)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = hidden
    loaders = OrbaxRanks(options, place, url)
    stack.callback(loaders.close)
    if runtime is None:
        del os.environ["XDG_RUNTIME_DIR"]
    else:
        os.environ["XDG_RUNTIME_DIR"] = runtime
    try:
        return task(savers, loaders)
    except (EOFError, ConnectionError):
        cause = "a process ended; its traceback is above"
    except ValueError as error:
        cause = str(error)
    savers.kill()
    loaders.kill()
    print(f"error: {cause}", file=sys.stderr)
    return None


if __name__ == "__main__":  # Processes that are spawned import this too.
    sys.exit(main())
