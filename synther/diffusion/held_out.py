"""Which rows a fit does not learn from, and the loss on them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from synther import compute
from synther.diffusion import edm
from synther.diffusion.config import NoiseConfig
from synther.diffusion.networks import Network
from synther.errors import ConfigError

_SPLIT, _NOISE = 2, 3  # streams of random numbers; fit.py has those before them
_MOST = 10_000
_FEW = 1_000  # held-out rows below which each is measured with several draws of noise


def split(rows: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor | None]:
    """Which rows are fitted, as indices (M,), and the held-out rows themselves."""
    # NOTE[paper]: the reference fits on every row and measures nothing.
    count = min(round(share * len(rows)), _MOST, len(rows) - 1)
    if count == 0:
        return torch.arange(len(rows), device=rows.device), None
    order = torch.randperm(len(rows), generator=compute.generator(torch.device("cpu"), seed, _SPLIT)).to(rows.device)
    return order[count:], rows[order[:count]]


def split_as(rows: Tensor, marks: Tensor) -> tuple[Tensor, Tensor | None]:
    """The same where `marks` (N,) say which rows are held out. Of many an even share is measured."""
    if marks.dtype != torch.bool or marks.shape != (len(rows),) or marks.all():
        raise ConfigError(
            f"expected one mark a row, {len(rows)} booleans, and a row to fit on; got {marks.dtype} of shape "
            f"{tuple(marks.shape)}, {int(marks.count_nonzero())} of them set"
        )
    chosen, fitted = marks.to(rows.device).nonzero()[:, 0], (~marks).to(rows.device).nonzero()[:, 0]
    return fitted, rows[chosen[:: -(-len(chosen) // _MOST)]] if len(chosen) else None


@torch.no_grad()
def held_out_loss(network: Network, rows: Tensor, noise: NoiseConfig, seed: int) -> float:
    """The loss on held-out rows under the same noise every time."""
    rows = rows.repeat(-(-_FEW // len(rows)), 1)
    inputs, level, target = edm.draw_problem(rows, noise, compute.generator(rows.device, seed, _NOISE))
    return float(functional.mse_loss(network(inputs, level), target))
