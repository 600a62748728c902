"""The benchmark of generators of latents, as small as it can be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import latents
import numpy as np
import pytest
import torch

from synther import Transitions
from synther.agents.drq_bc import DrQBCConfig
from synther.experiments.pixels import encode_to, train_to

from ..experiments.seeing import PLAN, PLAN_BC, frames


@pytest.mark.parametrize("plan", [PLAN, PLAN_BC], ids=["drq_bc", "bc"])
def test_from_latents_to_table(plan, tmp_path: Path) -> None:
    train_to(replace(plan, seeds=1), frames(), tmp_path / "run", progress=False)
    (file,) = encode_to(tmp_path / "run", frames(), tmp_path / "latents", shifts=2, device="cpu", progress=False)
    small = ["--device", "cpu", "--width", "8", "--depth", "1", "--steps", "8", "--samples", "40", "--updates", "4"]
    out = tmp_path / "table.md"
    latents.main([str(file), *small, "--seeds", "2", "--starts", "2", "--only", "best, all three", "--out", str(out)])
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.read_text().splitlines() if "|" in line]
    table = {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[2:]}
    assert list(table) == ["the real rows", "best, all three", "best, all three, half real"]
    made = table["best, all three"]
    both = plan is PLAN
    assert made["columns"] == str(100 * 2 + 2 + 1 if both else 50 * 2 + 2 + 1)
    assert all((" ± " in line["error of values"]) == both for line in table.values())
    assert all(" ± " in line["error of actions"] for line in table.values())


def rows(episodes: int, length: int, shifts: int) -> Transitions:
    """Observations name their episode and their place in it; each decision earns 1."""
    draw = np.random.default_rng(0)
    actions = np.tile(draw.uniform(-1, 1, (episodes * length, 2)), (shifts, 1))
    seen = np.tile(np.stack(np.divmod(np.arange(episodes * length), length), 1), (shifts, 1)).astype(np.float32)
    last = seen[:, 1] == length - 1
    zeros = np.zeros(len(seen))
    return Transitions(seen, actions, zeros + 1, seen + 1, zeros > 0, timeout=last)


def test_episodes_are_split_whole_with_all_their_shifts() -> None:
    split = latents.split_by_episode(rows(10, 8, 3), DrQBCConfig(nstep=1, discount=0.5), seed=0)
    held_out, fitted = ({*part.observation[:, 0].tolist()} for part in (split.held_out, split.fitted))
    assert (len(held_out), held_out & fitted) == (2, set())
    assert len(split.held_out) == 2 * 8 * 3
    np.testing.assert_array_equal(split.held_out_place, split.held_out.observation[:, 1])
    known = split.held_out_place < 4
    np.testing.assert_allclose(split.returns[known], 2.0)  # 1 / (1 - discount), however the episode is cut
    assert np.isnan(split.returns[~known]).all()


def test_the_spread_of_outcomes_and_the_share_of_starts() -> None:
    draw = np.random.default_rng(1)
    real = rows(10, 20, 1)
    split = latents.split_by_episode(real, DrQBCConfig(), seed=0)
    noisy = {name: part.next_observation + draw.normal(size=part.next_observation.shape)
             for name, part in (("fitted", split.fitted), ("held_out", split.held_out))}  # fmt: skip
    split = split._replace(**{name: replace(getattr(split, name), next_observation=own) for name, own in noisy.items()})
    cpu = torch.device("cpu")
    mean = replace(split.fitted, next_observation=split.fitted.observation + 1)
    ratio, _ = latents.figures(mean, split, 2, cpu)
    assert float(ratio) < 0.3
    ratio, starts = latents.figures(split.fitted, split, 2, cpu)
    assert float(ratio) == pytest.approx(1.0, abs=0.25)
    assert starts == "10.00 %"
