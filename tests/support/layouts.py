"""Layouts that are written and read, and the rows of a matrix."""

from __future__ import annotations

import json

import numpy as np
import torch

from synther.data import layout_json
from synther.data.decoding import Decoder
from synther.data.layout import Layout
from synther.data.preparing import Prepared
from synther.data.transitions import Transitions


def through_json(layout: Layout) -> Layout:
    """The layout that is read from what was written of `layout`."""
    return layout_json.from_json(json.loads(json.dumps(layout_json.to_json(layout), allow_nan=False)))


def decoded(prepared: Prepared, matrix: np.ndarray) -> Transitions:
    """The rows of a scaled matrix (N, D)."""
    return Decoder(prepared.layout, prepared.scaler)(torch.from_numpy(matrix)).rows
