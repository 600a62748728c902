"""What cannot be done is refused at once, and leaves nothing behind."""

from __future__ import annotations

import numpy as np
import pytest

from synther import Synthesizer
from synther.errors import ConfigError, DataError, FormatError
from synther.presets import PRESETS

from .rows import SHORT, plain


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
def test_not_fitted(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="fit"):
        use(Synthesizer("laptop"))
    assert list(tmp_path.iterdir()) == []


def test_few_and_odd_numbers_of_rows_are_enough(quick):
    model = Synthesizer("laptop", **SHORT).fit(plain(2), progress=False)
    assert len(model.sample(3, progress=False)) == 3
    assert quick.sample(5e2, seed=0, progress=False).equals(quick.sample(500, seed=0, progress=False))


@pytest.mark.parametrize(
    ("rows", "text"),
    [(plain(1), "1 row"), (plain(1)[np.zeros(50, int)], "50 rows"), ([1, 2], r"Transitions\.of")],
    ids=["one row", "all equal", "a list"],
)
def test_rows_that_teach_nothing(rows, text):
    with pytest.raises(DataError, match=text):
        Synthesizer("laptop", **SHORT).fit(rows, progress=False)


@pytest.mark.parametrize("count", [10**15, 10**30])
def test_more_rows_than_memory_holds(model, count):
    with pytest.raises(ConfigError, match=f"{count:,} rows .*sample_to"):
        model.sample(count, progress=False)


@pytest.mark.parametrize("name", ["x.pkl", "x.txt"])
def test_files_that_cannot_take_rows(model, name, tmp_path):
    with pytest.raises(FormatError):
        model.sample_to(tmp_path / name, 10)
    assert list(tmp_path.iterdir()) == []


def test_other_refusals(model, real):
    with pytest.raises(DataError, match="observation"):
        model.log_likelihood(plain())
    with pytest.raises(ConfigError, match=r"Synthesizer\.load"):
        Synthesizer("laptop", **SHORT).fit(plain(), start="m.safetensors", progress=False)
    with pytest.raises(ConfigError, match="steps"):
        model.log_likelihood(real[:2], steps=0)
    with pytest.raises(ConfigError, match="given must be a dict with observation, action or both, got list"):
        model.sample(given=[real.observation])
    with pytest.raises(ConfigError, match="held_out must be an array of booleans that marks rows, got Transitions"):
        Synthesizer("laptop", **SHORT).fit(plain(), held_out=plain(), progress=False)
    named = Synthesizer("paper", fit={"steps": 5}, device="cpu")
    assert named.settings == Synthesizer(PRESETS["paper"], fit={"steps": 5}, device="cpu").settings
    with pytest.raises(ConfigError, match=r"unknown option fit\.stepps"):
        Synthesizer(PRESETS["paper"], fit={"stepps": 5})


@pytest.mark.parametrize("count", [0, -1, 1.5, "10", None, float("nan"), float("inf")])
def test_a_number_of_rows_that_is_none(quick, count, tmp_path):
    for use in (
        lambda: quick.sample(count, progress=False),
        lambda: quick.sample_to(tmp_path / "x.npz", count),
        lambda: list(quick.trace(count)),
    ):
        with pytest.raises(ConfigError, match="at least 1"):
            use()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", [-1, 1.5, "3", None])
def test_seeds_that_are_none(model, seed, tmp_path):
    for use in (
        lambda: Synthesizer("laptop", seed=seed),
        lambda: model.sample(1, seed="none" if seed is None else seed),  # None draws new rows
        lambda: model.sample_to(tmp_path / "x.npz", 1, seed=seed),
        lambda: plain().subsample(0.5, seed),
    ):
        with pytest.raises(ConfigError, match="seed"):
            use()
    assert list(tmp_path.iterdir()) == []
