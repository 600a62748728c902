"""Help, version, and numbers as people write them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import synther as package
from synther.cli import VERBS, options
from synther.cli.answer import over, say, standing, table
from synther.cli.models import Fit, Sample, Upsample
from synther.experiments.results import EvalPoint
from synther.presets import PRESETS


def test_help_lists_every_verb(synther):
    code, out, err = synther("--help")
    assert (code, err) == (0, "")
    for verb, about in VERBS.items():
        assert re.search(rf"^  {verb} +{re.escape(about)}$", out, re.MULTILINE)
    assert synther("-h").out == out
    assert synther() == (2, out, "")
    assert synther("--version") == (0, f"synther {package.__version__}\n", "")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(synther, verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # in a wide terminal the help has several columns
    code, out, err = synther(verb, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: synther {verb} ")
    assert "{None}|" not in out
    for flag in ("--json", "--quiet"):
        assert re.search(rf"{flag} [^(]*\(default:[\s│]+False\)", out)


def test_the_defaults_shown_are_those_of_the_preset(synther, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # in a wide terminal the help has two columns
    for verb, name in (("fit", "paper"), ("upsample", "laptop")):
        _, out, _ = synther(verb, "--preset", name, "--help")
        shown = {
            option: re.search(rf"--{re.escape(option)} .*?\(default:[\s│]+(\S+)\)", out, re.DOTALL)[1]
            for option in ("fit.steps", "network.width", "sampler.kind", "sampler.steps", "noise.sigma-max")
        }
        settings = PRESETS[name]
        assert shown == {
            "fit.steps": {4_500: "4500", 100_000: "100K"}[settings.fit.steps],
            "network.width": str(settings.network.width),
            "sampler.kind": settings.sampler.kind,
            "sampler.steps": str(settings.sampler.steps),
            "noise.sigma-max": str(settings.noise.sigma_max),
        }


SEEN = ["online", "dm_control/walker-walk-v0", "--pixels"]
HIDDEN = ["--agent {sac", "--utd", "--agent.alpha", "--agent.features", "--agent.num-critics", "normalize"]


@pytest.mark.parametrize(
    ("words", "has", "hides"),
    [
        (["train", "iql"], ["--agent.expectile"], ["--agent.alpha"]),
        (["pixels", "train", "drq_bc"], ["--agent.alpha"], ["--agent.features", "normalize"]),
        (["online", "Pendulum-v1"], ["--agent.num-critics"], ["--agent.utd", "normalize"]),
        (SEEN, ["--agent.stddev-updates", "--updates-per-refresh"], HIDDEN),
    ],
)
def test_help_has_the_options_of_the_agent(synther, words, has, hides):
    code, out, _ = synther(*words, "--help")
    assert code == 0
    assert all(option in out for option in has)
    assert not any(option in out for option in hides)
    assert words[0] == "online" or re.search(r"--no-evaluate .*\(default: False\)", out)


def test_help_and_lists_do_not_wait_for_torch():
    commands = [
        "--help",
        "train --help",
        "online --help",
        "pixels --help",
        "pixels train --help",
        "pixels retrain --help",
    ]
    commands += ["paper run --help", "paper list"]
    script = f"""
import sys
from synther.cli import main
print([main(command.split()) for command in {commands}], 'torch' in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"{[0] * len(commands)} False\n")
    for option in ("--evaluate-every", "--refresh-every", "--utd", "usage: synther pixels [-h] ACTION"):
        assert option in done.stdout


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        ("5m", 5_000_000),
        ("1e6", 1_000_000),
        ("4.1M", 4_100_000),
        ("1.001M", 1_001_000),
        ("2B", 2_000_000_000),
        ("1_000K", 1_000_000),
        ("-3", -3),
        (" 7 ", 7),
        ("9007199254740993", 9_007_199_254_740_993),
    ],
)
def test_counts_as_people_write_them(text, number):
    assert options.parse_count(text) == number


@pytest.mark.parametrize("text", ["5X", "M", "", "1.5", "0.0001K", "1e", "5 M", "1,000", "0x10", "--5"])
def test_what_is_no_count(text):
    with pytest.raises(ValueError, match=f"expected a whole number such as 5M, 100K or 1_000, got {text!r}"):
        options.parse_count(text)


def test_every_whole_number_option_understands_them():
    words = "x.npz --out m --fit.steps 2K --fit.batch-size 1K --fit.patience 0.01K --seed 3K --network.width 2_0"
    chosen = options.parse("fit", Fit, words.split())
    assert (chosen.fit.steps, chosen.fit.batch_size, chosen.fit.patience) == (2_000, 1_000, 10)
    assert (chosen.seed, chosen.network.width) == (3_000, 20)
    assert options.parse("upsample", Upsample, ["x.npz", "--out", "run", "--samples", "1.5M"]).samples == 1_500_000
    chosen = options.parse("sample", Sample, ["m.safetensors", "--out", "x.npz", "--samples=100k", "--steps", "64"])
    assert (chosen.samples, chosen.steps) == (100_000, 64)


def test_single_options_change_the_preset_and_nothing_else():
    scaling = {"default": "minmax", "reward": "quantile"}
    for words, expected in (
        ("--preset=fast --fit.steps 7", PRESETS["fast"].changed(fit={"steps": 7})),
        ("--preset paper --minutes 2.5", PRESETS["paper"].changed(fit={"minutes": 2.5})),
        ("--device cpu", PRESETS["laptop"]),
        (
            "--preset best --data.threshold half --data.scaling default minmax reward quantile",
            PRESETS["best"].changed(data={"threshold": "half", "scaling": scaling}),
        ),
    ):
        chosen = options.parse("fit", Fit, ["x", "--out", "m.safetensors", *words.split()])
        assert chosen.settings() == expected


@pytest.mark.parametrize("preset", PRESETS)
def test_a_flag_is_called_the_same_whatever_the_preset_says(preset):
    words = ["x", "--out", "m.safetensors", "--preset", preset]
    flags = ("--data.{}spikes", "--sampler.{}matched", "--network.{}squeeze")
    for value, no in ((True, ""), (False, "no-")):
        found = options.parse("fit", Fit, [*words, *(flag.format(no) for flag in flags)]).settings()
        assert (found.data.spikes, found.sampler.matched, found.network.squeeze) == (value, value, value)


def test_what_may_be_left_out_is_shown_as_what_it_takes(synther):
    _, out, _ = synther("sample", "--help")
    assert re.search(r"--steps INT ", out)
    assert re.search(r"--samples INT\b[^-]*\(default: 1M\)", out)
    words = ["x", "--out", "m.safetensors", "--fraction", "None", "--fit.batch-size", "None"]
    chosen = options.parse("fit", Fit, words)
    assert (chosen.fraction, chosen.fit.batch_size) == (None, None)


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")


def test_numbers_stand_at_their_right_edge_and_nothing_follows_a_line(capsys):
    table(("name", "value", "share", "better"), [("a", "-1,000.5", "5 %", "higher"), ("[red]", "2e-05", "-", "")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line] == [
        ["name", "value", "share", "better"],
        ["\u2500" * len(lines[2].strip())],
        ["a", "-1,000.5", "5", "%", "higher"],
        ["[red]", "2e-05", "-"],
    ]
    assert lines == [line.rstrip() for line in lines]
    header, _, first, second = (line for line in lines if line)
    ends = [line.index(word) + len(word) for line, word in ((header, "value"), (first, "-1,000.5"), (second, "2e-05"))]
    assert len(set(ends)) == 1
    assert header.index("better") == first.index("higher")


def test_a_paragraph_is_as_wide_as_the_terminal_and_breaks_no_name(narrow, capsys):
    say("- the rows were read from the file cheetah-run-collected.hdf5 of this machine")
    assert capsys.readouterr().out.splitlines() == [
        "- the rows were read from the file",
        "  cheetah-run-collected.hdf5 of this",
        "  machine",
    ]


def test_one_seed_has_no_std():
    alone, two = EvalPoint(300, (-1260.04,), None), EvalPoint(300, (1_000.0, 1_010.0), (1.0, None))
    assert standing("final", alone, "steps") == [("final return", "-1,260.0 after 300 steps")]
    assert standing("best", two, "updates") == [
        ("best score", "1.0 after 300 updates"),
        ("best return", "1,005.0 ± 5.0 after 300 updates"),
    ]
    assert (over(1), over(2)) == ("1 seed", "2 seeds: mean ± std")
