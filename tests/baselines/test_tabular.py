"""TVAE and CTGAN behind fit and sample: valid rows, told by the seed alone, and nothing left behind."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from synther import Transitions
from synther.assess.fidelity import compare
from synther.baselines import tabular
from synther.baselines.table import Table
from synther.baselines.tabular import CONFIGS, Config, CtganConfig, Tabular, TvaeConfig, config_of, require, to_json
from synther.data.spaces import Discrete, OneHot
from synther.errors import ConfigError, MissingExtra

from ..support.watch import Stopped, Watch

SMALL = [
    TvaeConfig(layers=1, width=16, batch_size=50, epochs=2),
    CtganConfig(layers=1, width=16, batch_size=50, epochs=2),
]


def two_clusters(rows: int = 200) -> Transitions:
    draw = np.random.default_rng(0)
    side = draw.choice([-1.0, 1.0], rows)
    observation = side[:, None] * 3 + draw.normal(0, 0.3, (rows, 2))
    action = np.where(side > 0, 2, 0)
    return Transitions(
        observation.astype(np.float32),
        action,
        side + draw.normal(0, 0.1, rows),
        (observation + 0.5).astype(np.float32),
        np.arange(rows) % 20 == 0,
        action_space=(Discrete(3),),
        env_id="Clusters-v0",
    )


@pytest.fixture(scope="module")
def table() -> Table:
    return Table.of(two_clusters())


def fitted(config: Config, table: Table, seed: int = 0) -> Tabular:
    return Tabular(config, device="cpu", seed=seed).fit(table, progress=False)


@pytest.fixture(scope="module", params=SMALL, ids=lambda config: config.name)
def model(request, table) -> Tabular:
    return fitted(request.param, table)


def test_rows_are_like_those_it_was_fitted_on(model):
    made, real = model.sample(70, seed=0), two_clusters()
    assert len(made) == 70
    for name, array in made.arrays().items():
        wanted = getattr(real, name)
        assert (array.dtype, array.shape[1:]) == (wanted.dtype, wanted.shape[1:])
    assert set(np.unique(made.action)) <= {0, 2}  # 1 is possible, but never happened
    assert (made.env_id, made.action_space) == (real.env_id, real.action_space)


def test_the_seed_tells_the_rows(model, table):
    assert model.sample(30, seed=1).equals(model.sample(30, seed=1))
    assert not model.sample(30, seed=1).equals(model.sample(30, seed=2))
    assert not model.sample(30).equals(model.sample(30))
    assert fitted(model.config, table).sample(30, seed=1).equals(model.sample(30, seed=1))
    assert not fitted(model.config, table, seed=4).sample(30, seed=1).equals(model.sample(30, seed=1))
    rows_alone = Tabular(model.config, device="cpu").fit(two_clusters(), progress=False)
    assert rows_alone.sample(30, seed=1).equals(model.sample(30, seed=1))


def test_many_rows_come_in_blocks(model, monkeypatch):
    monkeypatch.setattr(tabular, "BLOCK_ROWS", 40)
    made = model.sample(100, seed=0)
    assert len(made) == 100
    assert made[:40].equals(model.sample(40, seed=0))
    assert not made[40:80].equals(made[:40])


def test_the_generators_of_the_caller_are_left_alone(model, table):
    np.random.seed(11)  # noqa: NPY002
    torch.manual_seed(11)
    wanted = np.random.random(), torch.rand(1)  # noqa: NPY002
    np.random.seed(11)  # noqa: NPY002
    torch.manual_seed(11)
    fitted(model.config, table).sample(10)
    assert (np.random.random(), torch.rand(1)) == wanted  # noqa: NPY002


def test_parameters_are_those_that_sample(model, table):
    width, config = table.width, model.config
    hidden = config.embedding * 16 + 16
    expected = hidden + 16 * width + width + width  # two layers, and a deviation for each column
    if config.name == "ctgan":
        conditions = 3 + 2 - 1  # two actions, two kinds of end
        entrance = config.embedding + conditions
        expected = entrance * 16 + 16 + 2 * 16 + (16 + entrance) * width + width
    assert model.parameters == expected


@pytest.mark.parametrize("config", SMALL, ids=lambda config: config.name)
def test_every_epoch_is_reported_and_interrupted_it_leaves_nothing_behind(config, table):
    model, before, watch = Tabular(config, device="cpu"), torch.get_rng_state(), Watch()
    with pytest.raises(Stopped):
        model.fit(table, progress=Watch(1))
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ConfigError, match="fit"):
        model.sample(1)
    model.fit(table, progress=watch)
    assert watch.phases == [[f"fit {config.name}", 2, 0, 2]]


def test_tvae_learns_two_clusters(table):
    model = fitted(TvaeConfig(layers=2, width=64, embedding=8, batch_size=50, epochs=60), table)
    made, real = model.sample(1000, seed=0), two_clusters()
    side = np.sign(made.observation[:, 0])
    assert abs(side.mean()) < 0.3
    assert np.mean(np.sign(made.observation[:, 1]) == side) > 0.95
    assert np.mean((made.action == 2) == (side > 0)) > 0.95
    assert compare(real, made).marginal > 0.85


@pytest.mark.parametrize("config", SMALL, ids=lambda config: config.name)
def test_rows_without_a_real_column_and_of_such_alone(config):
    draw = np.random.default_rng(0)
    state, following = draw.integers(3, size=(2, 100))
    space = (OneHot(4),)
    rows = Transitions(
        np.eye(4)[state], draw.integers(2, size=100), following == 2, np.eye(4)[following], observation_space=space
    )
    made = Tabular(config, device="cpu").fit(rows, progress=False).sample(50, seed=0)
    for observed in (made.observation, made.next_observation):
        np.testing.assert_array_equal(observed.sum(1), 1)
        assert set(np.unique(observed)) == {0.0, 1.0}
        np.testing.assert_array_equal(observed[:, 3], 0)  # never seen
    assert set(np.unique(made.action)) <= {0, 1}
    assert set(np.unique(made.reward)) <= {0.0, 1.0}
    rows = two_clusters(60)
    rows = replace(rows, action=rows.reward[:, None], action_space=None, terminal=np.zeros(60, bool))
    model = Tabular(config, device="cpu").fit(rows, progress=False)
    made = model.sample(50, seed=0)
    assert not made.terminal.any()
    assert np.isfinite(made.reward).all()
    with pytest.raises(ConfigError, match="got 0"):
        model.sample(0)


def test_defaults_are_the_papers():
    assert to_json(TvaeConfig()) == {
        "layers": 2, "width": 128, "batch_size": 500, "embedding": 128, "loss_factor": 2.0, "epochs": 300,
    }  # fmt: skip
    assert to_json(CtganConfig()) == {
        "layers": 2, "width": 256, "batch_size": 500, "embedding": 128, "discriminator_steps": 1, "epochs": 300,
    }  # fmt: skip
    for kind in CONFIGS.values():
        start = kind()
        assert all(getattr(start, option) in values for option, values in kind.space.items())
        assert config_of(kind.name, to_json(start)) == start


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Tabular("gan"), "'gan'"),
        (lambda: config_of("tvae", {"depth": 2}), r"tvae\.depth"),
        (lambda: CtganConfig(batch_size=25), r"ctgan\.batch_size"),
        (lambda: TvaeConfig(layers=0), r"tvae\.layers"),
        (lambda: TvaeConfig(width=1.5), r"tvae\.width"),
        (lambda: TvaeConfig(loss_factor=-1.0), r"tvae\.loss_factor"),
        (lambda: Tabular("tvae").sample(3), "fit"),
        (lambda: Tabular("tvae").parameters, "fit"),
        (lambda: Tabular("tvae", device="tpu"), "device"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(ConfigError, match=text):
        call()


@pytest.mark.parametrize("library", ["ctgan", "optuna"])
def test_what_is_missing_is_named_at_once(library, table, monkeypatch):
    require(search=True)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"{library}.*synther\[tabular\]"):
        require(search=True)
    if library == "ctgan":
        with pytest.raises(MissingExtra, match=r"synther\[tabular\]"):
            fitted(SMALL[0], table)
