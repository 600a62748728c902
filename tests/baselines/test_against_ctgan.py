"""What we replaced in the ctgan package gives what the package gives: same mixtures, codes, losses, weights, rows."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from ctgan import CTGAN, TVAE
from ctgan.data_transformer import DataTransformer
from ctgan.synthesizers.tvae import _loss_function

from synther import Transitions
from synther.baselines.ctgan_models import Encoding
from synther.baselines.spans import Spans
from synther.baselines.table import Category, Table, encode
from synther.baselines.tabular import CtganConfig, Tabular, TvaeConfig
from synther.data.spaces import Box

ROWS = 200  # from 500 on ctgan sends columns to other processes


def bimodal(rows: int = ROWS) -> Transitions:
    draw = np.random.default_rng(0)
    observation = np.where(draw.random((rows, 1)) < 0.3, draw.normal(-4, 0.2, (rows, 1)), draw.normal(3, 1, (rows, 1)))
    terminal = draw.random(rows) < 0.2
    terminal[0] = False  # ctgan numbers categories as they come, we by their order
    action, reward = draw.uniform(-1, 1, (rows, 1)), draw.normal(size=rows)
    return Transitions(
        observation,
        action,
        reward,
        observation + draw.normal(0, 0.1, (rows, 1)),
        terminal,
        action_space=(Box.uniform(-100, 100, 1),),  # ctgan knows no bounds: none are to be met
    )


@pytest.fixture(scope="module")
def table() -> Table:
    return Table.of(bimodal())


@pytest.fixture(scope="module")
def matrix(table) -> np.ndarray:
    return table.scaler.transform(table.layout.pack(bimodal()))


@pytest.fixture(scope="module")
def theirs(matrix) -> DataTransformer:
    transformer = DataTransformer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformer.fit(matrix, [matrix.shape[1] - 1])
    return transformer


@pytest.fixture(scope="module")
def shared(table, matrix, theirs) -> Table:
    """The table with the codes that ctgan draws, each column from a stream of its own."""
    code, place = table.code.copy(), table.place.copy()
    for number, info in enumerate(theirs._column_transform_info_list[:-1]):
        uniform = np.random.RandomState(info.transform.random_seed).random_sample(len(matrix))
        _, code[:, number], place[:, number] = encode((matrix[:, number], uniform))
    return replace(table, code=code, place=place)


def test_mixtures_are_the_same(table, theirs):
    for column, info in zip(table.columns, theirs._column_transform_info_list, strict=True):
        if isinstance(column, Category):
            assert column.seen == tuple(info.transform.dummies) == (0, 1)
            continue
        mixture, kept = info.transform._bgm_transformer, info.transform.valid_component_indicator
        assert len(column.means) == kept.sum() > 1
        np.testing.assert_allclose(column.means, mixture.means_[kept, 0], rtol=1e-9)
        np.testing.assert_allclose(np.square(column.stds), mixture.covariances_[kept, 0, 0], rtol=1e-9)


def test_the_same_uniform_numbers_give_the_same_encoding(shared, matrix, theirs):
    np.testing.assert_allclose(shared.encoded(), theirs.transform(matrix), rtol=0, atol=1e-6)


def test_decoding_is_the_same(shared, table, theirs):
    made = np.random.default_rng(1).normal(size=(200, table.width))
    ours = table.scaler.transform(table.layout.pack(table.decoded(made)))
    np.testing.assert_allclose(ours, theirs.inverse_transform(made), rtol=1e-6, atol=1e-9)


def test_tvaes_loss_is_the_same(shared):
    torch.manual_seed(0)
    target = torch.from_numpy(shared.encoded())
    logits, deviations = torch.randn_like(target), torch.rand(target.shape[1]) + 0.1
    nothing = torch.zeros(len(target), 1)
    spans = Encoding(shared).output_info_list
    expected, _ = _loss_function(logits, target, deviations, nothing, nothing, spans, 3.0)
    ours = 3.0 * Spans(shared.columns, torch.device("cpu")).reconstruction(logits, target, deviations) / len(target)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=0)


def test_ctgans_activation_is_the_same(shared):
    model = CTGAN(enable_gpu=False)
    model._transformer = Encoding(shared)
    logits = 3 * torch.randn(50, shared.width, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng([]):
        torch.manual_seed(7)
        expected = model._apply_activate(logits)
        torch.manual_seed(7)
        ours = Spans(shared.columns, torch.device("cpu")).activated(logits)
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    "config",
    [TvaeConfig(epochs=3, batch_size=80), CtganConfig(epochs=3, batch_size=50)],
    ids=lambda config: config.name,
)
def test_a_whole_fit_is_the_same(config, shared, matrix):
    ours = Tabular(config, device="cpu", seed=5).fit(shared, progress=False)
    kind = TVAE if isinstance(config, TvaeConfig) else CTGAN
    plain = kind(**config.options(), enable_gpu=False)
    plain.set_random_state(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain.fit(matrix, [matrix.shape[1] - 1])
        if kind is CTGAN:  # the one thing that is not the same: see below
            plain._data_sampler = ours._model._data_sampler
        plain.set_random_state(6)
        expected = plain.sample(1000)
    weights = [model.decoder if kind is TVAE else model._generator for model in (ours._model, plain)]
    for here, there in zip(weights[0].parameters(), weights[1].parameters(), strict=True):
        if here.ndim == 2:  # what comes before a batch norm has a bias without a gradient, which follows rounding alone
            torch.testing.assert_close(here, there, rtol=1e-3, atol=1e-4)
    sampled = ours.sample(1000, seed=6)
    found = shared.scaler.transform(shared.layout.pack(sampled))
    # Where two codes are nearly as large, rounding decides.
    assert np.mean(np.abs(found - expected).max(1) < 1e-2) > 0.99


def test_a_rare_terminal_stays_rare():
    """ctgan draws the condition of a generated row by the logarithm of its count: a rare terminal came in a third."""
    rows = replace(bimodal(), terminal=np.arange(ROWS) == 7)
    model = Tabular(CtganConfig(epochs=1, batch_size=100, layers=1, width=16), device="cpu").fit(rows, progress=False)
    conditions = model._model._data_sampler.sample_original_condvec(100_000)
    assert abs(conditions[:, 1].mean() - 0.005) < 0.001
