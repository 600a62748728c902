"""`synther pixels`: the whole road on tiny frames, what it prints, what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from synther.agents.drq_bc import DrQBCConfig
from synther.agents.noisy_bc import NoisyBCConfig
from synther.cli import pixels
from synther.cli.online import OnlinePixels
from synther.cli.options import parse
from synther.errors import ConfigError, FormatError, SyntherError
from synther.experiments.specs import PixelRun
from synther.pixels import evaluation, files
from synther.pixels.frames import Frames
from synther.presets import preset

VERB = pixels.pixels
AGENT = ("--agent.width", "8", "--agent.depth", "1", "--agent.batch-size", "4")
QUICK = ("--updates", "4", "--measure-every", "2", "--episodes", "2", "--device", "cpu", "--tensorboard", "off")


class Wall:
    """In the place of a `PixelEnv`: two decisions in front of a grey wall."""

    def __init__(self, env_id: str, *, size: int, repeat: int, stack: int) -> None:
        self.seen, self.low = np.full((3 * stack, size, size), 99, np.uint8), np.full(2, -1.0, np.float32)

    def reset(self, seed: int) -> np.ndarray:
        self.left = 2
        return self.seen

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        self.left -= 1
        return self.seen, float(action[0]), False, self.left == 0

    def close(self) -> None:
        pass


def _play_here(policy, env_id, seeds, *, episodes, done, **options):
    for member in range(len(seeds)):
        for episode in range(episodes):
            place = evaluation.Place(member, episode)
            if place not in done:
                start = evaluation._start(seeds[member], 0, episode)
                frozen = evaluation.pickle.dumps(policy.member(member))
                yield place, evaluation._played(Wall, env_id, options["repeat"], frozen, start)


@pytest.fixture
def drawable(monkeypatch) -> None:
    monkeypatch.setattr(evaluation, "play", _play_here)
    monkeypatch.setattr(evaluation, "obstacle", lambda env_id: None)


@pytest.fixture
def dark(monkeypatch) -> None:
    monkeypatch.setattr(evaluation, "obstacle", lambda env_id: "cannot draw frames here")


@pytest.fixture(scope="module")
def frames(tmp_path_factory) -> Path:
    draw, first = np.random.default_rng(0), np.arange(24) % 8 == 0
    path = tmp_path_factory.mktemp("data") / "frames.hdf5"
    image, action = draw.integers(0, 256, (24, 3, 16, 16), np.uint8), draw.uniform(-1, 1, (24, 2))
    made = Frames(image, action.astype(np.float32), draw.normal(size=24), np.ones(24), first, "dm_control/a-b-v0", 2)
    files.write(made, path)
    return path


def test_the_whole_road(run, drawable, frames, tiny, tmp_path):
    one, latents, made, two = (tmp_path / name for name in ("one", "latents", "synthetic", "two"))
    text = run("train", "drq_bc", frames, "--out", one, "--seeds", 2, *QUICK, *AGENT, "--quiet")
    assert text.startswith("drq_bc on frames: mean ± std")
    assert "after 4 updates" in text
    assert json.loads((one / "run.json").read_text())["agent"]["width"] == 8
    assert "seed-1" in run("encode", one, frames, "--out", latents, "--device", "cpu", "--json", "--quiet")
    text = run("upsample", latents, "--out", made, "--samples", 30, "--device", "cpu", *tiny, "--quiet")
    assert text.startswith("synthetic latents of 2 seeds")
    found = json.loads(run("retrain", one, made, "--out", two, *QUICK, "--json", "--quiet"))
    assert (found["updates"], found["folder"]) == (4, str(two))
    assert len(found["arms"]["latents"]["final"]["scores"]) == 2
    again = json.loads(run("evaluate", two, "--episodes", 3, "--json", "--quiet"))
    assert again["arms"]["latents"]["final"]["updates"] == 4
    assert len((two / "episodes.jsonl").read_text().splitlines()) == 6
    assert run("retrain", one, latents, "--out", tmp_path / "real", *QUICK, "--no-evaluate", "--quiet")


def test_in_the_dark_the_evaluation_is_left_to_others(run, dark, frames, tmp_path, caplog):
    command = ("train", "bc", frames, "--out", tmp_path / "run", "--seeds", 1, *QUICK, *AGENT)
    assert f"none yet: synther pixels evaluate {tmp_path / 'run'}" in run(*command)
    assert "trained, but not evaluated: cannot draw frames here" in caplog.text
    caplog.clear()
    run(*command, "--no-evaluate")
    assert "cannot draw" not in caplog.text
    with pytest.raises(ConfigError, match="cannot draw frames here"):
        run("evaluate", tmp_path / "run")


def test_options_become_a_plan(run, frames, monkeypatch, tmp_path):
    found: list[PixelRun] = []

    def kept(plan, frames, folder, progress):
        found.append(plan)
        raise KeyboardInterrupt

    monkeypatch.setattr("synther.experiments.pixels.train_to", kept)
    words = ("--seeds", 3, "--seed", 5, "--env-id", "dm_control/point_mass-easy-v0", "--precision", "tf32")
    with pytest.raises(KeyboardInterrupt):
        run("train", "bc", frames, "--out", tmp_path / "run", *words, "--updates", "1K", "--agent.nstep", 2)
    (plan,) = found
    assert (list(plan.all_seeds), plan.env_id, plan.config.nstep) == ([5, 6, 7], "dm_control/point_mass-easy-v0", 2)
    assert (plan.updates, plan.precision, type(plan.config).__name__) == (1_000, "tf32", "NoisyBCConfig")


@pytest.mark.parametrize(
    ("env_id", "says"),
    [
        ("walker-walk", "expected dm_control/walker-walk-v0, got 'walker-walk'"),
        ("dm_control/walker-swim-v0", "has no task 'dm_control/walker-swim-v0': those of walker are"),
        ("dm_control/walker-walk-v0", "has 6 actions, but the frames have 2"),
    ],
)
def test_an_environment_that_cannot_be_theirs_is_told_before_they_are_trained(run, frames, env_id, says, tmp_path):
    with pytest.raises(SyntherError, match=says):
        run("train", "bc", frames, "--out", tmp_path / "run", "--env-id", env_id)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", [pixels.Upsample, OnlinePixels])
def test_auto_suits_latents_and_a_name_is_what_it_says(kind):
    needed = ["latents", "--out", "out", "--device", "cpu"]
    auto = parse("verb", kind, needed).settings()
    assert auto == preset("laptop", noise={"p_mean": -0.4}, data={"scaling": "standard", "residuals": "none"})
    assert parse("verb", kind, [*needed, "--preset", "laptop"]).settings() == preset("laptop")


def test_the_home_of_a_path_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse("verb", pixels.Upsample, ["~/latents", "--out=~/out"]).out == tmp_path / "out"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train", "sac", "{frames}", "--out", "{out}"), "unknown algorithm 'sac': expected one of drq_bc, bc"),
        (("train", "bc", "absent.hdf5", "--out", "{out}"), "no such file"),
        (("train", "bc", "{frames}", "--out", "{out}", "--updates", "0"), "updates must be at least 1"),
        (("train", "bc", "{frames}", "--out", "{out}", "--episodes", "0"), "episodes must be at least 1, got 0"),
        (("train", "bc", "{frames}", "--out", "{out}", "--workers", "0"), "workers must be at least 1, got 0"),
        (("train", "bc", "{frames}", "--out", "{out}", "--agent.tau", "1"), None),
        (("encode", "{empty}", "{frames}", "--out", "{out}"), "holds no finished training"),
        (("upsample", "{empty}", "--out", "{out}"), "holds no latents"),
        (("retrain", "{empty}", "{empty}", "--out", "{out}"), "holds no finished training"),
        (("evaluate", "{empty}"), "holds no finished training"),
        (("dream",), None),
        ((), None),
    ],
    ids=str,
)
def test_what_is_refused(run, words, says, frames, tmp_path):
    places = {"frames": frames, "out": tmp_path / "out", "empty": tmp_path}
    with pytest.raises(SystemExit if says is None else (ConfigError, FormatError), match=says or "2"):
        run(*(word.format(**places) for word in words))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--only", "walker-walk-collected-bc"), "no frames of walker-walk-collected in "),
        (("--evaluate-every", "5"), "leave --evaluate-every out"),
    ],
)
def test_experiments_that_cannot_begin(synther, words, says, tmp_path):
    (tmp_path / "data").mkdir()
    command = ("paper", "run", "pixels", "--out", tmp_path / "paper", "--data", tmp_path / "data", "--device", "cpu")
    code, out, err = synther(*command, *words, "--quiet")
    assert code == 2
    assert says in out + err
    assert not list(tmp_path.glob("paper/runs/*/*"))


def test_help_for_an_algorithm_has_its_options(run, capsys):
    with pytest.raises(SystemExit):
        run("train", "drq_bc", "--help")
    shown = capsys.readouterr().out
    assert "--agent.alpha" in shown
    assert re.search(r"--no-evaluate .*\(default: False\)", shown)
    assert "--agent.features" not in shown
    assert "normalize" not in shown


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        ("--out bc drq_bc F", DrQBCConfig()),
        ("--out drq_bc bc F", NoisyBCConfig()),
        ("--no-evaluate --quiet bc drq_bc --out=drq_bc", NoisyBCConfig()),
        ("--wandb bc --out x drq_bc bc --agent.alpha 1", DrQBCConfig(alpha=1)),
    ],
)
def test_the_algorithm_is_no_value_of_an_option(arguments, config):
    assert type(config)(**pixels._parse_train(arguments.split())[1]) == config
