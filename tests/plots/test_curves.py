"""Pictures of scores: what is drawn where, that nothing covers anything else, and what cannot be drawn."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from synther.errors import ConfigError, DataError
from synther.plots import curves
from synther.plots.curves import Bar, Curve, bars, count, lines, plot, share


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would be written."""
    figures = []
    monkeypatch.setattr(curves, "write", lambda figure, path: figures.append(figure))
    return figures


def curve(level: float, places: int = 50) -> Curve:
    return Curve.of(np.arange(1, places + 1) * 20_000, level + np.random.default_rng(0).normal(size=(places, 8)))


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def assert_nothing_covered(figure) -> None:
    """The legend lies beside the panel and below the title, all on the sheet; labels of an axis do not touch."""
    figure.draw_without_rendering()
    axes, box = figure.axes[0], figure.legends[0].get_window_extent()
    assert box.x0 >= axes.get_window_extent().x1
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1 + 1
    title = figure._suptitle
    top = figure.bbox.y1 if title is None else title.get_window_extent().y0
    assert figure.bbox.y0 <= box.y0 < box.y1 <= top
    labels = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    assert len(labels) > 1
    assert all(left.x1 < right.x0 for left, right in pairwise(sorted(labels, key=lambda label: label.x0)))


def test_mean_and_std_of_the_seeds():
    found = Curve.of([5, 10], [[1.0, 3.0], [4.0, 4.0]])
    assert [np.asarray(part).tolist() for part in found] == [[5, 10], [2, 4], [1, 4], [3, 4]]


@pytest.mark.parametrize("scores", [[1.0, 2.0], [[1.0, 2.0]], [[], []]])
def test_what_is_no_curve_of_seeds(scores):
    with pytest.raises(DataError, match=r"\(places, seeds\) with 2 places"):
        Curve.of([5, 10], scores)


def test_counts_and_shares_are_short():
    counts = {0: "0", 999: "999", 50_000: "50K", 999_999: "1M", 1_500_000: "1.5M", 2e9: "2B"}
    assert {value: count(value) for value in counts} == counts
    assert [share(value) for value in (0.03, 0.155, 1)] == ["3 %", "15.5 %", "100 %"]


def test_learning_curves(drawn):
    names = ["real subset", "SynthER", "multiplicative noise", "$costs"]
    found = {name: curve(20.0 * number) for number, name in enumerate(names)}
    plot(found, "x.png", title="A title that is longer than the panel under it is wide")
    axes = drawn[0].axes[0]
    assert legend(drawn[0]) == [*names[:3], r"\$costs"]
    for line, expected in zip(axes.lines, found.values(), strict=False):
        assert line.get_xydata().T.tolist() == [expected.at.tolist(), expected.mean.tolist()]
    for band, expected in zip(axes.collections, found.values(), strict=True):
        heights = band.get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == (expected.low.min(), expected.high.max())
    assert_nothing_covered(drawn[0])


def test_a_picture_says_what_its_bands_and_bars_are(drawn):
    plot({"a": curve(1.0)}, "x.png")
    lines({"a": curve(1.0)}, "x.png")
    bars({"g": {"a": Bar(1.0, 0.5)}}, "x.png")
    for figure, first in zip(drawn, ("line", "mark", "bar"), strict=True):
        assert figure.get_supxlabel().startswith(f"{first}: mean over the seeds")
        assert "one standard deviation" in figure.get_supxlabel()


def test_one_arm_has_a_legend_only_where_no_title_says_what_it_is(drawn):
    plot({"real": curve(1.0)}, "x.png", title="hopper-medium, real rows")
    plot({"real": curve(1.0)}, "x.png")
    assert [len(figure.legends) for figure in drawn] == [0, 1]


def test_large_and_negative_returns(drawn):
    plot({"a": Curve.of([1, 2], [[-1500.0, -1500.0], [12_000.0, 12_000.0]])}, "x.png")
    drawn[0].draw_without_rendering()
    labels = [label.get_text() for label in drawn[0].axes[0].get_yticklabels()]
    assert {"\N{MINUS SIGN}2,000", "10,000"} <= set(labels)


def test_shares_on_a_logarithmic_axis(drawn):
    at = [0.03, 0.07, 0.15, 0.33, 0.66, 1.0]
    mean = np.arange(6.0)
    lines({"real subset": Curve(at, mean, mean - 1, mean + 2), "SynthER": Curve(at[:3], *[mean[:3]] * 3)}, "x.png")
    axes = drawn[0].axes[0]
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["3 %", "7 %", "15 %", "33 %", "66 %", "100 %"]
    first, second = axes.lines
    assert first.get_ydata().tolist() == mean.tolist()
    assert np.allclose(first.get_xdata(), at, rtol=0.03)
    assert (second.get_xdata() > first.get_xdata()[:3]).all()
    assert [segment[:, 1].tolist() for segment in axes.collections[0].get_segments()] == [
        [value - 1, value + 2] for value in mean
    ]
    assert_nothing_covered(drawn[0])


def test_places_too_close_to_be_labelled(drawn):
    at = np.geomspace(50_000, 5_000_000, 60)
    lines({"SynthER": Curve(at, at, at, at)}, "x.png", tick=count, xlabel="synthetic rows")
    labels = [label.get_text() for label in drawn[0].axes[0].get_xticklabels()]
    assert (labels[0], labels[-1]) == ("50K", "5M")
    assert 8 <= len(labels) <= 12
    assert_nothing_covered(drawn[0])


def test_one_place(drawn):
    lines({name: Curve([0.15], [1], [0], [2]) for name in "ab"}, "x.png")
    axes = drawn[0].axes[0]
    low, high = axes.get_xlim()
    assert low < axes.lines[0].get_xdata()[0] < 0.15 < axes.lines[1].get_xdata()[0] < high


def test_groups_of_bars(drawn):
    groups = {
        "TD3+BC": {"real subset": Bar(20, 3, 22.0), "SynthER": Bar(75, 0, 70.0), "noise": Bar(-4, 2)},
        "a longer name of an algorithm": {"SynthER": Bar(80, 5)},
    }
    bars(groups, "x.png", title="15 % of the rows")
    axes = drawn[0].axes[0]
    assert legend(drawn[0]) == ["real subset", "SynthER", "noise", "the paper"]
    middles = {round(bar.get_x() + bar.get_width() / 2, 9): bar.get_height() for bar in axes.patches}
    assert middles == {0: 20, 1: 75, 2: -4, 5: 80}
    assert [label.get_text() for label in axes.get_xticklabels()] == list(groups)
    diamonds = next(line for line in axes.lines if line.get_marker() == "D")
    assert diamonds.get_ydata().tolist() == [22, 70]
    assert np.abs(diamonds.get_xdata() - [0, 1]).max() < 0.44  # each within its own bar
    spans = [segment[:, 1].tolist() for stems in axes.collections for segment in stems.get_segments() if len(segment)]
    assert [span for span in spans if np.isfinite(span).all()] == [[17, 23], [75, 85], [-6, -2]]
    assert_nothing_covered(drawn[0])


def test_many_groups_keep_to_a_sheet(drawn):
    names = [f"{task}-v2 {level}" for task in ("halfcheetah", "walker2d", "hopper", "maze2d") for level in "abcd"]
    bars({name: {str(arm): Bar(50, 5, 45.0) for arm in range(6)} for name in names}, "x.png", title="word " * 80)
    figure = drawn[0]
    figure.draw_without_rendering()
    assert figure.get_figwidth() < 16
    assert figure._suptitle.get_window_extent().x1 <= figure.bbox.x1
    # Slanted names stand side by side when their ends are a line's height apart.
    ends = [label.get_window_extent().x1 for label in figure.axes[0].get_xticklabels()]
    assert np.diff(ends).min() > 2 * figure.dpi * 9 / 72


def test_no_reference_no_mark(drawn):
    bars({"x": {"a": Bar(1), "b": Bar(2)}, "y": {"a": Bar(1)}}, "x.png")
    assert legend(drawn[0]) == ["a", "b"]


NAN = float("nan")
LINE = Curve([1, 2], [1, 2], [0, 1], [2, 3])


@pytest.mark.parametrize(
    ("draw", "what", "error", "words"),
    [
        (plot, {}, ConfigError, "got 0"),
        (plot, {str(number): LINE for number in range(9)}, ConfigError, "got 9"),
        (plot, {"a": Curve([1, 2], [1], [1], [1])}, DataError, "curve a"),
        (plot, {"a": Curve([], [], [], [])}, DataError, "curve a"),
        (lines, {"a": LINE._replace(high=[2, NAN])}, DataError, "curve a"),
        (lines, {"a": LINE._replace(at=[0, 1])}, DataError, "got 0"),
        (bars, {}, ConfigError, "got 0"),
        (bars, {"x": {"a": Bar(1, -1)}}, DataError, "a of x"),
        (bars, {"x": {"a": Bar(1, 1, NAN)}}, DataError, "a of x"),
    ],
)
def test_what_cannot_be_drawn(tmp_path, draw, what, error, words):
    with pytest.raises(error, match=words):
        draw(what, tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "start"), [("new/x.png", b"\x89PNG"), ("x.SVG", b"<?xml")])
def test_written_as_the_suffix_asks(tmp_path, name, start):
    plot({"a": LINE}, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    for unknown in ("x", "x.doc"):
        with pytest.raises(ConfigError, match=r"pdf.*png.*svg"):
            plot({"a": LINE}, tmp_path / unknown)
    assert len(list((tmp_path / name).parent.iterdir())) == 1


def test_a_method_has_the_same_colour_in_every_picture(drawn):
    plot({"original": curve(1.0), "SynthER": curve(2.0), "additive noise": curve(3.0)}, "x.png")
    plot({"SAC (UTD 1)": curve(1.0), "mine": curve(1.5), "SAC (SynthER, UTD 20)": curve(2.0)}, "x.png")
    plot({"SynthER, 1M": curve(1.0), "SynthER, 5M": curve(2.0), "real": curve(3.0)}, "x.png")
    first, second, third = ({line.get_label(): line.get_color() for line in figure.axes[0].lines} for figure in drawn)
    assert first["SynthER"] == second["SAC (SynthER, UTD 20)"]
    assert len(set(first.values())) == len(set(second.values())) == len(set(third.values())) == 3
    for looks in zip(*curves._STYLES, strict=True):
        assert len(set(looks)) == len(looks) == 8


def test_a_note_stands_below_and_not_in_the_title(drawn):
    plot({"original": curve(1.0), "SynthER": curve(2.0)}, "x.png", title="hopper", note="shorter runs")
    assert drawn[0].get_suptitle() == "hopper"
    assert drawn[0].get_supxlabel().endswith("\nshorter runs")
    assert_nothing_covered(drawn[0])
