"""A name that would turn, hide or end a line is written out wherever people read it."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import NotFound
from ckpt.base.printable import printable, printable_json
from ckpt_client.cli.output import Output
from ckpt_client.cli.tables import Tone, Toned, table_lines
from ckptd.http.page import render_page
from tests.client.clikit import fill, run
from tests.client.test_end_to_end import stop

RUN = "gpt\u202egpj.exe"
SHOWN = "gpt\\u202egpj.exe"
HIDDEN = "\u202a\u202e\u2066\u2069\u200f\u200b\ufeff\x1b\x07\x85\u2028\U000e0001\n"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    directory = Path(tempfile.mkdtemp(prefix="ckpt-names-"))
    made = f"ckpt+local://{directory}?targets=3&code=2+1"
    fill(made, RUN, (1, 2), ranks=1)
    yield made
    stop(directory)
    shutil.rmtree(directory)


@pytest.mark.parametrize("char", HIDDEN)
def test_a_hidden_character_is_written_out(char: str) -> None:
    assert printable(f"a{char}b") == f"a{char.encode('unicode_escape').decode()}b"
    told = printable_json(json.dumps({"name": char}, ensure_ascii=False))
    assert json.loads(told) == {"name": char}
    assert printable(told) == told


def test_letters_of_all_scripts_are_shown_as_they_are() -> None:
    text = "Größe 模型 модель מודל نموذج é é \u00a0 🙂 \\u202e"
    assert printable(text) == text
    assert printable("a\nb", keep="\n") == "a\nb"


@given(st.text())
def test_what_is_shown_has_nothing_hidden_and_json_is_equal(text: str) -> None:
    assert printable(printable(text)) == printable(text)
    document = json.dumps([text], ensure_ascii=False)
    assert json.loads(printable_json(document)) == [text]


@pytest.mark.parametrize(
    "words",
    [("ls",), ("ls", RUN), ("show", f"{RUN}@2"), ("verify", f"{RUN}@2"), ("status",)],
    ids=lambda words: " ".join(words[:1]) + str(len(words)),
)
def test_commands_show_a_name_written_out_and_json_keeps_it(
    url: str, words: tuple[str, ...]
) -> None:
    shown = run(*words, "--store", url)
    assert shown.code == 0
    assert "\u202e" not in shown.out + shown.err
    if words != ("status",):
        assert SHOWN in shown.out
    told = run(*words, "--store", url, "--json")
    assert "\u202e" not in told.out
    if words != ("status",):
        texts = told.out.splitlines() if words[0] == "verify" else [told.out]
        exact = json.dumps([json.loads(text) for text in texts], ensure_ascii=False)
        assert f'"{RUN}"' in exact


def test_errors_show_a_name_written_out(url: str) -> None:
    for words in (("show", "no\u202ene@1"), ("rm", "no\u202ene@1", "--yes")):
        shown = run(*words, "--store", url)
        assert shown.code != 0
        assert "\u202e" not in shown.err
        assert "no\\u202ene" in shown.err
        told = run(*words, "--store", url, "--json")
        assert "\u202e" not in told.err
        assert "no\u202ene" in told.error()["message"]
    assert str(NotFound("no x\u202ey")) == "no x\\u202ey"


def test_the_page_shows_a_name_written_out() -> None:
    page = render_page({"cluster": "a\u202eb"}, [{"run": RUN}])
    assert "\u202e" not in page
    assert SHOWN in page


def test_a_table_is_as_wide_as_what_is_shown() -> None:
    head, row, other = table_lines(("run", "step"), [("a\u202eb", "1"), ("c", "2")])
    assert row == "a\\u202eb  1"
    assert other.index("2") == row.index("1") == head.index("step")


def test_a_cell_is_in_colour_and_as_wide_as_its_text() -> None:
    written = io.StringIO()
    written.isatty = lambda: True  # type: ignore[method-assign]
    output = Output(json=False, stdout=written, stderr=written, environ={"TERM": "xterm"})
    output.table(("a", "b"), [(Toned("good", Tone.GOOD), "1"), ("\x1b[32m", "2")])
    head, *rows = written.getvalue().splitlines()
    assert head == "\x1b[1ma         b\x1b[0m"
    assert rows == ["\x1b[32mgood\x1b[0m      1", "\\x1b[32m  2"]


def test_a_line_keeps_our_own_colours_and_no_other_escape() -> None:
    written = io.StringIO()
    written.isatty = lambda: True  # type: ignore[method-assign]
    output = Output(json=False, stdout=written, stderr=written, environ={"TERM": "xterm"})
    output.line(output.tone("good", Tone.GOOD) + " \x1b[2J\x1b]0;title\x07")
    assert written.getvalue() == "\x1b[32mgood\x1b[0m \\x1b[2J\\x1b]0;title\\x07\n"
