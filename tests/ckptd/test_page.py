"""The page says what is wrong and what to do, how full devices are, and trusts no name."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest

from ckptd.http.page import render_page

GiB = 1 << 30


def status(**changes: object) -> dict[str, object]:
    target = {
        "id": "t0", "state": "live", "domain": "p/r/h/d", "address": "10.0.0.1:7071",
        "directory": "/mnt/t0", "bytes_total": 100 * GiB, "bytes_used": 60 * GiB,
        "bytes_free": 40 * GiB, "columns": 7, "device_failing": False, "device_error": "",
    }  # fmt: skip
    return {"cluster": "c1", "health": "HEALTH_OK", "code": "4+2", "term": 3, "checks": [],
            "targets": [target], **changes}  # fmt: skip


class _Tables(HTMLParser):
    """Rows of cells below each heading."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: dict[str, list[list[str]]] = {}
        self._title, self._reads_title = "", False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._reads_title = tag == "h2"
        if tag == "tr":
            self.rows.setdefault(self._title, []).append([])
        elif tag in ("td", "th") and self._title in self.rows:
            self.rows[self._title][-1].append("")

    def handle_data(self, data: str) -> None:
        if self._reads_title:
            self._title, self._reads_title = data, False
        elif self._title in self.rows:
            self.rows[self._title][-1][-1] += data


def test_checks_come_with_their_command_and_their_colour() -> None:
    check = {
        "name": "TARGET_DOWN", "severity": "warning", "message": "t1 is away",
        "remedy": "start it", "command": "systemctl start 'ckptd-target@t1'",
    }  # fmt: skip
    page = render_page(status(health="HEALTH_WARN", checks=[check]), [])
    assert "<span class=warning>HEALTH_WARN</span>" in page
    head, row = _Tables(page).rows["Checks"]
    assert head == ["check", "severity", "what is wrong", "what to do", "command"]
    assert row == [check[name] for name in ("name", "severity", "message", "remedy", "command")]


def test_a_tab_has_the_health_and_a_telephone_what_to_do() -> None:
    page = render_page(status(health="HEALTH_ERR", checks=[{"name": "ROT"}]), [])
    assert "<title>ckpt: HEALTH_ERR</title>" in page
    assert "<section class=stacked tabindex=0 role=region aria-label='Checks'>" in page
    assert "<section tabindex=0 role=region aria-label='Targets'>" in page


def test_words_may_wrap_and_a_heading_stands_as_its_numbers_do() -> None:
    """A size beside its unit, as wide as the window of whoever looks."""
    page = render_page(status(checks=[{"name": "ROT", "message": "rotten"}]), [])
    assert "<meta name=viewport content='width=device-width'>" in page
    assert "<td class=words>rotten" in page
    assert "<th scope=col class=number>free" in page
    assert "<th scope=col>address" in page


def test_a_target_that_is_to_be_emptied_is_told_apart() -> None:
    (target,) = status()["targets"]  # type: ignore[misc]
    page = render_page(status(targets=[{**target, "standing": "draining"}]), [])
    head, row = _Tables(page).rows["Targets"]
    assert dict(zip(head, row, strict=True))["stands"] == "draining"


@pytest.mark.parametrize(
    ("free", "tone", "percent"), [(40, "ok", 60), (12, "warning", 88), (2, "error", 98)]
)
def test_a_bar_shows_how_full_a_device_is(free: int, tone: str, percent: int) -> None:
    (target,) = status()["targets"]  # type: ignore[misc]
    page = render_page(status(targets=[{**target, "bytes_free": free * GiB}]), [])
    assert f'<i class={tone} style="width:{percent}%">' in page
    assert _Tables(page).rows["Targets"][1][3].strip() == f"{percent}%"


def test_nothing_is_said_of_a_device_that_this_coordinator_has_not_seen() -> None:
    (target,) = status()["targets"]  # type: ignore[misc]
    page = render_page(status(targets=[{**target, "bytes_total": 0, "bytes_free": 0}]), [])
    assert _Tables(page).rows["Targets"][1][3] == html.unescape("&ndash;"), "neither a bar nor 0%"


def test_runs_have_sizes_and_times_that_people_read() -> None:
    runs = [{"run": "a/b", "steps": 2, "latest": 9, "bytes": GiB, "committed_at_s": 1.7e9},
            {"run": "c", "steps": 0, "latest": None, "bytes": 0, "committed_at_s": 0.0}]  # fmt: skip
    _, one, other = _Tables(render_page(status(), runs)).rows["Runs"]
    assert one == ["a/b", "9", "2", "1 GiB", "2023-11-14 22:13:20 UTC"]
    assert other == ["c", "none committed", "0", "0 B", "\N{EN DASH}"]


def test_what_there_is_none_of_is_said_to_be_none() -> None:
    page = render_page(status(targets=[]), [])
    titles = ("Checks", "Targets", "Runs", "Saves under way", "Object stores")
    assert re.findall(r"<h2>([\w ]+)</h2><p>none", page) == list(titles)


def test_names_are_no_markup() -> None:
    name = "<script>alert('x')</script>\u202e"
    page = render_page(status(cluster=name), [{"run": name, "steps": 1, "latest": 1}])
    assert "<script" not in page
    assert "\u202e" not in page
    assert html.escape("<script>alert('x')</script>") in page
