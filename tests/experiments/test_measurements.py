"""The log of a training and what is made of it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from synther.envs.evaluation import Evaluation
from synther.errors import ConfigError
from synther.experiments.results import EvalPoint, Log, MeanStd, Measurement, Result


def measured(updates: int, returns: list[list[float] | None] | None = None) -> Measurement:
    scores = None if returns is None else [row and [10 * value for value in row] for row in returns]
    return Measurement(updates, updates / 10, {"critic": [0.5] * len(returns or [0, 0])}, returns, scores)


@pytest.fixture
def path(tmp_path):
    log = Log(tmp_path / "log.jsonl", [])
    for updates in (5, 10, 12):
        log.append(measured(updates, [[1.0], [2.0]]))
    return log.path


@pytest.mark.parametrize(("expected", "kept"), [([], 0), ([5, 10], 2), ([5, 10, 12, 15], 3)])
def test_what_came_after_the_checkpoint_is_forgotten(path, expected, kept):
    lines = path.read_text().splitlines(keepends=True)
    assert len(Log(path, expected).measurements) == kept
    assert path.read_text() == "".join(lines[:kept])


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_line_that_was_cut_is_measured_again(path, cut):
    text = path.read_text()
    path.write_text(text[:-cut])
    log = Log(path, [5, 10, 12])
    assert [found.updates for found in log.measurements] == [5, 10]
    log.append(measured(12, [[1.0], [2.0]]))
    assert path.read_text() == text


@pytest.mark.parametrize("lost", [[0], [1, 2], [0, 1, 2]])
def test_lost_lines_are_not_passed_over(path, lost):
    lines = path.read_text().splitlines(keepends=True)
    left = "".join(line for number, line in enumerate(lines) if number not in lost)
    path.write_text(left)
    with pytest.raises(ConfigError, match="has lost lines"):
        Log(path, [5, 10, 12])
    assert path.read_text() == left


def test_what_can_no_longer_be_measured_must_be_there(path):
    assert len(Log(path, [5, 10, 12], again=False).measurements) == 3
    with pytest.raises(ConfigError, match="has lost lines"):
        Log(path, [5, 10, 12, 15], again=False)


def test_a_line_is_strict_json(tmp_path):
    losses = {"critic": np.array([np.nan, np.inf, 1], np.float32)}
    evaluation = Evaluation(1, np.ones((3, 2)), np.ones((3, 2), np.int64), None)
    found = Measurement.of(5, 1.5, losses, evaluation)
    Log(tmp_path / "log.jsonl", []).append(found)
    plain = json.loads((tmp_path / "log.jsonl").read_text(), parse_constant=pytest.fail)
    assert plain["losses"] == {"critic": [None, None, 1.0]}
    assert (plain["returns"], plain["scores"]) == ([[1, 1]] * 3, None)
    assert found.diverged == [True, True, False]
    assert Measurement.of(5, 1.5, losses, None).returns is None


def test_a_member_without_returns_has_diverged(tmp_path):
    returns = np.array([[1, 2], [np.nan, np.nan]])
    evaluation = Evaluation(1, returns, np.ones((2, 2), np.int64), 10 * returns)
    found = Measurement.of(5, 1.5, {"actor": np.ones(2, np.float32)}, evaluation)
    Log(tmp_path / "log.jsonl", []).append(found)
    assert Log(tmp_path / "log.jsonl", [5]).measurements == [found]
    assert (found.returns, found.scores) == ([[1, 2], None], [[10, 20], None])
    assert (found.mean_returns, found.mean_scores) == ([1.5, None], [15, None])
    assert found.diverged == [False, True]


def test_spread():
    assert MeanStd.of([1.0, 3.0]) == MeanStd(2.0, 1.0, 2)
    assert MeanStd.of([7.0]) == MeanStd(7.0, 0.0, 1)
    assert MeanStd.of([None, 1.0, None, 3.0]) == MeanStd(2.0, 1.0, 2)
    assert MeanStd.of([None, None]) is None
    assert str(MeanStd(48.06, 0.31, 8)) == "48.1 ± 0.3"


@pytest.fixture
def result() -> Result:
    """Two arms of two seeds of two episodes; the first arm is best in the middle, the second as good at the end."""
    curve = {
        5: [[0, 2], [2, 4], [0, 0], [0, 0]],
        10: [[4, 4], [6, 10], [4, 4], [2, 2]],
        12: [[2, 2], [2, 2], [2, 2], [4, 4]],
    }
    return Result.of([measured(updates, np.float64(rows).tolist()) for updates, rows in curve.items()], ["a", "b"])


def test_final_best_and_curve(result):
    assert (result.updates, result.seconds) == (12, 1.2)
    assert [standing.returns for standing in result.curves["a"]] == [(1, 3), (4, 8), (2, 2)]
    assert [standing.returns for standing in result.curves["b"]] == [(0, 0), (4, 2), (2, 4)]
    assert result.final("a").spread_of_returns == MeanStd(2, 0, 2)
    assert result.best("a").spread_of_returns == MeanStd(6, 2, 2)
    assert result.best("a").spread_of_scores == MeanStd(60, 20, 2)
    assert result.best("a").updates == 10
    assert result.best("b").updates == 10  # the first of two that are as good
    assert result.final("b") == result.curves["b"][-1]
    plain = json.loads(json.dumps(result.to_json()))
    assert Result.from_json(plain) == result
    assert plain["arms"]["a"]["best"]["score"] == {"mean": 60, "std": 20, "seeds": 2}
    assert [standing["updates"] for standing in plain["arms"]["a"]["curve"]] == [5, 10, 12]


def test_each_seed_is_stopped_where_its_held_out_error_is_least(result):
    errors = {5: (3.0, 1.0), 10: (None, 2.0), 12: (2.0, 2.0)}
    curve = tuple(replace(point, held_out=errors[point.updates]) for point in result.curves["a"])
    told = replace(result, curves={**result.curves, "a": curve})
    assert told.stopped("a") == EvalPoint(12, (2, 3), (20, 30), (2.0, 1.0))
    assert told.stopped("b") is None
    plain = json.loads(json.dumps(told.to_json()))
    assert Result.from_json(plain) == told
    assert plain["arms"]["a"]["stopped"]["returns"] == [2, 3]
    assert Result.joined([told, told]).stopped("a").returns == (2, 3, 2, 3)


def test_diverged_seeds_are_left_out_and_counted():
    curve = {5: [[1], [3]], 10: [[2], [4]], 12: [None, [9]], 15: [None, None]}
    found = [measured(updates, rows) for updates, rows in curve.items()]
    assert Result.of(found[:2], ["a"]).diverged == {"a": ()}
    result = Result.of(found[:3], ["a"])
    assert result.diverged == {"a": (0,)}
    assert (result.final("a").diverged, result.final("a").spread_of_scores) == (1, MeanStd(90, 0, 1))
    assert result.best("a").updates == 10  # one lucky seed does not stand for two
    plain = json.loads(json.dumps(result.to_json()))
    assert Result.from_json(plain) == result
    assert plain["diverged"] == {"a": [0]}
    assert plain["arms"]["a"]["final"] == {
        "updates": 12, "returns": [None, 9], "scores": [None, 90], "diverged": 1,
        "return": {"mean": 9, "std": 0, "seeds": 1}, "score": {"mean": 90, "std": 0, "seeds": 1},
    }  # fmt: skip
    lost = Result.of(found[3:], ["a"])
    assert lost.final("a").spread_of_returns is lost.final("a").spread_of_scores is None
    assert lost.to_json()["arms"]["a"]["best"]["return"] is None
    assert Result.from_json(lost.to_json()) == lost


def test_nobody_evaluated_and_no_score_known():
    result = Result.of([Measurement(5, 1.0, {}, [[1.0, 2.0]], None)], ["a"])
    assert result.final("a").scores is result.final("a").spread_of_scores is None
    assert Result.from_json(result.to_json()) == result
    result = Result.of([measured(5), measured(10)], ["a"])
    assert result.final("a") is result.best("a") is None
    assert Result.from_json(result.to_json()) == result
    assert result.to_json()["arms"]["a"] == {"final": None, "best": None, "curve": []}
