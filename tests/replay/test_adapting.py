"""Refreshes that come when rows change, and a ratio that follows what critics know by heart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synther import Settings, Transitions, preset
from synther.errors import ConfigError, DataError
from synther.replay.adapting import RATIOS, Stored, look_every, next_ratio
from synther.replay.rows import SyntheticRows
from synther.replay.synthetic import SyntheticReplay

from .rows import TINY, tiny

EVERY = 1_000
QUICK: Settings = preset(
    "laptop",
    network={"width": 32, "depth": 2, "embedding": 16},
    fit={"steps": 300, "evaluate_every": 150, "batch_size": 128, "learning_rate": 2e-3},
    sampler={"steps": 2},
)


def replay(**options) -> SyntheticReplay:
    how = {"refresh_every": EVERY, "samples": 200, "preset": QUICK, "device": "cpu", "progress": False, **options}
    return SyntheticReplay(20_000, **how)


def step(first: int, count: int, sign: float = 1.0) -> dict[str, np.ndarray]:
    """Rows of a world that moves by what is done, times a sign. Their rewards are numbers of their own."""
    draw = np.random.default_rng([first, 1])
    s, a = draw.normal(size=(count, 2)), draw.uniform(-1, 1, (count, 1))
    following = s + sign * np.concatenate([a, -a], axis=1) + 0.2 * draw.normal(size=(count, 2))
    reward = np.arange(first, first + count) / 1_000
    return {"observation": s, "action": a, "reward": reward, "next_observation": following, "terminal": s[:, 0] > 9}


def filled(buffer: SyntheticReplay, first: int, last: int, sign: float = 1.0) -> SyntheticReplay:
    for start in range(first, last, 100):
        rows = step(start, 100, sign)
        buffer.add(**{**rows, "reward": 0 * rows["reward"]})
    return buffer


def refreshes(buffer: SyntheticReplay) -> list[int]:
    return [one.added for one in buffer.history]


def test_while_nothing_changes_a_refresh_comes_as_late_as_it_may():
    buffer = filled(replay(refresh="auto"), 0, 5_100)
    assert refreshes(buffer) == [EVERY, 3 * EVERY, 5 * EVERY]
    assert [look.added for look in buffer.looks[:10]] == list(range(1_200, 3_001, 200))
    assert [look.refresh for look in buffer.looks[:10]] == [False] * 9 + [True]


def test_after_a_sudden_change_a_refresh_comes_soon():
    buffer = filled(filled(replay(refresh="auto"), 0, 1_600), 1_600, 1_900, sign=-1)
    assert refreshes(buffer) == [EVERY, 1_800]
    look = buffer.looks[-1]
    assert look.refresh
    assert look.newest > 1.2 * look.unseen


def test_values_that_the_generator_cannot_represent_are_a_change():
    buffer = filled(replay(refresh="auto", preset=TINY), 0, 1_100)
    rows = step(1_100, 100)
    buffer.add(**{**rows, "reward": 0 * rows["reward"], "terminal": np.ones(100, bool)})
    assert refreshes(buffer) == [EVERY, 1_200]
    assert buffer.looks[-1].newest is None


def test_saved_and_loaded_it_decides_the_same(tmp_path):
    def ended(buffer: SyntheticReplay) -> tuple[list, list[int]]:
        return filled(filled(buffer, 1_300, 1_600), 1_600, 2_500, sign=-1).looks, refreshes(buffer)

    buffer = filled(replay(refresh="auto"), 0, 1_300)
    buffer.save(tmp_path / "kept")
    loaded = SyntheticReplay.load(tmp_path / "kept", device="cpu", progress=False)
    assert loaded.looks == buffer.looks != []
    assert ended(loaded) == ended(buffer)


class Memory:
    """Critics that know by heart what they have seen: the TD error of a row, by its reward, is 0 then and 1 before."""

    def __init__(self) -> None:
        self.seen: set[float] = set()

    def learn(self, buffer: SyntheticReplay) -> None:
        batch = buffer.sample(4_000)
        self.seen |= set(np.float32(batch.reward[~batch.synthetic].numpy()).tolist())

    def __call__(self, rows: Transitions) -> np.ndarray:
        return np.array([0.1 if value in self.seen else 1.0 for value in np.float32(rows.reward).tolist()])


def run(buffer: SyntheticReplay, critics: Memory, first: int, last: int) -> list[float]:
    for start in range(first, last, 20):
        buffer.add(**step(start, 20))
        critics.learn(buffer)
    return [look.ratio for look in buffer.looks]


def small(**options) -> SyntheticReplay:
    return tiny(2_000, ratio="auto", **options)


def test_the_ratio_rises_while_critics_know_their_rows_by_heart_and_only_these(tmp_path):
    critics = Memory()
    buffer = small(td_error=critics)
    ratios = run(buffer, critics, 0, 400)
    assert ratios[:6] == pytest.approx([0.55, 0.6, 0.65, 0.7, 0.75, 0.75])
    look = buffer.looks[-1]
    assert look.held_out_error == 1, "no held-out row was ever in a batch"
    assert look.trained_error < 0.2
    assert np.mean([float(buffer.sample(400).synthetic.float().mean()) for _ in range(3)]) == pytest.approx(0.75)

    buffer.save(tmp_path / "kept")
    with pytest.raises(ConfigError, match="td_error=f"):
        SyntheticReplay.load(tmp_path / "kept")
    fixed = tiny()
    fixed.add(**step(0, 20))
    fixed.save(tmp_path / "fixed")
    with pytest.raises(ConfigError, match=r"fixed was saved without ratio='auto'.* leave it out"):
        SyntheticReplay.load(tmp_path / "fixed", td_error=critics)
    loaded = SyntheticReplay.load(tmp_path / "kept", td_error=critics, device="cpu", progress=False)
    assert loaded.mixture.ratio == buffer.mixture.ratio
    assert run(loaded, critics, 400, 500) == run(buffer, critics, 400, 500)


def test_the_ratio_falls_while_held_out_rows_are_known_as_well():
    buffer = small(td_error=lambda rows: np.ones(len(rows)))
    for start in range(0, 400, 20):
        buffer.add(**step(start, 20))
    assert [look.ratio for look in buffer.looks][:6] == pytest.approx([0.45, 0.4, 0.35, 0.3, 0.25, 0.25])
    assert [one.added for one in buffer.history] == [100, 200, 300, 400], "refreshes stay at fixed times"
    with pytest.raises(ConfigError, match="chooses the ratio itself"):
        buffer.ratio = 0.5


def test_in_between_the_ratio_stays_and_chance_moves_nothing():
    ones, draw = np.ones(100), np.random.default_rng(0)
    assert next_ratio(0.5, 1.15 * ones, ones) == 0.5
    assert next_ratio(0.5, 1.3 * ones, ones) == 0.55
    assert next_ratio(0.5, draw.exponential(1.6, 5), draw.exponential(1.0, 5)) <= 0.5  # five rows show nothing
    assert [next_ratio(limit, weight * ones, ones) for limit, weight in zip(RATIOS, (1.0, 2.0), strict=True)] == [
        *RATIOS
    ]


def test_rows_of_several_environments_have_their_newest_at_the_end_of_each():
    rows = Transitions(**step(0, 12))
    assert Stored(rows, groups=3).newest(6).tolist() == 3 * [False, False, True, True]
    assert Stored(rows).newest(2).tolist() == [False] * 10 + [True] * 2
    assert not Stored(rows).newest(0).any()
    assert look_every(3) == 1


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"ratio": "auto"}, "td_error"),
        ({"td_error": lambda rows: rows.reward}, "ratio"),
        ({"refresh": "sometimes"}, "fixed, auto"),
        ({"refresh": "auto", "preset": replace(TINY, fit=replace(TINY.fit, holdout=0.0, patience=None))}, "holdout"),
    ],
)
def test_options_that_do_not_go_together_are_refused(wrong, told):
    with pytest.raises(ConfigError, match=told):
        tiny(**wrong)


def test_buffers_that_cannot_keep_rows_back_refuse_a_ratio_that_adapts():
    with pytest.raises(ConfigError, match="SyntheticReplay"):
        SyntheticRows(ratio="auto", td_error=lambda rows: rows.reward)


@pytest.mark.parametrize("wrong", [lambda rows: rows.reward[:1], lambda rows: np.nan * rows.reward])
def test_td_errors_that_are_none_are_refused(wrong):
    buffer = small(td_error=wrong)
    buffer.add(**step(0, 100))
    with pytest.raises(DataError, match="td_error"):
        buffer.add(**step(100, 100))
