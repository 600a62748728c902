"""A fit that was interrupted, in whatever way, ends with the weights of one that was not."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from synther.diffusion.config import FitConfig, NetworkConfig, NoiseConfig
from synther.diffusion.fit import FitResult, fit
from synther.errors import ConfigError

from ..slow import SLOW, killed
from ..support.watch import Stopped, Watch

TINY = NetworkConfig(width=16, depth=2, embedding=8, frequencies=4)
OPTIONS = {"steps": 205, "batch_size": 16, "evaluate_every": 10, "checkpoint_every": 30}
ROWS = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))


def run(checkpoint: Path | None = None, progress=None, rows: Tensor = ROWS, seed: int = 0, **options) -> FitResult:
    config = FitConfig(**{**OPTIONS, **options})
    return fit(rows, TINY, config, NoiseConfig(), seed=seed, checkpoint=checkpoint, progress=progress)


def assert_same(one: FitResult, other: FitResult) -> None:
    for (name, a), b in zip(one.network.named_parameters(), other.network.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(one.network.frequencies, other.network.frequencies)
    assert one.steps == other.steps
    without_time = [[{k: v for k, v in e.items() if k != "seconds"} for e in r.history] for r in (one, other)]
    assert without_time[0] == without_time[1]


@pytest.fixture(scope="module")
def uninterrupted() -> FitResult:
    return run()


def test_a_checkpoint_changes_nothing_and_a_finished_fit_is_not_run_again(tmp_path, uninterrupted):
    assert_same(run(tmp_path / "fit"), uninterrupted)
    assert_same(run(tmp_path / "fit", Watch(0)), uninterrupted)


@pytest.mark.parametrize("killed_at", [[10], [100], [205], [60, 130, 140]])
def test_killed_between_rounds(killed_at, tmp_path, uninterrupted):
    for step in killed_at:
        with pytest.raises(Stopped):
            run(tmp_path / "fit", Watch(step))
    watch = Watch()
    result = run(tmp_path / "fit", watch)
    assert_same(result, uninterrupted)
    seconds = [entry["seconds"] for entry in result.history]
    assert seconds == sorted(seconds)
    # A checkpoint is written after the report of every third measurement, so the one under way is lost.
    assert watch.start == (killed_at[-1] - 1) // 30 * 30


def test_early_stop_is_remembered(tmp_path):
    options = {"patience": 1, "learning_rate": 0.05, "holdout": 0.5, "steps": 5000}
    stopped = run(**options)
    assert stopped.steps < 5000
    with pytest.raises(Stopped):
        run(tmp_path / "fit", Watch(stopped.steps), **options)
    assert_same(run(tmp_path / "fit", **options), stopped)
    assert_same(run(tmp_path / "fit", Watch(0), **options), stopped)


OTHER = {
    "rows": {"rows": ROWS + 1},
    "order of rows": {"rows": ROWS.flip(0)},
    "order of columns": {"rows": ROWS.flip(1)},
    "number of rows": {"rows": ROWS[:-1]},
    "seed": {"seed": 1},
    "steps": {"steps": 206},
    "learning rate": {"learning_rate": 1e-3},
}


@pytest.mark.parametrize("other", OTHER.values(), ids=OTHER)
def test_anothers_checkpoint_is_refused(other, tmp_path):
    run(tmp_path / "fit", steps=20)
    kept = (tmp_path / "fit").read_bytes()
    with pytest.raises(ConfigError, match="delete"):
        run(tmp_path / "fit", **{"steps": 20, **other})
    assert (tmp_path / "fit").read_bytes() == kept


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_checkpoint_is_refused(share, tmp_path):
    path = tmp_path / "fit"
    run(path, steps=20)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ConfigError, match="delete"):
        run(path, steps=20)


VICTIM = (
    SLOW
    + """
import sys
from pathlib import Path
import torch
from synther.diffusion.config import FitConfig, NetworkConfig, NoiseConfig
from synther.diffusion.fit import fit

torch.set_num_threads({threads})
rows = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
config = FitConfig(**{{**{options}, "checkpoint_every": 10}})
fit(rows, {network}, config, NoiseConfig(), checkpoint=Path(sys.argv[1]), progress=Slow(0.05))
"""
)


def test_killed_by_the_system_at_any_moment(tmp_path, uninterrupted):
    path = tmp_path / "fit"
    script = VICTIM.format(threads=torch.get_num_threads(), options=OPTIONS, network=TINY)
    wait = random.uniform(
        0, 0.3
    )  # after the first checkpoint the fit has 1 s left, and a checkpoint every 0.05 s of it
    killed(script, path, once=lambda: path.exists() and (time.sleep(wait) or True))
    assert_same(run(path, checkpoint_every=10), uninterrupted)
