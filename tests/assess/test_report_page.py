"""The report in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from synther.assess import report

from .chromium import BINARY, Browser, Page
from .example import example

pytestmark = pytest.mark.skipif(BINARY is None, reason="no Chromium here: apt-get install chromium")

OVERFLOWING = """
[...document.querySelectorAll("body, body *")].filter(element => {
  const box = element.getBoundingClientRect();
  return box.width && (box.right > innerWidth + 0.5 || box.left < -0.5) && !element.closest(".scroll *, svg *");
}).map(element => element.outerHTML.slice(0, 120))
"""
"""Elements that reach out of the window. What scrolls within its own box may, and so may what a drawing clips."""

UNREADABLE = """
(() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const paper = element => {
    for (; element; element = element.parentElement) {
      const colour = parts(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const own = element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  return [...document.querySelectorAll("body *:not(script)")].filter(own).map(element => {
    const style = getComputedStyle(element);
    const ink = light(parts(element.closest("svg") ? style.fill : style.color)), back = light(paper(element));
    const contrast = (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05);
    return [contrast, `${contrast.toFixed(1)}: ${element.outerHTML.slice(0, 90)}`];
  }).filter(([contrast]) => contrast < 4.5).map(([, text]) => text);
})()
"""
"""Text whose contrast is below 4.5, the WCAG's AA."""

PLACES = (
    '[...document.querySelectorAll("table.columns tbody tr")].filter(r => !r.hidden).map(r => Number(r.dataset.at))'
)
SORTED = '[...document.querySelectorAll("table.columns th[aria-sort]")].map(h => h.getAttribute("aria-sort"))'


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    report.write(example(), path)
    return path


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    with browser.page(file) as page:
        yield page


def heading(number: int, table: str = "columns") -> str:
    return f"table.{table} th:nth-child({number}) button"


@pytest.mark.parametrize("width", [320, 375, 768, 1000, 1280])
def test_it_loads_without_a_word_and_fits(browser: Browser, file: Path, width: int) -> None:
    with browser.page(file, width=width, height=700) as page:
        assert page.complaints() == []
        assert page.requests() == [file.as_uri()]
        assert page.run("innerWidth") == width
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.run(OVERFLOWING) == []


def test_a_click_sorts_and_a_second_one_turns_the_order(page: Page) -> None:
    columns = example().columns
    order = range(len(columns))
    assert page.run(PLACES) == sorted(order, key=lambda at: columns[at].similarity)
    page.click(heading(1))
    assert page.run(PLACES) == list(order)
    assert page.run(SORTED) == ["ascending", *["none"] * 5]
    page.click(heading(1))
    assert page.run(PLACES) == list(reversed(order))
    assert page.run(SORTED) == ["descending", *["none"] * 5]
    page.click(heading(7))
    assert page.run(PLACES)[0] == max(order, key=lambda at: columns[at].outside)
    assert page.run(SORTED) == [*["none"] * 5, "descending"]
    assert page.complaints() == []


def test_the_filter_shows_columns_by_name(page: Page) -> None:
    names = [column.name for column in example().columns]
    page.click("#filter")
    page.ask("Input.insertText", text="NEXT 1")
    shown = {names[at] for at in page.run(PLACES)}
    assert shown == {"next_observation[1]", "next_observation[10]"}
    assert page.run('document.querySelector(".filter output").value') == f"2 of {len(names)} columns"
    for _ in "NEXT 1":
        page.press("Backspace", 8)
    assert len(page.run(PLACES)) == len(names)
    assert page.run('document.querySelector(".filter output").value') == f"{len(names)} columns"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_are_both_readable(browser: Browser, file: Path, scheme: str) -> None:
    with browser.page(file, scheme=scheme) as page:
        red, *_ = page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (red > 200) == (scheme == "light")
        assert page.run(UNREADABLE) == []
        page.ask(
            "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        assert page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")[0] > 200


def test_it_reads_without_scripts(browser: Browser, file: Path) -> None:
    with browser.page(file, width=375, scripts=False) as page:
        assert page.run("document.documentElement.className") == ""
        assert page.run('getComputedStyle(document.querySelector(".filter")).display') == "none"
        assert len(page.run(PLACES)) == len(example().columns)
        assert page.run(OVERFLOWING) == []
