"""Job files are read as fio reads them; every error names file and line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Refused
from ckptbench.job.grammar import Section, Words, parse_file

WORDS = Words(
    {"DIR": "/data", "EMPTY": ""}, {"ncpus": "2", "mb_memory": "1000", "pagesize": "4096"}
)


def parse(text: str, **files: str) -> list[Section]:
    """`text` as the file `job`, and other files by name."""
    return parse_file("job", {"job": text, **files}.__getitem__, WORDS)


def pairs(section: Section) -> list[tuple[str, str | None]]:
    return [(one.key, one.value) for one in section.settings]


def test_sections_hold_settings_switches_and_no_comments() -> None:
    sections = parse(
        "; why\n[global]\nbs = 64k\n# more\n\n[save]\nstonewall\nsize=1g ; not a comment\n"
    )
    assert [one.name for one in sections] == ["global", "save"]
    assert pairs(sections[0]) == [("bs", "64k")]
    assert pairs(sections[1]) == [("stonewall", None), ("size", "1g ; not a comment")]
    assert sections[1].settings[0].where == "job:7"
    assert sections[0].is_global


def test_variables_and_reserved_words_are_replaced_on_the_right() -> None:
    (section,) = parse(
        "[a]\ndirectory=${DIR}/x${EMPTY}${NONE}\nnumjobs=$ncpus\nsize=8*$mb_memory\n"
    )
    assert pairs(section) == [("directory", "/data/x"), ("numjobs", "2"), ("size", "8*1000")]


def test_an_included_file_adds_settings_here() -> None:
    (section,) = parse(
        "[a]\ninclude common\nsize=1m\n", common="bs=4k\ninclude deep\n", deep="direct\n"
    )
    assert pairs(section) == [("bs", "4k"), ("direct", None), ("size", "1m")]
    assert section.settings[1].where == "deep:1"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("bs=4k\n", "job:1: 'bs=4k' stands before any section"),
        ("[a\n", "job:1: '\\[a' is no section"),
        ("[a]\n!!\n", "job:2: '!!' is neither a setting nor a section"),
        ("[a]\ninclude job\n", "job:1: an included file may not hold sections"),
        ("[a]\ninclude round\n", "include one another"),
    ],
)
def test_what_cannot_be_read_names_its_line(text: str, cause: str) -> None:
    with pytest.raises(Refused, match=cause):
        parse(text, round="include round\n")


@given(st.text(alphabet="[]ab=;#\n $${}global", max_size=60))
def test_any_text_is_sections_or_a_refusal(text: str) -> None:
    try:
        sections = parse(text)
    except (Refused, KeyError):
        return
    assert all(section.name for section in sections)
