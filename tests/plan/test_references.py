"""What did not change is referred to, the rest moves together, and every byte is found again."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt.base.ids import Generation, Home, Rank, Step
from ckpt.base.limits import HOMES_MAX, PAGE_BYTES
from ckpt.base.units import KiB, align_up
from ckpt.format.checksum import xxh3_128
from ckpt.format.table import (
    Meaning,
    Piece,
    RankTable,
    TensorEntry,
    encode_table,
)
from ckpt.format.table_decoding import decode_table
from ckpt.plan.references import (
    ITEM_ALIGN,
    REFERRED_BYTES_MIN,
    USEFUL_SHARE_MIN,
    Base,
    References,
    base_of,
    find_references,
    may_refer,
)

DOCUMENT = b"a tree document"
LARGE = REFERRED_BYTES_MIN


def lay_out(tensors: dict[str, bytes]) -> tuple[RankTable, bytes]:
    """A whole payload, as a trainer stages it: all fingerprints filled in."""
    payload = bytearray(DOCUMENT.ljust(PAGE_BYTES, b"\0"))
    entries = []
    for name, data in sorted(tensors.items()):
        payload += bytes(align_up(len(payload), ITEM_ALIGN) - len(payload))
        pieces = (Piece(0, len(payload), len(data)),) if data else ()
        shape = (len(data),)
        entries.append(
            TensorEntry(name, Meaning.OWN, "|u1", shape, (0,), shape, pieces, xxh3_128(data))
        )
        payload += data
    return RankTable(Rank(0), 1, tuple(entries)), bytes(payload)


def moved(found: References, payload: bytes) -> bytes:
    """The smaller payload, made as the stager makes it: in place."""
    half = bytearray(payload)
    last = 0
    for move in found.moves:
        assert move.destination < move.source, "towards lower offsets"
        assert move.source >= last, "ascending"
        last = move.source + move.length
        half[move.destination : move.destination + move.length] = half[move.source : last]
    return bytes(half[: found.payload_bytes])


@dataclass
class Run:
    """All payloads of one rank that were committed, and what the stager keeps of the last one."""

    payloads: dict[Generation, bytes] = field(default_factory=dict)
    base: Base | None = None
    compared: frozenset[str] = frozenset()

    def save(self, tensors: dict[str, bytes]) -> References | None:
        """Commit a save; every byte of it must be found again."""
        table, payload = lay_out(tensors)
        whole = table
        found = None
        if self.base is not None:
            found = find_references(self.base, table, self.compared, len(payload), len(DOCUMENT))
        if found is not None:
            table, payload = found.table, moved(found, payload)
            assert decode_table(encode_table(table)) == table
        home = Home(Step(len(self.payloads)), Generation(1, len(self.payloads) + 1))
        before = self.base.payloads if self.base is not None else {}
        self.payloads[home.generation] = payload
        self.base = base_of(table, home, len(payload), before)
        assert payload.startswith(DOCUMENT)
        assert [e.name for e in table.entries] == [e.name for e in whole.entries]
        for entry in table.entries:
            here = [
                self.payloads[p.home or home.generation][p.payload_offset :][: p.length]
                for p in entry.pieces
            ]
            assert b"".join(here) == tensors[entry.name]
        return found


def random_bytes(random: Random, size: int) -> bytes:
    return random.randbytes(size)


SIZES = st.lists(
    st.one_of(st.integers(LARGE, 3 * LARGE), st.integers(0, 300), st.just(LARGE - 1)),
    min_size=1,
    max_size=9,
)


@settings(max_examples=60)
@given(
    sizes=SIZES,
    seed=st.integers(0, 1 << 32),
    share=st.sampled_from([0.1, 0.5, 0.9]),
    compared=st.frozensets(st.integers(0, 8)),
)
def test_over_several_generations_every_byte_is_found_where_it_lies(
    sizes: list[int], seed: int, share: float, compared: frozenset[int]
) -> None:
    random = Random(seed)
    run = Run(compared=frozenset(f"t{number}" for number in compared))
    tensors = {f"t{n}": random_bytes(random, size) for n, size in enumerate(sizes)}
    for _ in range(7):
        before = run.base
        found = run.save(tensors)
        if found is not None:
            assert before is not None
            check(found, before, run, tensors)
        tensors = {
            name: data if random.random() < share else random_bytes(random, len(data))
            for name, data in tensors.items()
        }


def check(found: References, before: Base, run: Run, tensors: dict[str, bytes]) -> None:
    """What is referred to pays, did not change and may be missing here."""
    useful = dict.fromkeys((home.generation for home in found.homes), 0)
    for entry in found.table.entries:
        if any(piece.home for piece in entry.pieces):
            assert may_refer(before, entry, run.compared)
            assert entry.fingerprint == before.entries[entry.name, entry.offset].fingerprint
            assert entry.name not in run.compared
            assert len(tensors[entry.name]) >= REFERRED_BYTES_MIN
        for piece in entry.pieces:
            if piece.home is not None:
                useful[piece.home] += piece.length
            else:
                assert piece.payload_offset % ITEM_ALIGN == 0
                assert piece.payload_offset + piece.length <= found.payload_bytes
    assert list(found.homes) == sorted(found.homes)
    assert len(found.homes) <= HOMES_MAX
    for home in found.homes:
        payload = run.payloads[home.generation]
        assert useful[home.generation] * USEFUL_SHARE_MIN >= len(payload) > 0


def test_a_save_of_which_nothing_changed_stores_its_document_alone() -> None:
    run = Run()
    tensors = {"a": bytes(LARGE), "b": b"b" * LARGE}
    assert run.save(tensors) is None, "there is nothing to refer to"
    for _ in range(3):
        found = run.save(tensors)
        assert found is not None
        assert found.payload_bytes == PAGE_BYTES
        assert found.moves == ()
        assert [home.step for home in found.homes] == [0], "references never chain"


def test_what_lies_behind_moves_forward_in_as_few_moves_as_there_are_gaps() -> None:
    run = Run()
    same = b"s" * (2 * LARGE)
    tensors = {"a": b"1", "b": same, "c": b"2" * 100, "d": b"3" * 100, "e": same, "f": b"4"}
    run.save(tensors)
    found = run.save({**tensors, "c": b"5" * 100})
    assert found is not None
    assert len(found.moves) == 2
    assert found.payload_bytes == PAGE_BYTES + 64 + 128 + 128 + 1


def test_a_home_of_which_little_is_used_is_not_referred_to() -> None:
    run = Run()
    tensors = {"a": b"a" * (3 * LARGE), "b": b"b" * LARGE}
    run.save(tensors)
    assert run.save({**tensors, "a": b"c" * (3 * LARGE)}) is None, "the document is a part, too"
    tensors = {"a": b"a" * (2 * LARGE), "b": b"b" * LARGE}
    run.save(tensors)
    assert run.save({**tensors, "a": b"c" * (2 * LARGE)}) is not None


def test_of_too_many_homes_those_are_used_that_save_most() -> None:
    run = Run()
    random = Random(1)
    names = [f"t{number}" for number in range(HOMES_MAX + 1)]
    sizes = {name: LARGE * (number + 1) for number, name in enumerate(names)}
    tensors = {name: random_bytes(random, sizes[name]) for name in names}
    run.save(tensors)
    for name in reversed(names):  # The smallest lies in the newest home.
        tensors[name] = random_bytes(random, sizes[name])
        run.save(tensors)
    found = run.save(tensors)
    assert found is not None
    assert len(found.homes) == HOMES_MAX
    stored = [e.name for e in found.table.entries if any(p.home is None for p in e.pieces)]
    assert stored == ["t0"]


def test_what_is_cut_otherwise_or_not_fingerprinted_is_stored() -> None:
    table, payload = lay_out({"a": b"a" * LARGE})
    home = Home(Step(1), Generation(1, 1))
    (entry,) = table.entries
    base = base_of(table, home, len(payload), {})
    assert may_refer(base, entry, ())
    assert not may_refer(base, entry, {"a"})
    cut = replace(entry, pieces=(replace(entry.pieces[0], start=KiB),))
    assert not may_refer(base, cut, ())
    assert not may_refer(base, replace(entry, name="other"), ())
    unknown = replace(table, entries=(replace(entry, fingerprint=b""),))
    assert not may_refer(base_of(unknown, home, len(payload), {}), entry, ())
    assert find_references(base, unknown, (), len(payload), len(DOCUMENT)) is None
