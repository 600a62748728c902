from __future__ import annotations

import numpy as np
import pytest

from synther import read
from synther.data import shipped
from synther.errors import FormatError


def test_names_and_paths() -> None:
    assert shipped.names() == ("hopper-sac",)
    assert shipped.hopper() == shipped.path("hopper-sac")
    assert 1e6 < shipped.hopper().stat().st_size < 3e6
    with pytest.raises(FormatError, match="hopper-sac"):
        shipped.path("walker")


def test_it_is_read_by_its_name_wherever_one_is(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hopper-sac").mkdir()  # the folder of a run, say
    named, file = read("hopper-sac"), read(shipped.hopper())
    assert np.array_equal(named.observation, file.observation)
    assert named.env_id == file.env_id == "Hopper-v5"


def test_the_file_is_whole_and_in_the_compact_form() -> None:
    with np.load(shipped.hopper()) as file:
        held = {name: file[name] for name in file.files}
    steps, episodes = len(held["actions"]), len(held["episode_lengths"])
    assert str(held["env_id"]) == "Hopper-v5"
    assert held["episode_lengths"].sum() == steps == len(held["rewards"])
    assert held["observations"].shape == (steps + episodes, 11)
    assert held["actions"].shape == (steps, 3)
    assert np.abs(held["actions"]).max() <= 1
    assert held["terminated"].dtype == bool
    assert not held["terminated"][-1]
    assert all(np.isfinite(held[name]).all() for name in ("observations", "actions", "rewards"))
