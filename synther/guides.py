"""Guides: while rows are drawn, move their actions towards a policy, or towards what a critic values.

    model.sample(100_000, guide=policy_guide(policy, 0.8))

A guide works at sampling time alone, so that an older model can draw rows of a newer policy. It sees the observations
and actions that the network expects at each step, in their own units, as tensors.
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
"""Takes observations (N, O) and actions (N, A) to the gradient of a log weight in the actions (N, A), or to those in
both. Rows come out as if each had been drawn with a probability multiplied by the exponential of that weight."""
Policy = Callable[[Tensor], Tensor | tuple[Tensor, Tensor]]
"""Takes observations (N, O) to the policy's actions (N, A), or to the mean and standard deviation of these."""


@runtime_checkable
class Guide(Protocol):
    """Changes what the network expects."""

    @property
    def strength(self) -> float:
        """0 leaves rows as they are."""
        ...

    def moved(self, x: Tensor, denoised: Tensor, sigma: float, view: View) -> Tensor:
        """`denoised` (N, D), what the network expects of scaled rows `x` with noise `sigma`, moved."""
        ...


def policy_guide(policy: Policy | Any, strength: float = 1.0, *, std: float | None = None) -> Guide:
    """Towards the actions of a policy: from 0, those of the data, to 1, those of the policy.

    `policy(observations)` returns a tensor of actions, or their mean and standard deviation. It may also be an agent
    with a method `act` or `predict`, as those of Stable-Baselines3, or the policy of a saved agent (`load_policy`).
    `std` is the standard deviation of actions. By default it is the policy's own, and 0 where that returns actions
    alone: exactly these.

    Policy-guided diffusion (Jackson et al. 2024) multiplies the density of the data by that of the policy, which makes
    actions less random than either. Here the network's expectation is mixed with the policy's own, so that at strength
    1 actions are as random as the policy is.
    """
    if not 0 <= strength <= 1:
        raise ConfigError(f"the strength of a policy guide must lie in [0, 1], got {strength}")
    if std is not None and not 0 <= std < math.inf:
        raise ConfigError(f"the std of a policy guide must be a finite number of at least 0, got {std}")
    return _PolicyGuide(_as_function(policy), float(strength), std)


def _as_function(policy: Any) -> Policy:
    if isinstance(policy, torch.nn.Module) or (callable(policy) and not hasattr(policy, "predict")):
        return policy  # type: ignore[no-any-return]
    for name in ("act", "predict"):
        if hasattr(policy, name):
            break
    else:
        raise ConfigError(f"policy_guide: expected a function of observations, or an agent that acts, got {policy!r}")

    def act(observation: Tensor) -> Tensor:
        found = getattr(policy, name)(observation.cpu().numpy())
        action = np.asarray(found[0] if isinstance(found, tuple) else found)
        if action.ndim == 3 and len(action) == 1:  # of an agent with one member
            action = action[0]
        return torch.from_numpy(action).to(observation)

    return act


def value_guide(critic: Critic, strength: float = 1.0) -> Guide:
    """Towards actions of high value. `critic(observations, actions)` returns (N,), or (E, N) of several critics.

    The log weight of a row is `strength` times its lowest value, in units of the mean absolute value.
    """

    def gradient(observation: Tensor, action: Tensor) -> Tensor:
        action = action.detach().requires_grad_()
        values = lowest(critic(observation, action))
        unit = values.detach().abs().mean().clamp(min=1e-6)
        (slope,) = torch.autograd.grad(values.sum() / unit, action)
        return slope

    return gradient_guide(gradient, strength)


def gradient_guide(gradient: Gradient, strength: float = 1.0) -> Guide:
    """Along `strength` times a gradient of your own."""
    if not callable(gradient):
        raise ConfigError(f"guide: expected a function of observations and actions, or a guide, got {gradient!r}")
    if not 0 <= strength < math.inf:
        raise ConfigError(f"the strength of a guide must be a finite number of at least 0, got {strength}")
    return _GradientGuide(gradient, float(strength))


@dataclass(frozen=True)
class _GradientGuide:
    """Adds V g to the expected rows, where V is what is left of the rows' covariance once x is known.

    Where rows are Gaussian and g constant, this is exact. A step is never longer than one standard deviation of V in
    any column: a gradient that is steep compared with the noise would else overshoot.
    """

    gradient: Gradient
    strength: float

    def moved(self, x: Tensor, denoised: Tensor, sigma: float, view: View) -> Tensor:
        observation, action = view.observation(denoised), view.action(denoised)
        found = _called(self.gradient, observation, action)
        towards = found if isinstance(found, tuple) else (None, found)
        slope = torch.zeros_like(denoised)
        for name, given, like in zip(("observation", "action"), towards, (observation, action), strict=True):
            if given is not None:
                view.add_gradient(slope, denoised, name, _checked("gradient", given, like))
        covariance = view.covariance(sigma)
        most = covariance.diagonal().clamp(min=0).sqrt()
        return denoised + (self.strength * slope @ covariance).clamp(-most, most)


@dataclass(frozen=True)
class _PolicyGuide:
    """Mixes what the network expects of actions with what it would expect if they came from the policy.

    Of an action x = a + sigma eps, where a is normal with the policy's mean and std, the expectation is
    (std^2 x + sigma^2 mean) / (std^2 + sigma^2).
    """

    policy: Policy
    strength: float
    std: float | None

    def moved(self, x: Tensor, denoised: Tensor, sigma: float, view: View) -> Tensor:
        action = view.action(denoised)
        found = _called(self.policy, view.observation(denoised))
        mean, std = found if isinstance(found, tuple) else (found, torch.zeros_like(action))
        std = std if self.std is None else torch.full_like(action, self.std)
        mean, std = (_checked(name, each, action) for name, each in (("action", mean), ("std", std)))
        columns, wanted, slope = view.scaled_actions(mean)
        variance = (std[:, view.actions_there] * slope).square()
        expected = (variance * x[:, columns] + sigma**2 * wanted) / (variance + sigma**2)
        moved = denoised.clone()
        moved[:, columns] = torch.lerp(denoised[:, columns], expected, self.strength)
        return moved


def identity_of(guide: Guide) -> dict[str, Any]:
    """What tells a guide from another one. That can be said of saved agents. A function may do something else each time
    (its networks learn), so it is like no other, not even like itself."""
    digest = getattr(guide.policy, "digest", None) if isinstance(guide, _PolicyGuide) else None
    if not isinstance(guide, _PolicyGuide) or digest is None:
        return {"function": uuid.uuid4().hex}
    return {"policy": digest(), "strength": guide.strength, "std": guide.std}


def _called(function: Callable[..., Tensor | tuple[Tensor, Tensor]], *given: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    with torch.enable_grad():
        found = function(*given)
    return found


def _checked(name: str, found: object, like: Tensor) -> Tensor:
    if not isinstance(found, Tensor) or found.shape != like.shape:
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else repr(found)
        raise DataError(f"guide: expected the {name} as a tensor of shape {tuple(like.shape)}, got {got}")
    found = found.detach().to(like)
    if not bool(found.isfinite().all()):
        raise DataError(f"guide: expected a finite {name}, got NaN or an infinity")
    return found


class View:
    """Observations and actions of scaled rows, in their own units.

    Categories and flags of observations are shown as the most likely value. A gradient in them has no effect.
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
        self._identities = [one for one in layout.identities if one.field == "observation"]

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
        for identity in self._identities if field == "observation" else ():
            identity.put({field: raw})
        return raw

    def _decoded(self, scaled: Tensor, place: Place) -> Tensor:
        """The most likely values of columns without an order. (N, W)"""
        raw = [self._number(scaled, column)[0] for column in range(place.matrix.start, place.matrix.stop)]
        return torch.from_numpy(place.kind.decode(torch.stack(raw, dim=1).double().cpu().numpy())).to(scaled)

    def _number(self, scaled: Tensor, column: int) -> tuple[Tensor, Tensor]:
        """A column of scaled rows in its own units, and by how much it changes with the scaled one. (N,)"""
        value, slope = scaled[:, column], torch.ones_like(scaled[:, column])
        if column in self._to_values:
            value, slope = (each[0] for each in self._to_values[column].followed(value.double()[None]))
        group = None if self._groups is None else self._groups.of(column, scaled)
        if group is not None:
            mean, std = group
            value, slope = value * std + mean, slope * std
        return (value * self.scale[column] + self.shift[column]).to(scaled), (slope * self.scale[column]).to(scaled)

    def add_gradient(self, slope: Tensor, scaled: Tensor, field: str, gradient: Tensor) -> None:
        """Add a gradient in a field's own units to that in the scaled rows."""
        place = 0
        if field == "observation" and self._identities:
            gradient = gradient.clone()
            for identity in reversed(self._identities):
                for parent in identity.parents:
                    gradient[:, parent.column] += parent.weight * gradient[:, identity.column]
        for one in self.shown[field]:
            if isinstance(one, Number) and one.column is not None:
                slope[:, one.column] += gradient[:, place] * self._number(scaled, one.column)[1]
            place += one.kind.source_width if isinstance(one, Place) else 1

    @cached_property
    def actions_there(self) -> list[int]:
        """Which actions the network generates: those that are not the same in all rows."""
        return [place for place, number in enumerate(self.actions) if number.column is not None]

    def scaled_actions(self, raw: Tensor) -> tuple[list[int], Tensor, Tensor]:
        """The columns of the matrix that hold actions, actions (N, A) in its units, and the slopes of these."""
        columns, values, slopes = [], [], []
        for place in self.actions_there:
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
        """Of rows that are known up to noise `sigma`, if they were normal. (D, D)"""
        return posterior_covariance(self._covariance, sigma).float()
