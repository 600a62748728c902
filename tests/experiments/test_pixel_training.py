"""Stage one and stage two in their folders: what they leave behind, what they refuse, that they can be stopped."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from synther import read
from synther.agents.agent import Agent
from synther.diffusion import fit as fitting
from synther.errors import ConfigError, DataError, FormatError, SyntherError
from synther.experiments import loop
from synther.experiments import pixels as retraining
from synther.experiments.pixels import encode_to, identity, retrain_to, stored, train_to, upsample
from synther.experiments.sources import Given
from synther.experiments.specs import PixelRun
from synther.folder import RunFolder
from synther.pixels.agent import PixelAgent
from synther.pixels.files import frames_of
from synther.pixels.latents import encode
from synther.pixels.policy import load_pixel_policy
from synther.progress import Silent
from synther.synthesizer import Synthesizer
from synther.upsample import fit_together

from ..support.watch import Stopped, Watch
from .seeing import ACTIONS, PLAN, PLAN_BC, SETTINGS, files, frames
from .trainings import logged, same_tensors

LEFT = ["checkpoint.safetensors", "clock.json", "log.jsonl", "policy.safetensors", "run.json", "trained.json"]


@pytest.fixture(autouse=True)
def saved_often(saved_every_time, monkeypatch) -> None:
    monkeypatch.setitem(loop.SHOWN_UPDATES, "cpu", 4)


@pytest.fixture(scope="module")
def latents(run):
    return encode(run / loop.CHECKPOINT, frames(), shifts=1, device="cpu")


class TestStageOne:
    def test_what_it_leaves_behind(self, run):
        assert files(run) == LEFT
        assert [line["updates"] for line in logged(run)] == [5, 10, 12]
        assert logged(run)[-1]["losses"].keys() == {"critic", "actor"}
        about = json.loads((run / "run.json").read_text())
        assert (about["seeds"], about["env_id"], about["action_repeat"]) == ([3, 4], "dm_control/point_mass-easy-v0", 2)
        agent = PixelAgent(PLAN.config, frames(), PLAN.all_seeds, device=torch.device("cpu"))
        agent.train(12)
        seen = np.random.default_rng(0).integers(0, 256, (2, 9, 16, 16), np.uint8)
        kept = load_pixel_policy(run / "policy.safetensors")
        np.testing.assert_array_equal(kept.act(seen), agent.policy().act(seen))

    def test_frames_too_few_or_too_small_leave_no_folder(self, tmp_path):
        small = replace(frames(), image=frames().image[..., :9, :9])
        long_steps = replace(PLAN, agent={**PLAN.agent, "nstep": 9})
        for plan, given, says in ((long_steps, frames(), "no episode has 9 decisions"), (PLAN, small, "pixels")):
            with pytest.raises(DataError, match=says):
                train_to(plan, given, tmp_path / "run", progress=False)
        assert not (tmp_path / "run").exists()

    def test_all_seeds_diverged(self, tmp_path, monkeypatch, caplog):
        lost = {"critic": np.array([np.nan, 1.0]), "actor": np.ones(2)}
        monkeypatch.setattr(PixelAgent, "losses", lambda own: lost)
        monkeypatch.setattr(
            PixelAgent, "train", lambda own, count, stopped: setattr(own, "updates", own.updates + count)
        )
        found = train_to(PLAN, frames(), tmp_path / "one", progress=False)
        assert found.diverged == {"frames": (0,)}
        assert caplog.text.count("seed 3 of arm 'frames' has diverged after 5 updates") == 1
        lost["actor"] = np.full(2, np.inf)
        with pytest.raises(SyntherError, match="all 2 members have diverged after 5 updates"):
            train_to(PLAN, frames(), tmp_path / "all", progress=False)


class TestLatents:
    def test_a_file_for_each_seed(self, run, latents, tmp_path):
        with RunFolder(tmp_path / "latents").lock(), pytest.raises(ConfigError, match="is working in"):
            encode_to(run, frames(), tmp_path / "latents", shifts=1, device="cpu", progress=False)
        written = encode_to(run, frames(), tmp_path / "latents", shifts=1, device="cpu", progress=False)
        assert [file.name for file in written] == ["seed-3.npz", "seed-4.npz"]
        for file, rows in zip(written, latents, strict=True):
            assert read(file).equals(rows)
            assert rows.observation.shape == (24, 100)  # seven decisions, two at a time
        features, sources = stored(tmp_path / "latents", identity(run))
        assert features == "both"
        assert sources[1].rows(None, Silent()).equals(latents[1])
        with pytest.raises(ConfigError, match="other options: features"):
            encode_to(run, frames(), tmp_path / "latents", features="actor", shifts=1, device="cpu", progress=False)

    def test_of_other_agents_they_are_refused(self, run, tmp_path):
        encode_to(run, frames(), tmp_path / "latents", device="cpu", progress=False)
        with pytest.raises(ConfigError, match="latents of other agents"):
            stored(tmp_path / "latents", {**identity(run), "updates": 13})
        (tmp_path / "latents" / "seed-4.npz").unlink()
        with pytest.raises(FormatError, match=r"expected one file seed-4 .* got none"):
            stored(tmp_path / "latents", identity(run))
        with pytest.raises(ConfigError, match="holds no latents"):
            stored(tmp_path, identity(run))

    def test_frames_of_another_task_are_refused(self, run, tmp_path, caplog):
        out = tmp_path / "latents"
        wide = replace(frames(), action=np.zeros((32, 3)), low=-1.0, high=1.0)
        for changed, says in ((frames(env_id="dm_control/walker-walk-v0"), "walker-walk"), (wide, "3")):
            with pytest.raises(DataError, match=says):
                encode_to(run, changed, out, device="cpu", progress=False)
        assert not out.exists()
        encode_to(run, frames(seed=1), out, device="cpu", progress=False)
        assert "were trained on other frames than these" in caplog.text

    def test_what_behaviour_cloning_has_and_has_not(self, tmp_path):
        with pytest.raises(ConfigError, match="holds no finished training"):
            encode_to(tmp_path, frames(), tmp_path / "latents", progress=False)
        train_to(PLAN_BC, frames(), tmp_path / "run", progress=False)
        given = (tmp_path / "run", frames(), tmp_path / "latents")
        with pytest.raises(ConfigError, match="critic"):
            encode_to(*given, features="critic", device="cpu", progress=False)
        assert not (tmp_path / "latents").exists()
        assert len(encode_to(*given, device="cpu", progress=False)) == 2
        features, sources = stored(tmp_path / "latents", identity(tmp_path / "run"))
        heads = retrain_to(PLAN_BC, tmp_path / "run", sources, tmp_path / "two", features=features, progress=False)
        assert heads.updates == PLAN_BC.updates

    def test_latents_and_actions_alone_are_enough_for_behaviour_cloning(self, tmp_path):
        run, pairs, made = (tmp_path / name for name in ("run", "pairs", "made"))
        train_to(PLAN_BC, frames(), run, progress=False)
        encode_to(run, frames(), pairs, shifts=1, pairs=True, device="cpu", progress=False)
        with pytest.raises(ConfigError, match="pairs"):
            encode_to(run, frames(), pairs, shifts=1, device="cpu", progress=False)
        upsample(pairs, made, SETTINGS, 40, device="cpu", progress=False)
        model = Synthesizer.load(made / "models" / "seed-3.safetensors", device="cpu")
        assert model.layout.width == 50 + ACTIONS
        features, sources = stored(made, identity(run))
        synthetic = sources[0].rows(None, Silent())
        assert synthetic.observation.std() > 0
        for field in ("next_observation", "reward", "terminal"):
            assert not getattr(synthetic, field).any()
        heads = retrain_to(PLAN_BC, run, sources, tmp_path / "two", features=features, progress=False)
        assert heads.diverged["latents"] == ()

    def test_models_that_were_being_fitted_are_taken_up(self, latents, tmp_path, monkeypatch):
        monkeypatch.setattr(fitting, "SAVE_SECONDS", 0)
        settings = SETTINGS.changed(fit={"steps": 22, "ema_every": 2, "evaluate_every": 2})
        options = {"device": "cpu", "progress": False}
        whole = fit_together(tmp_path / "whole", latents, [3, 4], settings, **options)
        with pytest.raises(Stopped):
            fit_together(tmp_path / "models", latents, [3, 4], settings, device="cpu", progress=Watch(reports=10))
        assert files(tmp_path) == ["models.fit-0", *(f"whole/{file.name}" for file in whole)]
        display = Watch()
        fit_together(tmp_path / "models", latents, [3, 4], settings, device="cpu", progress=display)
        assert display.phases[0][::2] == ["fit", 18]
        assert not (tmp_path / "models.fit-0").exists()
        assert same_tensors(tmp_path / "models", tmp_path / "whole", *(file.name for file in whole))

    def test_upsampled_in_one_go(self, run, tmp_path):
        encode_to(run, frames(), tmp_path / "latents", device="cpu", progress=False)
        given = (tmp_path / "latents", tmp_path / "synthetic", SETTINGS, 20)
        with RunFolder(tmp_path / "synthetic").lock(), pytest.raises(ConfigError, match="is working in"):
            upsample(*given, device="cpu", progress=False)
        with pytest.raises(Stopped):
            upsample(*given, device="cpu", progress=Watch(reports=4))
        assert [file.name for file in (tmp_path / "synthetic").glob("*.hdf5")] == ["seed-3.hdf5"]
        written = upsample(*given, device="cpu", progress=False)
        assert [len(read(file)) for file in written] == [20, 20]
        assert not read(written[0]).equals(read(written[1]))
        features, _ = stored(tmp_path / "synthetic", identity(run))
        assert features == "both"
        with pytest.raises(ConfigError, match="other options: samples"):
            upsample(*given[:3], 21, device="cpu", progress=False)
        with pytest.raises(ConfigError, match="holds no latents"):
            upsample(run, tmp_path / "more", SETTINGS, 20, progress=False)


class TestStageTwo:
    def retrain(self, run, latents, folder, *, features="both", progress=False, **changes):
        sources = [Given(rows) for rows in latents]
        return retrain_to(replace(PLAN, **changes), run, sources, folder, features=features, progress=progress)

    def test_only_heads_are_trained(self, run, latents, tmp_path):
        before = load_file(run / "checkpoint.safetensors")
        result = self.retrain(run, latents, tmp_path / "heads")
        assert (result.updates, list(result.curves)) == (12, ["latents"])
        after = load_file(tmp_path / "heads" / "policy.safetensors")
        for name in ("encoder", "actor_trunk", "low", "high"):
            assert torch.equal(after[name], before[name])
        assert not torch.equal(after["actor"], before["actor"])
        trained = load_file(tmp_path / "heads" / "seeds-3-4" / "checkpoint.safetensors")
        assert torch.equal(after["actor"], trained["actor"])
        assert load_file(run / "checkpoint.safetensors").keys() == before.keys()

    @pytest.mark.parametrize(("features", "trunk"), [("actor", "actor_trunk"), ("critic", "critic_trunk")])
    def test_heads_see_through_the_trunk_they_learned_from(self, run, features, trunk, tmp_path):
        rows = encode(run / loop.CHECKPOINT, frames(), features=features, shifts=1, device="cpu")
        self.retrain(run, rows, tmp_path / "heads", features=features)
        after, before = load_file(tmp_path / "heads" / "policy.safetensors"), load_file(run / "checkpoint.safetensors")
        assert torch.equal(after["actor_trunk"], before[trunk])

    def test_batches_mix_real_rows_with_others(self, run, latents, tmp_path):
        """Rows of which half are lost in every batch: heads learn from the others as well."""
        frozen = [replace(rows, action=np.full_like(rows.action, 0.9)) for rows in latents]
        real = [Given(rows) for rows in latents]
        mixed = {"features": "both", "progress": False, "real": real, "ratio": 0.25}
        retrain_to(PLAN, run, [Given(rows) for rows in frozen], tmp_path / "mixed", **mixed)
        self.retrain(run, frozen, tmp_path / "frozen")
        self.retrain(run, latents, tmp_path / "real")
        heads = [load_file(tmp_path / name / "policy.safetensors")["actor"] for name in ("mixed", "frozen", "real")]
        assert (heads[0] - heads[2]).norm() < (heads[1] - heads[2]).norm()
        with pytest.raises(ConfigError, match="other options: ratio"):
            retrain_to(PLAN, run, [Given(rows) for rows in frozen], tmp_path / "mixed", **{**mixed, "ratio": 0.5})
        with pytest.raises(ConfigError, match="ratio"):
            retrain_to(PLAN, run, real, tmp_path / "none", **{**mixed, "ratio": 1.5})

    def test_the_noise_falls_over_the_same_share_of_updates(self):
        whole, short = PixelRun(algorithm="bc"), PixelRun(algorithm="bc", updates=5_500)
        assert (whole.config.stddev_updates, short.config.stddev_updates) == (125_000, 1_250)
        assert replace(short, agent={"stddev_updates": 7}).config.stddev_updates == 7

    def test_one_seed_after_another_and_stopped_it_comes_to_the_same(self, run, latents, tmp_path, monkeypatch):
        self.retrain(run, latents, tmp_path / "together")
        monkeypatch.setattr(retraining, "_CPU_BYTES", 1)
        self.retrain(run, latents, tmp_path / "alone")
        one, other = (load_file(tmp_path / name / "policy.safetensors") for name in ("together", "alone"))
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name], other[name])
        with pytest.raises(Stopped):
            self.retrain(run, latents, tmp_path / "stopped", progress=Watch(reports=8))
        assert (tmp_path / "stopped" / "seeds-3-3" / "trained.json").exists()
        assert not (tmp_path / "stopped" / "seeds-4-4" / "trained.json").exists()
        self.retrain(run, latents, tmp_path / "stopped")
        assert same_tensors(tmp_path / "alone", tmp_path / "stopped", "policy.safetensors")
        assert files(tmp_path / "alone") == files(tmp_path / "stopped")

    def test_a_seed_that_diverged_is_told_by_its_place_among_all(self, run, latents, tmp_path, monkeypatch):
        monkeypatch.setattr(retraining, "_CPU_BYTES", 1)
        whole = Agent.losses
        monkeypatch.setattr(
            Agent,
            "losses",
            lambda own: {name: np.where(own.members[0].seed == 4, np.nan, loss) for name, loss in whole(own).items()},
        )
        assert self.retrain(run, latents, tmp_path / "heads").diverged == {"latents": (1,)}
        monkeypatch.setattr(Agent, "losses", lambda own: {"actor": np.full(1, np.nan)})
        with pytest.raises(SyntherError, match="all 2 members have diverged after 12 updates"):
            self.retrain(run, latents, tmp_path / "none")

    def test_what_is_refused(self, run, latents, tmp_path):
        with pytest.raises(ConfigError, match="2 seeds"):
            self.retrain(run, latents[:1], tmp_path / "heads")
        with pytest.raises(ConfigError, match="bf16"):
            self.retrain(run, latents, tmp_path / "heads", precision="bf16")
        assert not (tmp_path / "heads").exists()
        with pytest.raises(DataError, match="50 columns"):
            self.retrain(run, latents, tmp_path / "heads", features="actor")
        assert self.retrain(run, latents, tmp_path / "heads").updates == 12  # nothing was left that would refuse it
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "notes").write_text("mine")
        with pytest.raises(ConfigError, match="contains files that do not belong to this run"):
            self.retrain(run, latents, tmp_path / "mine", features="actor")
        assert (tmp_path / "mine" / "notes").read_text() == "mine"
        self.retrain(run, latents, tmp_path / "more")
        with pytest.raises(ConfigError, match="other options: rows"):
            self.retrain(run, [latents[1], latents[0]], tmp_path / "more")
        with pytest.raises(ConfigError, match="expected the --out of `synther pixels train`"):
            self.retrain(tmp_path / "more", latents, tmp_path / "again")


def test_where_frames_are_found(tmp_path):
    with pytest.raises(ConfigError, match="--data"):
        frames_of("walker-walk", "mixed", None)
    with pytest.raises(FormatError, match="no frames of walker-walk-mixed"):
        frames_of("walker-walk", "mixed", tmp_path)
    for place in ("main/walker_walk/medium_replay/84px", "walker_walk/medium_replay/84px", "walker-walk-mixed"):
        (tmp_path / place).mkdir(parents=True)
        assert frames_of("walker-walk", "mixed", tmp_path) == tmp_path / place
