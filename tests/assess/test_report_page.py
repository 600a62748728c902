"""The report in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from synther.assess import report

from .chromium import BINARY, Browser, Page
from .example import example, without_figures

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


def test_the_checks_can_fail(browser: Browser, file: Path) -> None:
    with browser.page(file, width=375) as page:
        page.run("""document.body.insertAdjacentHTML("beforeend",
            '<p style="width: 500px; color: #999">wide and pale</p><img src="https://example.invalid/x.png">')""")
        page.run('console.error("trouble")')
        assert page.run("document.documentElement.scrollWidth") > 375
        assert ["wide and pale" in text for text in page.run(OVERFLOWING)] == [True]
        assert any("wide and pale" in text for text in page.run(UNREADABLE))
        assert any("trouble" in text for text in page.complaints())
        assert any("Content Security Policy" in text for text in page.complaints())


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


def test_measures_are_sorted_within_their_groups_and_unknown_ones_stay_last(page: Page) -> None:
    script = """[...document.querySelectorAll("table.measures tbody")].map(
        body => [...body.rows].map(row => row.querySelector("strong")?.textContent ?? row.textContent))"""
    groups: dict[str, list[tuple[float, str]]] = {}
    for measure in example().measures:
        key = float("inf") if measure.value is None else measure.value
        groups.setdefault(measure.group, []).append((key, measure.label))
    page.click(heading(2, "measures"))
    page.click(heading(2, "measures"))
    assert page.run(script) == [[name, *(label for _, label in sorted(found))] for name, found in groups.items()]
    page.click(heading(2, "measures"))
    assert page.run(script)[2] == ["Are they more than copies?", "Novelty", "Compression"]


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


def test_a_cell_under_the_pointer_tells_its_pair(page: Page) -> None:
    names = [column.name for column in example().columns]
    row, column = names.index("observation[1]"), names.index("next_observation[1]")
    corner = page.run("""(() => { const picture = document.querySelector(".maps image");
        picture.scrollIntoView({block: "center", behavior: "instant"});
        const box = picture.getBoundingClientRect(); return [box.x, box.y, box.width]; })()""")
    cell = corner[2] / len(names)
    x, y = corner[0] + (column + 0.5) * cell, corner[1] + (row + 0.5) * cell
    page.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    told = page.run('document.querySelector(".told").value')
    matrices = example().correlations
    real, synthetic = matrices.real[row][column], matrices.synthetic[row][column]
    assert told.startswith("observation[1] with next_observation[1]: real ")
    figures = [float(word.strip(",").replace("\u2212", "-")) for word in told.split() if word.strip(",")[-1].isdigit()]
    assert figures == pytest.approx([real, synthetic, synthetic - real], abs=0.011)


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


def test_figures_that_are_none_draw_nothing_the_browser_minds(browser: Browser, tmp_path: Path) -> None:
    report.write(without_figures(float("nan")), tmp_path / "report.html")
    with browser.page(tmp_path / "report.html") as page:
        assert page.complaints() == []


def test_names_without_a_place_to_break_fit_a_phone(browser: Browser, tmp_path: Path) -> None:
    long = "x" * 300
    whole = example()
    sick = replace(
        whole,
        real_name=long,
        env_id=long,
        notes=(long,),
        verdict=replace(whole.verdict, sentence=long),
        measures=tuple(replace(measure, label=long, group=long, about=long) for measure in whole.measures),
        columns=tuple(replace(column, name=f"{long}[{at}]") for at, column in enumerate(whole.columns)),
        cloud=replace(whole.cloud, judge=long),
        efforts=tuple(replace(effort, sampler=long) for effort in whole.efforts),
    )
    report.write(sick, tmp_path / "report.html")
    for width in (375, 1280):
        with browser.page(tmp_path / "report.html", width=width) as page:
            assert page.run("document.documentElement.scrollWidth") <= width
            assert page.run(OVERFLOWING) == []
