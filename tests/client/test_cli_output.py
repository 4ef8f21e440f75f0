"""How commands speak: tables, prose and ages for people, JSON for programs."""

from __future__ import annotations

import inspect
import json
import time
from io import StringIO
from pathlib import Path

import pytest

from ckpt.protocol.coordinator.reading import answers, coordinator_answers, repair_answers
from ckpt_client.cli import output
from ckpt_client.cli.output import Output, age_text, rate_text
from ckpt_client.cli.tables import Tone, columns_of, narrowed, parted, table_lines
from ckpt_client.cli.upkeep import foresight
from ckpt_client.drill import checkpoint_drill


def test_table_columns_line_up_also_with_wide_characters() -> None:
    lines = list(
        table_lines(("run", ">size", "state"), [("模型", "1 B", "ok"), ("e\u0301a", "22 B", "")])
    )
    assert lines == ["run   size  state", "模型   1 B  ok", "e\u0301a    22 B"]
    assert columns_of("模型") == 4


HEAD = ("run", ">step", "size", "domain")
ROWS = [("llama/7b", "1", "1 GiB", "p/r"), ("llama/7b", "20", "2 GiB", "p/r"), ("b", "3", "", "")]


@pytest.mark.parametrize(
    ("width", "grouped", "head", "left_out", "headings"),
    [
        (29, True, HEAD, (), ()),
        (28, True, HEAD[1:], (), ("llama/7b", "", "b")),
        (21, True, HEAD[1:], (), ("llama/7b", "", "b")),
        (20, True, HEAD[1:3], ("domain",), ("llama/7b", "", "b")),
        (12, True, HEAD[1:2], ("domain", "size"), ("llama/7b", "", "b")),
        (2, True, HEAD[1:2], ("domain", "size"), ("llama/7b", "", "b")),
        (28, False, HEAD[:3], ("domain",), ()),
        (20, False, HEAD[:2], ("domain", "size"), ()),
    ],
)
def test_what_a_narrow_terminal_does_without(
    width: int, grouped: bool, head: tuple[str, ...], left_out: tuple[str, ...],
    headings: tuple[str, ...],
) -> None:  # fmt: skip
    found = narrowed(HEAD, ROWS, width, ("domain", "size"), grouped=grouped)
    assert (tuple(found.head), found.left_out, found.headings) == (head, left_out, headings)
    assert {len(row) for row in found.rows} == {len(head)}


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (29, [HEAD]),
        (28, [HEAD[:3], (HEAD[0], HEAD[3])]),
        (16, [(HEAD[0], one) for one in HEAD[1:]]),
        (2, [(HEAD[0], one) for one in HEAD[1:]]),
    ],
)
def test_a_wide_table_stands_in_parts_that_lose_nothing(
    width: int, heads: list[tuple[str, ...]]
) -> None:
    parts = list(parted(HEAD, ROWS, width))
    assert [tuple(head) for head, _ in parts] == heads
    for head, rows in parts:
        assert [tuple(row) for row in rows] == [
            tuple(row[HEAD.index(title)] for title in head) for row in ROWS
        ]


def test_a_table_in_parts_fits_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `ckpt show` with a code of 12 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    head = (">rank", *(f"column {number}" for number in range(12)))
    rows = [(str(rank), *(f"(t{number})" for number in range(12))) for rank in range(100)]
    terminal, pipe = Terminal(), StringIO()
    for out in (terminal, pipe):
        Output(json=False, stdout=out, stderr=StringIO(), environ={"NO_COLOR": "1"}).parts(
            head, rows
        )
    shown = terminal.getvalue().splitlines()
    assert max(map(len, shown)) <= 80
    assert [line.split()[0] for line in shown if "column" in line] == ["rank", "rank"]
    assert sum(line.count("(t") for line in shown) == 1200
    assert len(pipe.getvalue().splitlines()) == 101, "a pipe has all of a rank in one line"


class Terminal(StringIO):
    """A stream that is one."""

    def isatty(self) -> bool:
        return True


def test_text_is_wrapped_between_words_where_a_terminal_is_narrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = "down: t1 (not connected), llama/7b@100-of-200 waits"
    for out, shown in (
        (Terminal(), "DOWN: down: t1 (not connected),\n      llama/7b@100-of-200 waits\n"),
        (StringIO(), f"DOWN: {text}\n"),
    ):
        output = Output(json=False, stdout=out, stderr=StringIO(), environ={"NO_COLOR": "1"})
        output.prose("DOWN: ", text)
        assert out.getvalue() == shown
    colored = Terminal()
    output = Output(json=False, stdout=colored, stderr=StringIO(), environ={})
    output.prose(f"{output.tone('DOWN', Tone.BAD)}: ", text)
    assert colored.getvalue().splitlines()[1] == "      llama/7b@100-of-200 waits"


@pytest.mark.parametrize(
    ("past_s", "text"),
    [
        (0, "just now"), (2430, "40 min ago"), (13_000, "3 h 36 min ago"), (45_000, "12 h ago"),
        (200_000, "2 d 7 h ago"), (2_600_000, "30 d ago"),
    ],
)  # fmt: skip
def test_the_older_it_is_the_coarser_is_its_age(past_s: float, text: str) -> None:
    assert age_text(time.time() - past_s) == text


def test_json_mode_says_nothing_but_json() -> None:
    out, err = StringIO(), StringIO()
    output = Output(json=True, stdout=out, stderr=err)
    output.line("for people")
    output.note("for people")
    output.table(("a",), [("b",)])
    assert (out.getvalue(), err.getvalue()) == ("", "")
    output.record("progress", {"done": 1})
    output.record("summary", {"done": 2})
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["message_type"] for line in lines] == ["progress", "summary"]


def test_people_see_no_json_and_a_file_no_colours() -> None:
    out = StringIO()
    output = Output(json=False, stdout=out, stderr=StringIO())
    output.document({"a": 1})
    output.line(output.tone("bad", Tone.BAD))
    assert out.getvalue() == "bad\n"


def test_a_rate_is_told_only_where_it_says_something() -> None:
    assert rate_text(64 << 20, 2.0) == "64 MiB in 2 s (32 MiB/s)"
    assert rate_text(100, 2.0) == "100 B in 2 s"


def test_no_answer_in_json_calls_a_duration_otherwise_than_its_unit() -> None:
    """Of what 0.1.0 called `seconds`, both names are given."""
    commands = Path(output.__file__).parent
    named = {path.stem for path in commands.rglob("*.py") if '"seconds":' in path.read_text()}
    assert named == {"verify", "local"}
    said = (answers, coordinator_answers, repair_answers, checkpoint_drill, foresight)
    fields = {
        field
        for module in said
        for one in vars(module).values()
        if isinstance(one, type) and one.__module__ == module.__name__
        for field in inspect.get_annotations(one)
    }
    assert {"takes_s", "took_s", "leased_s", "stall_s"} <= fields
    assert not [field for field in fields if "second" in field or field.endswith(("_ms", "_us"))]
