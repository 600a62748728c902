"""Relevance functions: compute how relevant each row is to an agent, for example its reward or return.

A condition can be the name of such a function (conditions.py). Others are made from your own critics and policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.transitions import Transitions
from synther.registry import Registry
from synther.relevance.critics import log_probability, td_error, value
from synther.relevance.curiosity import curiosity
from synther.relevance.return_to_go import return_to_go
from synther.relevance.reward import reward

__all__ = [
    "RELEVANCE", "Relevance", "curiosity", "log_probability", "relevance", "return_to_go", "reward", "td_error",
    "value",
]  # fmt: skip

Relevance = Callable[[Transitions], NDArray[Any]]
"""A function of N rows that returns N numbers. A higher number means a more relevant row."""

RELEVANCE: Registry[Any] = Registry(
    "condition", "synther.relevance", object, {"reward": reward, "return": return_to_go, "curiosity": curiosity}
)
"""The functions that a condition can name. More can be registered, or installed with other packages: see `Registry`."""


def relevance(name: str, rows: Transitions) -> NDArray[np.float64]:
    """Compute the relevance function `name` for each of the `rows`. (N,)"""
    RELEVANCE.check(name, "condition")
    return np.asarray(RELEVANCE.get(name)(rows), np.float64)
