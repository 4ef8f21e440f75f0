"""What the README and docs/start.md show is run, word for word, and what they name is there. What
needs a framework is run by tests/frameworks/test_readme.py.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.client.test_operations import commands_of, shell
from tests.pages import README, ROOT, START, examples, kinds, sessions

LINES_MAX = 150
COLUMNS_MAX = 100
IN_FRAMEWORKS = {"torch", "dcp", "lightning", "transformers", "jax"}
INSTALL = re.compile(r"pip install '\.\[([\w,]+)\]'")


def test_its_store_and_its_examples_do_what_it_says(tmp_path: Path) -> None:
    install, *lines = commands_of(README.read_text())
    assert INSTALL.fullmatch(install)
    with shell(tmp_path) as opened:
        for line in lines:
            opened.run(line)
        for code, printed in examples(README, "core"):
            assert opened.python(code) == printed
        opened.run("ckpt verify mine@100")
        opened.run("ckpt ls")


def test_each_example_is_run_here_or_with_the_frameworks() -> None:
    assert kinds(README) == {"core", *IN_FRAMEWORKS}


def test_the_first_minutes_of_the_start_page_go_as_it_says(tmp_path: Path) -> None:
    assert kinds(START) == {"core", "start"}
    (install, _), *lines = sessions(START.read_text().partition("## A training")[0])
    assert INSTALL.fullmatch(install)
    first, *later = lines
    with shell(tmp_path) as opened:
        opened.run(first[0])
        for code, printed in examples(START, "core"):
            assert opened.python(code) == printed
        for line, printed in later:
            assert opened.run(line) == printed or not printed


def test_the_page_of_frameworks_shows_the_loop_that_is_run() -> None:
    ((loop, _),) = examples(README, "torch")
    assert f"```python\n{loop}```\n" in (ROOT / "docs" / "frameworks.md").read_text()


def test_the_extras_that_it_names_are_those_there_are() -> None:
    (line,) = (line for line in README.read_text().split("\n\n") if "Extras: " in line)
    named = re.findall(r"`([\w-]+)`", line.partition("Extras: ")[2].partition(".")[0])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(named) == sorted(project["optional-dependencies"])
    assert project["name"] in line
    (installed,) = INSTALL.findall(README.read_text())
    assert set(installed.split(",")) <= set(named)


def test_its_two_commands_are_those_of_make_and_of_ci() -> None:
    page, makefile = README.read_text(), (ROOT / "Makefile").read_text()
    for command in ("make demo", "make test"):
        assert f"`{command}`" in page
        assert f"\n{command.removeprefix('make ')}: " in makefile
    assert re.search(
        r"^parts\+?=\((.* )?test[ )]", (ROOT / ".ci" / "run").read_text(), re.MULTILINE
    )


def leads_somewhere(link: str) -> bool:
    """To a file, and to a heading of it where one is named."""
    path, _, heading = link.partition("#")
    if not (ROOT / path).is_file():
        return (ROOT / path).exists() and not heading
    headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}
    return not heading or heading in slugs


def test_what_it_links_is_there() -> None:
    assert not leads_somewhere("docs/failure_model.md#when-nothing-dies")
    links = re.findall(r"\]\(([^)]+)\)|^\[[\w-]+\]: (\S+)$", README.read_text(), re.MULTILINE)
    missing = [here or below for here, below in links if not leads_somewhere(here or below)]
    assert len(links) > 10
    assert missing == []


def test_every_cell_of_its_table_names_its_test_or_its_bench() -> None:
    page = README.read_text()
    places = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", page, re.MULTILINE))
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    assert len(rows) > 6
    unnamed = [
        (row[0], cell)
        for row in rows[2:]
        for cell in row[1:]
        if cell.strip() != "not measured"
        and not all(
            places.get(name, "").startswith(("tests/", "benchmarks/"))
            for name in re.findall(r"\[([\w-]+)\]", cell) or [""]
        )
    ]
    assert unnamed == []


def test_it_is_read_in_a_few_minutes() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) <= LINES_MAX
    wide = [line for line in lines if len(line) > COLUMNS_MAX and not line.startswith("|")]
    assert wide == []
