"""Comparisons of agents by all that they have learned: whatever has a `state()` of named tensors."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch


class Stateful(Protocol):
    def state(self) -> dict[str, torch.Tensor]: ...


def assert_same(one: Stateful, other: Stateful) -> None:
    for name, tensor in one.state().items():
        assert torch.equal(tensor, other.state()[name]), name


def assert_close(one: Stateful, other: Stateful) -> None:
    """On whichever devices. Sums may be taken in another order, and the steps of Adam carry that on."""
    for name, tensor in one.state().items():
        torch.testing.assert_close(tensor.cpu(), other.state()[name].cpu(), rtol=1e-3, atol=1e-4, msg=name)


def assert_member(together: Stateful, index: int, alone: Stateful, atol: float = 1e-4) -> None:
    """One member of several is the one that was trained alone, up to rounding."""
    for name, tensor in together.state().items():
        own = alone.state()[name]
        if tensor.dim():
            torch.testing.assert_close(tensor[index], own[0], rtol=1e-3, atol=atol, msg=name)
        else:
            assert tensor == own, name


class Trained(Stateful, Protocol):
    def losses(self) -> dict[str, np.ndarray]: ...


def assert_sound(agent: Trained, members: int) -> None:
    """Finite losses that are not 0, one for each member, and finite float32 numbers that have members first."""
    for name, loss in agent.losses().items():
        assert loss.shape == (members,), name
        assert np.isfinite(loss).all(), name
        assert (loss != 0).all(), name
    for name, tensor in agent.state().items():
        assert tensor.isfinite().all(), name
        assert tensor.dtype == torch.float32, name
        assert tensor.shape[:1] in ((members,), ()), name
