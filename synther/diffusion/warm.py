"""A fitted network as the beginning of the next fit, when the columns of the rows have changed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from synther.diffusion.networks import Network


def rearranged(network: Network, columns: Sequence[int | None]) -> Network:
    """A copy of `network` whose column i is the old column `columns[i]`, or one without any weight yet (None).

    As far as rows have the old columns, and no fewer, it is the same function of them.
    """
    with torch.random.fork_rng(devices=[]):  # the weights it starts from are of no interest
        new = Network(len(columns), network.config).to(network.frequencies.device).requires_grad_(False)
    kept = [place for place, old in enumerate(columns) if old is not None]
    source = [old for old in columns if old is not None]
    added = [place for place, old in enumerate(columns) if old is None]
    weights = dict(network.named_parameters())
    with torch.no_grad():
        new.frequencies.copy_(network.frequencies)
        for name, parameter in new.named_parameters():
            old = weights[name].detach()
            parameter.zero_()
            if name == "row_in.weight":
                shared = min(len(parameter), len(old))
                parameter[:shared, kept] = old[:shared, source]
                # The layer where row and noise level meet has grown: each new place sees a new column. What follows it
                # is 0, and were both, neither would ever have a gradient.
                parameter[range(shared, len(parameter)), added[: len(parameter) - shared]] = 1.0
            elif name in ("row_out.weight", "row_out.bias"):
                parameter[kept] = old[source]
            else:
                window = tuple(slice(min(sizes)) for sizes in zip(parameter.shape, old.shape, strict=True))
                parameter[window] = old[window]
    return new
