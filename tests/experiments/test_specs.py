"""Runs and their parts as plain data: written down, read again, sent on, and refused where they cannot be."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from synther.errors import ConfigError, FormatError
from synther.experiments.spec import ChangeOptions, PolicyGuidance, Recipe
from synther.experiments.specs import STAGE_ONE, OfflineRun, Retraining, SyntheticLatents

from .online.runs import PLAN as ONLINE
from .online.runs import SYNTHETIC
from .online.test_online_runs import REDQ
from .online.test_online_runs import RUN as SYNTHER
from .online_pixels.runs import PLAN as SEEING
from .online_pixels.runs import SYNTHETIC as LATENTS
from .test_pixel_runs import RUN as PIXELS
from .test_policy_rows import RUN as GUIDED
from .test_runs import RUN as OFFLINE

ASKED = replace(OFFLINE, sources={"synthetic": Recipe(relevance="reward", guidance=1.0)})
ADAPTING = replace(ONLINE, synthetic=replace(SYNTHETIC, refresh="auto"))
SPECS = {"offline": OFFLINE, "asked": ASKED, "guided": GUIDED, "online": SYNTHER, "redq": REDQ}
SPECS |= {"adapting": ADAPTING, "pixels": PIXELS, "online pixels": SEEING}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_to_json_and_back(spec):
    told = json.loads(json.dumps(spec.to_json()))
    assert told == spec.to_json()
    assert type(spec).from_json(told).to_json() == told
    assert pickle.loads(pickle.dumps(spec)) == spec
    for wrong in ("colour", "seeds"):
        with pytest.raises(FormatError, match=wrong):
            type(spec).from_json(told | {wrong: "red"})


def test_options_that_earlier_versions_did_not_have_are_left_out_where_they_are_not_used():
    assert "guidance" not in OFFLINE.to_json()["sources"]["synthetic"]
    assert "refresh" not in ONLINE.to_json()["synthetic"]
    assert "policy" not in json.dumps(replace(GUIDED, arms={}, sources={"synthetic": Recipe()}).to_json())


WHOLE = ("updates", "seeds", "evaluate_every", "episodes", "workers", "seed", "n_step")
NO_HOLDOUT = {"fit": {"holdout": 0.0, "patience": None}}
WRONG = [
    *((OfflineRun(), {name: -1}, f"{name} must be at least") for name in WHOLE),
    (OfflineRun(), {"holdout": 1.0}, "holdout"),
    (Recipe(), {"relevance": "luck"}, "luck"),
    (Recipe(), {"relevance": "td_error"}, "td_error"),
    (Recipe(), {"relevance": "reward", "relevant": 0.0}, "0"),
    (Recipe(), {"relevance": "reward", "generator": "tvae"}, "'tvae'"),
    (Recipe("tvae"), {"policy": PolicyGuidance()}, "'tvae'"),
    (PolicyGuidance(), {"strength": 1.5}, "strength"),
    (PolicyGuidance(), {"std": -1}, "std"),
    (PolicyGuidance(), {"learns_from": "x"}, "learns_from"),
    (PolicyGuidance(), {"seeds": 0}, "seeds"),
    (ONLINE, {"steps": 0}, "steps"),
    (ONLINE, {"steps": 1e5}, "steps must be a whole number"),
    (ONLINE, {"seed": -1}, "seed"),
    (ONLINE, {"checkpoint_every": 0}, "checkpoint_every"),
    (ONLINE, {"keep_every": 20}, "a multiple of checkpoint_every"),
    (ONLINE, {"workers": 0}, "workers"),
    (ONLINE, {"n_step": 0}, "n_step"),
    (ONLINE, {"n_step": 14}, "n_step"),
    (ONLINE, {"env_options": {"a": {1}}}, "JSON"),
    (ONLINE, {"algorithm": "ppo"}, "'ppo'"),
    (SYNTHETIC, {"ratio": 0.0}, "ratio"),
    (SYNTHETIC, {"refit": "cold"}, "unknown refit 'cold'"),
    (SYNTHETIC, {"refresh": "often"}, "unknown refresh 'often'"),
    (SYNTHETIC, {"refresh": "auto", "copies": True}, "--copies"),
    (SYNTHETIC, {"refresh": "auto", "changes": NO_HOLDOUT}, "holdout"),
    (SYNTHETIC, {"copies": True, "relevance": "reward"}, "copies"),
    (SYNTHETIC, {"samples": 0}, "samples"),
    (SYNTHETIC, {"changes": {"fit": {"minutes": 1.0}}}, r"fit\.steps"),
    (SYNTHETIC, {"relevance": "joy"}, "joy"),
    (SYNTHETIC, {"relevance": "reward", "relevant": 0.0}, "0"),
    (SyntheticLatents(), {"refresh": "auto"}, "latents"),
    (LATENTS, {"updates": 0}, "updates"),
    (SEEING, {"shadow_size": 0}, "shadow size"),
    (PIXELS, {"algorithm": "sac"}, "'sac'"),
    (PIXELS, {"updates": 0}, "updates"),
    (PIXELS, {"episodes": 0}, "episodes"),
    (PIXELS, {"seed": -1}, "seed"),
    (PIXELS, {"arms": {STAGE_ONE: Retraining()}}, STAGE_ONE),
    (Retraining(), {"features": "pixels"}, "'pixels'"),
    (Retraining(), {"recipe": Recipe("additive")}, "diffusion"),
    (Retraining(), {"pairs": True}, "pairs"),
]


@pytest.mark.parametrize(("spec", "change", "named"), WRONG, ids=lambda part: type(part).__name__)
def test_what_cannot_be(spec, change, named):
    with pytest.raises(ConfigError, match=named):
        getattr(replace(spec, **change), "config", None)


@pytest.mark.parametrize("spec", [OFFLINE, SYNTHER, PIXELS], ids=["offline", "online", "pixels"])
@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("updates", 0, "updates|steps"),
        ("seeds", 0, "seeds"),
        ("samples", 0, "samples"),
        ("fit_steps", 0, r"fit\.steps"),
        ("preset", "auto", "preset 'auto'"),
    ],
)
def test_impossible_changes(spec, option, value, named):
    with pytest.raises(ConfigError, match=named):
        spec.changed(ChangeOptions(**{option: value}))
