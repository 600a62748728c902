"""TVAE and CTGAN from the `ctgan` package, with the slow steps of their fits replaced by faster ones with equal
results.

The package loops over the columns of the table in Python. Only these loops are replaced (see table.py and spans.py).
Networks, losses, optimisers and the order of random draws are those of the package. A test compares both
(tests/baselines/test_against_ctgan.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from synther.baselines.spans import Spans
from synther.baselines.table import Real, Table
from synther.data.transitions import Transitions
from synther.errors import MissingExtra

Array = NDArray[Any]


class Span(NamedTuple):
    """Describes a part of an encoded column, with the names that `ctgan` expects."""

    dim: int
    activation_fn: str


class Encoding:
    """Replaces the DataTransformer of `ctgan`: encodes and decodes rows with a `Table`."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.output_dimensions = table.width
        self.output_info_list = [
            [Span(1, "tanh"), Span(column.width - 1, "softmax")]
            if isinstance(column, Real)
            else [Span(column.width, "softmax")]
            for column in table.columns
        ]

    def fit(self, data: Array, discrete_columns: tuple[int, ...] = ()) -> None:
        """Do nothing, because the table is fitted already."""

    def transform(self, data: Array) -> Array:
        return self.table.encoded()

    def inverse_transform(self, data: Array, sigmas: Array | None = None) -> Transitions:
        """Decode the output of a model to rows. With `sigmas` (TVAE learns a std of each position), noise is added to
        the positions first."""
        if sigmas is not None:
            data = data.astype(np.float64)
            start = 0
            for column in self.table.columns:
                if isinstance(column, Real):
                    data[:, start] = np.random.normal(data[:, start], sigmas[start])  # noqa: NPY002 - ctgan's stream
                start += column.width
        return self.table.decoded(data)


def fit_tvae(table: Table, options: dict[str, Any], on_epoch: Callable[[], None]) -> Any:
    """Return a fitted `ctgan.TVAE(**options)`. `on_epoch` is called after each epoch."""
    tvae = _library().synthesizers.tvae
    model = tvae.TVAE(**options)
    device = model._device
    rows = torch.from_numpy(table.encoded()).to(device)
    encoder = tvae.Encoder(table.width, model.compress_dims, model.embedding_dim).to(device)
    decoder = tvae.Decoder(model.embedding_dim, model.decompress_dims, table.width).to(device)
    weights = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(weights, weight_decay=model.l2scale, fused=device.type == "cuda")
    spans = Spans(table.columns, device)
    # Select a batch with one index operation, instead of stacking hundreds of single rows.
    batches = BatchSampler(RandomSampler(rows), model.batch_size, drop_last=False)
    loader = DataLoader(TensorDataset(rows), sampler=batches, batch_size=None)
    for _ in range(model.epochs):
        for (real,) in loader:
            mean, std, log_variance = encoder(real)
            made, stds = decoder(torch.randn_like(std) * std + mean)
            divergence = -0.5 * torch.sum(1 + log_variance - mean.square() - log_variance.exp())
            loss = model.loss_factor * spans.reconstruction(made, real, stds) + divergence
            optimizer.zero_grad()
            (loss / len(real)).backward()
            optimizer.step()
            decoder.sigma.data.clamp_(0.01, 1.0)
        on_epoch()
    model.decoder, model.transformer = decoder, Encoding(table)
    return model


def fit_ctgan(table: Table, options: dict[str, Any], on_epoch: Callable[[], None]) -> Any:
    """Return a fitted `ctgan.CTGAN(**options)`. The training loop is that of the package. `on_epoch` is called after
    each epoch."""
    fast_class = type("CTGAN", (_FastColumns, _library().CTGAN), {})
    model = fast_class(table, on_epoch, options)
    model.fit(np.zeros((len(table), 1)))  # the data come from the table, not from this array
    # For sampling, draw conditions as often as they occur in the data. By default, ctgan draws them by the logarithms
    # of their counts, as in training: with 300 terminals in 100,000 rows, every third row would be a terminal.
    sampler = type(model._data_sampler)
    model._data_sampler = sampler(table.encoded(), model._transformer.output_info_list, log_frequency=False)
    return model


class _FastColumns:
    """A mixin that overrides parts of `ctgan.CTGAN`: it uses a fitted table, applies the activation functions of all
    columns together, and calls `on_epoch` after each epoch."""

    def __init__(self, table: Table, on_epoch: Callable[[], None], options: dict[str, Any]) -> None:
        self._encoding, self._on_epoch = Encoding(table), on_epoch
        super().__init__(**options)
        self._spans = Spans(table.columns, self._device)  # type: ignore[attr-defined]

    @property
    def _transformer(self) -> Encoding:
        return self._encoding

    @_transformer.setter
    def _transformer(self, unfitted: Any) -> None:
        """Ignore the new transformer that `ctgan` creates for each fit."""

    @property
    def loss_values(self) -> Any:
        """The losses, which `ctgan` assigns after each epoch."""
        return self._losses

    @loss_values.setter
    def loss_values(self, losses: Any) -> None:
        self._losses = losses
        if losses is not None and len(losses):
            self._on_epoch()

    def _apply_activate(self, data: torch.Tensor) -> torch.Tensor:
        return self._spans.activated(data)


def _library() -> Any:
    try:
        import ctgan
    except ImportError:
        raise MissingExtra("ctgan", "tabular", "TVAE and CTGAN") from None
    return ctgan
