"""What an agent sees of a `SyntheticReplay`: rows in, batches out, refreshes in between."""

from __future__ import annotations

import logging
import pickle
from multiprocessing.reduction import ForkingPickler

import gymnasium
import numpy as np
import pytest
import torch

from synther import Transitions
from synther.data.spaces import Box, Discrete
from synther.errors import ConfigError, DataError
from synther.guides import Guide, policy_guide
from synther.replay import refit
from synther.replay.refit import usual_samples
from synther.replay.synthetic import SyntheticReplay

from ..support.watch import Watch
from .rows import TINY, numbered, some, tiny


def test_one_by_one_or_together():
    singly, together = tiny(), tiny()
    rows = numbered(0, 20)
    together.add(**rows)
    for row in range(20):
        singly.add(**{name: array[row] for name, array in rows.items()})
    assert singly.transitions().equals(together.transitions())
    assert len(singly) == singly.added == 20
    for one, other in zip(singly.sample(50), together.sample(50), strict=True):
        assert torch.equal(one, other)


def test_plain_python_values_and_tensors_are_rows_too():
    replay = tiny()
    replay.add([0.0, 1.0], [0.5], 2.0, [1.0, 1.0], False)
    replay.add(torch.zeros(2), torch.ones(1), torch.tensor(1.0), torch.ones(2), torch.tensor(True), timeout=True)
    rows = replay.transitions()
    assert rows.reward.tolist() == [2.0, 1.0]
    assert rows.terminal.tolist() == [False, True]
    assert rows.timeout is None  # of the first row nobody knows


def test_rows_of_which_none_follows_another_have_no_timeouts():
    replay = tiny()
    first, second = numbered(0, 10), numbered(50, 10)
    for step in range(10):  # two environments take turns
        pair = {name: np.stack([first[name][step], second[name][step]]) for name in first}
        replay.add(**pair, timeout=np.zeros(2, bool))
    assert replay.transitions().timeout is None
    assert sorted(replay.transitions().reward) == [*first["reward"], *second["reward"]]


def test_after_wrap_around_the_newest_rows_are_there():
    replay, cut = tiny(capacity=30, ratio=0), np.arange(200) % 9 == 0
    for first in range(0, 200, 20):
        replay.add(**numbered(first, 20), timeout=cut[first : first + 20])
    kept = [number + 0.25 for number in range(170, 200)]
    assert replay.transitions().reward.tolist() == kept
    assert np.array_equal(replay.transitions().timeout, cut[-30:])
    batch = replay.sample(30)
    assert set(batch.reward.tolist()) <= set(kept)
    assert (len(replay), replay.added) == (30, 200)
    assert replay.history == [], "with ratio 0 nothing is fitted"
    assert not batch.synthetic.any()


def test_sent_to_another_process_both_go_on():
    """As multiprocessing sends it, which shares the memory of tensors."""
    replay = tiny()
    replay.add(**numbered(0, 10))
    sent = pickle.loads(ForkingPickler.dumps(replay))
    sent.add(**numbered(50, 1))
    replay.add(**numbered(10, 1))
    assert replay.transitions().reward.tolist() == [number + 0.25 for number in range(11)]
    assert sent.transitions().reward.tolist() == [*(number + 0.25 for number in range(10)), 50.25]
    assert (sent.sample(8).reward == 50.25).tolist() == (replay.sample(8).reward == 10.25).tolist()


def test_batches_are_real_first_and_mixed_later(tmp_path):
    watch, space = Watch(), (Box.uniform(-1, 1, 2),)
    replay, other = tiny(progress=watch, action_space=space), tiny(action_space=space)
    replay.add(**numbered(0, 99))
    assert not replay.sample(64).synthetic.any()
    assert repr(replay) == "SyntheticReplay(99 of 1,000 real rows, 0 synthetic, ratio 0.5, on cpu)"
    with torch.autocast("cpu", torch.bfloat16):  # of the agent, which must not reach the fit
        replay.add(**numbered(99, 1))
    assert watch.names == ["fit", "match", "sample"]
    assert repr(replay) == "SyntheticReplay(100 of 1,000 real rows, 300 synthetic, ratio 0.5, on cpu)"
    other.add(**numbered(0, 100))
    assert torch.equal(replay.synthetic.by_age(), other.synthetic.by_age())
    assert other.synthetic.by_age()[:, 3:5].abs().max() <= 1
    for _ in range(3):
        batch = replay.sample(64)
        assert int(batch.synthetic.sum()) == 32
        recorded = (batch.reward - 0.25).frac() == 0  # which no generated reward is
        assert torch.equal(recorded, ~batch.synthetic)
    replay.sample(np.int64(64))
    replay.save(tmp_path / "replay")


def test_the_ratio_can_be_changed(tmp_path):
    replay = tiny(ratio=0)
    replay.add(**numbered(0, 100))
    assert replay.ratio == 0
    assert not replay.history
    replay.ratio = 0.75
    replay.add(**numbered(100, 100))
    replay.save(tmp_path / "replay")
    for each in (replay, SyntheticReplay.load(tmp_path / "replay", progress=False)):
        assert each.ratio == 0.75
        assert int(each.sample(100).synthetic.sum()) == 75
    for wrong in (7, "half", None):
        with pytest.raises(ConfigError, match=r"ratio, the synthetic fraction of a batch, must lie in \[0, 1\], got"):
            replay.ratio = wrong
    assert replay.ratio == 0.75


def test_discrete_actions():
    replay = tiny(ratio=0.1, action_space=(Discrete(4),))
    replay.add(**numbered(0, 100, discrete=True))
    sizes = [int(replay.sample(size(64)).synthetic.sum()) for size in (np.int64, np.int32, np.uint8, int)]
    assert sum(sizes) == round(0.1 * 4 * 64)
    batch = replay.sample(100)
    assert batch.action.dtype == torch.int64
    assert batch.action.shape == (100,)
    assert set(batch.action[batch.synthetic].tolist()) <= {0, 1, 2, 3}


def test_the_schedule():
    replay = tiny(preset=TINY.changed(fit={"steps": 1}))
    for first, count in ((0, 60), (60, 39), (99, 1), (100, 50), (150, 250), (400, 99), (499, 1)):
        replay.add(**numbered(first, count))
    # Whoever adds 250 rows at once is not made to wait for more than one fit on all of them.
    assert [refresh.added for refresh in replay.history] == [100, 400, 500]
    assert [refresh.number for refresh in replay.history] == [0, 1, 2]
    assert all(refresh.kept and refresh.rows == refresh.added for refresh in replay.history)
    assert all(refresh.fit_seconds > 0 and refresh.sample_seconds > 0 for refresh in replay.history)


def late(rows: Transitions) -> np.ndarray:
    """A relevance function of the user's own: how late a row came."""
    return rows.reward.astype(float)


LEARNING = TINY.changed(
    network={"width": 32, "depth": 2, "embedding": 32},
    fit={"steps": 250, "evaluate_every": 250, "batch_size": 128, "learning_rate": 6e-3},
    sampler={"steps": 8},
)


@pytest.mark.parametrize(("relevance", "background"), [("reward", True), (late, False)], ids=["by name", "one's own"])
def test_synthetic_rows_are_like_the_relevant_ones(relevance, background, tmp_path):
    options = {"preset": LEARNING, "refresh_every": 400, "background": background}
    replay = tiny(**options, relevance=relevance, relevant=0.2, guidance=1.5)
    replay.add(**numbered(0, 400))
    replay.wait()
    assert replay.history[0].kept, replay.history[0].reason
    synthetic = replay.store.columns.transitions(replay.synthetic.by_age().numpy())
    assert synthetic.reward.mean() > 300  # of all rows, 200
    replay.save(tmp_path / "replay")
    if callable(relevance):
        with pytest.raises(ConfigError, match="relevance"):
            SyntheticReplay.load(tmp_path / "replay")
    again = SyntheticReplay.load(tmp_path / "replay", relevance=relevance if callable(relevance) else None)
    assert (again.relevant, again.relevance) == (replay.relevant, relevance)


def test_a_guide_moves_the_rows_of_every_refresh_and_between_them(tmp_path):
    def towards(action: float) -> Guide:
        return policy_guide(lambda seen: torch.full_like(seen[:, :2], action))

    def actions(replay: SyntheticReplay) -> np.ndarray:
        return replay.store.columns.transitions(replay.synthetic.by_age().cpu().numpy()).action

    replay = tiny(refresh_every=64, guide=towards(0.3))
    replay.add(**numbered(0, 64))
    assert np.abs(actions(replay) - 0.3).max() < 0.05
    replay.redraw(guide=towards(-0.3))
    assert np.abs(actions(replay) + 0.3).max() < 0.05
    assert len(replay.history) == 1
    replay.save(tmp_path / "replay")
    again = SyntheticReplay.load(tmp_path / "replay", guide=replay.guide)
    for one in (replay, again):
        one.redraw()
    assert np.array_equal(actions(replay), actions(again))
    assert np.abs(actions(again) - 0.3).max() < 0.05


def test_guides_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="background"):
        tiny(guide=lambda seen, acted: acted, background=True)
    with pytest.raises(ConfigError, match="refresh"):
        tiny().redraw()


@pytest.mark.parametrize("wrong", [{"relevance": "joy"}, {"relevance": "reward", "relevant": 0},
                                   {"relevance": "reward", "guidance": -1.0}])  # fmt: skip
def test_relevance_that_means_nothing_is_refused(wrong):
    with pytest.raises(ConfigError):
        tiny(**wrong)


@pytest.mark.parametrize(("replace", "drawn"), [(1.0, 300), (0.2, 60)])
def test_a_refresh_replaces_all_or_the_oldest(replace, drawn):
    replay = tiny(replace=replace)
    replay.add(**numbered(0, 100))
    before = replay.synthetic.by_age()
    replay.add(**numbered(100, 100))
    after = replay.synthetic.by_age()
    assert [refresh.samples for refresh in replay.history] == [300, drawn]
    assert len(before) == len(after) == 300
    assert torch.equal(after[: 300 - drawn], before[drawn:])
    model = replay.model
    fresh = model.sample(drawn, seed=model.seed, progress=False)
    assert np.array_equal(after[300 - drawn :].numpy(), replay.store.columns.pack(fresh))


def test_the_seed_decides_about_everything():
    def batches(seed: int) -> torch.Tensor:
        replay = tiny(seed=seed)
        for first in (0, 100, 200):
            replay.add(**numbered(first, 100))
        return torch.cat([replay.sample(64).reward for _ in range(3)])

    assert torch.equal(batches(1), batches(1))
    assert not torch.equal(batches(1), batches(2))


def test_a_refit_that_diverges_keeps_the_old_rows_and_says_so(caplog):
    replay = tiny()
    replay.add(**numbered(0, 100))
    before, model = replay.synthetic.by_age(), replay.model
    good, replay.settings = replay.settings, TINY.changed(fit={"learning_rate": 1e30})
    with caplog.at_level(logging.WARNING):
        replay.add(**numbered(100, 100))
    assert "after 200 rows failed" in caplog.text
    assert [refresh.kept for refresh in replay.history] == [True, False]
    assert "fit.learning_rate" in replay.history[-1].reason
    assert torch.equal(replay.synthetic.by_age(), before)
    assert replay.model is model
    assert int(replay.sample(64).synthetic.sum()) == 32
    replay.settings = good
    replay.add(**numbered(200, 100))
    assert replay.history[-1].kept


def test_a_fit_that_does_not_succeed_leaves_batches_real(caplog, monkeypatch):
    def full(*given, **options):
        raise ConfigError("the memory of GPU does not suffice")

    equal, replay = tiny(), tiny()
    equal.add(**{name: np.repeat(array[:1], 100, 0) for name, array in numbered(0, 1).items()})
    assert "all 100 rows are equal" in caplog.text
    assert not equal.sample(10).synthetic.any()
    monkeypatch.setattr(refit, "fit_models", full)
    replay.add(**numbered(0, 100))
    assert "the memory of GPU does not suffice" in caplog.text
    assert replay.history[0].reason == "the memory of GPU does not suffice"


@pytest.mark.parametrize("refit", ["warm", "scratch"])
def test_patience_waits_until_there_are_rows_to_measure_on(refit):
    replay = tiny(refresh_every=2, refit=refit, preset=TINY.changed(fit={"patience": 3}))
    replay.add(**numbered(0, 2))
    assert replay.history[0].kept
    assert replay.history[0].held_out is None
    assert replay.settings.fit.patience == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"observation": np.array([0.0, np.nan, 0.0])}, r"observation\[0, 1\] is nan"),
        ({"reward": np.inf}, r"reward\[0\] is inf"),
        ({"action": np.zeros(3)}, "the space has 2 columns, the array 3"),
        ({"observation": np.zeros(4), "next_observation": np.zeros(4)}, "observation has 4 columns"),
        ({"terminal": 0.5}, r"terminal\[0\] is 0.5: expected 0 or 1"),
        ({"observation": np.zeros((2, 3))}, "expected"),
        ({"observation": (np.zeros(3), {})}, "observation is a tuple of unequal parts"),
        ({"action": np.array([0.0, 1.5])}, r"action\[0, 1\] is 1.5, outside the space"),
    ],
)
def test_bad_rows_are_refused_and_not_kept(fields, message):
    replay = tiny(action_space=(Box.uniform(-1, 1, 2),))
    replay.add(**numbered(0, 10))
    row = {name: array[0] for name, array in numbered(10, 1).items()}
    with pytest.raises(DataError, match=message):
        replay.add(**{**row, **fields})
    assert replay.transitions().equals(some(10).with_spaces((Box.uniform(-1, 1, 2),)))


def test_a_bad_row_among_good_ones_keeps_all_of_them_out():
    replay, rows = tiny(), numbered(0, 10)
    rows["reward"][7] = np.nan
    with pytest.raises(DataError, match=r"reward\[7\] is nan"):
        replay.add(**rows)
    assert len(replay) == 0
    rows = numbered(0, 10, discrete=True)  # what was refused does not say what later rows must look like
    replay.add(**{**rows, "reward": np.ma.masked_array(rows["reward"], [False] * 10)})
    with pytest.raises(DataError, match="masked"):
        replay.add(**{**rows, "reward": np.ma.masked_array(rows["reward"], [False] * 9 + [True])})
    assert len(replay) == 10


@pytest.mark.parametrize("batch", [0, -1, 2.5, True])
def test_batches_that_cannot_be(batch):
    replay = tiny(capacity=30)
    replay.add(**numbered(0, 10))
    with pytest.raises(ConfigError, match="batch"):
        replay.sample(batch)
    assert len(replay.sample(31).reward) == 31  # more than there are rows, or room for them
    for call in (lambda: tiny().sample(1), lambda: tiny().transitions(), lambda: tiny().refresh()):
        with pytest.raises(DataError, match="empty"):
            call()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("capacity", 0), ("refresh_every", 0), ("samples", 0), ("ratio", 2), ("ratio", "half"), ("replace", 0)),
        *(("refit", "cold"), ("preset", "none"), ("device", "tpu"), ("seed", -1), ("seed", 1.5)),
    ],
)
def test_options_outside_their_range(name, value):
    with pytest.raises(ConfigError, match=name):
        SyntheticReplay(**{"capacity": 10, "device": "cpu", name: value})
    with pytest.raises(DataError, match="tuple of parts"):
        SyntheticReplay(10, device="cpu", action_space=gymnasium.spaces.Box(-1, 1, (2,)))


def test_whole_floats_are_whole_numbers():
    assert SyntheticReplay(1e3, refresh_every=2e2, device="cpu").capacity == 1_000


def test_without_a_number_as_many_rows_as_the_device_draws_in_seconds():
    assert SyntheticReplay(10, device="cpu").samples == usual_samples(torch.device("cpu")) == 100_000
    assert usual_samples(torch.device("cuda", 1)) == 1_000_000


def vector_rows(mode: str, steps: int = 30) -> list[tuple[np.ndarray, ...]]:
    """What three counters give to a naive loop. Each counts to its own limit, with reward 1, and begins again at 0."""
    here, limit, over = np.zeros(3), np.array([3, 4, 50]), np.zeros(3, bool)
    rows = []
    for _ in range(steps):
        reset = over & (mode == "next step")
        then = np.where(reset, 0, here + 1)
        reward, over = np.where(reset, 0.0, 1.0), then >= limit
        following = np.where(over & (mode == "same step"), 0, then)
        rows.append((here[:, None].copy(), np.zeros((3, 1)), reward, following[:, None], over, np.zeros(3, bool)))
        here = following
    return rows


@pytest.mark.parametrize("cut", [False, True], ids=["terminated", "truncated"])
def test_rows_in_which_a_vector_environment_resets_itself_are_left_out(cut):
    replay = tiny(ratio=0)
    for *row, over, no in vector_rows("next step"):
        replay.add(*row, no if cut else over, over if cut else no)
    rows = replay.transitions()
    assert (rows.reward == 1).all()
    assert (rows.next_observation == rows.observation + 1).all()
    assert len(rows) == 90 - 7 - 6  # an episode and its reset take 4 and 5 steps


def test_first_rows_of_episodes_are_kept_where_environments_reset_in_the_same_step():
    replay = tiny(ratio=0)
    for row in vector_rows("same step"):
        replay.add(*row)
    assert len(replay) == 90


def test_without_a_leading_axis_no_row_is_left_out():
    replay = tiny(ratio=0)
    for terminal in (True, False):
        replay.add(np.zeros(2), np.zeros(1), 0.0, np.zeros(2), terminal, False)
    assert len(replay) == 2
