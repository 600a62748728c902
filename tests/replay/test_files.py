"""A replay saved and loaded in the middle gives what one gives that was not."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from synther.data.spaces import Box, Discrete
from synther.errors import ConfigError, FormatError
from synther.replay import files
from synther.replay.synthetic import SyntheticReplay

from .rows import TINY, numbered, tiny


def use(replay: SyntheticReplay, first: int, discrete: bool) -> list[torch.Tensor]:
    """Ninety rows and a few batches on the way, of an odd size so that something is owed to the next."""
    seen: list[torch.Tensor] = []
    for start in range(first, first + 90, 15):
        replay.add(**numbered(start, 15, discrete), timeout=np.arange(15) == 3)
        seen += replay.sample(17)
    return seen


class Killed(Exception):
    @classmethod
    def now(cls, *given) -> None:
        raise cls


def rewrite(tmp_path, **changes) -> None:
    path = tmp_path / "replay" / "replay.safetensors"
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    described = {**json.loads(metadata["replay"]), **changes}
    save_file(load_file(path), path, {**metadata, "replay": json.dumps(described)})


@pytest.mark.parametrize(("saved_at", "discrete"), [(0, False), (90, True), (270, False)])
def test_it_goes_on_as_if_nothing_had_been(saved_at, discrete, tmp_path):
    spaces = {"action_space": (Discrete(4),) if discrete else (Box.uniform(-1, 1, 2),)}
    options = {"capacity": 130, "replace": 0.5, "ratio": 0.3, "seed": 5, **spaces}
    whole, cut = tiny(**options), tiny(**options)
    for first in range(0, 360, 90):
        if first == saved_at:
            cut.save(tmp_path / "replay")
            cut = SyntheticReplay.load(tmp_path / "replay", device="cpu", progress=False)
        for one, other in zip(use(whole, first, discrete), use(cut, first, discrete), strict=True):
            assert torch.equal(one, other)
    assert cut.transitions().equals(whole.transitions())
    assert cut.transitions().action_space == spaces["action_space"]
    assert torch.equal(cut.synthetic.by_age(), whole.synthetic.by_age())
    told = [[(r.number, r.added, r.rows, r.samples, r.steps, r.held_out) for r in x.history] for x in (whole, cut)]
    assert told[0] == told[1]
    assert len(told[0]) == 3


def test_saving_again_replaces_a_replay_but_no_file(tmp_path):
    replay = tiny()
    for first in (0, 10):
        replay.add(**numbered(first, 10))
        replay.save(tmp_path / "replay")
    (tmp_path / "replay" / "replay.safetensors").write_bytes(b"half of it")  # a damaged one is replaced too
    replay.save(tmp_path / "replay")
    assert [entry.name for entry in tmp_path.iterdir()] == ["replay"]
    loaded = SyntheticReplay.load(tmp_path / "replay", device="cpu")
    assert len(loaded) == 20
    loaded.add(**numbered(20, 10), timeout=np.zeros(10, bool))
    assert loaded.transitions().timeout is None  # of earlier rows nobody knew them
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(FormatError, match=r"thesis\.tex"):
        replay.save(tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "x"


def test_options_come_back_at_home_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    options = {"ratio": np.float32(0.5), "replace": np.float64(0.5), "seed": np.int64(3), "shuffled": np.bool_(True)}
    options |= {"refit": "scratch", "precision": "tf32", "preset": TINY.changed(fit={"steps": 7})}
    replay = tiny(capacity=np.int64(50), background=np.bool_(False), refresh_every=20, **options)
    for rows in (0, 20):  # an empty one is saved too
        if rows:
            replay.add(**numbered(0, rows))
        replay.save("~/replay")
        loaded = SyntheticReplay.load("~/replay", device="cpu")
        assert (loaded.capacity, loaded.mixture.ratio, loaded.replace, loaded.seed) == (50, 0.5, 0.5, 3)
        assert (len(loaded), loaded.refit, loaded.settings.fit.steps) == (rows, "scratch", 7)
    assert (tmp_path / "replay").is_dir()
    assert loaded.model.precision == loaded.precision == replay.model.precision == "tf32"


def test_killed_while_it_is_saved_the_one_before_is_there(tmp_path, monkeypatch):
    replay = tiny()
    replay.add(**numbered(0, 100))
    for _ in range(2):
        replay.save(tmp_path / "replay")
    expected = SyntheticReplay.load(tmp_path / "replay", device="cpu").sample(50)
    replay.add(**numbered(100, 100))
    with monkeypatch.context() as patch:
        patch.setattr(files, "save", Killed.now)  # the new generator is there by then, the rows are not
        with pytest.raises(Killed):
            replay.save(tmp_path / "replay")
    loaded = SyntheticReplay.load(tmp_path / "replay", device="cpu", progress=False)
    assert all(map(torch.equal, loaded.sample(50), expected))
    loaded.add(**numbered(100, 100))  # from the old generator, so that the new one is the same
    assert torch.equal(loaded.synthetic.by_age(), replay.synthetic.by_age())
    replay.save(tmp_path / "replay")
    assert len(SyntheticReplay.load(tmp_path / "replay", device="cpu")) == 200
    assert len(list((tmp_path / "replay").iterdir())) == 2


def test_another_kind_of_device_goes_on_with_other_numbers(tmp_path):
    replay = tiny(precision="tf32")
    replay.add(**numbered(0, 50))
    replay.save(tmp_path / "replay")
    rewrite(tmp_path, device="cuda")
    loaded = SyntheticReplay.load(tmp_path / "replay", device="cpu")
    assert loaded.precision == "float32"
    assert len(loaded.sample(20).reward) == 20


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FormatError, match="absent"):
        SyntheticReplay.load(tmp_path / "absent")
    replay = tiny()
    replay.add(**numbered(0, 20))
    replay.save(tmp_path / "replay")
    with pytest.raises(ConfigError, match="device"):
        SyntheticReplay.load(tmp_path / "replay", device="tpu")
    rewrite(tmp_path, store={})
    with pytest.raises(FormatError, match="damaged replay"):
        SyntheticReplay.load(tmp_path / "replay", device="cpu")
    path = tmp_path / "replay" / "replay.safetensors"
    save_file({"x": torch.zeros(1)}, path, {"format": "other"})
    with pytest.raises(FormatError, match="'synther-replay-1'"):
        SyntheticReplay.load(tmp_path / "replay", device="cpu")
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(FormatError, match="truncated"):
        SyntheticReplay.load(tmp_path / "replay", device="cpu")
