"""A model in a file: the same when it is loaded, and refused when it is damaged or something else."""

from __future__ import annotations

import json
import shutil
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from synther import Synthesizer
from synther.data.fingerprint import fingerprint
from synther.diffusion.config import SAMPLERS
from synther.errors import FormatError

from .rows import ACTIONS, OBSERVATIONS, QUICK, ROWS, SHORT, made, plain


def taken_apart(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def test_a_loaded_model_is_the_same_and_needs_no_other_file(model, saved, fake, tmp_path):
    alone = tmp_path / "alone.safetensors"
    shutil.copy(saved, alone)
    loaded = Synthesizer.load(alone)
    alone.unlink()
    assert loaded.sample(1500, seed=0, progress=False).equals(fake[:1500])
    assert (loaded.settings, loaded.seed) == (model.settings, model.seed)
    assert (loaded.layout, loaded.scaler, loaded.record) == (model.layout, model.scaler, model.record)
    drawn = loaded.sample(5, seed=0, progress=False)
    assert (drawn.env_id, drawn.action_space, drawn.observation_space) == ("Made-v0", ACTIONS, OBSERVATIONS)


def test_the_record_says_how_it_was_fitted(model, real):
    record = model.record
    assert (record.rows, record.steps, record.device, record.seed) == (ROWS, 300, "cpu", 0)
    assert [entry["step"] for entry in record.history] == [50, 100, 150, 200, 250, 300]
    assert record.history[-1]["held_out"] < record.history[0]["held_out"]
    assert record.data == fingerprint(made())
    assert record.data != fingerprint(real[1:])


@pytest.mark.parametrize("kind", ["absent", "folder", "empty", "text", "npz"])
def test_what_is_no_model(kind, tmp_path, real):
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
def test_a_truncated_model(saved, share, tmp_path):
    whole = saved.read_bytes()
    path = tmp_path / "x.safetensors"
    path.write_bytes(whole[: min(int(share * len(whole)), len(whole) - 1)])
    with pytest.raises(FormatError, match=r"x\.safetensors"):
        Synthesizer.load(path)


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}, {"format": "synther-model-99"}])
def test_tensors_of_something_else(metadata, tmp_path):
    save_file({"weight": torch.zeros(3)}, tmp_path / "x.safetensors", metadata)
    with pytest.raises(FormatError, match=(metadata or {}).get("format", "synther-model")):
        Synthesizer.load(tmp_path / "x.safetensors")


METADATA = ["settings", "layout", "scaler", "record", "rates", "calibration"]
DAMAGES = [None, "", "{", "[]", "{}", '"x"', "NaN"]


@pytest.mark.parametrize(
    ("key", "damage"),
    [*product(METADATA, [*DAMAGES, "null"]), *product(["ending"], DAMAGES)],  # no tree at all is no damage
)
def test_damaged_metadata(saved, key, damage, tmp_path):
    tensors, metadata = taken_apart(saved)
    metadata = {name: text for name, text in metadata.items() if name != key}
    if damage is not None:
        metadata[key] = damage
    save_file(tensors, tmp_path / "x.safetensors", metadata)
    with pytest.raises(FormatError, match=r"x\.safetensors"):
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
        *(("layout", "terminal_reward", price) for price in (float("nan"), "1", None)),
        ("record", "weather", "fine"),
    ],
)
def test_metadata_damaged_inside(saved, key, part, value, tmp_path):
    tensors, metadata = taken_apart(saved)
    metadata[key] = json.dumps({**json.loads(metadata[key]), part: value})
    save_file(tensors, tmp_path / "x.safetensors", metadata)
    with pytest.raises(FormatError, match=r"x\.safetensors"):
        Synthesizer.load(tmp_path / "x.safetensors")


@pytest.mark.parametrize("damage", ["missing", "added", "shape"])
def test_damaged_weights(saved, damage, tmp_path):
    tensors, metadata = taken_apart(saved)
    name = next(name for name, tensor in tensors.items() if tensor.ndim == 2)
    if damage == "missing":
        del tensors[name]
    else:
        tensors["extra" if damage == "added" else name] = torch.zeros(3)
    save_file(tensors, tmp_path / "x.safetensors", metadata)
    with pytest.raises(FormatError, match="damaged SynthER model"):
        Synthesizer.load(tmp_path / "x.safetensors")


def test_seeds_of_numpy(tmp_path):
    """Whatever takes a seed writes it down."""
    model = Synthesizer("laptop", **SHORT, seed=np.int64(3)).fit(plain(), checkpoint=tmp_path / "c", progress=False)
    model.save(tmp_path / "m.safetensors")
    assert Synthesizer.load(tmp_path / "m.safetensors").seed == 3
    rows = model.sample_to(tmp_path / "x.npz", 4, seed=np.int64(1), progress=False)
    assert rows.equals(model.sample(4, seed=1, progress=False))


def test_a_file_may_name_an_installed_sampler_and_no_other_code(tmp_path, monkeypatch):
    folder, path = tmp_path / "my_samplers-1.0.dist-info", tmp_path / "model.safetensors"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: my-samplers\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[synther.samplers]\nmine = my_samplers:MINE\n")
    source = "from synther.diffusion import config, samplers\nMINE = config.Sampler(samplers.euler)\n"
    (tmp_path / "my_samplers.py").write_text(source)
    with monkeypatch.context() as installed:
        installed.syspath_prepend(tmp_path)
        settings = {**QUICK, "sampler": {"kind": "mine", "steps": 2}}
        model = Synthesizer("laptop", **settings, device="cpu").fit(plain(), progress=False)
        drawn = model.sample(50, seed=0, progress=False)
        model.save(path)
        assert Synthesizer.load(path).sample(50, seed=0, progress=False).equals(drawn)
        assert model.sample(50, seed=0, sampler={"kind": "euler"}, progress=False).equals(drawn)
    SAMPLERS.remove("mine")
    sys.modules.pop("my_samplers")
    with pytest.raises(FormatError, match=r"sampler\.kind .*'mine'"):
        Synthesizer.load(path)
    assert "my_samplers" not in sys.modules
