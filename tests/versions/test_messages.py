"""The frozen messages of 0.1.0 are read by this version, which would say the same again.

What a frame holds besides the message (prefix, MAC, checksums) is frozen in tests/golden.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec import structs

from ckpt.base.errors import Refused
from ckpt.format.messages import MESSAGE_TYPES
from ckpt.format.messages.hello import PROTOCOL_VERSION, Role
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import PutDocument
from ckpt.format.messages.versions import check_known, since
from tests.versions import make
from tests.versions.specimens import fields_of, specimens

FOLDER: Final = Path(__file__).parent / "v0_1_0"
ADDED_SINCE: Final = {
    10: "Ping",
    11: "Pong",
    23: "AskPace",
    109: "ReplaceTarget",
    110: "TargetReplaced",
    111: "LabelStep",
    112: "StepLabeled",
    113: "KeepSteps",
    114: "StepsKept",
    115: "GuardStanding",
    116: "HoldSteps",
    117: "StopAt",
    118: "NoCommonStep",
    119: "GuardsAwaited",
    120: "RollBack",
    121: "RolledBack",
    122: "StepDown",
    123: "SteppedDown",
    124: "AskMoves",
    125: "MovesFound",
    126: "LeaseRepair",
    127: "RepairLeased",
    128: "RenewRepair",
    129: "EndRepair",
    130: "RepairNoted",
    131: "SetRepair",
    132: "RepairSet",
    136: "AskScrub",
    137: "ScrubState",
    138: "ChangeTarget",
    139: "TargetChanged",
    140: "FinishUpgrade",
    141: "UpgradeNoted",
    142: "KeepProtocol",
    143: "ProtocolKept",
    144: "BalanceTargets",
    145: "TargetsBalanced",
    146: "ListHoldings",
    147: "HoldingsListed",
    148: "KeepMap",
    149: "MapKept",
    150: "AskMap",
    151: "MapTold",
    152: "SpaceStands",
    153: "ClaimSpace",
    154: "CoordinatorsNamed",
    155: "LendColumn",
    156: "ColumnLent",
    157: "ReturnColumn",
}
"""By later versions; a peer of 0.1.0 is never sent them unasked."""


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


MESSAGES: Final = rows("messages.jsonl")
CONVERSATION: Final = rows("conversation.jsonl")


def said_again(number: int, meta: bytes) -> dict[str, Any]:
    """The fields of what this version read, as it writes them."""
    message = msgspec.msgpack.decode(meta, type=MESSAGE_TYPES[number])
    fields = fields_of(msgspec.msgpack.encode(message))
    assert isinstance(fields, dict)
    return fields


def lost(before: object, now: object, where: str = "") -> list[str]:
    """What a reader of 0.1.0 would miss, or find otherwise; what was added is no loss."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            each
            for name, value in before.items()
            for each in (
                lost(value, now[name], f"{where}.{name}") if name in now else [f"{where}.{name}"]
            )
        ]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [each for i, (one, other) in pairs for each in lost(one, other, f"{where}[{i}]")]
    return [] if before == now else [f"{where}: {before!r} is {now!r}"]


@pytest.mark.parametrize("row", MESSAGES, ids=lambda row: f"{row['name']}-{row['fields']}")
def test_every_message_of_the_first_version_is_read_and_said_as_ever(row: dict[str, Any]) -> None:
    assert MESSAGE_TYPES[row["number"]].__name__ == row["name"], "a number is given once"
    meta = bytes.fromhex(row["meta"])
    assert lost(fields_of(meta), said_again(row["number"], meta)) == []


def test_a_conversation_of_the_first_version_is_read_and_said_as_ever() -> None:
    for row in CONVERSATION:
        meta = bytes.fromhex(row["meta"])
        name = MESSAGE_TYPES[row["number"]].__name__
        assert lost(fields_of(meta), said_again(row["number"], meta)) == [], name
    assert len({row["number"] for row in CONVERSATION}) > 45


def test_every_message_of_today_is_frozen_or_named_as_added() -> None:
    frozen = {row["number"]: row["name"] for row in MESSAGES}
    assert frozen.keys().isdisjoint(ADDED_SINCE)
    today = {number: kind.__name__ for number, kind in MESSAGE_TYPES.items()}
    assert today == {**frozen, **ADDED_SINCE}


def test_what_a_peer_does_not_know_is_never_said_to_it() -> None:
    for number, (message, _) in specimens().items():
        brought = since(message)
        assert (brought > 1) is (number in ADDED_SINCE), type(message).__name__
        check_known(message, Role.COORDINATOR, brought)
        if brought > 1:
            name = type(message).__name__
            with pytest.raises(Refused, match=f"protocol {brought - 1}, which has no {name}"):
                check_known(message, Role.COORDINATOR, brought - 1)
    assert max(since(message) for message, _ in specimens().values()) == PROTOCOL_VERSION


@pytest.mark.parametrize("kind", DocumentKind)
def test_no_kind_of_document_is_sent_to_who_does_not_know_it(kind: DocumentKind) -> None:
    """0.1.0 knew three, and ends the session at a fourth."""
    message = specimens()[89][0]
    assert isinstance(message, PutDocument)
    assert since(structs.replace(message, kind=kind)) == (2 if kind.value == "labels" else 1)


def test_what_was_added_may_be_left_out_and_is_said_in_full() -> None:
    """The specimens cover every field, so that a new one without a default fails above."""
    for number, (whole, least) in specimens().items():
        kind = MESSAGE_TYPES[number]
        for message in (whole, least):
            meta = msgspec.msgpack.encode(message)
            assert msgspec.msgpack.decode(meta, type=kind) == message
        assert fields_of(msgspec.msgpack.encode(whole)).keys() == set(kind.__struct_fields__)


def test_what_a_later_version_adds_is_passed_over() -> None:
    for row in MESSAGES:
        meta = bytes.fromhex(row["meta"])
        later = msgspec.msgpack.encode({**fields_of(meta), "of a later version": [1, {"x": 2}]})
        assert said_again(row["number"], later) == said_again(row["number"], meta)


def test_a_version_is_frozen_once() -> None:
    with pytest.raises(FileExistsError):
        make.main(FOLDER)


def test_the_comparison_sees_what_is_lost() -> None:
    before = {"a": 1, "b": [{"c": 2}]}
    assert lost(before, {"a": 1, "b": [{"c": 2, "d": 3}], "e": 4}) == []
    assert lost(before, {"b": [{"c": 3}]}) == [".a", ".b[0].c: 2 is 3"]
