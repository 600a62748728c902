"""Curiosity: how badly a small network predicts the next observation of a row (Pathak et al. 2017).

The network learns features of observations, such that the action between two observations can be predicted from their
features (inverse model). A forward model predicts the features of the next observation. Rows like many others are
predicted well, so a high error marks rows that the agent has seldom seen.
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
"""Width of all layers, rows in a batch, and learning rate of Adam."""
_CHUNK = 1 << 16  # number of rows that are computed together


def curiosity(rows: Transitions, *, steps: int = 1_000, seed: int = 0, device: str = "auto") -> NDArray[np.float64]:
    """Return the squared error of the forward model in each row, after `steps` steps of training on these rows. (N,)"""
    torch_device = compute.pick_device(device)
    before, after = _scaled(rows.observation, rows.next_observation)
    tables = [torch.from_numpy(table).to(torch_device) for table in (before, after, _actions(rows.action))]
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.manual_seed(seed)
        module = Curious(before.shape[1], tables[2].shape[1]).to(torch_device)
    _learn(module, tables, steps, seed)
    with torch.no_grad():
        parts = [module.errors(*(table[at : at + _CHUNK] for table in tables)) for at in range(0, len(rows), _CHUNK)]
    return torch.cat(parts).double().cpu().numpy()


class Curious(nn.Module):
    """Features of observations, an inverse model that predicts the action, and a forward model that predicts the next
    features."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.features = _mlp(observations, WIDTH)
        self.inverse = _mlp(2 * WIDTH, actions)
        self.forward_model = _mlp(WIDTH + actions, WIDTH)

    def forward(self, before: Tensor, after: Tensor, action: Tensor) -> Tensor:
        """Return the sum of the losses of both models."""
        now, then = self.features(before), self.features(after)
        predicted_action = self.inverse(torch.cat([now, then], dim=1))
        expected = self.forward_model(torch.cat([now, action], dim=1))
        return functional.mse_loss(predicted_action, action) + functional.mse_loss(expected, then.detach())

    def errors(self, before: Tensor, after: Tensor, action: Tensor) -> Tensor:
        """Return the mean squared error of the forward model in each row. (N,)"""
        expected = self.forward_model(torch.cat([self.features(before), action], dim=1))
        errors: Tensor = (expected - self.features(after)).square().mean(1)
        return errors


def _learn(module: Curious, tables: list[Tensor], steps: int, seed: int) -> None:
    """Take `steps` steps of Adam on random batches. On a GPU, a step is captured as a CUDA graph."""
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
            # Each step needs new leaves, because leaves of an earlier step would belong to another CUDA stream.
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
    step()  # creates the optimizer state, which must exist before a capture
    state = [value for entry in optimizer.state.values() for value in entry.values() if torch.is_tensor(value)]
    run = compute.capture(step, device, [*(parameter.detach() for parameter in parameters.values()), *state])
    for _ in range(steps - 1):
        draw()
        run()


def _mlp(inputs: int, outputs: int) -> nn.Sequential:
    layers = nn.Linear(inputs, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, outputs)
    return nn.Sequential(*layers).float()


def _scaled(before: NDArray[np.generic], after: NDArray[np.generic]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scale observations to mean 0 and std 1 in each column that is not constant, and next observations in the same
    units."""
    first, second = (values.reshape(len(values), -1).astype(np.float64) for values in (before, after))
    mean, std = first.mean(0), first.std(0)
    std[std == 0] = 1.0
    return ((first - mean) / std).astype(np.float32), ((second - mean) / std).astype(np.float32)


def _actions(action: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return actions as numbers (N, A). Discrete actions are one-hot."""
    if action.dtype.kind in "iub":
        flat = action.reshape(len(action), -1)
        _, number = np.unique(flat, axis=0, return_inverse=True)
        chosen: NDArray[np.float32] = np.eye(int(number.max()) + 1, dtype=np.float32)[number.reshape(-1)]
        return chosen
    return action.reshape(len(action), -1).astype(np.float32)
