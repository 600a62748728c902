"""The search: the defaults first, every trial kept, and after any interruption the same result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from synther.baselines.search import Found, Trial, _Study, search
from synther.baselines.tabular import Config, CtganConfig, TvaeConfig
from synther.errors import ConfigError, DataError, MissingExtra

from ..support.processes import alive, eventually, gone
from ..support.watch import Watch

START = TvaeConfig(epochs=3)


def score(config: Config) -> float:
    """Best where the layers are many and the embedding small."""
    return config.layers / 8 + 8 / config.embedding


class Counted:
    """Scores, counts, and breaks off at the call numbered `stop`."""

    def __init__(self, stop: int | None = None) -> None:
        self.asked: list[Config] = []
        self.stop = stop

    def __call__(self, config: Config) -> float:
        self.asked.append(config)
        if len(self.asked) == self.stop:
            raise KeyboardInterrupt
        return score(config)


def run(folder: Path, scorer=score, trials: int = 12, start: Config = START, **options) -> Found:
    return search(start, scorer, folder, trials=trials, **{"progress": False, **options})


def told(found: Found) -> list[tuple[Config, float]]:
    return [(trial.config, trial.score) for trial in found.trials]


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Found:
    return run(tmp_path_factory.mktemp("search"))


def test_a_trial_that_was_cut_off_beside_one_that_was_done_is_done_again(tmp_path):
    journal = tmp_path / "search.journal"
    with _Study(START, journal, 0) as study:
        asked = [study.ask() for _ in range(3)]
        assert asked[0][1] == START
        assert len({config for _, config in asked}) == 3  # asked for at once, they are different ones
        for number in (0, 2):
            study.tell(asked[number][0], Trial(asked[number][1], 0.5, 1.0))
    with _Study(START, journal, 0) as study:
        assert study.ask()[1] == asked[1][1]


def test_the_defaults_come_first_and_then_trials_of_the_papers_space(done, tmp_path):
    assert len(done.trials) == 13
    assert done.trials[0].config == START
    assert all(trial.score == score(trial.config) and trial.error is None for trial in done.trials)
    assert done.best.score == max(trial.score for trial in done.trials) > score(START)
    for trial in done.trials:
        assert trial.config.epochs == 3
        assert all(getattr(trial.config, option) in values for option, values in TvaeConfig.space.items())
    assert len({trial.config for trial in done.trials}) > 6
    other = run(tmp_path, trials=3, start=CtganConfig())
    assert {type(trial.config) for trial in other.trials} == {CtganConfig}


def test_the_result_is_a_file_and_no_trial_is_done_twice(tmp_path):
    first = run(tmp_path, trials=2)
    content = json.loads((tmp_path / "search.json").read_text())
    assert content["model"] == "tvae"
    assert content["best"]["config"] == vars(first.best.config)
    assert Found.from_json(content) == first
    again = Counted()
    assert run(tmp_path, again, trials=2) == first
    assert again.asked == []


def test_the_seed_tells_the_trials(done, tmp_path):
    assert told(run(tmp_path / "same")) == told(done)
    assert told(run(tmp_path / "other", seed=1)) != told(done)


@pytest.mark.parametrize("stop", [1, 9])
def test_interrupted_it_ends_with_the_same_trials(done, stop, tmp_path):
    first, second = Counted(stop), Counted()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, first)
    assert not (tmp_path / "search.json").exists()
    watch = Watch()
    assert told(run(tmp_path, second, progress=watch)) == told(done)
    assert watch.phases == [["search tvae", 13, stop - 1, 13]]
    assert all("best 0." in note or "best 1." in note for note in watch.notes)
    assert second.asked[0] == first.asked[-1]  # the one that was cut off
    assert len(first.asked) + len(second.asked) == len({trial.config for trial in done.trials}) + 1


def test_what_a_killed_writer_leaves_does_no_harm(done, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Counted(4))
    journal = tmp_path / "search.journal"
    with journal.open("a") as file:
        file.write('{"op_code": 6, "wor')
    os.symlink("nowhere", str(journal) + ".lock")
    assert told(run(tmp_path)) == told(done)


def test_the_same_settings_are_not_tried_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(TvaeConfig, "space", {"layers": (1, 2)})
    counted = Counted()
    found = run(tmp_path, counted, trials=7)
    assert len(found.trials) == 8
    assert sorted(config.layers for config in counted.asked) == [1, 2]
    assert all(trial.score == score(trial.config) for trial in found.trials)  # known ones keep theirs


def test_settings_that_fail_are_bad_settings_and_a_defect_ends_the_search(tmp_path):
    def raising(error: Exception):
        def scorer(config: Config) -> float:
            if config != START:
                raise error
            return 0.5

        return scorer

    found = run(tmp_path / "a", raising(DataError("diverged")), trials=2)
    assert found.trials[0] == found.best == replace(found.best, config=START, score=0.5, error=None)
    assert {(trial.score, trial.error) for trial in found.trials[1:]} == {(0.0, "diverged")}
    with pytest.raises(TypeError, match="ours"):
        run(tmp_path / "b", raising(TypeError("ours")))
    for value in (float("nan"), float("inf")):
        with pytest.raises(DataError, match=f"3 trials of tvae .*{value}"):
            run(tmp_path / str(value), lambda config, value=value: value, trials=2)


def test_refusals(tmp_path, monkeypatch):
    for options in ({"trials": -1}, {"jobs": 0}):
        with pytest.raises(ConfigError, match="jobs"):
            run(tmp_path, **options)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"synther\[tabular\]"):
        run(tmp_path)


SLOW = """
import os, sys, time
from pathlib import Path
from synther.baselines.search import search
from synther.baselines.tabular import TvaeConfig

def slow(config):
    (Path(sys.argv[1]) / f"worker-{os.getpid()}").touch()
    time.sleep(0.2 if config == TvaeConfig() else 600)
    return 0.5

if __name__ == "__main__":
    search(TvaeConfig(), slow, Path(sys.argv[1]), trials=2, jobs=2, progress=False)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_killed_it_takes_its_workers_along_and_can_go_on(tmp_path):
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    folder = tmp_path / "search"
    folder.mkdir()
    parent = subprocess.Popen([sys.executable, str(script), str(folder)], stderr=subprocess.PIPE)
    try:

        def both_are_busy() -> bool:
            told_one = (folder / "search.journal").exists() and b'"state":1' in (folder / "search.journal").read_bytes()
            return told_one and len(list(folder.glob("worker-*"))) == 2

        assert eventually(both_are_busy, 120), parent.stderr.read() if parent.poll() else "took too long"
        workers = [int(file.name.removeprefix("worker-")) for file in folder.glob("worker-*")]
        assert all(map(alive, workers))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    assert gone(workers)
    counted = Counted()
    found = run(folder, counted, trials=2, start=TvaeConfig())
    assert found.trials[0] == Trial(TvaeConfig(), 0.5, found.trials[0].seconds)
    assert len(found.trials) == 3
    assert TvaeConfig() not in counted.asked
