"""The named settings are what they claim to be, and every change of them is checked."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from synther.diffusion.config import DistillConfig, FitConfig, NetworkConfig, NoiseConfig, SamplerConfig
from synther.errors import ConfigError
from synther.presets import ABOUT, LATENTS, PRESETS, DataConfig, Settings, name_of, preset

PAPER = {
    "network": {"kind": "residual", "width": 1024, "depth": 6, "embedding": 128, "frequencies": 8},
    "noise": {"sigma_data": 1.0, "sigma_min": 0.002, "sigma_max": 80.0, "rho": 7.0, "p_mean": -1.2, "p_std": 1.2},
    "fit": {
        "steps": 100_000,
        "learning_rate": 3e-4,
        "beta1": 0.9,
        "beta2": 0.99,
        "max_grad_norm": 1.0,
        "ema_decay": 0.995,
        "ema_every": 10,
        "patience": None,
        "minutes": None,
    },
    "sampler": {"kind": "sde", "steps": 128, "s_churn": 80.0, "s_tmin": 0.05, "s_tmax": 50.0, "s_noise": 1.003},
}


@pytest.mark.parametrize(("part", "options"), PAPER.items(), ids=PAPER)
def test_the_paper_preset_is_the_paper(part, options):
    chosen = getattr(PRESETS["paper"], part)
    assert {name: getattr(chosen, name) for name in options} == options


def test_fast_differs_from_the_paper_in_the_sampler_alone():
    paper, fast = PRESETS["paper"], PRESETS["fast"]
    assert replace(fast, sampler=paper.sampler) == paper
    assert (fast.sampler.kind, fast.sampler.steps) == ("unipc", 32)
    assert fast.sampler.network_calls * 7 < paper.sampler.network_calls < fast.sampler.network_calls * 9


@pytest.mark.parametrize(("name", "teacher", "fewer"), [("instant", "best", 8), ("laptop-instant", "laptop", 4)])
def test_instant_presets_are_others_with_a_student(name, teacher, fewer):
    own, instant = PRESETS[teacher], PRESETS[name]
    assert replace(instant, distill=own.distill) == own
    assert instant.distill.calls * fewer == own.sampler.network_calls


def test_latents_of_agents_that_see_are_generated_as_they_are():
    """In `best` and `laptop`, with noise levels that lie higher."""
    for name in ("best", "laptop"):
        changed = preset(name, **LATENTS)
        assert (changed.data.scaling, changed.data.residuals) == ("standard", "none")
        assert changed.noise.p_mean > preset(name).noise.p_mean


def test_auto_follows_the_machine_and_every_preset_is_described():
    assert list(ABOUT) == list(PRESETS)
    assert preset("auto") == PRESETS["laptop"]
    assert preset("auto", gpu=True) == PRESETS["best"]
    assert preset("fast", gpu=False) == preset("fast", gpu=True) == PRESETS["fast"]


@pytest.mark.parametrize("name", ["paer", 3, {"fit": {"steps": 5}}, None])
def test_what_is_no_preset(name):
    with pytest.raises(ConfigError, match="auto, best, paper, fast, laptop"):
        preset(name)


CHOSEN = [
    *PRESETS.values(),
    Settings(
        NetworkConfig("mlp", 7, 3, 5, 2, squeeze=True),
        NoiseConfig(0.5, 0.01, 20.0, 3.0, -1.0, 1.5),
        FitConfig(50, 32, 1e-3, 0.8, 0.9, 2.0, 0.9, 5, 0.1, 25, 3, 0.2, 20, 1.5, 99),
        SamplerConfig("heun", 9, 1.0, 0.1, 2.0, 1.0, True, 3, 5, 0.2, 0.1),
        DataConfig(
            {"default": "minmax", "reward": "quantile"},
            "bits",
            "ordered",
            "half",
            True,
            "bent",
            "counted",
            "decided",
            True,
        ),
        DistillConfig(2, 5, 7, 9),
    ),
]


@pytest.mark.parametrize("settings", CHOSEN)
def test_to_a_file_and_back(settings):
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_settings_without_newer_options_are_described_as_before_there_were_any():
    described = PRESETS["paper"].to_json()
    assert "distill" not in described
    assert "window_rows" not in described["fit"]


def test_the_round_trip_above_leaves_no_default_untried():
    for part in fields(Settings):
        tried, default = getattr(CHOSEN[-1], part.name), getattr(Settings(), part.name)
        for option in fields(tried):
            assert getattr(tried, option.name) != getattr(default, option.name), f"{part.name}.{option.name}"


def test_numbers_of_other_libraries_become_plain_ones():
    steps, rate, spikes = torch.tensor(7), np.float32(0.5), np.bool_(True)
    changed = preset("paper", fit={"steps": steps, "batch_size": 1e3, "learning_rate": rate}, data={"spikes": spikes})
    assert changed == preset(
        "paper", fit={"steps": 7, "batch_size": 1_000, "learning_rate": 0.5}, data={"spikes": True}
    )
    assert json.loads(json.dumps(changed.to_json())) == changed.to_json()


def test_settings_stand_for_themselves():
    assert preset(PRESETS["fast"]) == PRESETS["fast"]
    assert preset(PRESETS["fast"], fit={"steps": 3}) == preset("fast", fit={"steps": 3})


def test_a_change_changes_that_option_alone():
    changed = preset("laptop", fit={"steps": 7}, network={"width": 9, "depth": 1})
    laptop = PRESETS["laptop"]
    assert changed == replace(
        laptop, fit=replace(laptop.fit, steps=7), network=replace(laptop.network, width=9, depth=1)
    )
    assert laptop.fit.steps != 7


NAN = float("nan")
WRONG = {
    "fit": {"step": [5], "steps": [0, 1.5, "100", True, None, np.array([3])], "learning_rate": [0.0]},
    "noise": {"p_mean": [NAN], "rho": [-1.0]},
    "network": {"kind": ["unet"]},
    "sampler": {"kind": ["ddim"]},
    "data": {
        "spikes": [1],
        "scaling": ["log", {"reward": "log"}],
        "coding": ["gray"],
        "terminals": ["never"],
        "integers": ["whole"],
        "residuals": [True],
        "starts": ["off"],
        "finite": ["drawn"],
        "threshold": [0.5],
    },
    "distill": {"calls": [-1, 1.5, None], "steps": [0], "rows": [0], "teacher_steps": [0]},
}


@pytest.mark.parametrize(
    ("part", "option", "value"),
    [(part, option, value) for part, held in WRONG.items() for option, values in held.items() for value in values],
)
def test_a_change_that_cannot_be_is_named(part, option, value):
    with pytest.raises(ConfigError, match=rf"\b{part}\.{option}\b"):
        preset("paper", **{part: {option: value}})


@pytest.mark.parametrize("changes", [{"sampling": {}}, {"network": 3}])
def test_parts_that_are_none_are_named(changes):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        preset("paper", **changes)


def test_settings_are_named_by_the_nearest_preset():
    assert name_of(PRESETS["laptop"]) == "laptop"
    assert name_of(PRESETS["paper"].changed(fit={"steps": 7})) == "paper with other fit.steps"
