"""Extra columns are learned, generated, saved and compared like the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synther import Synthesizer, Transitions, read
from synther.assess.fidelity import column_names, compare
from synther.assess.judge import assess
from synther.assess.picture import draw
from synther.baselines.augmentation import Augmentation
from synther.baselines.mbpo import MBPO
from synther.data.episodes import n_step_rows, with_next_actions
from synther.errors import DataError

from ..support.short import short_ensembles, short_learners
from .rows import ACTIONS, QUICK


def walk(count: int = 400) -> Transitions:
    """Episodes of 25 steps that end at a time limit or in a terminal, as n-step rows with next actions."""
    random = np.random.default_rng(0)
    states = random.normal(size=(count + 1, 2)).cumsum(0)
    last = np.arange(count) % 25 == 24
    rows = Transitions(
        observation=states[:-1],
        action=random.uniform((-1, 0), (1, 0.1), (count, 2)).astype(np.float32),
        reward=random.normal(size=count).astype(np.float32),
        next_observation=states[1:],
        terminal=last & (np.arange(count) // 25 % 2 == 0),
        timeout=last & (np.arange(count) // 25 % 2 == 1),
        action_space=ACTIONS,
    )
    return n_step_rows(with_next_actions(rows), 3)


@pytest.fixture(scope="module")
def real() -> Transitions:
    return walk()


@pytest.fixture(scope="module")
def model(real) -> Synthesizer:
    return Synthesizer("laptop", **QUICK).fit(real, progress=False)


def test_every_generated_row_has_them(real, model, tmp_path):
    rows = model.sample(300, seed=0, progress=False)
    assert {name: (array.shape[1:], array.dtype) for name, array in rows.extra.items()} == {
        name: (array.shape[1:], array.dtype) for name, array in real.extra.items()
    }
    assert set(rows.extra["discount"].tolist()) <= set(real.extra["discount"].tolist())
    assert (np.abs(rows.extra["next_action"] - [0, 0.05]) <= [1, 0.0501]).all()
    assert np.unique(rows.extra["next_action"][:, 0]).size > 100
    assert next(model.sample_blocks(300, seed=0, progress=False))[:300].equals(rows)
    model.sample_to(tmp_path / "rows.hdf5", 300, seed=0, progress=False)
    assert read(tmp_path / "rows.hdf5").equals(rows)
    model.save(tmp_path / "model.safetensors")
    assert Synthesizer.load(tmp_path / "model.safetensors").sample(300, seed=0, progress=False).equals(rows)
    assert model.sample(20, like=real, seed=0, progress=False).extra.keys() == real.extra.keys()
    assert np.isfinite(model.log_likelihood(real[:20], steps=4)).all()


def test_a_table_of_rows_has_them():
    random = np.random.default_rng(0)
    here, there, action = random.integers(3, size=(3, 600))
    extra = {"next_action": (action + 1) % 3, "discount": np.where(here == 0, 0.9, 0.99)}
    rows = Transitions(here, action, np.zeros(600), there, action_space=None, extra=extra)
    drawn = (
        Synthesizer("laptop", **QUICK, data={"finite": "counted"}).fit(rows, progress=False).sample(50, progress=False)
    )
    assert np.array_equal(drawn.extra["next_action"], (drawn.action + 1) % 3)
    assert np.array_equal(drawn.extra["discount"], np.where(drawn.observation[:, 0] == 0, 0.9, 0.99))


def test_an_ensemble_leaves_them_alone(real, monkeypatch, tmp_path):
    short_ensembles(monkeypatch)
    model = Synthesizer("laptop", **QUICK).fit(real, ensemble=True, progress=False)
    model.save(tmp_path / "model.safetensors")
    rows = Synthesizer.load(tmp_path / "model.safetensors").sample(
        50, keep=0.8, relabel="ensemble", seed=0, progress=False
    )
    assert rows.extra.keys() == real.extra.keys()
    with pytest.raises(DataError, match="without_extra"):
        MBPO().fit(real, progress=False)
    augmented = Augmentation("additive").fit(real).sample(30, seed=0)
    assert augmented.extra["next_action"].shape == (30, 2)


def test_they_are_compared(real, model, monkeypatch, tmp_path):
    short_learners(monkeypatch)
    fake = model.sample(300, seed=0, progress=False)
    wrong = replace(fake, extra={**fake.extra, "discount": np.zeros(300, np.float32)})
    assert column_names(real)[-3:] == ["extra/next_action[0]", "extra/next_action[1]", "extra/discount"]
    found = compare(real, wrong)
    assert (found.worst_column, found.worst_value) == ("extra/discount", 0)
    draw(real, fake, tmp_path / "picture.png")
    assessed, without = assess(real, wrong), assess(real.without_extra(), fake.without_extra())
    assert assessed.columns[-1].name == "extra/discount"
    assert (assessed.columns[-1].similarity, assessed.columns[-1].outside) == (0, 1)
    assert len(assessed.correlations.real) == len(without.correlations.real) + 3
    figures = [{m.name: m.value for m in each.measures} for each in (assessed, without)]
    for name in ("novelty", "memorisation", "terminal_rate", "actions_outside", "dynamics_error"):
        assert figures[0][name] == figures[1][name], name
    with pytest.raises(DataError, match="--n-step"):
        compare(real, fake.without_extra())
