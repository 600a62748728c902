"""`Synthesizer` from rows to rows: kinds of columns kept, rates kept, files kept, nothing drawn twice."""

from __future__ import annotations

import gc
import json
import math
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import synther.synthesizer
from synther import Synthesizer, Transitions, compute, read
from synther.data.spaces import Binary, Box, Discrete
from synther.data.spool import Spool
from synther.diffusion.blocks import BlockSampler
from synther.diffusion.config import SamplerConfig
from synther.errors import ConfigError, DataError, FormatError
from synther.presets import PRESETS

TINY = {
    "network": {"width": 32, "depth": 2, "embedding": 16},
    "fit": {"steps": 300, "evaluate_every": 50, "checkpoint_every": 50},
    "sampler": {"steps": 16},
}
SHORT = {
    **TINY,
    "fit": {"steps": 20, "evaluate_every": 10, "checkpoint_every": 10},
    "sampler": {"steps": 4},
}
QUICK = {**SHORT, "sampler": {"steps": 2}}
ROWS = 2000
ACTIONS = (Box((-1.0, 0.0), (1.0, 0.1)),)
OBSERVATIONS = (Box.uniform(-math.inf, math.inf, 5),)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small gain nothing from a second core, and the order of sums stays the same everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def observations(draw: np.random.Generator, count: int) -> np.ndarray:
    """A real column, one of tiny variance far from 0, a constant, whole numbers, and a flag."""
    columns = [
        draw.normal(2, 3, count),
        1e6 + 1e-3 * draw.normal(size=count),
        np.full(count, 0.1),
        draw.integers(0, 8, count),
        draw.random(count) < 0.3,
    ]
    return np.stack(columns, axis=1).astype(np.float64)


def made(count: int = ROWS, **changes) -> Transitions:
    draw = np.random.default_rng(0)
    fields = {
        "observation": observations(draw, count),
        "action": (draw.uniform((-1, 0), (1, 0.1), (count, 2))).astype(np.float32),
        "reward": draw.normal(size=count).astype(np.float32),
        "next_observation": observations(draw, count),
        "terminal": np.arange(count) % 20 == 0,
        "action_space": ACTIONS,
        "observation_space": OBSERVATIONS,
        "env_id": "Made-v0",
    }
    return Transitions(**{**fields, **changes})


def plain(count: int = 300, columns: int = 1, **changes) -> Transitions:
    """Normal values and nothing else."""
    draw = np.random.default_rng(0)
    fields = {name: draw.normal(size=(count, columns)) for name in ("observation", "action", "next_observation")}
    return Transitions(**{**fields, "reward": draw.normal(size=count), **changes})


class Watch:
    """A progress display that remembers what it was shown, and may bring the work down."""

    def __init__(self, stop: tuple[str, int] = ("", 0), at_every=lambda: None) -> None:
        self.stop, self.at_every = stop, at_every
        self.phases: list[list] = []  # name, total, start, done

    @contextmanager
    def phase(self, name: str, total: int, start: int = 0):
        self.phases.append([name, total, start, start])
        yield self

    def advance(self, amount: int, note: str = "") -> None:
        self.at_every()
        self.phases[-1][3] += amount
        name, _, _, done = self.phases[-1]
        if name == self.stop[0] and done >= self.stop[1]:
            raise Stopped


class Stopped(Exception):
    pass


@pytest.fixture(scope="module")
def real() -> Transitions:
    return made()


@pytest.fixture(scope="module")
def watched_fit(real) -> tuple[Synthesizer, Watch]:
    watch = Watch()
    return Synthesizer("laptop", **TINY).fit(real, progress=watch), watch


@pytest.fixture(scope="module")
def model(watched_fit) -> Synthesizer:
    return watched_fit[0]


@pytest.fixture(scope="module")
def fake(model) -> Transitions:
    return model.sample(20_000, progress=False)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    model.save(path)
    return path


class TestKinds:
    def test_shapes_types_and_names_are_those_of_the_real_rows(self, real, fake):
        for name, array in real.arrays().items():
            assert getattr(fake, name).shape == (20_000, *array.shape[1:]), name
            assert getattr(fake, name).dtype == array.dtype, name
        assert fake.timeout is None
        assert (fake.env_id, fake.action_space, fake.observation_space) == ("Made-v0", ACTIONS, OBSERVATIONS)

    @pytest.mark.parametrize("name", ["observation", "next_observation"])
    def test_every_column_keeps_its_kind(self, fake, name):
        _, tiny, constant, whole, flag = getattr(fake, name).T
        assert (constant == 0.1).all()
        assert set(np.unique(whole)) <= set(range(8))
        assert set(np.unique(flag)) == {0.0, 1.0}
        assert len(np.unique(tiny)) > 10_000

    @pytest.mark.parametrize("name", ["observation", "next_observation"])
    def test_every_column_keeps_its_place_and_spread(self, real, fake, name):
        truth, drawn = getattr(real, name), getattr(fake, name)
        for column in (0, 1, 3):
            mean, deviation = truth[:, column].mean(), truth[:, column].std()
            assert drawn[:, column].mean() == pytest.approx(mean, abs=0.1 * deviation), column
            assert drawn[:, column].std() == pytest.approx(deviation, rel=0.1), column

    def test_actions_stay_in_the_box(self, fake):
        first, second = fake.action.T
        assert -1 <= first.min() < -0.8
        assert 0.8 < first.max() <= 1
        assert 0 <= second.min() < 0.02
        assert 0.08 < float(second.max()) <= 0.1

    def test_flags_are_as_frequent_as_in_the_real_rows(self, watched_fit, real, fake):
        """Within four deviations: the rate was measured on the rows that calibration drew, and on those drawn now."""
        (calibration,) = [total for name, total, *_ in watched_fit[1].phases if name == "calibrate"]
        flags = {
            "terminal": (real.terminal, fake.terminal),
            "observation": (real.observation[:, 4], fake.observation[:, 4]),
            "next_observation": (real.next_observation[:, 4], fake.next_observation[:, 4]),
        }
        for name, (truth, drawn) in flags.items():
            rate = truth.mean()
            deviation = math.sqrt(rate * (1 - rate) * (1 / calibration + 1 / len(drawn)))
            assert drawn.mean() == pytest.approx(rate, abs=4 * deviation), name

    def test_every_sampler_is_calibrated_once(self, real, saved):
        """A coarse sampler misses the rate on its own way."""
        model, coarse = Synthesizer.load(saved), SamplerConfig("euler", 6)
        watch = Watch()
        drawn = model.sample(10_000, sampler=coarse, progress=watch).terminal
        (name, calibration, *_), *others = watch.phases
        assert (name, [other[0] for other in others]) == ("calibrate", ["sample"])
        rate = real.terminal.mean()
        deviation = math.sqrt(rate * (1 - rate) * (1 / calibration + 1 / len(drawn)))
        assert drawn.mean() == pytest.approx(rate, abs=4 * deviation)
        again = Watch()
        model.sample(10, sampler=coarse, progress=again)
        model.sample(10, progress=again)
        assert [phase[0] for phase in again.phases] == ["sample", "sample"]

    def test_half_leaves_the_threshold_alone(self):
        model = Synthesizer("laptop", **SHORT, data={"threshold": "half"})
        watch = Watch()
        model.fit(made(200), progress=watch)
        assert [name for name, *_ in watch.phases] == ["fit"]
        assert set(model.layout.thresholds.values()) == {0.5}
        assert len(model.layout.thresholds) == 3

    def test_calibration_moves_the_threshold(self, model):
        (terminal,) = [c for c in model.layout.binary_columns if model.layout.names[c] == "terminal"]
        assert model.layout.thresholds[terminal] != 0.5

    def test_a_flag_that_only_next_observations_carry(self):
        """Reaching a goal is seen after a step, never before one."""
        rows = made(400)
        before, after = rows.observation.copy(), rows.next_observation.copy()
        before[:, 4] = 0
        after[:, 4] = rows.terminal
        model = Synthesizer("laptop", **SHORT).fit(
            made(400, observation=before, next_observation=after), progress=False
        )
        assert model.layout.thresholds[model.layout.names.index("observation[4]")] == 0.5
        assert set(np.unique(model.sample(600, progress=False).next_observation[:, 4])) <= {0.0, 1.0}

    @pytest.mark.parametrize("coding", ["onehot", "bits"])
    @pytest.mark.parametrize("space", [None, (Discrete(6, 3),)])
    def test_one_discrete_action(self, coding, space):
        actions = 3 + np.random.default_rng(1).integers(0, 5, 500)
        rows = plain(500, action=actions, action_space=space)
        model = Synthesizer("laptop", **SHORT, data={"coding": coding}).fit(rows, progress=False)
        drawn = model.sample(2000, progress=False).action
        assert drawn.shape == (2000,)
        assert drawn.dtype == actions.dtype
        assert set(range(3, 8)) <= set(drawn.tolist()) <= set(range(3, 9 if space else 8))

    @pytest.mark.parametrize("coding", ["onehot", "bits"])
    def test_several_discrete_actions(self, coding):
        draw = np.random.default_rng(1)
        actions = np.stack([draw.integers(0, 3, 500), draw.integers(1, 5, 500)], axis=1).astype(np.int32)
        rows = plain(500, action=actions, action_space=(Discrete(3), Discrete(4, 1)))
        model = Synthesizer("laptop", **SHORT, data={"coding": coding}).fit(rows, progress=False)
        drawn = model.sample(2000, progress=False).action
        assert drawn.shape == (2000, 2)
        assert drawn.dtype == np.int32
        assert set(drawn[:, 0].tolist()) == {0, 1, 2}
        assert set(drawn[:, 1].tolist()) == {1, 2, 3, 4}

    def test_multi_binary_actions(self):
        actions = np.random.default_rng(1).integers(0, 2, (500, 3)).astype(np.int8)
        model = Synthesizer("laptop", **SHORT).fit(
            plain(500, action=actions, action_space=(Binary(3),)), progress=False
        )
        drawn = model.sample(1000, progress=False).action
        assert drawn.dtype == np.int8
        assert set(np.unique(drawn)) == {0, 1}

    def test_rows_wider_than_the_embedding(self):
        rows = plain(200, columns=70)
        model = Synthesizer("laptop", **{**SHORT, "network": {"width": 32, "depth": 2, "embedding": 128}})
        drawn = model.fit(rows, progress=False).sample(30, progress=False)
        assert model.layout.width == 211
        assert drawn.observation.shape == drawn.action.shape == (30, 70)


MIXED = {"default": "minmax", "reward": "quantile", "observation[0]": "none"}


class TestScaling:
    @pytest.mark.parametrize("scaling", ["standard", "minmax", "quantile", "none", MIXED], ids=str)
    def test_every_choice_reaches_its_columns(self, scaling):
        model = Synthesizer("laptop", **SHORT, data={"scaling": scaling}).fit(plain(), progress=False)
        asked = scaling if isinstance(scaling, dict) else {"default": scaling}
        assert model.scaler.kinds == (
            asked.get("observation[0]", asked["default"]),
            asked["default"],
            asked.get("reward", asked["default"]),
            asked["default"],
        )
        assert np.isfinite(model.sample(100, progress=False).reward).all()

    def test_a_wrong_name_is_an_error(self):
        model = Synthesizer("laptop", **SHORT, data={"scaling": {"rewards": "quantile"}})
        with pytest.raises(ConfigError, match="unknown name 'rewards': expected default, observation"):
            model.fit(plain(), progress=False)


class TestRefusals:
    @pytest.mark.parametrize(
        "use",
        [
            lambda model: model.sample(1),
            lambda model: model.sample_to("x.npz", 1),
            lambda model: model.save("x.safetensors"),
            lambda model: model.log_likelihood(plain()),
            lambda model: model.layout,
            lambda model: model.scaler,
            lambda model: model.network,
            lambda model: model.record,
        ],
    )
    def test_not_fitted(self, use, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ConfigError, match=r"not been fitted: call fit\(transitions\), or Synthesizer\.load"):
            use(Synthesizer("laptop"))
        assert list(tmp_path.iterdir()) == []

    def test_one_row(self):
        with pytest.raises(DataError, match="cannot be fitted on 1 row: expected at least 2"):
            Synthesizer("laptop", **SHORT).fit(plain(1), progress=False)

    def test_two_rows_are_enough(self):
        model = Synthesizer("laptop", **SHORT).fit(plain(2), progress=False)
        assert len(model.sample(3, progress=False)) == 3

    def test_rows_that_are_all_equal(self):
        row = plain(1)
        with pytest.raises(DataError, match="all 50 rows are equal"):
            Synthesizer("laptop", **SHORT).fit(row[np.zeros(50, int)], progress=False)

    @pytest.mark.parametrize("count", [0, -3])
    def test_counts_below_one(self, model, count, tmp_path):
        with pytest.raises(ConfigError, match=f"at least 1, got {count}"):
            model.sample(count)
        with pytest.raises(ConfigError, match=f"at least 1, got {count}"):
            model.sample_to(tmp_path / "x.npz", count)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", ["x.pkl", "x.txt", "x"])
    def test_files_that_cannot_take_rows(self, model, name, tmp_path):
        with pytest.raises(FormatError):
            model.sample_to(tmp_path / name, 10)
        assert list(tmp_path.iterdir()) == []

    def test_a_negative_seed(self, model):
        with pytest.raises(ConfigError, match="at least 0, got -1"):
            model.sample(1, seed=-1, progress=False)
        with pytest.raises(ConfigError, match="at least 0, got -1"):
            Synthesizer("laptop", **SHORT, seed=-1).fit(plain(), progress=False)

    def test_rows_of_another_kind_have_no_likelihood(self, model):
        with pytest.raises(DataError, match="observation has 1 columns, the layout 5"):
            model.log_likelihood(plain())

    def test_changes_apply_to_settings_as_to_presets(self):
        named = Synthesizer("paper", fit={"steps": 5}, device="cpu")
        assert named.settings == Synthesizer(PRESETS["paper"], fit={"steps": 5}, device="cpu").settings
        with pytest.raises(ConfigError, match=r"unknown option fit\.stepps"):
            Synthesizer(PRESETS["paper"], fit={"stepps": 5})


class TestSampling:
    def test_a_smaller_sample_is_the_beginning_of_a_larger_one(self, model, fake):
        for count in (1, 100, 511, 512, 513, 1300):
            assert model.sample(count, progress=False).equals(fake[:count]), count

    def test_the_seed_decides(self, model, fake):
        other = model.sample(600, seed=1, progress=False)
        assert model.sample(600, seed=1, progress=False).equals(other)
        assert not np.array_equal(other.reward, fake.reward[:600])
        assert not np.isin(other.reward, fake.reward).any()

    def test_no_block_repeats_another(self, fake):
        assert len(np.unique(fake.observation[:, 0])) > 0.9 * len(fake)  # terminal rows may be taken twice

    def test_another_sampler_gives_other_rows(self, model, fake):
        other = model.sample(50, sampler=SamplerConfig("heun", 4), progress=False)
        assert not np.array_equal(other.reward, fake.reward[:50])

    def test_the_global_random_state_has_no_say(self, model, fake):
        torch.manual_seed(5)
        before = torch.get_rng_state()
        assert model.sample(10, progress=False).equals(fake[:10])
        assert torch.equal(torch.get_rng_state(), before)


class TestSaving:
    def test_a_loaded_model_is_the_same_and_needs_no_other_file(self, model, saved, fake, tmp_path):
        alone = tmp_path / "alone.safetensors"
        shutil.copy(saved, alone)
        loaded = Synthesizer.load(alone)
        alone.unlink()
        assert loaded.sample(1500, progress=False).equals(fake[:1500])
        assert (loaded.settings, loaded.seed) == (model.settings, model.seed)
        assert (loaded.layout, loaded.scaler, loaded.record) == (model.layout, model.scaler, model.record)
        drawn = loaded.sample(5, progress=False)
        assert (drawn.env_id, drawn.action_space, drawn.observation_space) == ("Made-v0", ACTIONS, OBSERVATIONS)

    def test_saving_again_gives_the_same_bytes(self, saved, tmp_path):
        Synthesizer.load(saved).save(tmp_path / "deep" / "again.safetensors")
        with safe_open(saved, "pt") as one, safe_open(tmp_path / "deep" / "again.safetensors", "pt") as other:
            assert one.metadata() == other.metadata()
            assert all(torch.equal(one.get_tensor(name), other.get_tensor(name)) for name in one.keys())  # noqa: SIM118

    def test_the_record_says_how_it_was_fitted(self, model, real):
        record = model.record
        assert (record.rows, record.steps, record.device, record.seed) == (ROWS, 300, "cpu", 0)
        assert [entry["step"] for entry in record.history] == [50, 100, 150, 200, 250, 300]
        assert record.history[-1]["held_out"] < record.history[0]["held_out"]
        assert record.data == synther.synthesizer.fingerprint(made())
        assert record.data != synther.synthesizer.fingerprint(real[1:])

    @pytest.mark.parametrize("kind", ["absent", "folder", "empty", "text", "npz"])
    def test_what_is_no_model(self, kind, tmp_path, real):
        path = tmp_path / "x.safetensors"
        if kind == "folder":
            path.mkdir()
        elif kind == "npz":
            np.savez(tmp_path / "x.npz", **real.arrays())
            path = tmp_path / "x.npz"
        elif kind != "absent":
            path.write_text("" if kind == "empty" else "hello, I am a model\n" * 50)
        with pytest.raises(FormatError, match=path.name):
            Synthesizer.load(path)

    @pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5, 0.9, 0.99999])
    def test_a_truncated_model(self, saved, share, tmp_path):
        whole = saved.read_bytes()
        path = tmp_path / "x.safetensors"
        path.write_bytes(whole[: min(int(share * len(whole)), len(whole) - 1)])
        with pytest.raises(FormatError, match=r"x\.safetensors is no safetensors file, or a truncated one"):
            Synthesizer.load(path)

    @pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}, {"format": "synther-model-99"}])
    def test_tensors_of_something_else(self, metadata, tmp_path):
        save_file({"weight": torch.zeros(3)}, tmp_path / "x.safetensors", metadata)
        with pytest.raises(FormatError, match=r"no SynthER model: expected format 'synther-model-1'"):
            Synthesizer.load(tmp_path / "x.safetensors")

    @pytest.mark.parametrize("key", ["settings", "layout", "scaler", "record", "rates", "calibration"])
    @pytest.mark.parametrize("damage", [None, "", "{", "null", "[]", "{}", '"x"', "NaN"])
    def test_damaged_metadata(self, saved, key, damage, tmp_path):
        tensors, metadata = taken_apart(saved)
        metadata = {name: text for name, text in metadata.items() if name != key}
        if damage is not None:
            metadata[key] = damage
        save_file(tensors, tmp_path / "x.safetensors", metadata)
        with pytest.raises(FormatError, match=r"x\.safetensors is a damaged SynthER model"):
            Synthesizer.load(tmp_path / "x.safetensors")

    @pytest.mark.parametrize(
        ("key", "part", "value"),
        [
            ("settings", "network", {"width": 33}),
            ("settings", "network", {"widht": 32}),
            ("settings", "fit", None),
            ("scaler", "curves", []),
            ("scaler", "kinds", ["standard"]),
            ("layout", "kinds", {}),
            ("layout", "action_space", [{"part": "sphere"}]),
            ("record", "weather", "fine"),
        ],
    )
    def test_metadata_damaged_inside(self, saved, key, part, value, tmp_path):
        tensors, metadata = taken_apart(saved)
        metadata[key] = json.dumps({**json.loads(metadata[key]), part: value})
        save_file(tensors, tmp_path / "x.safetensors", metadata)
        with pytest.raises(FormatError, match=r"x\.safetensors is a damaged SynthER model"):
            Synthesizer.load(tmp_path / "x.safetensors")

    @pytest.mark.parametrize("damage", ["missing", "added", "shape"])
    def test_damaged_weights(self, saved, damage, tmp_path):
        tensors, metadata = taken_apart(saved)
        name = next(name for name, tensor in tensors.items() if tensor.ndim == 2)
        if damage == "missing":
            del tensors[name]
        else:
            tensors["extra" if damage == "added" else name] = torch.zeros(3)
        save_file(tensors, tmp_path / "x.safetensors", metadata)
        with pytest.raises(FormatError, match="damaged SynthER model"):
            Synthesizer.load(tmp_path / "x.safetensors")


def taken_apart(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


BLOCK, SHARD = 64, 2  # rows of a block, blocks of a shard
COUNT = 5 * BLOCK * SHARD + 10


@pytest.fixture(scope="module")
def quick() -> Synthesizer:
    """Poor rows, but soon."""
    return Synthesizer("laptop", **QUICK).fit(made(300), progress=False)


@pytest.fixture(scope="module")
def quick_saved(quick, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "quick.safetensors"
    quick.save(path)
    return path


@pytest.fixture
def small_blocks(monkeypatch) -> list[int]:
    """Blocks and shards of a few rows; the numbers of the blocks that are drawn."""
    monkeypatch.setattr(compute, "block_rows", lambda device: BLOCK)
    monkeypatch.setattr(synther.synthesizer, "_SHARD_BLOCKS", SHARD)
    drawn: list[int] = []
    draw = BlockSampler.draw

    def counted(self, seed, block):
        drawn.append(block)
        return draw(self, seed, block)

    monkeypatch.setattr(BlockSampler, "draw", counted)
    return drawn


class TestSampleTo:
    @pytest.mark.parametrize("suffix", [".npz", ".hdf5", ".parquet"])
    @pytest.mark.parametrize("count", [10, 2 * BLOCK * SHARD, COUNT])
    def test_the_file_holds_the_rows_of_sample(self, quick, small_blocks, suffix, count, tmp_path):
        path = tmp_path / "deep" / f"fake{suffix}"
        first = quick.sample_to(path, count, seed=3, progress=False)
        rows, held = quick.sample(count, seed=3, progress=False), read(path)
        assert held.equals(rows)
        assert first.equals(rows)
        assert {n: a.dtype for n, a in held.arrays().items()} == {n: a.dtype for n, a in rows.arrays().items()}
        for found in (first, held):
            assert (found.env_id, found.action_space, found.observation_space) == ("Made-v0", ACTIONS, OBSERVATIONS)
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    @pytest.mark.parametrize("suffix", [".npz", ".hdf5", ".parquet"])
    @pytest.mark.parametrize("preview", [1, BLOCK * SHARD, 300])
    def test_the_first_rows_come_back(self, quick, small_blocks, suffix, preview, tmp_path, monkeypatch):
        monkeypatch.setattr(synther.synthesizer, "PREVIEW_ROWS", preview)
        first = quick.sample_to(tmp_path / f"x{suffix}", COUNT, progress=False)
        assert first.equals(quick.sample(preview, progress=False))

    def test_progress_counts_every_row_once(self, quick, small_blocks, tmp_path):
        for suffix in (".npz", ".hdf5"):
            watch = Watch()
            quick.sample_to(tmp_path / f"x{suffix}", COUNT, progress=watch)
            assert watch.phases == [["sample", COUNT, 0, COUNT], ["write", COUNT, 0, COUNT]]

    def test_a_file_of_the_home_folder(self, quick, small_blocks, tmp_path, monkeypatch):
        (tmp_path / "home").mkdir()
        (tmp_path / "work").mkdir()
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.chdir(tmp_path / "work")
        quick.sample_to("~/x.npz", 10, progress=False)
        assert sorted(file.name for file in tmp_path.rglob("*")) == ["home", "work", "x.npz"]

    @pytest.mark.parametrize(
        ("stop", "finished"),
        [
            (("sample", BLOCK), 0),
            (("sample", 2 * BLOCK), 0),
            (("sample", 3 * BLOCK), 1),
            (("sample", 9 * BLOCK), 4),
            (("sample", COUNT), 5),
            (("write", 1), 6),
            (("write", COUNT), 6),
        ],
    )
    @pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
    def test_interrupted_work_goes_on(self, quick, small_blocks, stop, finished, suffix, tmp_path):
        path = tmp_path / f"fake{suffix}"
        with pytest.raises(Stopped):
            quick.sample_to(path, COUNT, progress=Watch(stop))
        assert not path.exists()
        small_blocks.clear()
        watch = Watch()
        quick.sample_to(path, COUNT, progress=watch)
        assert small_blocks == list(range(finished * SHARD, 11))
        assert watch.phases[0] == ["sample", COUNT, min(finished * SHARD * BLOCK, COUNT), COUNT]
        assert read(path).equals(quick.sample(COUNT, progress=False))
        assert [file.name for file in tmp_path.iterdir()] == [path.name]

    @pytest.mark.parametrize("suffix", [".npz", ".hdf5", ".parquet"])
    def test_nothing_has_the_final_name_before_it_is_whole(self, quick, small_blocks, suffix, tmp_path):
        path = tmp_path / f"fake{suffix}"
        seen: list[bool] = []
        quick.sample_to(path, COUNT, progress=Watch(at_every=lambda: seen.append(path.exists())))
        assert len(seen) >= 11 + 6
        assert not any(seen)
        older = path.read_bytes()
        with pytest.raises(Stopped):
            quick.sample_to(path, COUNT, seed=1, progress=Watch(("write", COUNT)))
        assert path.read_bytes() == older

    @pytest.mark.parametrize("change", ["seed", "count", "sampler", "model", "thresholds"])
    def test_what_other_work_left_is_discarded(self, quick, quick_saved, small_blocks, change, tmp_path):
        path = tmp_path / "fake.npz"
        with pytest.raises(Stopped):
            quick.sample_to(path, COUNT, progress=Watch(("sample", 9 * BLOCK)))
        small_blocks.clear()
        other, options = Synthesizer.load(quick_saved), {}
        if change == "seed":
            options = {"seed": 1}
        elif change == "sampler":
            options = {"sampler": SamplerConfig("euler", 8)}
        elif change == "model":
            next(other.network.parameters()).mul_(1.01)
        elif change == "thresholds":
            own = other.settings.sampler
            other._model.calibrations[own] = replace(other._model.calibrations[own], terminal_odds=1.5)
        count = COUNT - (change == "count")
        other.sample_to(path, count, progress=False, **options)
        assert small_blocks[-11:] == list(range(11))  # another sampler is calibrated first
        assert read(path).equals(other.sample(count, progress=False, **options))
        assert [file.name for file in tmp_path.iterdir()] == [path.name]

    def test_the_same_model_from_a_file_goes_on(self, quick, quick_saved, small_blocks, tmp_path):
        with pytest.raises(Stopped):
            quick.sample_to(tmp_path / "x.npz", COUNT, progress=Watch(("sample", 9 * BLOCK)))
        small_blocks.clear()
        Synthesizer.load(quick_saved).sample_to(tmp_path / "x.npz", COUNT, progress=False)
        assert small_blocks == [8, 9, 10]

    def test_memory_does_not_grow_with_the_rows(self, quick, tmp_path, monkeypatch):
        monkeypatch.setattr(compute, "block_rows", lambda device: 512)
        monkeypatch.setattr(synther.synthesizer, "_SHARD_BLOCKS", SHARD)
        monkeypatch.setattr(synther.synthesizer, "PREVIEW_ROWS", 100)
        rows = torch.randn(512, quick.layout.width, generator=torch.Generator().manual_seed(0))
        monkeypatch.setattr(BlockSampler, "draw", lambda self, seed, block: rows)

        def peak(count: int) -> int:
            gc.collect()
            tracemalloc.start()
            try:
                quick.sample_to(tmp_path / "x.npz", count, progress=False)
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        peak(2_048)  # imports and caches
        few, many = peak(2_048), peak(32_768)
        row_bytes = sum(array.nbytes for array in quick.sample(512, progress=False).arrays().values()) / 512
        assert many - few < 0.05 * (32_768 - 2_048) * row_bytes

    def test_no_shard_is_larger_than_it_should_be(self, quick, small_blocks, tmp_path, monkeypatch):
        sizes: list[int] = []
        append = Spool.append
        monkeypatch.setattr(Spool, "append", lambda self, rows: (sizes.append(len(rows)), append(self, rows)))
        quick.sample_to(tmp_path / "x.npz", COUNT, progress=False)
        assert sizes == [BLOCK * SHARD] * 5 + [10]


VICTIM = """
import sys, time
from contextlib import contextmanager
from dataclasses import replace
import torch
import synther.synthesizer
from synther import Synthesizer, compute

class Slow:
    @contextmanager
    def phase(self, name, total, start=0):
        yield self
    def advance(self, amount, note=""):
        time.sleep(0.02)

torch.set_num_threads(1)
compute.block_rows = lambda device: {block}
synther.synthesizer._SHARD_BLOCKS = {shard}
Synthesizer.load(sys.argv[1]).sample_to(sys.argv[2], 100_000, progress=Slow())
"""


def test_sampling_killed_by_the_system(quick, quick_saved, small_blocks, tmp_path):
    path = tmp_path / "fake.npz"
    script = VICTIM.format(block=BLOCK, shard=SHARD)
    victim = subprocess.Popen([sys.executable, "-c", script, str(quick_saved), str(path)])
    deadline = time.monotonic() + 60
    while not (tmp_path / "fake.npz.partial" / "000003.npz").exists():
        assert victim.poll() is None, "ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    assert not path.exists()
    done = sum(file.name[:6].isdigit() for file in (tmp_path / "fake.npz.partial").iterdir())
    with pytest.raises(Stopped):  # a hundred thousand rows are for the victim; a few more blocks tell enough
        quick.sample_to(path, 100_000, progress=Watch(("sample", (done + 4) * SHARD * BLOCK)))
    assert small_blocks == list(range(done * SHARD, (done + 4) * SHARD))
    shards = sorted((tmp_path / "fake.npz.partial").glob("0*.npz"))
    held = np.concatenate([np.load(shard)["reward"] for shard in shards])
    assert len(shards) == done + 3
    np.testing.assert_array_equal(held, quick.sample(len(held), progress=False).reward)


@pytest.fixture(scope="module")
def gaussian() -> tuple[Transitions, np.ndarray]:
    """Four correlated columns of unlike units, and the true log density of every row."""
    mixing = np.array([[5.0, 0, 0, 0], [0.01, 0.02, 0, 0], [0, 0.5, 1.0, 0], [4.0, 0, 0, 1.0]])
    normal = np.random.default_rng(0).normal(size=(8000, 4))
    values = normal @ mixing.T + [100, 0, 3, 100]
    density = -0.5 * (normal**2).sum(1) - 2 * math.log(2 * math.pi) - math.log(np.linalg.det(mixing))
    return Transitions(values[:, :1], values[:, 1:2], values[:, 2], values[:, 3:]), density


@pytest.fixture(scope="module")
def fitted(gaussian) -> Synthesizer:
    settings = {
        "network": {"width": 64, "depth": 2, "embedding": 32},
        "fit": {"steps": 800, "learning_rate": 4e-3, "evaluate_every": 500},
    }
    return Synthesizer("laptop", **settings).fit(gaussian[0], progress=False)


class TestLikelihood:
    def test_it_is_the_density_of_the_data(self, gaussian, fitted):
        """Within 0.05 nats of the truth on average, in the rows' own units, and it knows which rows are rare."""
        rows, truth = gaussian
        nats = fitted.log_likelihood(rows[:500], steps=32)
        assert nats.shape == (500,)
        assert nats.dtype == np.float64
        assert nats.mean() == pytest.approx(truth[:500].mean(), abs=0.05)
        assert np.corrcoef(nats, truth[:500])[0, 1] > 0.98

    def test_rows_that_could_not_be_are_less_likely(self, gaussian, fitted):
        rows = gaussian[0][:200]
        moved = Transitions(rows.observation, rows.action, rows.reward, rows.next_observation[::-1])
        likely, unlikely = (fitted.log_likelihood(those, steps=32) for those in (rows, moved))
        assert unlikely.mean() < likely.mean() - 3

    def test_a_noisy_row_is_less_likely_than_the_real_one(self, gaussian, fitted):
        rows = gaussian[0][:200]
        noise = np.random.default_rng(1).normal(size=rows.reward.shape) * 3
        noisy = Transitions(rows.observation, rows.action, rows.reward + noise, rows.next_observation)
        likely, unlikely = (fitted.log_likelihood(those, steps=32) for those in (rows, noisy))
        assert unlikely.mean() < likely.mean() - 2

    def test_rows_stand_alone(self, gaussian, fitted):
        rows = gaussian[0][:6]
        together = fitted.log_likelihood(rows, steps=8)
        alone = np.concatenate([fitted.log_likelihood(rows[i : i + 1], steps=8) for i in range(6)])
        np.testing.assert_allclose(together, alone, atol=1e-3)


class TestFitting:
    def weights(self, model: Synthesizer) -> list[np.ndarray]:
        return [parameter.numpy() for parameter in model.network.parameters()]

    def test_the_seed_decides(self):
        same, again, other = (
            Synthesizer("laptop", **SHORT, seed=seed).fit(plain(), progress=False) for seed in (1, 1, 2)
        )
        assert all(map(np.array_equal, self.weights(same), self.weights(again)))
        assert not all(map(np.array_equal, self.weights(same), self.weights(other)))

    @pytest.mark.parametrize(("stop", "kept"), [(("fit", 10), 0), (("fit", 20), 10), (("calibrate", 1000), 20)])
    def test_interrupted_it_goes_on(self, quick, stop, kept, tmp_path):
        path = tmp_path / "fit.checkpoint"
        with pytest.raises(Stopped):
            Synthesizer("laptop", **QUICK).fit(made(300), checkpoint=path, progress=Watch(stop))
        watch = Watch()
        resumed = Synthesizer("laptop", **QUICK).fit(made(300), checkpoint=path, progress=watch)
        assert watch.phases[0] == ["fit", 20, kept, 20]
        assert all(map(np.array_equal, self.weights(resumed), self.weights(quick)))
        assert resumed.layout == quick.layout
        assert resumed.sample(600, progress=False).equals(quick.sample(600, progress=False))
        assert path.exists()

    def test_a_checkpoint_of_other_rows_is_refused(self, tmp_path):
        path = tmp_path / "fit.checkpoint"
        Synthesizer("laptop", **SHORT).fit(plain(), checkpoint=path, progress=False)
        with pytest.raises(ConfigError, match="belongs to a fit with other data or options"):
            Synthesizer("laptop", **SHORT).fit(plain(301), checkpoint=path, progress=False)

    def test_fitting_again_replaces_the_model(self):
        model = Synthesizer("laptop", **SHORT).fit(plain(), progress=False)
        model.fit(plain(columns=2), progress=False)
        assert model.sample(3, progress=False).observation.shape == (3, 2)

    def test_silence(self, tmp_path, capfd):
        model = Synthesizer("laptop", **SHORT).fit(made(100), progress=False)
        model.sample(10, progress=False)
        model.sample_to(tmp_path / "x.npz", 10, progress=False)
        model.save(tmp_path / "x.safetensors")
        assert capfd.readouterr() == ("", "")

    def test_lines_where_stderr_is_no_terminal(self, tmp_path, capsys):
        model = Synthesizer("laptop", **SHORT).fit(made(100))
        model.sample(10)
        model.sample_to(tmp_path / "x.npz", 10)
        out, err = capsys.readouterr()
        assert out == ""
        names = [line.split(":")[0] for line in err.splitlines() if "100 %" in line]
        assert names == ["fit", "calibrate", "sample", "sample", "write"]
        assert "loss" in err
