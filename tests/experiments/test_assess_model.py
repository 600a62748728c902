"""What a report shows of the model: rows on their way from noise to data, and what samplers reach for their calls."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from synther import Synthesizer, Transitions, read
from synther.data import shipped
from synther.diffusion.config import SamplerConfig
from synther.envs.simulator import simulate
from synther.errors import ConfigError
from synther.experiments import assess as module
from synther.progress import Silent
from synther.synthesizer.drawing import Drawing

from ..small_job import model as small

PLAIN = {
    "sampler": {"steps": 5, "restarts": 0},
    "data": {"scaling": "standard", "spikes": False, "terminals": "generated", "threshold": "half"},
}


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Few rows of each sampler, and blank pictures: the simulator's take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "EFFORT", {"cpu": 0.0, "cuda": 0.0})
        patch.setattr(module, "JUDGED_ROWS", 20)
        blank = np.zeros((4, 4, 3), np.uint8)
        patch.setattr(module, "render_states", lambda env_id, states: [blank] * len(states))
        yield


@pytest.fixture(scope="module")
def hopper() -> Transitions:
    return read(shipped.hopper())[:400]


@pytest.fixture(scope="module")
def model(hopper) -> Synthesizer:
    return small(**PLAIN).fit(hopper, progress=False)


class TestProcess:
    def test_from_noise_to_data(self, model, hopper):
        process, notes = module._process(model, hopper, "Hopper-v5", 0)
        assert notes == ()
        assert process.sigmas[0] == 20.0
        assert process.sigmas[-1] == 0.0
        assert list(process.sigmas) == sorted(set(process.sigmas), reverse=True)
        assert {len(rows) for rows in process.steps} == {300}
        spreads = [np.std(rows) for rows in process.steps]
        assert 15 < spreads[0] < 30  # noise of its own size, in a plane of unit directions
        assert spreads[-1] < 5
        assert len(process.frames) == len(process.sigmas)

    def test_states_stay_within_what_real_rows_have_reached(self, model, hopper, monkeypatch):
        asked = []
        monkeypatch.setattr(module, "render_states", lambda env_id, states: asked.append((env_id, states)) or [])
        low, high = hopper.observation.min(axis=0), hopper.observation.max(axis=0)
        inside = hopper.observation[3]
        module._frames("Hopper-v5", hopper, [low - 1, inside, high + 1])
        np.testing.assert_array_equal(asked[0][1], [low, inside, high])

    def test_what_cannot_be_drawn_is_said(self, model, hopper, monkeypatch):
        def broken(*args):
            raise ConfigError("cannot draw Hopper-v5 here")

        monkeypatch.setattr(module, "render_states", broken)
        process, notes = module._process(model, hopper, "Hopper-v5", 0)
        assert process.frames == ()
        assert notes == ("states are not drawn: cannot draw Hopper-v5 here",)
        assert module._process(model, hopper, "Made-v0", 0)[1] == ()

    def test_levels_between_which_rows_change_alike(self):
        even = np.tan(np.linspace(1.5, 0, 10)).tolist()
        assert module._evenly_noisy(even, 1.0) == list(range(10))
        assert module._evenly_noisy([2 * sigma for sigma in even], 2.0) == list(range(10))
        assert module._evenly_noisy([80.0, 0.0], 1.0) == [0, 1]
        many = [*np.geomspace(80, 0.002, 500).tolist(), 0.0]
        chosen = module._evenly_noisy(many, 1.0)
        assert (len(chosen), chosen[0], chosen[-1]) == (10, 0, 500)
        assert np.ptp(np.diff(np.arctan([many[at] for at in chosen]))) < 0.02


class TestEfforts:
    def test_plain_samplers_and_the_models_own(self, model, hopper):
        efforts, _ = module._efforts(model, hopper, partial(simulate, "Hopper-v5"), 0, Silent())
        assert [effort.calls for effort in efforts] == [4, 5, 8, 16, 32, 64]
        assert [effort.sampler for effort in efforts if effort.calls != 5] == ["unipc"] * 5
        assert efforts[1].sampler == "the model's own: unipc, 5 steps"
        for effort in efforts:
            assert 0 < effort.marginal < 1
            assert 0 < effort.correlation < 1
            assert effort.dynamics > 0
            assert effort.seconds > 0

    def test_how_to_read_them_is_said(self, hopper):
        note = module._ceiling(hopper, 500, 0)
        assert note.startswith("network calls: each sampler made 500 rows; 200 real ones reach marginal 0.9")
        assert module._ceiling(hopper[:1], 500, 0) == "network calls: each sampler made 500 rows"

    def test_nothing_twice_and_no_simulator(self, hopper):
        model = small(**{**PLAIN, "sampler": {"steps": 8, "restarts": 0, "matched": False}}).fit(hopper, progress=False)
        efforts, _ = module._efforts(model, hopper, None, 0, Silent())
        assert [effort.calls for effort in efforts] == [4, 8, 16, 32, 64]
        assert efforts[1].sampler == "the model's own: unipc, 8 steps"
        assert all(effort.dynamics is None for effort in efforts)

    def test_matched_and_restarted(self, hopper):
        sampler = {"steps": 5, "restarts": 1, "restart_steps": 3, "matched": True}
        model = small(**{**PLAIN, "sampler": sampler}).fit(hopper, progress=False)
        its, ours = model.sample(30, seed=0, progress=False), module._drawn(model, model.settings.sampler, 30, 0)
        np.testing.assert_array_equal(ours.observation, its.observation)
        efforts, _ = module._efforts(model, hopper, None, 0, Silent())
        assert [effort.calls for effort in efforts] == [4, 8, 8, 16, 32, 64]
        assert [effort.sampler for effort in efforts if effort.calls == 8] == [
            "unipc", "the model's own: unipc, 5 steps and 3 in a restart",
        ]  # fmt: skip

    @pytest.mark.parametrize("sampler", [SamplerConfig("unipc", 5), SamplerConfig("unipc", 3)])
    def test_the_rows_are_those_of_the_model(self, model, sampler):
        ours, its = module._drawn(model, sampler, 600, 3), model.sample(600, seed=3, sampler=sampler, progress=False)
        for name, array in its.arrays().items():
            np.testing.assert_array_equal(getattr(ours, name), array, err_msg=name)

    def test_other_samplers_are_not_calibrated(self, hopper, monkeypatch):
        model = small(sampler={"steps": 5}).fit(hopper, progress=False)
        monkeypatch.setattr(Drawing, "_raw_flags", None)
        assert len(module._drawn(model, SamplerConfig("unipc", 3), 20, 0)) == 20
        assert len(module._drawn(model, model.settings.sampler, 20, 0)) == 20

    @pytest.mark.parametrize(("effort", "rows"), [(0.0, 500), (600.5, 600), (1e30, 50_000)])
    def test_large_networks_make_fewer_rows(self, model, hopper, effort, rows, monkeypatch):
        counts = []

        def drawn(model, sampler, count, seed):
            counts.append(count)
            return hopper

        calls = sum(module.CALLS) + 5
        parameters = sum(weights.numel() for weights in model.network.parameters())
        monkeypatch.setattr(module, "EFFORT", {"cpu": effort * calls * parameters})
        monkeypatch.setattr(module, "_drawn", drawn)
        module._efforts(model, hopper, None, 0, Silent())
        assert counts == [rows] * 6
