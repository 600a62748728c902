"""Bad input: exit code 2, one line that says what to do, no traceback, nothing written."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from synther import write

from .conftest import tree

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture
def place(tmp_path, data, model, rows, monkeypatch) -> Path:
    """A folder with good and bad files, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(data, "good.npz")
    shutil.copy(model, "model.safetensors")
    Path("truncated.npz").write_bytes(data.read_bytes()[:1500])
    Path("truncated.safetensors").write_bytes(model.read_bytes()[:1500])
    Path("rows.csv").write_text("obs,action\n1,2\n")
    Path("rows.pkl").write_bytes(b"\x80\x04N.")
    Path("model_as_data.npz").write_bytes(model.read_bytes())
    Path("data_as_model.safetensors").write_bytes(data.read_bytes())
    arrays = {name: array.copy() for name, array in rows.arrays().items()}
    arrays["observation"][17, 1] = np.nan
    np.savez("nan.npz", **arrays)
    np.savez("keys.npz", observation=np.zeros((3, 1)), whatever=np.zeros(3))
    write(rows[:1], "one.npz")
    write(rows[np.zeros(9, int)], "equal.npz")
    Path("taken").mkdir()
    Path("taken/thesis.tex").write_text("mine")
    return tmp_path


FIT = "--out new.safetensors"
READING = {
    "absent.npz": "absent.npz: no such file",
    "truncated.npz": "truncated.npz",
    "rows.csv": "'.csv'",
    "rows.pkl": "pickles are never loaded",
    "nan.npz": "observation[17, 1]",
    "keys.npz": "whatever",
    "model_as_data.npz": "model_as_data.npz",
}
FITTING = {
    "fit good.npz --out new.txt": "--out must end in .safetensors",
    "fit model.safetensors --out new.safetensors": "'.safetensors'",
    "fit one.npz --out new.safetensors": "1 row",
    "fit equal.npz --out new.safetensors": "all 9 rows are equal",
    f"fit good.npz {FIT} --preset papre": "'papre'",
    f"fit good.npz {FIT} --preset": "--preset",
    f"fit good.npz {FIT} --device tpu": "'tpu'",
    f"fit good.npz {FIT} --fraction 2": "fraction",
    f"fit good.npz {FIT} --minutes -1": "fit.minutes",
    f"fit good.npz {FIT} --seed -1": "--seed",
    f"fit good.npz {FIT} --data.scaling rewards quantile": "unknown name 'rewards'",
    "upsample good.npz --out run --samples 0": "at least 1",
    "upsample good.npz --out taken": "taken holds files of something else",
    "upsample good.npz --out good.npz": "good.npz is a file",
    "upsample one.npz --out run": "cannot be fitted on 1 row",
}
SAMPLING = {
    "sample absent.safetensors --out new.npz": "absent.safetensors: no such file; expected a model",
    "sample data_as_model.safetensors --out new.npz": "data_as_model.safetensors is no safetensors file",
    "sample truncated.safetensors --out new.npz": "truncated.safetensors is no safetensors file, or a truncated one",
    "sample model.safetensors --out new.npz --samples 0": "at least 1",
    "sample model.safetensors --out new.csv": "'.csv'",
    "sample model.safetensors --out new.pkl": "pickles are never loaded or written",
    "sample model.safetensors --out new.npz --parallel 2": "choose a folder as --out",
    "sample model.safetensors --out new --gpus 1": "--engine ray",
    "sample model.safetensors --out new.npz --steps 0": "sampler.steps",
    "sample model.safetensors --out new.npz --sampler distilled": "no student",
    "distill absent.safetensors": "absent.safetensors: no such file; expected a model",
    "distill data_as_model.safetensors": "data_as_model.safetensors is no safetensors file",
    "distill model.safetensors --calls 0": "distill.calls",
    "distill model.safetensors --calls 17": "distill.calls",
    "distill model.safetensors --steps 0": "distill.steps",
    "distill model.safetensors --rows -5": "distill.rows",
    "inspect truncated.safetensors": "truncated.safetensors is no safetensors file, or a truncated one",
}
CASES = [
    *((f"inspect {name}", text) for name, text in READING.items()),  # all verbs read in the same way
    (f"fit nan.npz {FIT}", READING["nan.npz"]),
    ("upsample truncated.npz --out run", READING["truncated.npz"]),
    *FITTING.items(),
    *SAMPLING.items(),
]  # fmt: skip


@pytest.mark.parametrize(("command", "text"), CASES, ids=[command for command, _ in CASES])
def test_one_line_and_nothing_written(refused, place, command, text):
    assert text in refused(*command.split())


@NO_GPU
@pytest.mark.parametrize("verb", ["fit good.npz --out new.safetensors", "sample model.safetensors --out new.npz"])
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_gpu_that_is_not_there(refused, place, verb, device):
    assert f"device '{device}'" in refused(*verb.split(), "--device", device)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("sample model.safetensors --out new.npz --samples 5X", ["--samples", "5M, 100K or 1_000", "'5X'"]),
        ("fit good.npz --out new.safetensors --fit.steps 0", ["fit.steps must be at least 1, got 0"]),
        ("fit good.npz --out new.safetensors --data.scaling reward log", ["data.scaling must be one of", "'log'"]),
        ("fit good.npz", ["--out"]),
        ("fit --out new.safetensors", ["DATA"]),
        ("fit good.npz --out new.safetensors --prest fast", ["--prest"]),
        ("upsample good.npz --out run --format csv", ["--format", "csv"]),
        ("sample model.safetensors --out new.npz --sampler ddim", ["--sampler", "ddim"]),
        ("inspect good.npz extra", ["extra"]),
        ("presets laptop", ["laptop"]),
    ],
)
def test_words_that_are_not_understood(synther, place, command, named):
    before = tree(place)
    code, out, err = synther(*command.split())
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    for text in named:
        assert text in err
    assert tree(place) == before


def test_a_model_of_other_options_is_left_alone(synther, refused, place, tiny):
    command = ("fit", "good.npz", "--out", "new.safetensors", "--quiet", *tiny)
    assert synther(*command).code == 0
    assert "new.safetensors is a model of other data or options" in refused(*command, "--fit.steps", 30)
