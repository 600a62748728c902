"""What the integrations share: replays that travel as bytes, and libraries that are not installed."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

from synther.errors import MissingExtra
from synther.integrations.adapter import packed, unpacked
from synther.replay.rows import SyntheticRows


@pytest.mark.parametrize(
    ("saved_on", "gpus", "loaded_on"),
    [("cpu", 1, "cpu"), ("cuda", 0, "auto"), ("cuda", 1, "cuda"), ("cuda:1", 1, "auto"), ("cuda:1", 2, "cuda:1")],
)
def test_where_it_comes_back(saved_on, gpus, loaded_on, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(SyntheticRows, "load", lambda folder, *, device: device)
    assert unpacked({"rows": b"1"}, torch.device(saved_on)) == loaded_on


def test_the_files_are_those_that_were_saved():
    files = packed(SyntheticRows(device="cpu", seed=3))
    assert list(files) == ["replay.safetensors"]
    assert unpacked(files, "cpu").seed == 3


@pytest.mark.parametrize(
    ("extra", "library"),
    [("sb3", "stable_baselines3.common.buffers"), ("torchrl", "torchrl.data"), ("d3rlpy", "d3rlpy.constants")],
)
def test_an_absent_library_names_its_extra(extra, library, monkeypatch):
    monkeypatch.delitem(sys.modules, f"synther.integrations.{extra}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"synther\[{extra}\]"):
        importlib.import_module(f"synther.integrations.{extra}")
