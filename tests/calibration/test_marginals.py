"""Generated columns brought to the quantiles of the real ones."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch

from synther.calibration.marginals import RANKS, Correction, Corrector, corrected_count, corrections, quantiles
from synther.data.preparing import Prepared, prepare
from synther.data.transitions import Transitions
from synther.errors import SyntherError

from ..support.distributions import furthest

ROWS = 20_000
CPU = torch.device("cpu")


def prepared(residuals: str = "linear", *, zeros: float = 0.0, circle: bool = False) -> Prepared:
    """Rows of two observations, one of which may have `zeros`, or both be on a circle."""
    draw = np.random.default_rng(0)
    s, a = draw.gamma(2.0, size=(ROWS, 2)), draw.normal(size=(ROWS, 1))
    s[: ROWS // 2, 1] *= -1  # so that 0 is inside the range
    then = 0.9 * s + 0.1 * a + 0.05 * draw.normal(size=s.shape)
    for side in (s, then):
        side[draw.random(ROWS) < zeros, 1] = 0.0
    if circle:
        s, then = (np.stack([np.cos(side[:, 0]), np.sin(side[:, 0])], axis=1) for side in (s, then))
    rows = Transitions(s, a, s[:, 0] + a[:, 0], then)
    return prepare(rows, "standard", "onehot", spikes=True, residuals=residuals)


def blurred(found: Prepared, seed: int = 1) -> torch.Tensor:
    """The rows again, as a poor generator makes them."""
    draw = np.random.default_rng(seed)
    matrix = found.matrix[draw.permutation(len(found.matrix))]
    return torch.from_numpy(1.2 * matrix + 0.3 * draw.normal(size=matrix.shape).astype(np.float32) + 0.1)


def corrected(found: Prepared, matrix: torch.Tensor) -> torch.Tensor:
    known = quantiles(found.layout, found.scaler, torch.from_numpy(found.matrix))
    return Corrector(corrections(found.layout, found.scaler, known, matrix), (), CPU)(matrix, None)


def test_columns_that_outcomes_follow_from_get_the_real_distribution():
    found = prepared()
    made = blurred(found)
    better = corrected(found, made)
    for column in range(3):  # two observations and the action
        before, after = (furthest(each[:, column].numpy(), found.matrix[:, column]) for each in (made, better))
        assert before > 0.05
        assert after < 0.01
        in_order = better[made[:, column].argsort(), column]
        assert (in_order.diff() >= 0).all()
    assert torch.equal(made[:, 3:], better[:, 3:]), "outcomes follow from these, and have no line"


def test_fresh_rows_get_it_too():
    found = prepared()
    known = quantiles(found.layout, found.scaler, torch.from_numpy(found.matrix))
    correct = Corrector(corrections(found.layout, found.scaler, known, blurred(found)), (), CPU)
    fresh = correct(blurred(found, seed=2), None)
    assert furthest(fresh[:, 0].numpy(), found.matrix[:, 0]) < 0.02


def test_where_a_spike_is_the_number_does_not_count():
    """A network that makes spikes without regard to the number beside them leaves their peak in the other rows."""
    found = prepared(zeros=0.2)
    value = found.layout.names.index("observation[1]")
    flag = found.layout.names.index("observation[1]=0.0")
    made = torch.from_numpy(found.matrix.copy())
    made[:, value] += 0.1 * torch.randn(ROWS, generator=torch.Generator().manual_seed(1))
    made[:, flag] = made[torch.randperm(ROWS, generator=torch.Generator().manual_seed(0)), flag]
    real = found.matrix[found.matrix[:, flag] < 0.5, value]
    others = made[:, flag] < 0.5
    assert furthest(made[others, value].numpy(), real) > 0.05
    assert furthest(corrected(found, made)[others, value].numpy(), real) < 0.02


def test_values_that_are_rarer_than_the_outer_ranks_are_kept():
    """A beam that reaches something in 0.8 % of the rows, and otherwise ends at its limit."""
    draw = np.random.default_rng(0)
    beam = np.where(draw.random((2, ROWS)) < 0.008, draw.uniform(0.2, 1, (2, ROWS)), 1.0)
    here, there = np.stack([beam, draw.normal(size=(2, ROWS))], axis=2)
    found = prepare(
        Transitions(here, here[:, 1:], here[:, 1], there), "standard", "onehot", spikes=True, residuals="linear"
    )
    made = torch.from_numpy(found.matrix + 0.1 * draw.normal(size=found.matrix.shape).astype(np.float32))

    def hits(matrix: torch.Tensor) -> float:
        return float(np.mean(found.layout.unpack(found.scaler.inverse(matrix.numpy())).observation[:, 0] < 0.9))

    assert hits(made) == pytest.approx(np.mean(here[:, 0] < 0.9), rel=0.1)
    known = quantiles(found.layout, found.scaler, torch.from_numpy(found.matrix))
    correct = Corrector(corrections(found.layout, found.scaler, known, made, found.rates), (), CPU)
    assert hits(correct(made, None)) == pytest.approx(hits(made), rel=0.1)


def test_twenty_episodes_are_enough_for_starts():
    """19 rows, because one of 20 is held out. Without a line, starts would be spread as widely as the network blurs."""
    found = prepared()
    real, made = (torch.from_numpy(0.01 * found.matrix[rows]) for rows in (slice(19), slice(100, 1100)))
    own = quantiles(found.layout, found.scaler, real)
    made = 10 * made + 0.05
    better = Corrector((), corrections(found.layout, found.scaler, own, made), CPU)(
        made, torch.ones(1000, dtype=torch.bool)
    )
    assert better[:, :3].std(0) == pytest.approx(real[:, :3].std(0), rel=0.3)
    assert better[:, :3].mean(0) == pytest.approx(real[:, :3].mean(0), abs=0.003)


def test_episodes_that_all_begin_at_one_value_do_so():
    found = prepared()
    starts = torch.from_numpy(found.matrix[:1000].copy())
    starts[:, 0] = 0.7
    own = quantiles(found.layout, found.scaler, starts)
    lines = corrections(found.layout, found.scaler, own, blurred(found)[:1000])
    better = Corrector((), lines, CPU)(blurred(found)[:1000], torch.ones(1000, dtype=torch.bool))
    assert (better[:, 0] == 0.7).all()


def test_rows_on_a_blurred_spike_are_not_moved():
    """A small network blurs the mark of a rare contact. As many rows as in the data count as rows with a contact."""
    draw = np.random.default_rng(0)
    touches = draw.random((2, ROWS, 1)) < 0.05
    here, there = (draw.normal(size=(2, ROWS, 2)) * 3 * np.concatenate([touches, ~touches | touches], 2)).clip(-2, 2)
    found = prepare(
        Transitions(here, here[:, 1:], here[:, 1], there), "standard", "onehot", spikes=True, residuals="linear"
    )
    value, mark = (found.layout.names.index(name) for name in ("observation[0]", "observation[0]=0.0"))
    made = torch.from_numpy(found.matrix.copy())
    made[:, mark] = 0.4 + 0.2 * made[:, mark] + 0.02 * torch.randn(ROWS, generator=torch.Generator().manual_seed(0))
    made[:, value] += 0.1 * torch.randn(ROWS, generator=torch.Generator().manual_seed(1))
    known = quantiles(found.layout, found.scaler, torch.from_numpy(found.matrix))
    better = Corrector(corrections(found.layout, found.scaler, known, made, found.rates), (), CPU)(made, None)
    moved = (better[:, value] - made[:, value]).abs() > 0.05
    assert moved[~touches[0, :, 0]].float().mean() < 0.01
    free = torch.from_numpy(touches[0, :, 0])
    assert furthest(better[free, value].numpy(), found.matrix[touches[0, :, 0], value]) < 0.05


def test_whole_numbers_that_pile_up_at_an_end_come_as_often():
    draw = np.random.default_rng(0)
    stock = np.maximum(draw.poisson(100, ROWS) - 85, 0)  # of which 7 % are 0, and more than 32 values in all
    rows = Transitions(
        stock, draw.normal(size=(ROWS, 1)), stock.astype(float), np.maximum(stock - draw.poisson(2, ROWS), 0)
    )
    found = prepare(rows, "quantile", "onehot", spikes=True, integers="ordered", residuals="bent")
    made = blurred(found)

    def empty(matrix: torch.Tensor) -> float:
        return float(np.mean(found.layout.unpack(found.scaler.inverse(matrix.numpy())).observation == 0))

    truth = np.mean(stock == 0)
    assert abs(empty(made) - truth) > 0.15 * truth
    assert empty(corrected(found, made)) == pytest.approx(truth, rel=0.07)


def test_rows_that_begin_an_episode_have_lines_of_their_own():
    found = prepared()
    starts = torch.from_numpy(found.matrix[:1000]) * 0.01
    made = torch.cat([blurred(found), 3 * starts + 0.02])
    begins = torch.arange(len(made)) >= ROWS
    own = quantiles(found.layout, found.scaler, starts)
    every = quantiles(found.layout, found.scaler, torch.from_numpy(found.matrix))
    parts: list = [
        corrections(found.layout, found.scaler, known, made[chosen])
        for known, chosen in ((every, ~begins), (own, begins))
    ]
    better = Corrector(*parts, CPU)(made, begins)
    assert better[begins, :3].std(0) == pytest.approx(starts[:, :3].std(0), rel=0.05)
    assert better[begins, :3].mean(0) == pytest.approx(starts[:, :3].mean(0), abs=1e-3)
    alone = Corrector(parts[0], (), CPU)(made, None)
    assert torch.equal(better[~begins], alone[~begins])


@pytest.mark.parametrize(
    ("found", "count"),
    [(prepared(), 3), (prepared("none"), 0), (prepared(circle=True), 1)],
    ids=["linear", "no residuals", "circle"],
)
def test_which_columns_may_have_a_line(found: Prepared, count: int):
    """None if outcomes do not follow from a regression. A value on a circle is put back onto it, and needs no line."""
    assert corrected_count(found.layout, found.scaler) == count
    known = quantiles(found.layout, found.scaler, torch.from_numpy(found.matrix))
    assert [len(each) for each in known] == [len(RANKS)] * count


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_few_rows_tell_nothing(rows: int):
    found = prepared()
    made = blurred(found)[:rows]
    assert torch.equal(corrected(found, made), made)
    assert quantiles(found.layout, found.scaler, made) == ((), (), ())


def test_rows_of_a_generator_that_has_diverged_or_makes_one_value_only():
    found = prepared()
    broken = blurred(found)
    broken[5, 0], broken[:, 1] = torch.nan, 2.0
    known = quantiles(found.layout, found.scaler, torch.from_numpy(found.matrix))
    assert [one.column for one in corrections(found.layout, found.scaler, known, broken)] == [2]


def test_a_correction_as_json():
    one = Correction(3, (0.0, 1.0), (0.5, 0.5))
    assert Correction.from_json(asdict(one)) == one


@pytest.mark.parametrize(
    "entry",
    [
        {"column": 0, "at": [0.0], "to": [0.0]},
        {"column": 0, "at": [0.0, 0.0], "to": [0.0, 1.0]},
        {"column": 0, "at": [0.0, 1.0], "to": [1.0, 0.0]},
        {"column": 0, "at": [0.0, 1.0], "to": [0.0]},
        {"column": 0, "at": [0.0, float("nan")], "to": [0.0, 1.0]},
        {"column": "0", "at": [0.0, 1.0], "to": [0.0, 1.0]},
        [],
    ],
    ids=["one knot", "equal", "falling", "lengths", "nan", "column", "list"],
)
def test_a_damaged_correction(entry: object):
    with pytest.raises(SyntherError):
        Correction.from_json(entry)


def test_it_takes_no_numbers_from_main_memory():
    """So that the work can be captured on a GPU: tensors on `meta` refuse to meet others."""
    found = prepared()
    known = quantiles(found.layout, found.scaler, torch.from_numpy(found.matrix))
    made = blurred(found)
    lines = corrections(found.layout, found.scaler, known, made)
    meta = torch.device("meta")
    begins = torch.zeros(ROWS, dtype=torch.bool, device=meta)
    assert Corrector(lines, lines, meta)(made.to(meta), begins).shape == made.shape


@pytest.mark.cuda
def test_a_gpu_corrects_alike():
    found = prepared()
    known = quantiles(found.layout, found.scaler, torch.from_numpy(found.matrix).cuda())
    made = blurred(found)
    lines = corrections(found.layout, found.scaler, known, made.cuda())
    here, there = (Corrector(lines, (), torch.device(name))(made.to(name), None).cpu() for name in ("cpu", "cuda"))
    torch.testing.assert_close(here, there)
