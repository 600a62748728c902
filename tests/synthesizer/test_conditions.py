"""Models that are told something about rows, and asked for rows."""

from __future__ import annotations

import numpy as np
import pytest

from synther import SyntherError, Synthesizer, Transitions
from synther.conditions import Conditions, Scale, bottom, parse, top
from synther.errors import ConfigError
from synther.synthesizer.requests import Requests
from synther.synthesizer.row_conditions import compute_conditions

SETTINGS = {"network": {"width": 64, "depth": 2}, "fit": {"steps": 400, "batch_size": 128, "learning_rate": 3e-3}}


def noisy(count: int = 4_000) -> Transitions:
    """The reward is the observation and noise: among the top tenth of rewards, observations are high."""
    random = np.random.default_rng(0)
    observation, noise = random.normal(size=(2, count, 1))
    reward = 0.8 * observation[:, 0] + 0.6 * noise[:, 0]
    action = random.uniform(-1, 1, (count, 1))
    zero = np.zeros(count, bool)
    return Transitions(observation, action, reward, observation + 0.1 * action, zero)


@pytest.fixture(scope="module")
def real() -> Transitions:
    return noisy()


@pytest.fixture(scope="module")
def model(real: Transitions) -> Synthesizer:
    return Synthesizer("laptop", **SETTINGS).fit(real, condition="reward", progress=False)


@pytest.mark.parametrize("asked", [top(0.2), bottom(0.2), "between:0.4:0.6"])
def test_rows_that_are_asked_for_are_like_the_real_ones_of_that_region(model, real, asked):
    wanted = parse(asked) if isinstance(asked, str) else asked
    low, high = np.quantile(real.reward, [wanted.low, wanted.high])
    region = real[(real.reward >= low) & (real.reward <= high)]
    rows = model.sample(4_000, condition=asked, seed=0, progress=False)
    # A short fit of a small network: within a quarter of a deviation of all rows, where the regions differ by more.
    assert rows.reward.mean() == pytest.approx(region.reward.mean(), abs=0.25)
    assert rows.observation.mean() == pytest.approx(region.observation.mean(), abs=0.25)
    assert rows.observation.std() == pytest.approx(region.observation.std(), rel=0.25)


def test_guidance_exaggerates_and_none_ignores(model, real):
    weak, plain, strong = (
        model.sample(4_000, condition=top(0.2), guidance=weight, seed=0, progress=False).reward.mean()
        for weight in (0.0, 1.0, 2.0)
    )
    assert weak == pytest.approx(real.reward.mean(), abs=0.1)
    assert weak + 0.8 < plain < strong - 0.05


def test_without_a_request_rows_are_like_all_of_them(model, real):
    rows = model.sample(8_000, seed=0, progress=False)
    assert rows.reward.mean() == pytest.approx(real.reward.mean(), abs=0.08)
    assert rows.reward.std() == pytest.approx(real.reward.std(), rel=0.1)


def test_guidance_of_nothing_draws_what_is_drawn_without_a_request(model):
    plain = model.sample(300, seed=4, progress=False)
    assert model.sample(300, condition=top(0.2), guidance=0.0, seed=4, progress=False).equals(plain)


def test_without_a_request_conditions_are_those_of_real_rows_together(real):
    """Two that rise together, one of three values only; starts have the highest of the first."""
    value = np.linspace(0, 1, len(real))
    first = np.zeros(len(real), bool)
    first[-50:] = True
    conditions = compute_conditions(real, {"value": value, "level": np.floor(3 * value)}, first).conditions
    assert conditions.starts == 50 / len(real)
    asked = conditions.asking()
    drawn = asked.draw(20_000, np.random.default_rng(0))
    begins, quantile, level = drawn.T
    np.testing.assert_allclose(np.quantile(quantile, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.03)
    assert begins.mean() == pytest.approx(50 / len(real), abs=0.003)
    assert quantile[begins == 1].min() > 0.98
    assert len(np.unique(level)) == 4  # the last value alone has the level 3
    right = np.searchsorted([1 / 3, 2 / 3], quantile)
    assert (right == np.searchsorted(np.unique(level)[1:3], level, "right")).mean() > 0.995
    again = Conditions.from_json(conditions.to_json()).asking()
    np.testing.assert_array_equal(again.draw(100, np.random.default_rng(1)), asked.draw(100, np.random.default_rng(1)))
    named = conditions.asking({"level": top(0.2)}).draw(10, np.random.default_rng(0))
    assert np.isnan(named[:, 1]).all()
    assert not np.isnan(named[:, [0, 2]]).any()


def test_a_model_of_an_earlier_file_is_told_no_condition_unasked(model):
    entry = model.conditions.to_json()
    del entry["examples"]
    drawn = Conditions.from_json(entry).asking().draw(10, np.random.default_rng(0))
    assert drawn.shape == (10, 1)
    assert np.isnan(drawn).all()


@pytest.mark.parametrize("part", ["given", "like", "guide"])
def test_where_part_of_a_row_is_known_its_condition_is_not_made_up(model, real, part):
    known = {"given": {"observation": real.observation[:50]}, "like": real[:50], "guide": lambda rows: rows.reward}
    constraints = Requests(**{part: known[part]}).constraints(model._model)
    assert np.isnan(constraints.conditions.draw(10, np.random.default_rng(0))).all()


def test_values_and_given_rows(model, real):
    rows = model.sample(2_000, condition=1.5, seed=0, progress=False)
    assert rows.reward.mean() == pytest.approx(1.5, abs=0.25)
    some = real[np.argsort(real.reward)[:400]]
    rows = model.sample(2_000, condition=some, seed=0, progress=False)
    assert rows.reward.mean() == pytest.approx(some.reward.mean(), abs=0.25)


def test_rows_like_given_ones_are_the_nearer_the_weaker_the_noise(model, real):
    given = real[:40]
    distances = []
    for strength in (0.1, 0.4, 1.0):
        rows = model.sample(1_000, like=given, strength=strength, seed=0, progress=False)
        gaps = np.abs(rows.observation[:, None, 0] - given.observation[None, :, 0])
        gaps = gaps + np.abs(rows.action[:, None, 0] - given.action[None, :, 0])
        distances.append(np.median(gaps.min(1)))
    assert len(model.sample(like=given, progress=False)) == len(given)
    assert distances[0] < 0.05
    assert distances[0] < distances[1] < distances[2]
    for wrong in ({"strength": 0.0}, {"strength": 1.5}):
        with pytest.raises(ConfigError):
            model.sample(10, like=given, **wrong, progress=False)
    with pytest.raises(SyntherError):
        model.sample(10, like=given[:0], progress=False)
    with pytest.raises(SyntherError, match="like: expected Transitions, got str"):
        model.sample(10, like="reward", progress=False)


def test_a_saved_model_knows_its_conditions_and_draws_the_same_rows(model, tmp_path):
    path = tmp_path / "model.safetensors"
    model.save(path)
    again = Synthesizer.load(path)
    assert again.conditions.names == ("reward",)
    asked = {"condition": {"reward": top(0.1)}, "guidance": 1.5, "seed": 3, "progress": False}
    assert again.sample(300, **asked).equals(model.sample(300, **asked))
    assert again._model.digest() == model._model.digest()


def test_a_file_of_rows_goes_on_only_with_the_same_request(model, tmp_path):
    path = tmp_path / "rows.npz"
    model.sample_to(path, 300, condition=top(0.1), progress=False)
    first = path.read_bytes()
    model.sample_to(path, 300, condition=top(0.1), progress=False)
    assert path.read_bytes() == first
    model.sample_to(path, 300, condition=top(0.5), progress=False)
    assert path.read_bytes() != first


def test_several_conditions_with_weights_of_their_own(real):
    both = {"reward": "reward", "action": lambda rows: rows.action[:, 0]}
    model = Synthesizer("laptop", **SETTINGS).fit(real, condition=both, progress=False)
    asked = {"reward": top(0.2), "action": bottom(0.2)}
    rows = model.sample(2_000, condition=asked, guidance={"reward": 1.5, "action": 1.0}, seed=0, progress=False)
    assert rows.reward.mean() > 1.0
    assert rows.action.mean() < -0.5
    with pytest.raises(ConfigError, match="reward, action"):
        model.sample(10, condition=top(0.1), progress=False)
    with pytest.raises(ConfigError, match="guidance"):
        model.sample(10, condition=asked, guidance={"reward": 2.0}, progress=False)


def test_a_fit_may_start_from_a_model_of_other_conditions(model, real):
    few = {**SETTINGS, "fit": {"steps": 1}}
    asked = {"other": np.arange(len(real)), "reward": "reward"}
    again = Synthesizer("laptop", **few).fit(real, condition=asked, start=model, progress=False)
    assert again.conditions.names == ("other", "reward")
    rows = again.sample(1_000, condition={"reward": top(0.2)}, seed=0, progress=False)
    assert rows.reward.mean() > 1.0


@pytest.fixture(scope="module")
def walks() -> Transitions:
    """Episodes of 200 rows that begin at rest, which no later row is near: 1 row in 200."""
    random, episodes, steps = np.random.default_rng(0), 60, 200
    states = 3 + random.normal(size=(episodes, steps + 1, 2))
    states[:, 0] = 0.05 * random.normal(size=(episodes, 2))
    count = episodes * steps
    return Transitions(
        observation=states[:, :-1].reshape(-1, 2), action=random.uniform(-1, 1, (count, 1)),
        reward=random.normal(size=count), next_observation=states[:, 1:].reshape(-1, 2),
        terminal=np.zeros(count, bool), timeout=np.arange(count) % steps == steps - 1,
    )  # fmt: skip


def test_starts_come_at_their_real_share_and_at_rest(walks):
    network = {"width": 32, "depth": 2, "embedding": 32}
    longer = {"steps": 400, "batch_size": 256, "learning_rate": 4e-3}
    model = Synthesizer("laptop", network=network, fit=longer).fit(walks, progress=False)
    assert model.conditions.names == ("start",)
    rows = model.sample(24_000, seed=0, progress=False)
    rest = np.abs(rows.observation).max(1) < 0.6
    # 120 are expected, and chance adds or takes 11.
    assert 78 < np.count_nonzero(rest) < 162
    assert rows.observation[rest].std() < 0.2
    assert np.isfinite(model.log_likelihood(walks[:300], steps=8)).all()
    starts = model.sample(1_000, condition="start", seed=0, progress=False)
    assert (np.abs(starts.observation).max(1) < 0.6).mean() > 0.9
    none = model.sample(3_000, condition={"start": False}, seed=0, progress=False)
    assert (np.abs(none.observation).max(1) < 0.6).mean() < 0.002
    with pytest.raises(ConfigError, match="start"):
        model.sample(10, condition={"start": 2}, progress=False)


@pytest.mark.parametrize("change", ["off", "shuffled", "frequent"])
def test_where_starts_are_not_rare_or_not_known_nothing_is_told(walks, change):
    rows = {
        "off": walks,
        "shuffled": walks[np.random.default_rng(0).permutation(len(walks))],
        "frequent": walks[np.arange(len(walks)) % 200 < 19],
    }[change]
    few = {
        "network": {"width": 8, "depth": 1},
        "fit": {"steps": 1},
        "data": {"starts": change != "off"},
    }
    assert Synthesizer("laptop", **few).fit(rows, progress=False).conditions.count == 0


@pytest.mark.parametrize(
    ("values", "quantiles"),
    [
        (np.arange(10_000.0), {0.0: 0.0, 2_500.0: 0.25, 9_999.0: 1.0, -5.0: 0.0}),
        (np.repeat([0.0, 1.0], [7_500, 2_500]), {0.0: 0.375, 1.0: 0.875}),
    ],
    ids=["continuous", "two values"],
)
def test_quantiles_are_shares_of_lower_values(values, quantiles):
    scale = Scale.fit("x", values)
    for value, quantile in quantiles.items():
        assert scale.quantiles(np.array([value]))[0] == pytest.approx(quantile, abs=2e-3)
    # Values that are asked for by quantile are those that rows have.
    asked = top(0.1).quantiles(1_000, np.random.default_rng(0), scale)
    assert asked.min() >= (0.898 if len(np.unique(values)) > 2 else 0.87)


def test_quantiles_mean_the_same_after_another_fit():
    """Rewards that double between two fits keep their quantiles."""
    values = np.random.default_rng(0).normal(size=5_000)
    before, after = Scale.fit("x", values), Scale.fit("x", 2 * values)
    np.testing.assert_allclose(before.quantiles(values), after.quantiles(2 * values), atol=1e-9)


@pytest.mark.parametrize(
    "condition",
    ["curiositty", np.zeros(3), np.full(4_000, np.nan), {"start": "reward"}, lambda rows: "x", np.zeros((1, 1, 1))],
)
def test_bad_conditions_are_refused(real, condition):
    with pytest.raises(SyntherError, match="condition"):
        Synthesizer("laptop", **SETTINGS).fit(real, condition=condition, progress=False)


@pytest.mark.parametrize(
    "asked", [{"condition": {"return": top(0.1)}}, {"condition": "best"}, {"condition": np.nan}, {"guidance": 2.0},
              {"condition": top(0.5), "guidance": -1.0}, {"condition": top(0.5), "guidance": "2"}, {"condition": {}}],
)  # fmt: skip
def test_bad_requests_are_refused(model, asked):
    with pytest.raises(ConfigError):
        model.sample(10, **asked, progress=False)


@pytest.mark.parametrize(("asked", "warned"), [(1e9, 1), ([0.0, -1e9], 1), (0.0, 0), (top(0.1), 0)])
def test_values_that_no_real_row_has_are_warned_of(model, asked, warned, caplog):
    model.sample(10, condition={"reward": asked}, progress=False)
    assert caplog.text.count("but the real rows have values from") == warned


def test_starts_are_asked_of_models_that_know_them(model):
    with pytest.raises(ConfigError, match="start"):
        model.sample(10, condition="start", progress=False)


def test_what_a_model_was_not_fitted_with_is_refused(real):
    few = {"network": {"width": 8, "depth": 1}, "fit": {"steps": 1}}
    plain = Synthesizer("laptop", **few).fit(real, progress=False)
    assert plain.conditions.count == 0
    assert plain.network.level_in.in_features == 17  # none are for conditions
    with pytest.raises(ConfigError, match="without conditions"):
        plain.sample(10, condition=top(0.1), progress=False)


@pytest.mark.parametrize("share", [0, -0.1, 1.1])
def test_shares_lie_between_0_and_1(share):
    for make in (top, bottom):
        with pytest.raises(ConfigError):
            make(share)
