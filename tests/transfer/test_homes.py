"""A checkpoint whose unchanged bytes lie in earlier generations: each is read from its own payload,
over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from msgspec.structs import replace

from ckpt.aio.net.serving.server import Server
from ckpt.base.errors import Corrupt
from ckpt.base.ids import (
    BootId,
    CheckpointId,
    ColumnNumber,
    Generation,
    Home,
    LaunchNumber,
    PayloadId,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.base.limits import PAYLOAD_BYTES_MAX, WORLD_SIZE_MAX
from ckpt.erasure.code import Code
from ckpt.format.checksum import xxh3_128
from ckpt.format.documents.moves import encode_moves, page_of
from ckpt.format.documents.record import CommitRecord, encode_record
from ckpt.format.index.document import Index
from ckpt.format.index.pages import IndexBox, IndexPayload, IndexTensor, Location
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.loading import AskMoves, Resolved, TargetAddress, Whereabouts
from ckpt.format.messages.reading import DocumentData, ReadDocument
from ckpt.format.messages.saving import CommitInfo
from ckpt.format.table import Meaning
from ckpt.plan.reads import PayloadKey
from ckpt.protocol.handshake import Identity
from ckpt.testing.indexes import encode_index
from ckpt.testing.network import Heard, RecordingHandler
from ckpt.transfer.payload_finder import AskPage, HomeUnreadable, PayloadFinder
from ckpt.transfer.payload_receiver import read_payloads
from ckpt.transfer.read_job import PayloadDamaged, ReceiverOptions
from ckpt.transfer.read_set import ReadSet
from tests.aio.netkit import SECRET, serving
from tests.protocol.reading import Columns
from tests.transfer.test_payload_receiver import SmallHolder, holders

CODE = Code(4, 2)
CELL = 16 * 1024
RUN = RunName("run")
OLD = CheckpointId(RUN, Step(1), Generation(1, 1))
NEW = CheckpointId(RUN, Step(5), Generation(1, 4))
OPTIONS = ReceiverOptions(SECRET, "reader")
LIBRARY = TargetId("library")
FROZEN_AT, FROZEN_BYTES = 1000, 300_000
"""In the old payload."""
MOVING_AT, MOVING_BYTES = 64, 50_000
"""In the new one."""


class Library:
    """A target that holds indexes only."""

    def __init__(self) -> None:
        self.documents: dict[CheckpointId, bytes] = {}
        self.handler = RecordingHandler(answer=self._answer)
        self.server: Server

    @property
    def asked(self) -> list[CheckpointId]:
        """Whose index was read, in order."""
        found = [heard.message for heard in self.handler.received_]
        return [one.checkpoint for one in found if isinstance(one, ReadDocument)]

    def _answer(self, heard: Heard) -> None:
        assert isinstance(heard.message, ReadDocument)
        document = self.documents.get(heard.message.checkpoint)
        if document is None:
            self.server.send(heard.session, heard.request, Failed("not_found", "not here"), b"")
            return
        start, end = heard.message.start, heard.message.end
        answer = DocumentData(len(document), start, last=end >= len(document))
        self.server.send(heard.session, heard.request, answer, document[start:end])


@dataclass
class Scene:
    """Two generations of rank 0: the new one has its `frozen` in the old one."""

    library: Library
    old: Columns
    new: Columns
    records: dict[CheckpointId, CommitRecord]
    addresses: tuple[TargetAddress, ...]

    def resolved(self, *homes: CheckpointId) -> Resolved:
        records = tuple(encode_record(self.records[home]) for home in homes)
        return Resolved(self.records[NEW].info, 1, self.addresses, homes=records)

    def finder(self, *homes: CheckpointId, timeout_s: float = 10.0) -> PayloadFinder:
        return PayloadFinder(
            self.resolved(*homes), self.records[NEW], nothing_moved, secret=SECRET,
            name="reader", timeout_s=timeout_s,
        )  # fmt: skip

    @property
    def expected(self) -> bytes:
        """Of the tensor: its frozen part, then the other."""
        frozen = self.old.payload[FROZEN_AT : FROZEN_AT + FROZEN_BYTES]
        return frozen + self.new.payload[MOVING_AT : MOVING_AT + MOVING_BYTES]


def nothing_moved(question: AskMoves) -> bytes:
    raise AssertionError(f"nobody said that something moved: {question}")


TENSOR = IndexTensor(
    "w", Meaning.OWN, "|u1", (FROZEN_BYTES + MOVING_BYTES,),
    (
        IndexBox(
            Rank(0), (0,), (FROZEN_BYTES + MOVING_BYTES,),
            (
                Location(Rank(0), 0, FROZEN_AT, FROZEN_BYTES).at(OLD.generation),
                Location(Rank(0), FROZEN_BYTES, MOVING_AT, MOVING_BYTES),
            ),
        ),
    ),
)  # fmt: skip


def record_of(checkpoint: CheckpointId, index: bytes, homes: tuple[Home, ...]) -> CommitRecord:
    info = CommitInfo(
        checkpoint=checkpoint,
        launch=LaunchNumber(1),
        world_size=1,
        code=str(CODE),
        payload_bytes=1,
        targets_survivable=2,
        domains_survivable=1,
        domain_level="host",
        committed_at_s=0.0,
        commit_us=1,
        stall_us=1,
        slowest_rank=Rank(0),
        slowest_target=LIBRARY,
        homes=homes,
    )
    return CommitRecord("cluster-a", info, xxh3_128(index), len(index), (LIBRARY,), 1)


@contextmanager
def scene(old_faults: dict[int, str] | None = None) -> Iterator[Scene]:
    old = Columns.make(CODE, 400_000, CELL, seed=1)
    new = Columns.make(CODE, 60_000, CELL, seed=2)
    library = Library()
    with ExitStack() as stack:
        identity = Identity("cluster-a", Role.TARGET, LIBRARY, BootId(9))
        thread = stack.enter_context(serving(identity=identity, handler=library.handler))
        library.server = thread.server
        addresses = [TargetAddress(LIBRARY, BootId(9), f"127.0.0.1:{thread.server.port}")]
        records = {}
        for checkpoint, data, prefix, homes in (
            (OLD, old, "old", ()),
            (NEW, new, "new", (Home.of(OLD),)),
        ):
            faults = (old_faults or {}) if data is old else {}
            made = stack.enter_context(holders(data, faults, prefix=prefix))
            addresses += [holder.where for holder in made]
            index = index_of(checkpoint, data, made)
            library.documents[checkpoint] = index
            records[checkpoint] = record_of(checkpoint, index, homes)
        yield Scene(library, old, new, records, tuple(addresses))


def index_of(checkpoint: CheckpointId, data: Columns, made: list[SmallHolder]) -> bytes:
    payload = IndexPayload(
        rank=Rank(0), code=CODE, payload_bytes=data.layout.payload_bytes, cell_bytes=CELL,
        document_offset=0, document_bytes=64, manifest_digest=xxh3_128(data.manifest),
        columns=tuple(holder.id for holder in made), column_crcs=(0,) * CODE.n,
    )  # fmt: skip
    tensors = (TENSOR,) if checkpoint == NEW else ()
    return encode_index(Index(checkpoint, LaunchNumber(1), 1, (payload,), tensors))


@pytest.fixture(scope="module")
def here() -> Iterator[Scene]:
    with scene() as made:
        yield made


def read(finder: PayloadFinder) -> bytes:
    tensor = finder.index.tensor("w")
    array = np.zeros(tensor.global_shape, np.uint8)
    reads = ReadSet()
    reads.add_box(tensor, tensor.boxes, (0,), array)
    wanted = sorted(reads.landings.items(), key=lambda one: one[0].order)
    jobs = [finder.job(finder.find(key), landings) for key, landings in wanted]
    assert [job.payload for job in jobs] == [PayloadId(NEW, Rank(0)), PayloadId(OLD, Rank(0))]
    read_payloads(jobs, OPTIONS)
    return array.tobytes()


def test_each_byte_is_read_from_the_payload_of_its_generation(here: Scene) -> None:
    with here.finder(OLD) as finder:
        assert read(finder) == here.expected


def test_lost_columns_of_a_home_are_rebuilt(here: Scene) -> None:
    with scene({0: "damaged", 2: "absent"}) as made, made.finder(OLD) as finder:
        assert read(finder) == here.expected


def test_a_home_s_index_is_fetched_once_and_only_when_it_is_needed(here: Scene) -> None:
    before = len(here.library.asked)
    with here.finder(OLD) as finder:
        finder.find(PayloadKey(None, Rank(0)))
        assert here.library.asked[before:] == [NEW]
        for _ in range(2):
            assert finder.find(PayloadKey(OLD.generation, Rank(0))).id == PayloadId(OLD, Rank(0))
        assert here.library.asked[before:] == [NEW, OLD]


def test_a_home_that_the_coordinator_does_not_list_is_named(here: Scene) -> None:
    stranger = PayloadKey(Generation(3, 7), Rank(0))
    with here.finder() as finder, pytest.raises(Corrupt, match=r"1\.1.*\(1#1\.1\)"):
        finder.find(PayloadKey(OLD.generation, Rank(0)))
    with here.finder(OLD) as finder, pytest.raises(Corrupt, match=r"3\.7"):
        finder.find(stranger)


def test_a_rank_that_a_home_does_not_have_is_corrupt(here: Scene) -> None:
    with here.finder(OLD) as finder, pytest.raises(Corrupt, match="rank 9"):
        finder.find(PayloadKey(OLD.generation, Rank(9)))


@pytest.mark.parametrize("start", [399_999, 400_000, PAYLOAD_BYTES_MAX - 2])
def test_bytes_behind_the_end_of_a_home_are_corrupt(here: Scene, start: int) -> None:
    place = Location(Rank(0), 0, start, 2).at(OLD.generation)
    tensor = IndexTensor("w", Meaning.OWN, "|u1", (2,), (IndexBox(Rank(0), (0,), (2,), (place,)),))
    reads = ReadSet()
    reads.add_box(tensor, tensor.boxes, (0,), np.zeros(2, np.uint8))
    ((key, landings),) = reads.landings.items()
    with here.finder(OLD) as finder:
        found = finder.find(key)
        with pytest.raises(Corrupt, match=r"run@1#1\.1 rank 0, which has 400000"):
            finder.job(found, landings)


def moved_finder(here: Scene, where: Whereabouts, ask: AskPage = nothing_moved) -> PayloadFinder:
    resolved = replace(here.resolved(OLD), moved=(where,))
    return PayloadFinder(
        resolved, here.records[NEW], ask, secret=SECRET, name="reader", timeout_s=10.0
    )


def test_a_column_that_has_moved_is_looked_for_where_it_is(here: Scene) -> None:
    """Its page is asked for once; of a generation of which nothing has moved there is none."""
    page, asked = page_of(Rank(0)), []

    def ask(question: AskMoves) -> bytes:
        asked.append(question)
        return encode_moves(page, {(Rank(0), ColumnNumber(2)): LIBRARY})

    with moved_finder(here, Whereabouts(OLD.generation, (page,)), ask) as finder:
        old, again = (finder.find(PayloadKey(OLD.generation, Rank(0))) for _ in range(2))
        new = finder.find(PayloadKey(None, Rank(0)))
    listed = old.entry.columns
    assert old.columns == again.columns == (*listed[:2], LIBRARY, *listed[3:])
    assert new.columns == new.entry.columns
    assert asked == [AskMoves(OLD, page)]


def test_a_page_of_which_nothing_has_moved_is_not_asked_for(here: Scene) -> None:
    with moved_finder(here, Whereabouts(OLD.generation, (page_of(Rank(0)) + 1,))) as finder:
        found = finder.find(PayloadKey(OLD.generation, Rank(0)))
    assert found.columns == found.entry.columns


def test_an_index_that_has_moved_is_read_where_it_is(here: Scene) -> None:
    where = Whereabouts(NEW.generation, indexes=(LIBRARY,))
    resolved = replace(here.resolved(OLD), moved=(where,))
    record = replace(here.records[NEW], index_targets=(TargetId("gone"),))
    with PayloadFinder(
        resolved, record, nothing_moved, secret=SECRET, name="reader", timeout_s=10.0
    ) as finder:
        assert finder.index.checkpoint == NEW


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_a_home_whose_index_cannot_be_read_is_told_apart_from_the_checkpoint(harm: str) -> None:
    with scene() as made, made.finder(OLD, timeout_s=0.1) as finder:
        if harm == "damaged":
            size = len(made.library.documents[OLD])
            made.library.documents[OLD] = b"\xff" * size
        else:
            del made.library.documents[OLD]
        finder.find(PayloadKey(None, Rank(0)))
        with pytest.raises(HomeUnreadable) as caught:
            finder.find(PayloadKey(OLD.generation, Rank(0)))
        assert caught.value.home == OLD


def test_damage_of_a_home_names_the_home_s_payload() -> None:
    with scene(dict.fromkeys(range(3), "damaged")) as made, made.finder(OLD) as finder:
        with pytest.raises(PayloadDamaged) as caught:
            read(finder)
        assert caught.value.payload == PayloadId(OLD, Rank(0))


def test_payloads_that_are_read_together_are_numbered_alike_by_all_ranks(here: Scene) -> None:
    third = CheckpointId(RUN, Step(3), Generation(1, 3))
    info = replace(here.records[NEW].info, homes=(Home.of(OLD), Home.of(third)))
    record = replace(here.records[NEW], info=info)
    finder = PayloadFinder(
        here.resolved(OLD), record, nothing_moved, secret=SECRET, name="reader", timeout_s=1.0
    )  # fmt: skip
    numbers = [finder.number(PayloadId(one, Rank(6))) for one in (NEW, OLD, third)]
    assert numbers == [6, WORLD_SIZE_MAX + 6, 2 * WORLD_SIZE_MAX + 6]
