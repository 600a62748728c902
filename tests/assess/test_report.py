from __future__ import annotations

import re
from dataclasses import fields, replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

from synther.assess.assessment import Assessment, Cloud, Column, Correlations, Effort, Process
from synther.assess.report.histogram import histogram
from synther.assess.report.page import page

from .example import example, table, without_figures

MEGABYTE = 1_000_000


class Balance(HTMLParser):
    """Fails where a tag is closed that is not the last one open, and keeps what the page holds."""

    VOID = ("meta", "link", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs)), f"an attribute twice in {tag}: {attrs}"
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> with nothing open"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.seen if name == tag]


def bare(**changes: object) -> Assessment:
    """The example without its optional parts."""
    return replace(example(), **{"cloud": None, "process": None, "efforts": (), "notes": (), "env_id": None, **changes})


def titles(text: str) -> list[str]:
    return re.findall(r'<h2 id="(\w+)-title">', text)


def test_the_page_is_well_formed_and_holds_every_part() -> None:
    text = page(example())
    found = Balance(text)
    assert titles(text) == ["measures", "columns", "correlations", "diversity", "process", "efforts"]
    assert [link["href"] for link in found.all("a")] == [f"#{name}" for name in titles(text)]
    ids = [attributes["id"] for _, attributes in found.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    for word in ("Do not use", "hopper-sac.npz", "additive-noise.npz", "20,000 rows", "Hopper-v5", "7 dynamics models"):
        assert word in found.text
    for part in (*example().notes, example().verdict.sentence, *(reason.text for reason in example().verdict.reasons)):
        assert part in found.text
    for measure in example().measures:
        assert measure.label in found.text
        assert measure.about in found.text
    rows = re.findall(r'<tr role="row" data-at="(\d+)"><td role="cell" data-label="Column"', text)
    worst = [example().columns.index(column) for column in example().worst_columns()]
    assert [int(at) for at in rows] == worst != sorted(worst)
    assert len(re.findall(r'class="shape"', text)) == len(example().columns)
    assert len(found.all("image")) == 3
    assert len(found.all("img")) == len(example().process.frames)


def test_nothing_is_fetched() -> None:
    found = Balance(page(example()))
    addresses = [value for _, given in found.seen for key, value in given.items() if key in ("href", "src")]
    assert addresses
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert not re.search(r"https?:|url\(|@import", page(example()))


def under(text: str, heading: str) -> list[str]:
    """What the cells of a column say, from above."""
    return re.findall(rf'<td[^>]* data-label="{heading}"[^>]*>(.*?)</td>', text)


def test_figures_stand_under_their_headings() -> None:
    efforts = (Effort("heun", 15, 0.91, 0.82, 0.073, 6.4), Effort("euler", 8, 0.5, 0.4, 0.3, 0.2))
    measure = replace(example().measures[0], value=0.25, real=0.75)
    column = replace(example().columns[0], similarity=0.11, similarity_real=0.22, outside=0.33)
    text = page(bare(efforts=efforts, measures=(measure,), columns=(column,), correlations=Correlations((), ())))
    expected = {
        "Sampler": ["euler", "heun"],
        "Network calls": ["8", "15"],
        "Marginal": ["0.5000", "0.9100"],
        "Correlation": ["0.4000", "0.8200"],
        "Dynamics error": ["0.3", "0.073"],
        "Seconds": ["0.2", "6.4"],
        "Synthetic": ["0.2500"],
        "Similarity": ["0.1100"],
        "Out of bounds": ["33\u2009%"],
    }
    assert {heading: under(text, heading) for heading in expected} == expected
    assert under(text, "Held-out real") == ["0.7500", "0.2200"]


def test_parts_that_are_not_there_leave_no_trace() -> None:
    usual = ["measures", "columns", "correlations"]
    headings = {"cloud": ["diversity"], "process": ["process"], "efforts": ["efforts"]}
    for part in ("cloud", "process", "efforts", "notes", "env_id"):
        text = page(bare(**{part: getattr(example(), part)}))
        Balance(text)
        assert titles(text) == usual + headings.get(part, [])
        assert ("Environment" in text) == (part == "env_id")
        assert (example().notes[0] in text) == (part == "notes")
    one = page(bare(columns=example().columns[:1], correlations=Correlations(((1.0,),), ((1.0,),))))
    assert titles(one) == ["measures", "columns"]
    nothing = {"correlations": Correlations((), ()), "process": Process((), (), (), 0.0), "cloud": Cloud("", (), ())}
    text = page(bare(measures=(), columns=(), **nothing))
    assert titles(text) == []
    assert "Do not use" in Balance(text).text
    assert "<nav" not in text


def test_headings_never_skip_a_level_and_every_picture_has_words() -> None:
    found = Balance(page(example()))
    levels = [int(name[1]) for name, _ in found.seen if re.fullmatch(r"h\d", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(picture.get("alt") for picture in found.all("img"))
    assert all(drawing.get("aria-label") or drawing.get("aria-hidden") for drawing in found.all("svg"))


def test_every_name_is_escaped() -> None:
    evil = "<b>&\"'</script><script>alert(1)</script>"
    whole = example()
    texts = [field.name for field in fields(whole) if isinstance(getattr(whole, field.name), str)]
    assert texts == ["env_id", "real_name", "synthetic_name", "version", "command"]
    changed = {name: f"{name}{evil}" for name in texts}
    healthy = replace(whole, notes=whole.notes[:1], command="synther assess")
    reasons = tuple(replace(reason, text=evil, measure=f"{reason.measure}{evil}") for reason in whole.verdict.reasons)
    sick = replace(
        whole,
        **changed,
        verdict=replace(whole.verdict, sentence=evil, reasons=reasons),
        measures=tuple(
            replace(measure, name=f"{measure.name}{evil}", label=evil, group=f"{measure.group}{evil}", about=evil)
            for measure in whole.measures
        ),
        columns=tuple(replace(column, name=column.name.replace("[", f"{evil}[")) for column in whole.columns),
        cloud=replace(whole.cloud, judge=evil),
        process=replace(whole.process, frames=tuple(evil for _ in whole.process.frames)),
        efforts=tuple(replace(effort, sampler=f"{effort.sampler}{evil}") for effort in whole.efforts),
        notes=(evil,),
    )
    found = Balance(page(sick))
    assert [name for name, _ in found.seen] == [name for name, _ in Balance(page(healthy)).seen]
    assert found.text.count(evil) >= 60
    assert "<script>alert" not in page(sick)


@pytest.mark.parametrize("odd", [None, float("nan"), float("inf"), float("-inf")])
def test_figures_that_are_none(odd: float | None) -> None:
    text = page(without_figures(odd))
    Balance(text)
    assert not re.search(r"\b(nan|inf|None)\b", re.sub(r"<(style|script)>.*?</\1>|base64,[^\"]*", "", text, flags=re.S))
    assert "2 rows without a finite figure" in text


@pytest.mark.parametrize("rows", [(), ((0.0, 0.0),), ((0.0, 0.0), (0.0, 0.0)), ((2.0, 0.0), (1e-9, 3e300))])
def test_any_few_rows_can_be_drawn(rows: tuple[tuple[float, float], ...]) -> None:
    text = page(bare(cloud=Cloud("me", rows, rows), process=Process((1.0,), rows, (rows,), 1.0)))
    Balance(text)
    assert ("diversity" in titles(text)) == bool(rows)


@pytest.mark.parametrize("count", [750, pytest.param(1_600, marks=pytest.mark.slow)])
def test_many_columns_stay_below_five_megabytes(count: int) -> None:
    """The worst case for the size: noise, which does not compress, in every column."""
    draw = np.random.default_rng(0)
    matrices = [np.corrcoef(draw.normal(size=(count, 40)) + draw.normal(size=(1, 40))) for _ in range(2)]
    some, edges = example().columns[0], tuple(np.linspace(-3, 3, 61).tolist())

    def column(at: int) -> Column:
        shares = [tuple(side) for side in draw.dirichlet(np.ones(60), 2).tolist()]
        named = replace(some, name=f"next_observation[{at}]", similarity=draw.uniform(), real_mean=draw.normal())
        return replace(named, edges=edges, real_shares=shares[0], synthetic_shares=shares[1])

    columns = tuple(map(column, range(count)))
    text = page(replace(example(), columns=columns, correlations=Correlations(*map(table, matrices))))
    assert len(text.encode()) < 5 * MEGABYTE
    assert text.count('role="row" data-at=') == count


def test_the_footer_says_who_made_the_page_and_how() -> None:
    text = page(replace(example(), version="9.8.7 abc", command="synther assess a.npz b.npz --out r"))
    footer = text[text.index("<footer>") :]
    assert "SynthER 9.8.7 abc" in footer
    assert "synther assess a.npz b.npz --out r" in footer


def test_notes_about_samplers_stand_with_the_samplers() -> None:
    text = page(replace(example(), notes=("network calls: each sampler generated 500 rows", "another note")))
    head, _, rest = text.partition("<main>")
    assert "another note" in head
    assert "500 rows" not in head
    assert "Each sampler generated 500 rows." in rest


def test_rare_values_can_be_seen() -> None:
    column = example().columns[0]
    rare = replace(column, edges=(0.0, 0.5, 1.0), real_shares=(0.999, 0.001), synthetic_shares=(1.0, 0.0))
    heights = [
        [float(height) for height in re.findall(r"V([\d.]+)", path)]
        for path in re.findall(r'<path d="([^"]+)" class="[rs]"', histogram(rare))
    ]
    (_, seen, floor), (_, none, *_) = heights
    assert floor - seen >= 1
    assert none == floor
