"""Pictures of scores: what is drawn where, that nothing covers anything else, and what cannot be drawn."""

from __future__ import annotations

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


def test_a_picture_says_what_its_bands_and_bars_are(drawn):
    plot({"a": curve(1.0)}, "x.png", title="hopper", note="shorter runs")
    lines({"a": curve(1.0)}, "x.png")
    bars({"g": {"a": Bar(1.0, 0.5)}}, "x.png")
    for figure, first in zip(drawn, ("line", "mark", "bar"), strict=True):
        assert figure.get_supxlabel().startswith(f"{first}: mean over the seeds")
        assert "one standard deviation" in figure.get_supxlabel()
    assert (drawn[0].get_suptitle(), drawn[0].get_supxlabel().splitlines()[-1]) == ("hopper", "shorter runs")
    assert [len(figure.legends) for figure in drawn[:2]] == [0, 1]  # of one arm only where no title says what it is


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


def test_places_too_close_to_be_labelled(drawn):
    at = np.geomspace(50_000, 5_000_000, 60)
    lines({"SynthER": Curve(at, at, at, at)}, "x.png", tick=count, xlabel="synthetic rows")
    labels = [label.get_text() for label in drawn[0].axes[0].get_xticklabels()]
    assert (labels[0], labels[-1]) == ("50K", "5M")
    assert 8 <= len(labels) <= 12


def test_groups_of_bars(drawn):
    groups = {
        "TD3+BC": {"real subset": Bar(20, 3, 22.0), "SynthER": Bar(75, 0, 70.0), "noise": Bar(-4, 2)},
        "a longer name of an algorithm": {"SynthER": Bar(80, 5)},
    }
    bars(groups, "x.png", title="15 % of the rows")
    axes = drawn[0].axes[0]
    bars({"x": {"a": Bar(1), "b": Bar(2)}, "y": {"a": Bar(1)}}, "x.png")
    assert legend(drawn[0]) == ["real subset", "SynthER", "noise", "the paper"]
    assert legend(drawn[1]) == ["a", "b"]  # no reference, no mark
    middles = {round(bar.get_x() + bar.get_width() / 2, 9): bar.get_height() for bar in axes.patches}
    assert middles == {0: 20, 1: 75, 2: -4, 5: 80}
    assert [label.get_text() for label in axes.get_xticklabels()] == list(groups)
    diamonds = next(line for line in axes.lines if line.get_marker() == "D")
    assert diamonds.get_ydata().tolist() == [22, 70]
    assert np.abs(diamonds.get_xdata() - [0, 1]).max() < 0.44  # each within its own bar
    spans = [segment[:, 1].tolist() for stems in axes.collections for segment in stems.get_segments() if len(segment)]
    assert [span for span in spans if np.isfinite(span).all()] == [[17, 23], [75, 85], [-6, -2]]


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
