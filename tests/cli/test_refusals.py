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
    Path("text.npz").write_text("obs,action\n1,2\n")
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
    "absent": "absent: no such file or folder, no Minari id",
    "truncated.npz": "truncated.npz",
    "text.npz": "text.npz",
    "rows.csv": "suffix '.csv', expected one of .npz",
    "rows.pkl": "pickles are never loaded",
    "nan.npz": "observation[17, 1] is nan: expected a finite number",
    "keys.npz": "whatever",
    "model_as_data.npz": "model_as_data.npz",
}
FITTING = {
    "fit good.npz --out new.txt": "--out must end in .safetensors, got new.txt",
    "fit good.npz --out new": "--out must end in .safetensors, got new",
    "fit model.safetensors --out new.safetensors": "suffix '.safetensors', expected one of .npz",
    "fit one.npz --out new.safetensors": "cannot be fitted on 1 row: expected at least 2",
    "fit equal.npz --out new.safetensors": "all 9 rows are equal",
    f"fit good.npz {FIT} --preset papre": "unknown preset 'papre': expected auto, best, paper, fast, laptop",
    f"fit good.npz {FIT} --preset": "--preset",
    f"fit good.npz {FIT} --device tpu": "device must be auto, cpu, cuda or cuda:N, got 'tpu'",
    f"fit good.npz {FIT} --preset fast --device tpu": "device must be auto, cpu, cuda or cuda:N, got 'tpu'",
    f"fit good.npz {FIT} --fraction 2": "fraction must lie in (0, 1], got 2.0",
    f"fit good.npz {FIT} --fraction 0": "fraction must lie in (0, 1], got 0.0",
    f"fit good.npz {FIT} --fraction nan": "fraction must lie in (0, 1], got nan",
    f"fit good.npz {FIT} --minutes -1": "fit.minutes must be positive, got -1.0",
    f"fit good.npz {FIT} --seed -1": "--seed must be at least 0, got -1",
    f"fit good.npz {FIT} --fraction 0.5 --seed -1": "--seed must be at least 0, got -1",
    f"fit good.npz {FIT} --data.scaling rewards quantile": "unknown name 'rewards'",
    "upsample good.npz --out run --samples 0": "must be a whole number and at least 1, got 0",
    "upsample good.npz --out run --samples -5": "must be a whole number and at least 1, got -5",
    "upsample good.npz --out taken": "taken holds files of something else: choose an empty or a new folder",
    "upsample good.npz --out good.npz": "good.npz is a file: choose an empty or a new folder",
    "upsample good.npz --out good.npz/run": "good.npz is a file: choose an empty or a new folder",
    "upsample one.npz --out run": "cannot be fitted on 1 row",
    "upsample good.npz --out run --fraction 1.5": "fraction must lie in (0, 1], got 1.5",
    "upsample good.npz --out run --preset nope": "unknown preset 'nope'",
}
SAMPLING = {
    "sample absent.safetensors --out new.npz": "absent.safetensors: no such file; expected a model",
    "sample taken --out new.npz": "taken: no such file; expected a model",
    "sample good.npz --out new.npz": "good.npz is no safetensors file",
    "sample data_as_model.safetensors --out new.npz": "data_as_model.safetensors is no safetensors file",
    "sample truncated.safetensors --out new.npz": "truncated.safetensors is no safetensors file, or a truncated one",
    "sample model.safetensors --out new.npz --samples 0": "must be a whole number and at least 1, got 0",
    "sample model.safetensors --out new.npz --samples -1K": "must be a whole number and at least 1, got -1000",
    "sample model.safetensors --out new.csv": "suffix '.csv', expected one of .npz",
    "sample model.safetensors --out new.pkl": "pickles are never loaded or written",
    "sample model.safetensors --out new": "generated rows form no episodes; expected a name ending in .npz",
    "sample model.safetensors --out new.npz --steps 0": "sampler.steps must be at least 1, got 0",
    "sample model.safetensors --out new.npz --device tpu": "device must be auto, cpu, cuda or cuda:N, got 'tpu'",
    "sample model.safetensors --out new.npz --seed -2": "--seed must be at least 0, got -2",
    "inspect data_as_model.safetensors": "data_as_model.safetensors is no safetensors file",
    "inspect truncated.safetensors": "truncated.safetensors is no safetensors file, or a truncated one",
}
CASES = [
    *((f"{verb} {name}{rest}", text) for name, text in READING.items()
      for verb, rest in (("fit", f" {FIT}"), ("upsample", " --out run"), ("inspect", ""))),
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
        ("upsample good.npz --out run --samples 1.5", ["--samples", "'1.5'"]),
        ("fit good.npz --out new.safetensors --fit.steps 2Q", ["--fit.steps", "'2Q'"]),
        ("fit good.npz --out new.safetensors --fit.steps 0", ["fit.steps must be at least 1, got 0"]),
        ("fit good.npz --out new.safetensors --data.scaling reward log", ["data.scaling must be one of", "'log'"]),
        ("fit good.npz", ["--out"]),
        ("fit --out new.safetensors", ["DATA"]),
        ("fit good.npz --out new.safetensors --prest fast", ["--prest"]),
        ("upsample good.npz --out run --format csv", ["--format", "csv"]),
        ("sample model.safetensors --out new.npz --sampler ddim", ["--sampler", "ddim"]),
        ("sample model.safetensors --out new.npz --precision fp8", ["--precision", "fp8"]),
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
