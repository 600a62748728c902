"""Where rows come from, and what an arm makes of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from unittest.mock import Mock

import numpy as np
import pytest

from synther import Synthesizer
from synther.compare.generators import Plan
from synther.conditions import Relevant
from synther.data.episodes import n_step_rows
from synther.data.spaces import Box, Discrete
from synther.datasets import Dataset
from synther.errors import ConfigError, DataError
from synther.experiments.sources import Augmented, Generated, Given, Rewarded, Sampled, TrainingData
from synther.presets import preset
from synther.progress import Silent

from . import trainings
from .pendulum import linked, swings

TINY = preset("laptop", **trainings.TINY, data={"threshold": "half"})


@pytest.mark.parametrize(
    ("synthetic", "ratio", "tables", "counts"),
    [(False, None, [0], [8]), (True, None, [1], [8]), (True, 0.5, [1, 0], [4, 4]), (True, 0.25, [1, 0], [2, 6]),
     (True, 1.0, [1], [8]), (True, 0.0, [0], [8])],
)  # fmt: skip
def test_what_a_batch_is_drawn_from(synthetic, ratio, tables, counts):
    (arm,) = TrainingData.mixed(swings(), Given(swings(seed=1)) if synthetic else None, ratio).agent_arms()
    assert (list(arm.tables), arm.counts(8), arm.real) == (tables, counts, 0)


def test_n_step_rows_are_what_sources_are_made_from(tmp_path):
    real = linked()
    made = n_step_rows(real, 3, 0.9, whole=True)
    plan = Plan(TINY, 10, device="cpu")
    dataset = Dataset("mine", real, None, None, {}, rewards={"iql": lambda rows: (2.0, -1.0)})
    others = {
        "augmented": Augmented("additive", real, 5),
        "generated": Rewarded(Generated("diffusion", real, plan, tmp_path), dataset, "iql"),
    }
    material = TrainingData(dataset.rows_for("iql"), others).over_steps(3, 0.9)
    changed = n_step_rows(dataset.rows_for("iql"), 3, 0.9, whole=True)
    assert material.real.equals(changed)
    assert all(source.real is material.real for source in material.others.values())
    assert not material.real.equals(replace(made, reward=2 * made.reward - 1))  # every step has the change
    assert TrainingData(real).over_steps(1, 0.9).real is real
    for source in (Given(real), Rewarded(Given(real), dataset, "iql")):
        with pytest.raises(ConfigError, match="n_step"):
            TrainingData(real, {"synthetic": source}).over_steps(3, 0.9)
    with pytest.raises(DataError, match="n_step"):
        TrainingData(swings()).over_steps(3, 0.9)


def test_rows_of_another_body_are_told(tmp_path, caplog):
    real, other = swings(), replace(swings(seed=1), env_id="mine:Acrobot-v1")
    TrainingData.mixed(real, Given(replace(other, env_id="Pendulum-v0")))
    TrainingData.mixed(real, Given(replace(other, env_id=None)))
    assert not caplog.records
    TrainingData.mixed(real, Given(other))
    Synthesizer(TINY).fit(other, progress=False).save(tmp_path / "model.safetensors")
    TrainingData.mixed(real, Sampled(tmp_path / "model.safetensors", 5, device="cpu"))
    warned = [record.message for record in caplog.records if "is that intended" in record.message]
    assert len(warned) == 2
    assert all("mine:Acrobot-v1" in message and "Pendulum-v1" in message for message in warned)


def test_a_model_of_other_columns_is_named(tmp_path):
    real = swings()
    Synthesizer(TINY).fit(real, progress=False).save(tmp_path / "model.safetensors")
    seen = replace(real, observation=real.observation[:, :2], next_observation=real.next_observation[:, :2])
    with pytest.raises(
        DataError, match="was not fitted on rows like the real ones: observation has 2 columns: expected 3"
    ):
        TrainingData.mixed(seen, Sampled(tmp_path / "model.safetensors", 5, device="cpu"))


def test_material_that_cannot_be():
    real = swings()
    for wrong in (
        replace(real, action=np.zeros(60, np.int64), action_space=None),
        replace(real, action=np.zeros((60, 1)), action_space=(Discrete(2),)),
    ):
        with pytest.raises(DataError, match="the actions of this data are discrete: train with d3rlpy"):
            TrainingData(wrong)
    with pytest.raises(DataError, match="expected Transitions, got str"):
        TrainingData("swings.npz")
    with pytest.raises(ConfigError, match="ratio"):
        TrainingData.mixed(real, None, 0.5)
    for ratio in (-0.1, 1.5, float("nan")):
        with pytest.raises(ConfigError, match=r"\[0, 1\]"):
            TrainingData.mixed(real, Given(real), ratio)
    wide = replace(real, action=np.zeros((60, 2)), action_space=(Box.uniform(-2, 2, 2),))
    with pytest.raises(DataError, match="actions of shape"):
        TrainingData.mixed(real, Given(wide))
    with pytest.raises(ConfigError, match="unknown sources: noise"):
        TrainingData(real, arms={"a": {"noise": 1.0}})
    with pytest.raises(ConfigError, match="unknown augmentation 'salt'"):
        Augmented("salt", real, 5)
    with pytest.raises(ConfigError, match="samples"):
        TrainingData.mixed(real, Augmented("additive", real, 0))


def generated(store, name="diffusion", real=None, **options) -> Generated:
    plan = Plan(**{"settings": TINY, "samples": 50, "trials": 0, "epochs": 1, "device": "cpu", **options})
    return Generated(name, swings() if real is None else real, plan, store)


def rows_of(source: Generated):
    return source.rows(source.store / "not used", Silent())


def test_a_generator_is_fitted_once_for_all_who_ask(tmp_path, monkeypatch):
    first = rows_of(generated(tmp_path))
    model = Synthesizer(TINY, device="cpu").fit(swings(), progress=False)
    assert first.equals(model.sample(50, seed=0, progress=False))
    monkeypatch.setattr(Synthesizer, "fit", pytest.fail)
    assert rows_of(generated(tmp_path)).equals(first)
    assert rows_of(generated(tmp_path, samples=20)).equals(first[:20])
    (folder,) = tmp_path.iterdir()
    assert sorted(file.name for file in folder.iterdir()) == ["model.safetensors", "run.json"]
    monkeypatch.undo()
    for other in ({"real": swings(seed=1)}, {"seed": 1}, {"settings": TINY.changed(fit={"steps": 10})}):
        assert not rows_of(generated(tmp_path, **other)).equals(first)
    assert len(list(tmp_path.iterdir())) == 4


def test_one_model_serves_whoever_asks_by_the_same_number(tmp_path, monkeypatch):
    plain = rows_of(generated(tmp_path))
    best = rows_of(generated(tmp_path, relevant=Relevant("reward", 0.25)))
    monkeypatch.setattr(Synthesizer, "fit", pytest.fail)
    everyone = rows_of(generated(tmp_path, relevant=Relevant("reward", 0.5, guidance=0.0)))
    assert not best.equals(plain)
    assert not best.equals(everyone)
    assert len(list(tmp_path.iterdir())) == 2
    told = [generated(tmp_path, relevant=Relevant("reward", share)).description() for share in (0.25, 0.5)]
    assert told[0] != told[1]


def test_a_fit_that_was_killed_goes_on(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Synthesizer, "save", lambda own, path: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rows_of(generated(tmp_path))
    (folder,) = tmp_path.iterdir()
    assert (folder / "model.safetensors.checkpoint").exists()
    assert rows_of(generated(tmp_path)).equals(rows_of(generated(tmp_path / "whole")))
    assert not (folder / "model.safetensors.checkpoint").exists()


def test_what_cannot_be_saved_keeps_its_rows(tmp_path, monkeypatch):
    made = swings(50, seed=3)
    ensemble = Mock(parameters=0, **{"sample.return_value": made})
    monkeypatch.setattr("synther.compare.generators.MBPO", lambda **options: ensemble)
    for _ in range(2):
        assert rows_of(generated(tmp_path, "mbpo")).equals(made)
    ensemble.fit.assert_called_once()
    assert [len(list(folder.glob("synthetic.npz"))) for folder in tmp_path.iterdir()] == [1]


def test_generators_that_cannot_be(tmp_path):
    with pytest.raises(ConfigError, match="unknown generator 'vae'"):
        generated(tmp_path, "vae")
    with pytest.raises(DataError, match="a generator cannot be fitted on 1 row"):
        TrainingData.mixed(swings(), generated(tmp_path, real=swings(1)))
    described = generated(tmp_path).description()
    assert (described["generator"], described["samples"], described["seed"]) == ("diffusion", 50, 0)
    assert list(tmp_path.iterdir()) == []


def test_rows_of_another_model_number_or_seed_are_others(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(name)
    ways = [("a", 5, 0), ("b", 5, 0), ("a", 6, 0), ("a", 5, 1)]
    told = [Sampled(tmp_path / name, samples, seed).description() for name, samples, seed in ways]
    assert all(one != other for one, other in combinations(told, 2))
    noise = [Augmented(*way).description() for way in (("additive", None, 5, 0), ("additive", None, 5, 1))]
    assert noise[0] != noise[1]


def test_rewards_change_as_the_data_set_says(tmp_path):
    real, given = swings(), swings(seed=1)
    dataset = Dataset("mine", real, None, {}, {}, rewards={"iql": lambda rows: (2.0, -float(len(rows)))})
    source = Rewarded(Given(given), dataset, "iql")
    assert source.description() == {**Given(given).description(), "rewards": [2.0, -60.0]}
    found = source.rows(tmp_path / "unused.npz", Silent())
    np.testing.assert_allclose(found.reward, 2 * given.reward - 60, rtol=1e-6)
    np.testing.assert_array_equal(found.observation, given.observation)
    with pytest.raises(DataError, match="observations of shape"):
        source.check(replace(real, observation=real.observation[:, :2], next_observation=real.next_observation[:, :2]))
