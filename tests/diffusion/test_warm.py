"""A network that begins where another ended, on rows whose columns may have come or gone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from synther.diffusion.config import FitConfig, NetworkConfig, NoiseConfig
from synther.diffusion.fit import Diverged, FitResult, fit, split_as
from synther.diffusion.networks import Network, rearranged
from synther.errors import ConfigError

TINY = NetworkConfig(width=16, depth=2, embedding=8, frequencies=4)
ROWS = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
HELD_OUT = torch.arange(200) % 4 == 0
LEVEL = torch.full((200, 1), -0.3)


def network(columns: int = 3, config: NetworkConfig = TINY) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Network(columns, config).requires_grad_(False)


def run(rows: Tensor = ROWS, start: Network | None = None, held_out: Tensor | None = None, **options) -> FitResult:
    config = FitConfig(**{"steps": 40, "batch_size": 16, "evaluate_every": 10, **options})
    return fit(rows, TINY, config, NoiseConfig(), start=start, held_out=held_out)


def test_columns_that_stay_change_places_or_go():
    old, before = network(), torch.get_rng_state()
    new = rearranged(old, [0, 1, 2])
    assert all(torch.equal(new.state_dict()[name], tensor) for name, tensor in old.state_dict().items())
    expected = old(ROWS, LEVEL)[:, [2, 0, 1]]
    torch.testing.assert_close(rearranged(old, [2, 0, 1])(ROWS[:, [2, 0, 1]], LEVEL), expected)
    without = rearranged(old, [0, 2])(ROWS[:, [0, 2]], LEVEL)
    torch.testing.assert_close(without, old(ROWS * torch.tensor([1.0, 0.0, 1.0]), LEVEL)[:, [0, 2]])  # gone: as if 0
    rearranged(old, [0, None])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("columns", [[0, None, 1, 2], [0, 1, 2, *[None] * 9]], ids=["one", "more than the embedding"])
def test_a_new_column_changes_nothing_at_first(columns):
    old = network()
    wide = torch.randn(200, len(columns), generator=torch.Generator().manual_seed(3))
    place = [columns.index(column) for column in range(3)]
    wide[:, place] = ROWS
    answer = rearranged(old, columns)(wide, LEVEL)
    torch.testing.assert_close(answer[:, place], old(ROWS, LEVEL))
    assert not answer[:, [i for i, column in enumerate(columns) if column is None]].any()


def test_a_fit_begins_from_the_given_weights_and_learns_new_columns():
    start = network()
    kept = {name: tensor.clone() for name, tensor in start.state_dict().items()}
    result = run(start=start, learning_rate=1e-30, steps=1)
    for name, tensor in result.network.state_dict().items():
        assert torch.equal(tensor, kept[name]), name
    run(start=start)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in start.state_dict().items())
    rows = torch.cat([ROWS, ROWS[:, :1]], dim=1)
    result = run(rows, start=rearranged(network(), [0, 1, 2, None]), steps=200)
    assert result.network.row_in.weight[:, 3].abs().max() > 1e-3
    assert result.network.row_out.weight[3].abs().max() > 1e-3


def test_given_rows_are_held_out():
    fitted, measured = split_as(ROWS, HELD_OUT)
    assert torch.equal(ROWS[fitted], ROWS[~HELD_OUT])
    assert measured is not None
    assert torch.equal(measured, ROWS[HELD_OUT])
    # Rows that are held out have no part in the fit: with NaN in them only the measurement is spoiled.
    spoiled = ROWS.clone()
    spoiled[HELD_OUT] = torch.nan
    with pytest.raises(Diverged, match=r"the loss is 0\.\d+|the loss is 1\.\d+"):
        run(spoiled, held_out=HELD_OUT)
    # Of whole numbers the opposite is no mark: all rows would be fitted, those that are measured too.
    for marks in (HELD_OUT[:-1], torch.ones(200, dtype=torch.bool), HELD_OUT.long()):
        with pytest.raises(ConfigError, match="each of the 200 rows"):
            run(held_out=marks)
    assert "held_out" not in run(held_out=torch.zeros(200, dtype=torch.bool)).history[-1]


def run_from(checkpoint: Path, start: Network, held_out: Tensor) -> FitResult:
    config = FitConfig(steps=40, batch_size=16, evaluate_every=10)
    return fit(ROWS, TINY, config, NoiseConfig(), start=start, held_out=held_out, checkpoint=checkpoint)


def test_a_checkpoint_knows_where_its_fit_began(tmp_path):
    path, start = tmp_path / "fit.checkpoint", network()
    whole = run_from(path, start, HELD_OUT)
    again = run_from(path, start, HELD_OUT)
    assert again.history == whole.history
    for other in ((rearranged(start, [1, 0, 2]), HELD_OUT), (start, ~HELD_OUT)):
        with pytest.raises(ConfigError, match="delete"):
            run_from(path, *other)
