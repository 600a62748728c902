"""`--write-config` and `--config`: a file says what the command line said, and the command line wins over it."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from synther.cli import VERBS, main, options

COMMANDS = {
    "upsample": "hopper-sac --samples 5K --out run --preset fast --fit.steps 7 "
    "--data.scaling default minmax reward quantile --condition reward=top:0.1 return "
    "--sampler.no-matched --data there --json",
    "fit": "x.npz --out m.safetensors --minutes 2.5 --ensemble --data.threshold half --fraction None --seed 3",
    "distill": "m.safetensors --calls 3 --steps 1K --rows None",
    "sample": "m.safetensors --out ~/x.npz --steps 64 --keep 0.9 --guidance -1.5",
    "assess": "a.npz b.npz --out r --no-simulator --held-out c.npz --next-actions",
    "compare": "x --out c --generators diffusion,noise --trials 0 --no-simulator",
    "train": "td3_bc x --out t --updates 50 --agent.batch-size 9 --env-options '{\"a\": [1]}' --no-evaluate",
    "online": "Pendulum-v1 --agent sac --out o --synthetic --steps 1K --agent.discount 0.9 --fit.steps 9",
    "evaluate": "run --episodes 3 --seed 7",
    "pixels": "train drq_bc frames --out p --updates 5 --agent.batch-size 3",
    "collect": "Hopper-v4 --out x.npz --steps 1K --noise 0.1",
    "paper": "run offline --only a b --parallel 2",
    "inspect": "hopper-sac --data there",
    "presets": "--json",
    "doctor": "--json",
    "completion": "bash",
}
"""A command of each verb, with options of every kind."""


@pytest.fixture
def parsed(monkeypatch, tmp_path):
    """The options of a command, which is not run."""
    monkeypatch.chdir(tmp_path)
    real = options.parse

    def call(*words: str) -> dict[str, str]:
        found = {}

        def stop(*given: Any) -> None:
            found.update(vars(real(*given)))
            raise SystemExit(0)

        with monkeypatch.context() as patch:
            patch.setattr(options, "parse", stop)
            assert main(list(words)) == 0
        return {name: str(value) for name, value in found.items() if name != "config_file"}

    return call


def test_there_is_a_command_of_every_verb():
    assert set(COMMANDS) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_what_was_written_is_read_again(verb, parsed):
    words = [verb, *shlex.split(COMMANDS[verb])]
    expected = parsed(*words)
    assert main([*words, "--write-config", "run.toml"]) == 0
    assert tomllib.loads(Path("run.toml").read_text())["command"].split()[0] == verb
    start = words[: 2 if verb == "pixels" else 1]
    assert parsed(*start, "--config", "run.toml") == expected
    assert parsed(*start, "--config=run.toml", "--quiet") == expected | {"quiet": "True"}


def test_the_command_line_wins(parsed):
    Path("run.toml").write_text("""
arguments = ["x.npz"]
out = "a.safetensors"
"data.spikes" = true
quiet = true
json = false
fit.steps = 7
network = {width = 16, depth = 2}
""")
    found = parsed("fit", "--config", "run.toml", "other.npz", "--network.width", "32", "--data.no-spikes")
    assert (found["data"], found["out"], found["quiet"], found["json"]) == (
        *("other.npz", "a.safetensors"),
        *("True", "False"),
    )
    for part, text in (("fit", "steps=7,"), ("network", "width=32, depth=2"), ("data_options", "spikes=False")):
        assert text in found[part]


BAD = {
    "stepz = 3": "'stepz'",
    "[fit]\nstepz = 3": "expected fit.steps",
    'command = "sample"': "synther sample",
    "steps = ": "not a TOML file",
    "samples = 2020-01-01": "samples must be text",
    "arguments = 3": "arguments",
    "command = 3": "command",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_is_refused(text, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(text)
    assert BAD[text] in refused("upsample", "x.npz", "--out", "run", "--config", "run.toml")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('data = "x.npz"', "missing DATA; write DATA before all options (in a config file: arguments = [...])"),
        (
            'arguments = ["x"]\nensemble = "yes"',
            "unexpected value in --ensemble=yes: flags take no value; in a config file",
        ),
        ('arguments = ["x"]\nfit.steps = "many"', "--fit.steps: expected a whole number"),
    ],
)
def test_errors_say_what_to_write_in_the_file(text, error, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(f'out = "run"\n{text}\n')
    assert refused("upsample", "--config", "run.toml").startswith(f"synther: {error}")


def test_files_that_are_not_there_or_there_already(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "run.toml" in refused("presets", "--config", "run.toml")
    Path("run.toml").write_text("")
    assert "--write-config" in refused("presets", "--write-config", "run.toml")
