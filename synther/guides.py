"""Guides: while rows are sampled, move their actions towards a policy, or towards actions that a critic values highly.

    model.sample(100_000, guide=policy_guide(policy, 0.8))

A guide needs no fit of its own, so a model that was fitted earlier can generate rows for a newer policy. At each step
of the sampler, the guide gets the observations and actions that the network predicts, in their original units, as
tensors.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from synther.data.grouping import Regrouper
from synther.data.layout import Layout, Number, Place
from synther.data.quantiles import Lines
from synther.data.scaling import Scaler
from synther.diffusion.edm import posterior_covariance
from synther.errors import ConfigError, DataError
from synther.relevance.critics import Critic, lowest

Gradient = Callable[[Tensor, Tensor], Tensor | tuple[Tensor, Tensor]]
"""A function of observations (N, O) and actions (N, A). It returns the gradient of a log weight with respect to the
actions (N, A), or a tuple of the gradients with respect to observations and actions. The probability of each row is
multiplied by the exponential of its log weight."""
Policy = Callable[[Tensor], Tensor | tuple[Tensor, Tensor]]
"""A function of observations (N, O). It returns the policy's actions (N, A), or a tuple of their mean and std."""


@runtime_checkable
class Guide(Protocol):
    """Changes the network's prediction of the denoised rows at each step of the sampler."""

    @property
    def strength(self) -> float:
        """Strength of the guide. 0 does not change the rows."""
        ...

    def moved(self, x: Tensor, denoised: Tensor, sigma: float, view: View) -> Tensor:
        """Return the changed prediction (N, D). `denoised` (N, D) is the network's prediction for the scaled rows `x`
        with noise of std `sigma`."""
        ...


def policy_guide(policy: Policy | Any, strength: float = 1.0, *, std: float | None = None) -> Guide:
    """Make a guide that moves actions towards those of a policy. With strength 0, actions are distributed as in the
    data, with strength 1 as the policy chooses them.

    `policy(observations)` returns a tensor of actions, or a tuple of their mean and standard deviation. You can also
    pass an agent with a method `act` or `predict`, such as an agent of Stable-Baselines3, or the policy of a saved
    agent (`load_policy`). `std` is the standard deviation of the actions. By default it is the one that the policy
    returns, or 0 if the policy returns only actions.

    Policy-guided diffusion (Jackson et al. 2024) multiplies the density of the data by the density of the policy. This
    makes actions less random than in the data and less random than the policy. Here the network's prediction is mixed
    with the one that follows from the policy, so at strength 1 actions are as random as the policy.
    """
    if not 0 <= strength <= 1:
        raise ConfigError(f"the strength of a policy guide must lie in [0, 1], got {strength}")
    if std is not None and not 0 <= std < math.inf:
        raise ConfigError(f"the std of a policy guide must be a finite number of at least 0, got {std}")
    return _PolicyGuide(_as_function(policy), float(strength), std)


def _as_function(policy: Any) -> Policy:
    """Return `policy` as a function of tensors, if it is an agent with a method `act` or `predict`."""
    if isinstance(policy, torch.nn.Module) or (callable(policy) and not hasattr(policy, "predict")):
        return policy  # type: ignore[no-any-return]
    for name in ("act", "predict"):
        if hasattr(policy, name):
            break
    else:
        raise ConfigError(f"policy_guide: expected a function of observations, or an agent that acts, got {policy!r}")

    def act(observation: Tensor) -> Tensor:
        result = getattr(policy, name)(observation.cpu().numpy())
        action = np.asarray(result[0] if isinstance(result, tuple) else result)
        if action.ndim == 3 and len(action) == 1:  # an agent with one member returns (1, N, A)
            action = action[0]
        return torch.from_numpy(action).to(observation)

    return act


def value_guide(critic: Critic, strength: float = 1.0) -> Guide:
    """Make a guide that moves actions towards those with a high value.

    `critic(observations, actions)` returns the value of each row (N,), or the values of several critics (E, N). The log
    weight of a row is `strength` times its value, divided by the mean absolute value of the rows. With several critics,
    the value of a row is the lowest of their values.
    """

    def gradient(observation: Tensor, action: Tensor) -> Tensor:
        action = action.detach().requires_grad_()
        values = lowest(critic(observation, action))
        unit = values.detach().abs().mean().clamp(min=1e-6)
        (slope,) = torch.autograd.grad(values.sum() / unit, action)
        return slope

    return gradient_guide(gradient, strength)


def gradient_guide(gradient: Gradient, strength: float = 1.0) -> Guide:
    """Make a guide that moves rows along `strength` times a gradient. `gradient` is a user-defined function
    (`Gradient`)."""
    if not callable(gradient):
        raise ConfigError(f"guide: expected a function of observations and actions, or a guide, got {gradient!r}")
    if not 0 <= strength < math.inf:
        raise ConfigError(f"the strength of a guide must be a finite number of at least 0, got {strength}")
    return _GradientGuide(gradient, float(strength))


@dataclass(frozen=True)
class _GradientGuide:
    """Add V g to the predicted rows. V is the posterior covariance of the rows given the noisy rows x, and g is the
    gradient times `strength`.

    This is exact if the rows are Gaussian and g is constant. No column changes by more than one standard deviation
    under V, because a gradient that is steep compared with the noise would overshoot.
    """

    gradient: Gradient
    strength: float

    def moved(self, x: Tensor, denoised: Tensor, sigma: float, view: View) -> Tensor:
        observation, action = view.observation(denoised), view.action(denoised)
        result = _called(self.gradient, observation, action)
        gradients = result if isinstance(result, tuple) else (None, result)
        slope = torch.zeros_like(denoised)
        for name, given, like in zip(("observation", "action"), gradients, (observation, action), strict=True):
            if given is not None:
                view.add_gradient(slope, denoised, name, _checked("gradient", given, like))
        covariance = view.covariance(sigma)
        most = covariance.diagonal().clamp(min=0).sqrt()
        return denoised + (self.strength * slope @ covariance).clamp(-most, most)


@dataclass(frozen=True)
class _PolicyGuide:
    """Mix the network's prediction of the actions with the prediction that follows from the policy.

    If the policy's action a is normal with its mean and std, and x = a + sigma eps is the noisy action, then the
    posterior mean of a is (std^2 x + sigma^2 mean) / (std^2 + sigma^2).
    """

    policy: Policy
    strength: float
    std: float | None

    def moved(self, x: Tensor, denoised: Tensor, sigma: float, view: View) -> Tensor:
        action = view.action(denoised)
        result = _called(self.policy, view.observation(denoised))
        mean, std = result if isinstance(result, tuple) else (result, torch.zeros_like(action))
        std = std if self.std is None else torch.full_like(action, self.std)
        mean, std = (_checked(name, each, action) for name, each in (("action", mean), ("std", std)))
        columns, scaled_mean, slope = view.scaled_actions(mean)
        variance = (std[:, view.generated_actions] * slope).square()
        expected = (variance * x[:, columns] + sigma**2 * scaled_mean) / (variance + sigma**2)
        moved = denoised.clone()
        moved[:, columns] = torch.lerp(denoised[:, columns], expected, self.strength)
        return moved


def identity_of(guide: Guide) -> dict[str, Any]:
    """Return a JSON description that is equal for equal guides.

    Only the policy of a saved agent can be described. A function may change between two calls, because its networks
    learn, so each call returns a new identity for it.
    """
    digest = getattr(guide.policy, "digest", None) if isinstance(guide, _PolicyGuide) else None
    if not isinstance(guide, _PolicyGuide) or digest is None:
        return {"function": uuid.uuid4().hex}
    return {"policy": digest(), "strength": guide.strength, "std": guide.std}


def _called(
    function: Callable[..., Tensor | tuple[Tensor, Tensor]], *arguments: Tensor
) -> Tensor | tuple[Tensor, Tensor]:
    with torch.enable_grad():
        result = function(*arguments)
    return result


def _checked(name: str, result: object, like: Tensor) -> Tensor:
    """Check that a function of the user returned a finite tensor with the shape of `like`, and detach it."""
    if not isinstance(result, Tensor) or result.shape != like.shape:
        got = f"shape {tuple(result.shape)}" if isinstance(result, Tensor) else repr(result)
        raise DataError(f"guide: expected the {name} as a tensor of shape {tuple(like.shape)}, got {got}")
    result = result.detach().to(like)
    if not bool(result.isfinite().all()):
        raise DataError(f"guide: expected a finite {name}, got NaN or an infinity")
    return result


class View:
    """Converts between scaled rows and their observations and actions in original units.

    For categories and flags in observations, a guide sees the most likely value. A gradient with respect to them has no
    effect.
    """

    def __init__(self, layout: Layout, scaler: Scaler, covariance: Tensor, device: torch.device) -> None:
        self.actions = layout.numbers("action")
        self.shown: dict[str, tuple[Number | Place, ...]] = {
            "observation": layout.shown("observation"),
            "action": self.actions,
        }
        self.shift, self.scale = (torch.tensor(each, device=device) for each in (scaler.shift, scaler.scale))
        self._groups = None if scaler.groups is None else Regrouper(scaler.groups, device)
        self._to_values = {column: Lines([curve.to_values], device) for column, curve in scaler.curves}
        self._to_scores = {column: Lines([curve.to_scores], device) for column, curve in scaler.curves}
        self._covariance = covariance.to(device)
        self._identities = {field: [one for one in layout.identities if one.field == field] for field in self.shown}

    def observation(self, scaled: Tensor) -> Tensor:
        return self._raw(scaled, "observation")

    def action(self, scaled: Tensor) -> Tensor:
        return self._raw(scaled, "action")

    def _raw(self, scaled: Tensor, field: str) -> Tensor:
        columns = []
        for one in self.shown[field]:
            if isinstance(one, Place):
                columns.append(self._decoded(scaled, one))
            elif one.column is None:
                columns.append(torch.full_like(scaled[:, :1], one.low))
            else:
                value, _ = self._number(scaled, one.column)
                columns.append(value.clamp(one.low, one.high)[:, None])
        raw = torch.cat(columns, dim=1)
        for identity in self._identities[field]:
            identity.put({field: raw})
        return raw

    def _decoded(self, scaled: Tensor, place: Place) -> Tensor:
        """Return the most likely values of a category or another kind without an order. (N, W)"""
        raw = [self._number(scaled, column)[0] for column in range(place.matrix.start, place.matrix.stop)]
        return torch.from_numpy(place.kind.decode(torch.stack(raw, dim=1).double().cpu().numpy())).to(scaled)

    def _number(self, scaled: Tensor, column: int) -> tuple[Tensor, Tensor]:
        """Return a column of scaled rows in its original units, and the derivative of this number with respect to the
        scaled one. Both (N,)"""
        value, slope = scaled[:, column], torch.ones_like(scaled[:, column])
        if column in self._to_values:
            value, slope = (each[0] for each in self._to_values[column].followed(value.double()[None]))
        group = None if self._groups is None else self._groups.of(column, scaled)
        if group is not None:
            mean, std = group
            value, slope = value * std + mean, slope * std
        return (value * self.scale[column] + self.shift[column]).to(scaled), (slope * self.scale[column]).to(scaled)

    def add_gradient(self, slope: Tensor, scaled: Tensor, field: str, gradient: Tensor) -> None:
        """Convert a gradient with respect to a field in original units (N, W) to one with respect to the scaled rows,
        and add it to `slope` (N, D)."""
        place = 0
        if self._identities[field]:
            gradient = gradient.clone()
            for identity in reversed(self._identities[field]):
                for parent in identity.parents:
                    gradient[:, parent.column] += parent.weight * gradient[:, identity.column]
        for one in self.shown[field]:
            if isinstance(one, Number) and one.column is not None:
                slope[:, one.column] += gradient[:, place] * self._number(scaled, one.column)[1]
            place += one.kind.source_width if isinstance(one, Place) else 1

    @cached_property
    def generated_actions(self) -> list[int]:
        """The numbers of the action columns that the network generates. Constant columns are not generated."""
        return [place for place, number in enumerate(self.actions) if number.column is not None]

    def scaled_actions(self, raw: Tensor) -> tuple[list[int], Tensor, Tensor]:
        """Scale actions `raw` (N, A).

        Return the matrix columns of the generated actions, the scaled actions, and the derivatives of the scaled
        actions with respect to `raw`.
        """
        columns, values, slopes = [], [], []
        for place in self.generated_actions:
            number = self.actions[place]
            column = number.column
            assert column is not None
            value = (raw[:, place].clamp(number.low, number.high) - self.shift[column]) / self.scale[column]
            slope = torch.ones_like(value)
            if column in self._to_scores:
                value, slope = (each[0] for each in self._to_scores[column].followed(value.double()[None]))
            columns.append(column)
            values.append(value.to(raw))
            slopes.append((slope / self.scale[column]).to(raw))
        return columns, torch.stack(values, dim=1), torch.stack(slopes, dim=1)

    def covariance(self, sigma: float) -> Tensor:
        """Return the posterior covariance of the scaled rows given rows with noise of std `sigma`, assuming normal
        rows. (D, D)"""
        return posterior_covariance(self._covariance, sigma).float()
