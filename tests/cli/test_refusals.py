"""Bad input: exit code 2, one line that says what to do, no traceback, nothing written."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from synther import read, write
from synther.formats import shipped
from synther.pixels import files

from ..experiments import seeing

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture(scope="module")
def files_to_refuse(tmp_path_factory, data, model, rows) -> Path:
    place = tmp_path_factory.mktemp("refused")
    shutil.copy(data, place / "good.npz")
    shutil.copy(model, place / "model.safetensors")
    (place / "truncated.npz").write_bytes(data.read_bytes()[:1500])
    (place / "truncated.safetensors").write_bytes(model.read_bytes()[:1500])
    (place / "rows.csv").write_text("obs,action\n1,2\n")
    (place / "rows.pkl").write_bytes(b"\x80\x04N.")
    (place / "model_as_data.npz").write_bytes(model.read_bytes())
    (place / "data_as_model.safetensors").write_bytes(data.read_bytes())
    arrays = {name: array.copy() for name, array in rows.arrays().items()}
    arrays["observation"][17, 1] = np.nan
    np.savez(place / "nan.npz", **arrays)
    np.savez(place / "keys.npz", observation=np.zeros((3, 1)), whatever=np.zeros(3))
    write(rows[:1], place / "one.npz")
    write(read(shipped.hopper())[:90], place / "hopper.npz")
    write(replace(rows, action=np.arange(300) % 2, action_space=None), place / "discrete.npz")
    files.write(seeing.frames(env_id="dm_control/a-b-v0"), place / "frames.hdf5")
    (place / "empty").mkdir()
    write(rows[np.zeros(9, int)], place / "equal.npz")
    (place / "taken").mkdir()
    (place / "taken" / "thesis.tex").write_text("mine")
    return place


@pytest.fixture
def place(files_to_refuse, tmp_path, monkeypatch) -> Path:
    """A folder with good and bad files, which is the working folder."""
    shutil.copytree(files_to_refuse, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
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
    "fit frames.hdf5 --out new.safetensors": "if the file holds frames, use `synther pixels train`",
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
    "upsample good.npz --out taken": "taken contains files that do not belong to this run",
    "upsample good.npz --out good.npz": "good.npz is a file",
    "upsample good.npz --out new.npz": "choose new",
    "upsample one.npz --out run": "cannot be fitted on 1 row",
}
SAMPLING = {
    "sample absent.safetensors --out new.npz": "absent.safetensors: no such file; expected a model",
    "sample taken --out new.npz": "taken is a folder; expected a model",
    "sample data_as_model.safetensors --out new.npz": "data_as_model.safetensors is not a safetensors file",
    "sample truncated.safetensors --out new.npz": "truncated.safetensors is not a safetensors file, or it is truncated",
    "sample model.safetensors --out new.npz --samples 0": "at least 1",
    "sample model.safetensors --out new.csv": "'.csv'",
    "sample model.safetensors --out new.pkl": "pickles are never loaded or written",
    "sample model.safetensors --out new.npz --parallel 2": "choose a folder as --out",
    "sample model.safetensors --out new --gpus 1": "--engine ray",
    "sample model.safetensors --out new.npz --steps 0": "sampler.steps",
    "sample model.safetensors --out new.npz --sampler distilled": "no student",
    "distill absent.safetensors": "absent.safetensors: no such file; expected a model",
    "distill data_as_model.safetensors": "data_as_model.safetensors is not a safetensors file",
    "distill model.safetensors --calls 0": "distill.calls",
    "distill model.safetensors --calls 17": "distill.calls",
    "distill model.safetensors --steps 0": "distill.steps",
    "distill model.safetensors --rows -5": "distill.rows",
    "inspect truncated.safetensors": "truncated.safetensors is not a safetensors file, or it is truncated",
}
ASSESSING = {
    "assess good.npz good.npz --out report.html": "choose report",
    "assess good.npz good.npz --out taken/thesis.tex": "thesis.tex",
    "assess good.npz good.npz --out r --env-id Nowhere-v0": "Nowhere-v0",
    "assess good.npz good.npz --out r --env-id Hopper-v5": "Hopper-v5",
    "assess good.npz good.npz --held-out hopper.npz --out r": "observation",
    "assess good.npz absent.safetensors --out r": "absent.safetensors",
    "assess good.npz truncated.npz --out r": "truncated.npz",
    "assess good.npz good.npz --model good.npz --out r": "good.npz",
    "assess good.npz model.safetensors --model model.safetensors --out r": "--model",
    "assess good.npz model.safetensors --samples 0 --out r": "samples",
    "assess good.npz good.npz --device tpu --out r": "device",
    "assess good.npz good.npz --seed -1 --out r": "--seed",
    "compare good.npz --out run --generators vae": "unknown generator 'vae'",
    "compare good.npz --out run --generators diffusion,": "unknown generator ''",
    "compare good.npz --out run --samples 0": "samples",
    "compare good.npz --out run --trials -1": "trials",
    "compare good.npz --out run --jobs 0": "jobs",
    "compare good.npz --out run --env-id Nowhere-v0": "'Nowhere-v0'",
    "compare good.npz --out run --env-id Hopper-v5 --no-simulator": "--env-id",
    "compare good.npz --out run --preset huge": "preset 'huge'",
}
TRAIN, BESIDE = "train td3_bc good.npz --out run", "is for agents that observe states"
TRAINING = {
    f"{TRAIN} --ratio 0.5": "--ratio",
    f"{TRAIN} --augment additive --ratio 1.5": "--ratio",
    f"{TRAIN} --augment additive --synthetic x.npz": "--synthetic and --augment cannot be combined",
    f"{TRAIN} --augment additive --samples 0": "samples",
    f"{TRAIN} --samples 5M": "--samples needs a model",
    f"{TRAIN} --synthetic x.npz --samples 5M": "--samples needs a model",
    f"{TRAIN} --synthetic nowhere.safetensors": "nowhere.safetensors",
    f"{TRAIN} --fraction 0": "fraction",
    f"{TRAIN} --n-step 0": "n_step",
    f"{TRAIN} --updates 0": "updates",
    f"{TRAIN} --env-id Nowhere-v0": "'Nowhere-v0'",
    f"{TRAIN} --env-id Pendulum-v1 --no-evaluate": "--env-id is for the evaluation",
    f"{TRAIN} --env-options {{}} --no-evaluate": "--env-options is for the evaluation",
    f"{TRAIN} --data-seed -1 --fraction 0.5": "--data-seed",
    f"{TRAIN} --data nowhere": "nowhere is not a folder",
    f"{TRAIN} --policies nowhere.npz": "nowhere.npz",
    f"{TRAIN} --device tpu": "device",
    "train sac good.npz --out run": "'sac'",
    "train td3_bc discrete.npz --out run": "are discrete",
    "evaluate nowhere --episodes 0": "episodes must be at least 1",
    "evaluate nowhere --seed -1": "--seed",
    "evaluate nowhere --env-options 3": "--env-options must be a JSON object",
    "evaluate nowhere": "no such file or folder; expected the --out of",
    **{f"online Pendulum-v1 --out run --pixels --{option}": f"--{option.split('=')[0].split()[0]} {BESIDE}"
       for option in ("utd 3", "agent=sac", "prior hopper-sac", "n-step 3")},
    "online Pendulum-v1 --out run --prior hopper-sac": "prior data has",
    "online Pendulum-v1 --out run --agent ppo": "--agent must be one of sac, redq",
    "online Pendulum-v1 --out run --pixels": "dm_control suite",
    "online Pendulum-v1 --out run --ratio 0.5": "--ratio needs --synthetic",
    "online Pendulum-v1 --out run --relevance reward": "--relevance needs --synthetic",
    "online Pendulum-v1 --out run --pixels --refresh_every=9": "--refresh-every needs --synthetic",
    "online Pendulum-v1 --out run --fit.steps 9": "--fit.steps needs --synthetic",
    "online Pendulum-v1 --out run --utd 0": "utd",
    "online Pendulum-v1 --out run --seed -1": "--seed",
    "pixels train sac frames.hdf5 --out run": "'sac'",
    "pixels train bc absent.hdf5 --out run": "no such file",
    "pixels train bc frames.hdf5 --out run --updates 0": "updates must be at least 1",
    "pixels train bc frames.hdf5 --out run --quiet --env-id walker-walk": "'walker-walk'",
    "pixels train bc frames.hdf5 --out run --quiet --env-id dm_control/walker-swim-v0": "has no task",
    "pixels train bc frames.hdf5 --out run --quiet --env-id dm_control/walker-walk-v0": "has 6 actions",
    "pixels encode empty frames.hdf5 --out run --quiet": "holds no finished training",
    "pixels upsample empty --out run": "holds no latents",
    "pixels retrain empty empty --out run": "holds no finished training",
    "pixels evaluate empty": "holds no finished training",
}  # fmt: skip
COLLECTING = {
    "collect Nowhere-v0 --out new.npz": "'Nowhere-v0'",
    "collect empty --out new.npz": "synther online",
    "collect Pendulum-v1 --out new.npz --steps 0": "at least 1",
    "collect empty --out new.npz --env-options {}": "only for an environment, but empty is the folder of a run",
    "collect dm_control/walker-walk-v0 --pixels --env-options {} --out new.h5": "not possible with --pixels",
    "collect Pendulum-v1 --out new.npz --repeat 2": "--repeat is for frames: add --pixels",
    "collect Pendulum-v1 --out new.npz --shadow-size 64": "--shadow-size is for frames",
    "collect Pendulum-v1 --out new.npz --pixels": "frames are written as .hdf5 or .h5, got new.npz",
    "collect empty --pixels --repeat 1 --out new.h5": "only for an environment, but empty is the folder of a run",
    "collect Pendulum-v1 --pixels --out new.h5": "dm_control suite",
    "paper run tables --out run": "unknown experiment 'tables'",
    "paper table tables --out run": "unknown experiment 'tables'",
    "paper run agents --out run --only ant maze": "ant or maze",
    "paper run agents --out run --updates 0": "updates",
    "paper run full_eval --out run --preset huge": "preset 'huge'",
    "paper run pixels --out run --workers 0": "workers",
    "paper run online --out run --updates 0": "steps",
    "paper run agents --out run --data nowhere": "nowhere is not a folder",
    "paper run agents --out run --policies nowhere.npz": "nowhere.npz",
    "paper run agents --out run --device tpu": "device",
    "paper run agents --out run --gpus 0.5": "--engine ray",
    "paper run agents --out run --parallel 0": "parallel",
    "paper run agents --out run --parallel 2 --engine ray": "parallel",
    "paper table agents --out run --parallel 2": "--parallel",
}
CASES = [
    *((f"inspect {name}", text) for name, text in READING.items()),  # all verbs read in the same way
    (f"fit nan.npz {FIT}", READING["nan.npz"]),
    ("upsample truncated.npz --out run", READING["truncated.npz"]),
    *FITTING.items(),
    *(case for table in (SAMPLING, ASSESSING, TRAINING, COLLECTING) for case in table.items()),
]  # fmt: skip


@pytest.mark.parametrize(("command", "text"), CASES, ids=[command for command, _ in CASES])
def test_one_line_and_nothing_written(refused, place, command, text):
    assert text in refused(*command.split())


@NO_GPU
@pytest.mark.parametrize("verb", ["fit good.npz --out new.safetensors", "sample model.safetensors --out new.npz"])
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_gpu_that_is_not_there(refused, place, verb, device):
    assert f"device '{device}'" in refused(*verb.split(), "--device", device)


FIT_GOOD = f"fit good.npz {FIT}"
WORDS = {
    "fit": "missing DATA, --out PATH",
    "fit good.npz": "missing --out PATH",
    "fit --out new.safetensors": "missing DATA; write DATA before all options",
    "fit --condition reward good.npz --out new.safetensors": "missing DATA; write DATA before all options",
    "compare good.npz": "missing --out PATH",
    "pixels": "missing ACTION",
    "pixels dream": "ACTION must be train, encode, upsample, retrain or evaluate, got 'dream'",
    "pixels train bc frames.hdf5 --out run --agent.tau 1": "unknown option --agent.tau",
    "train td3_bc good.npz --out run --no-evalute": "unknown option --no-evalute: did you mean --no-evaluate?",
    "train td3_bc good.npz --out run --agent.batch-size 0": "agent.batch_size must be at least 1, got 0",
    "train td3_bc good.npz --out run --agent.widht=8": "unknown option --agent.widht: did you mean --agent.width?",
    "online Pendulum-v1 --out run --agent.utd 8": "unknown option --agent.utd: did you mean --utd?",
    "online Pendulum-v1 --out run --no-evaluate": "unknown option --no-evaluate (see",
    "fit good.npz --ouut new.safetensors": "unknown option --ouut: did you mean --out?",
    f"{FIT_GOOD} --prest fast": "unknown option --prest: did you mean --preset?",
    f"{FIT_GOOD} --steps 9": "unknown option --steps: did you mean --distill.steps, --fit.steps or --sampler.steps?",
    f"{FIT_GOOD} --no-json": "unknown option --no-json",
    f"{FIT_GOOD} --quiet true": "unexpected 'true' after --quiet: remove it, or put a name",
    f"{FIT_GOOD} --quiet=true": "unexpected value in --quiet=true: flags take no value;",
    f"{FIT_GOOD} --fit.steps": "--fit.steps needs a value",
    f"{FIT_GOOD} --fit.steps 0": "fit.steps must be at least 1, got 0",
    f"{FIT_GOOD} --fit.minutes 1h": "--fit.minutes: expected a number such as 0.5, got '1h'",
    f"{FIT_GOOD} --precision float16": "--precision must be auto, float32, tf32 or bf16, got 'float16'",
    f"{FIT_GOOD} --data.scaling log": "--data.scaling: expected {standard,minmax,quantile,blend,none}|",
    f"{FIT_GOOD} --data.scaling reward log": "data.scaling must be one of",
    "sample model.safetensors --out new.npz --samples 5X": "--samples: expected a whole number such as 5M, 100K or",
    "sample model.safetensors --out new.npz --relabel mean": "--relabel must be ensemble, got 'mean'",
    "sample model.safetensors --out new.npz --sampler ddim": "--sampler must be one of",
    "upsample good.npz --out run --format csv": "--format must be hdf5, npz or parquet, got 'csv'",
    "inspect good.npz extra": "unexpected 'extra' after good.npz",
    "presets laptop": "unexpected 'laptop': remove it",
}  # fmt: skip


@pytest.mark.parametrize(("command", "text"), WORDS.items(), ids=WORDS)
def test_words_that_are_not_understood(refused, place, command, text):
    assert refused(*command.split()).startswith(f"synther: {text}")


def test_the_error_names_the_help_of_the_command(refused, place):
    assert refused("pixels", "train", "bc").endswith(" (see `synther pixels train --help`)\n")


def test_a_model_of_other_options_is_left_alone(synther, refused, place, tiny):
    command = ("fit", "good.npz", "--out", "new.safetensors", "--quiet", *tiny)
    assert synther(*command).code == 0
    assert "new.safetensors is a model that was fitted with other data or options" in refused(
        *command, "--fit.steps", 30
    )
