"""How relevant rows are to an agent: one number for each row, by name or as a function of your own."""

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
"""Takes N rows to N numbers, higher where a row is more relevant."""

RELEVANCE: Registry[Any] = Registry(
    "condition", "synther.relevance", object, {"reward": reward, "return": return_to_go, "curiosity": curiosity}
)
"""Functions that a condition can name. Others can be registered here, or installed: see `Registry`."""


def relevance(name: str, rows: Transitions) -> NDArray[np.float64]:
    """What the function called `name` says about `rows`. (N,)"""
    RELEVANCE.check(name, "condition")
    return np.asarray(RELEVANCE.get(name)(rows), np.float64)
