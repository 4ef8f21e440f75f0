"""What a coordinator of 0.1.0 answers, commands and trainers of this version understand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
from msgspec import structs

from ckpt.base.errors import Refused
from ckpt.format.messages.hello import PROTOCOL_VERSION
from ckpt.format.messages.versions import of_version
from ckpt.protocol.coordinator.reading import answers

FROZEN: Final = json.loads((Path(__file__).parent / "v0_1_0" / "answers.json").read_text())
"""The fields of each record that 0.1.0 answered with."""


@pytest.mark.parametrize("name", FROZEN)
def test_a_record_asks_no_more_of_an_answer_than_0_1_0_said(name: str) -> None:
    """`ckpt ls`, `show`, `verify` and `rm` ended as a bug beside a coordinator that was older."""
    fields = structs.fields(getattr(answers, name))
    required = {field.name for field in fields if field.required}
    assert required <= set(FROZEN[name])
    assert set(FROZEN[name]) <= {field.name for field in fields}, "a field is gone or was renamed"


def test_a_question_that_an_older_coordinator_does_not_know_is_refused_with_what_to_do() -> None:
    """It said which questions 0.1.0 knows, words that no command has."""
    said = Refused("'names' is not one of status, runs, steps (run), show (run, step), files")
    heard = of_version(said, "names", 1)
    assert heard.message == "the coordinator speaks protocol 1, which does not answer 'names'"
    assert heard.hint == "upgrade the coordinator first: see ckpt upgrade status"
    assert of_version(said, "names", PROTOCOL_VERSION) is said
    assert of_version(Refused("no such run"), "names", 1).message == "no such run"
