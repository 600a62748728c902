"""Extra columns: discounts, next actions and any others, through everything that rows go through."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synther import Transitions, read, write
from synther.data import layout_json
from synther.data.fingerprint import fingerprint
from synther.data.kinds import Binary, Bounded, Codebook, Constant
from synther.data.layout import Layout
from synther.data.preparing import prepare
from synther.data.scaling import resolve_kinds
from synther.data.spaces import Box
from synther.errors import ConfigError, DataError, SyntherError
from synther.replay.columns import Columns

from ..support.layouts import through_json

SPACE = (Box.uniform(-1.0, 1.0, 2),)


def plain(count: int = 400) -> Transitions:
    draw = np.random.default_rng(0)
    states = draw.normal(size=(2, count, 3)).astype(np.float32)
    actions = draw.uniform(-0.9, 0.9, (count, 2)).astype(np.float32)
    reward, terminal = draw.normal(size=count).astype(np.float32), draw.random(count) < 0.1
    return Transitions(states[0], actions, reward, states[1], terminal, action_space=SPACE)


def extended(count: int = 400) -> Transitions:
    """Discounts of at most 3 steps, next actions, a flag and a matrix."""
    draw = np.random.default_rng(1)
    extra = {
        "discount": (0.99 ** draw.integers(1, 4, count)).astype(np.float32),
        "next_action": draw.uniform(-0.9, 0.9, (count, 2)).astype(np.float32),
        "lit": draw.random(count) < 0.3,
        "goal": draw.normal(size=(count, 2)),
    }
    return replace(plain(count), extra=extra)


def test_they_follow_the_rows():
    rows = extended()
    picked = [3, 1, 250]
    for part in (rows[picked], rows[10:20], Transitions.concatenate(list(rows.chunks(150)))):
        assert list(part.extra) == ["discount", "next_action", "lit", "goal"]
    for name, array in rows.extra.items():
        assert np.array_equal(rows[picked].extra[name], array[picked])
        assert np.array_equal(Transitions.concatenate(list(rows.chunks(150))).extra[name], array)
    assert list(rows.arrays())[-4:] == ["extra/discount", "extra/next_action", "extra/lit", "extra/goal"]
    assert Transitions.of(rows.arrays(), action_space=SPACE).equals(rows)
    assert Transitions.of(plain().arrays(), extra=rows.extra).equals(rows)
    other = replace(rows, extra={**rows.extra, "lit": ~rows.extra["lit"]})
    assert not other.equals(rows)
    assert len({fingerprint(each) for each in (rows, other, plain(), rows.without_extra("goal"))}) == 4
    assert rows.without_extra().equals(plain())
    assert list(rows.without_extra("goal", "lit").extra) == ["discount", "next_action"]
    assert "goal" in rows.summary()


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        ({"reward": np.zeros(400)}, "reward"),
        ({"observations": np.zeros(400)}, "observations"),
        ({"two words": np.zeros(400)}, "two words"),
        ({"goal": np.zeros(399)}, "extra/goal"),
        ({"goal": np.full(400, np.nan)}, "extra/goal"),
        ({"goal": np.zeros((400, 2, 2))}, "goal"),
        ({"goal": np.array(["a"] * 400)}, "goal"),
        ({"discount": np.full(400, 1.5)}, "discount"),
        ({"discount": np.zeros((400, 2))}, "discount"),
        ({"next_action": np.zeros((400, 3))}, "next_action"),
        ({"next_action": np.full((400, 2), 2.0)}, "next_action"),
        ([1, 2], "extra"),
    ],
)
def test_wrong_ones_are_refused(extra, word):
    with pytest.raises(DataError, match=word):
        replace(plain(), extra=extra)


def test_unlike_rows_are_not_joined():
    with pytest.raises(DataError, match="without_extra"):
        Transitions.concatenate([plain(), extended()])
    with pytest.raises(DataError, match="'color'"):
        extended().without_extra("color")
    with pytest.raises(DataError, match="extra="):
        Transitions.of({**plain().arrays(), "discount": np.ones(400)})


@pytest.mark.parametrize("suffix", ["npz", "hdf5", "parquet"])
def test_files_hold_them(suffix, tmp_path: Path):
    rows = extended()
    write(rows, tmp_path / f"rows.{suffix}")
    found = read(tmp_path / f"rows.{suffix}")
    assert found.equals(rows)
    assert {name: array.dtype for name, array in found.extra.items()} == {n: a.dtype for n, a in rows.extra.items()}


@pytest.mark.parametrize("suffix", ["npz", "hdf5"])
def test_files_without_next_observations_keep_them_in_step(suffix, tmp_path: Path):
    steps = np.arange(6.0)
    arrays = {"observations": steps[:, None], "actions": steps[:, None], "rewards": steps, "extra/goal": steps}
    arrays |= {"terminals": steps == 2, "timeouts": steps == 5}
    if suffix == "npz":
        np.savez(tmp_path / "rows.npz", **arrays)
    else:
        import h5py

        with h5py.File(tmp_path / "rows.hdf5", "w") as file:
            for key, array in arrays.items():
                file[key] = array
    found = read(tmp_path / f"rows.{suffix}")
    assert len(found) == 5
    assert np.array_equal(found.extra["goal"], found.reward)


def test_what_has_no_place_for_them_says_so(tmp_path: Path):
    for work in (Columns.of(plain()).pack, lambda rows: write(rows, tmp_path / "minari", format="minari")):
        with pytest.raises(SyntherError, match="without_extra"):
            work(extended())


@pytest.mark.parametrize("spikes", [False, True])
def test_a_layout_restores_them(spikes):
    rows = extended()
    layout = Layout.infer(rows, spikes=spikes)
    found = layout.unpack(layout.pack(rows))
    assert found.equals(rows)
    kinds = {extra.name: extra.kinds for extra in layout.extra}
    assert isinstance(kinds["discount"][0], Codebook)
    assert isinstance(kinds["lit"][0], Binary)
    assert kinds["next_action"] == (Bounded(-1.0, 1.0),) * 2
    assert through_json(layout) == layout
    changed = layout.with_thresholds([0.25] * len(layout.flag_names))
    assert set(changed.thresholds) == {0.25}
    assert layout.fields[-2:] == ("extra/goal", "extra/goal")
    noisy = layout.pack(rows) + np.random.default_rng(0).normal(0, 2, (len(rows), layout.width))
    made = layout.unpack(noisy)
    assert set(made.extra["discount"].tolist()) <= set(rows.extra["discount"].tolist())
    assert np.abs(made.extra["next_action"]).max() <= 1


def test_discounts_of_one_two_and_many_values():
    rows = plain()
    draw = np.random.default_rng(0)
    for values, kind in ((np.full(400, 0.99), Constant), (np.where(draw.random(400) < 0.5, 0.99, 0.9), Binary),
                         (draw.uniform(0.5, 1, 400), Bounded)):  # fmt: skip
        layout = Layout.infer(replace(rows, extra={"discount": values}))
        assert isinstance(layout.extra[0].kinds[0], kind)
        made = layout.unpack(10 * np.random.default_rng(0).normal(size=(50, layout.width)))
        assert made.extra["discount"].min() >= values.min()
        assert made.extra["discount"].max() <= values.max()


def test_rows_without_them_are_the_same_matrix():
    with_extra, without = (prepare(rows, "standard", "onehot", False) for rows in (extended(), plain()))
    width = without.layout.width
    assert np.array_equal(with_extra.matrix[:, :width], without.matrix)
    assert with_extra.layout.names[:width] == without.layout.names
    assert "extra" not in layout_json.to_json(without.layout)
    with pytest.raises(DataError, match="discount"):
        with_extra.layout.pack(plain())
    assert np.array_equal(without.layout.pack(extended()), without.layout.pack(plain()))


def test_they_are_scaled_by_name():
    layout = Layout.infer(extended())
    chosen = resolve_kinds(layout, {"extra/goal": "minmax", "extra/next_action[1]": "none"})
    kinds = dict(zip(layout.names, chosen, strict=True))
    assert kinds["extra/goal[0]"] == kinds["extra/goal[1]"] == "minmax"
    assert (kinds["extra/next_action[0]"], kinds["extra/next_action[1]"]) == ("standard", "none")
    with pytest.raises(ConfigError, match="extra/color"):
        resolve_kinds(layout, {"extra/color": "none"})
