"""Curiosity: how badly a small network predicts what follows a row (Pathak et al. 2017).

It learns features of observations from which the action between two of them can be told, and a forward model of the
features. Rows like many others are predicted well, so that a high error marks what the agent has seldom seen.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from synther import compute
from synther.data.transitions import Transitions

WIDTH, BATCH, LEARNING_RATE = 128, 256, 1e-3
_CHUNK = 1 << 16


def curiosity(rows: Transitions, *, steps: int = 1_000, seed: int = 0, device: str = "auto") -> NDArray[np.float64]:
    """The squared error of the forward model in each row, of a module that has learned from these rows. (N,)"""
    where = compute.pick_device(device)
    before, after = _scaled(rows.observation, rows.next_observation)
    tables = [torch.from_numpy(table).to(where) for table in (before, after, _actions(rows.action))]
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.manual_seed(seed)
        module = Curious(before.shape[1], tables[2].shape[1]).to(where)
    _learn(module, tables, steps, seed)
    with torch.no_grad():
        parts = [module.errors(*(table[at : at + _CHUNK] for table in tables)) for at in range(0, len(rows), _CHUNK)]
    return torch.cat(parts).double().cpu().numpy()


class Curious(nn.Module):
    """Features of observations, the inverse model (which action?) and the forward model (which features next?)."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.features = _mlp(observations, WIDTH)
        self.inverse = _mlp(2 * WIDTH, actions)
        self.forward_model = _mlp(WIDTH + actions, WIDTH)

    def forward(self, before: Tensor, after: Tensor, action: Tensor) -> Tensor:
        """The loss of both models."""
        now, then = self.features(before), self.features(after)
        told = self.inverse(torch.cat([now, then], dim=1))
        expected = self.forward_model(torch.cat([now, action], dim=1))
        return functional.mse_loss(told, action) + functional.mse_loss(expected, then.detach())

    def errors(self, before: Tensor, after: Tensor, action: Tensor) -> Tensor:
        """(N,)"""
        expected = self.forward_model(torch.cat([self.features(before), action], dim=1))
        errors: Tensor = (expected - self.features(after)).square().mean(1)
        return errors


def _learn(module: Curious, tables: list[Tensor], steps: int, seed: int) -> None:
    """Take so many steps of Adam on random batches, captured as one where there is a GPU."""
    device, count = tables[0].device, len(tables[0])
    capturable = device.type == "cuda"
    optimizer = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE, capturable=capturable)
    source = torch.Generator(device).manual_seed(seed)
    batches = [table[:1].repeat(BATCH, 1) for table in tables]
    parameters = dict(module.named_parameters())
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)

    def step() -> None:
        with torch.enable_grad():
            # Leaves of this step alone: those of an earlier one would belong to another CUDA stream.
            leaves = {name: parameter.detach().requires_grad_() for name, parameter in parameters.items()}
            loss = torch.func.functional_call(module, leaves, tuple(batches))
            gradients = torch.autograd.grad(loss, list(leaves.values()))
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter.grad.copy_(gradient)  # type: ignore[union-attr]
        optimizer.step()

    def draw() -> None:
        picked = torch.randint(count, (BATCH,), generator=source, device=device)
        for batch, table in zip(batches, tables, strict=True):
            torch.index_select(table, 0, picked, out=batch)

    draw()
    step()  # makes the state that a capture needs
    state = [value for kept in optimizer.state.values() for value in kept.values() if torch.is_tensor(value)]
    run = compute.capture(step, device, [*(parameter.detach() for parameter in parameters.values()), *state])
    for _ in range(steps - 1):
        draw()
        run()


def _mlp(inputs: int, outputs: int) -> nn.Sequential:
    layers = nn.Linear(inputs, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, outputs)
    return nn.Sequential(*layers).float()


def _scaled(before: NDArray[np.generic], after: NDArray[np.generic]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Observations of mean 0 and deviation 1 in every column that changes, and what follows in the same units."""
    first, second = (values.reshape(len(values), -1).astype(np.float64) for values in (before, after))
    mean, std = first.mean(0), first.std(0)
    std[std == 0] = 1.0
    return ((first - mean) / std).astype(np.float32), ((second - mean) / std).astype(np.float32)


def _actions(action: NDArray[np.generic]) -> NDArray[np.float32]:
    """Actions as numbers (N, A): discrete ones as a column for each different one."""
    if action.dtype.kind in "iub":
        flat = action.reshape(len(action), -1)
        _, number = np.unique(flat, axis=0, return_inverse=True)
        chosen: NDArray[np.float32] = np.eye(int(number.max()) + 1, dtype=np.float32)[number.reshape(-1)]
        return chosen
    return action.reshape(len(action), -1).astype(np.float32)
