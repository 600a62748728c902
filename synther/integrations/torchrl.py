"""TorchRL: a replay buffer whose batches are TensorDicts for TorchRL's losses.

buffer = SyntheticReplayBuffer(1_000_000, env.action_spec_unbatched, batch_size=256)
buffer.extend(data)
loss = sac_loss(buffer.sample())
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Unpack

import torch
from torch import Tensor

from synther.data.spaces import Box, Discrete, Space
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError, MissingExtra
from synther.integrations.adapter import ReplayOptions, packed, unpacked
from synther.replay.synthetic import SyntheticReplay

try:
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Bounded, Categorical, OneHot, Unbounded
except ImportError:
    raise MissingExtra("torchrl", "torchrl", "a replay buffer for TorchRL") from None


class SyntheticReplayBuffer:
    """The part of TorchRL's replay buffer interface that its loops and trainers use. `replay` is its `SyntheticReplay`.

    `action_spec` is that of a single environment. One-hot actions are returned as one-hot. The other options are those
    of `SyntheticReplay`. Observations are vectors under the key "observation".
    """

    def __init__(
        self,
        capacity: int,
        action_spec: Any,
        *,
        batch_size: int = 256,
        seed: int = 0,
        device: str = "auto",
        **options: Unpack[ReplayOptions],
    ) -> None:
        self.action_spec, self.batch_size = action_spec, batch_size
        space = _space(action_spec)
        self.replay = SyntheticReplay(capacity, action_space=space, seed=seed, device=device, **options)

    def __len__(self) -> int:
        """Number of real rows."""
        return len(self.replay)

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Batches without end, as in all buffers that sample at random."""
        while True:
            yield self.sample()

    @property
    def storage(self) -> SyntheticReplay:
        """Trainers read the device from here."""
        return self.replay

    def transitions(self) -> Transitions:
        """The real rows, oldest first."""
        return self.replay.transitions()

    def add(self, data: TensorDictBase) -> None:
        """Add one step, a TensorDict without batch dimensions. A refresh that is due runs in this call."""
        self.extend(data.unsqueeze(0))

    def extend(self, data: TensorDictBase) -> None:
        """Add steps with any number of batch dimensions. Padding steps (collector mask) are left out.

        The last dimension is time. With several trajectories, each one is truncated after its last step. A single
        trajectory is truncated if the next call does not continue it.
        """
        mask = data.get(("collector", "mask"), None)
        steps = (data.reshape(-1) if mask is None else data[mask]).detach().cpu()
        ahead = steps.get("steps_to_next_obs", None)
        if ahead is not None and (ahead != 1).any():
            raise DataError(
                "the rows span several steps (steps_to_next_obs, from MultiStep), which batches cannot express: "
                "expected single steps; remove MultiStep"
            )
        observation = _vectors(steps, "observation")
        terminated = _found(steps, ("next", "terminated")).reshape(len(steps))
        truncated = steps.get(("next", "truncated"), None)
        if truncated is not None:
            truncated = truncated.reshape(len(steps)) | (_lasts(data, mask) & ~terminated.bool())
        before = self.replay.added
        # A single step may belong to any trajectory, so nothing is known about truncation.
        anew = before > 0 and len(steps) > 1 and not self.replay.store.goes_on_with(observation[0])
        self.replay.add(
            observation,
            self._stored(_found(steps, "action")),
            _found(steps, ("next", "reward")).reshape(len(steps)),
            _vectors(steps, ("next", "observation")),
            terminated,
            truncated,
        )
        if anew:
            self.replay.store.cut(before - 1)

    def sample(self, batch_size: int | None = None) -> TensorDictBase:
        """Draw `batch_size` rows (default: the buffer's). The key "synthetic" marks synthetic rows.

        Rows do not follow each other: `done` equals `terminated`, and no row is `truncated`.
        """
        batch = self.replay.sample(self.batch_size if batch_size is None else batch_size)
        terminated = batch.terminal[:, None] > 0.5
        return TensorDict(
            {
                "observation": batch.observation,
                "action": self._restored(batch.action),
                "next": {
                    "observation": batch.next_observation,
                    "reward": batch.reward[:, None],
                    "done": terminated,
                    "terminated": terminated,
                    "truncated": torch.zeros_like(terminated),
                },
                "synthetic": batch.synthetic[:, None],
            },
            batch_size=[len(terminated)],
            device=self.replay.device,
        )

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Does nothing: rows are drawn uniformly."""

    def state_dict(self) -> dict[str, Any]:
        """The whole buffer, with random state and generator."""
        return {"replay": packed(self.replay)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the buffer from its `state_dict`."""
        self._take(unpacked(state["replay"], self.replay.device, self.replay.progress))

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save to a folder."""
        self.replay.save(path)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Restore the buffer from a folder."""
        self._take(SyntheticReplay.load(path, device=str(self.replay.device), progress=self.replay.progress))

    def _take(self, other: SyntheticReplay) -> None:
        if other.spaces != self.replay.spaces:
            raise ConfigError(
                f"the saved replay has actions of {other.spaces['action_space']}, this buffer of "
                f"{self.replay.spaces['action_space']}: expected the same; load it for the environment it came from"
            )
        self.replay.close()
        self.replay = other

    def _stored(self, action: Tensor) -> Tensor:
        if isinstance(self.action_spec, OneHot):
            return action.long().argmax(-1)
        return action.reshape(len(action)) if isinstance(self.action_spec, Categorical) else action

    def _restored(self, action: Tensor) -> Tensor:
        spec = self.action_spec
        if isinstance(spec, OneHot):
            return torch.nn.functional.one_hot(action, spec.space.n).to(spec.dtype)
        return action.reshape(len(action), *spec.shape).to(spec.dtype)


def _space(spec: Any) -> Space:
    values = getattr(getattr(spec, "space", None), "n", -1)  # number of values; several discrete actions have none
    one_hot = isinstance(spec, OneHot) and tuple(spec.shape) == (values,)
    if one_hot or (isinstance(spec, Categorical) and spec.shape.numel() == 1 and values > 0):
        return (Discrete(int(values)),)
    real = isinstance(spec, (Bounded, Unbounded)) and spec.dtype.is_floating_point and len(spec.shape) == 1
    if not real:
        raise ConfigError(
            f"action_spec is {type(spec).__name__} of shape {tuple(getattr(spec, 'shape', ()))}: expected a vector of "
            "real numbers, or one discrete action, of a single environment, as env.action_spec_unbatched says it"
        )
    if isinstance(spec, Unbounded):
        return (Box.uniform(-torch.inf, torch.inf, spec.shape[0]),)
    return (Box(tuple(spec.space.low.tolist()), tuple(spec.space.high.tolist())),)


def _found(steps: TensorDictBase, key: str | tuple[str, str]) -> Tensor:
    value = steps.get(key, None)
    if not isinstance(value, Tensor):
        there = ", ".join(map(str, steps.keys(include_nested=True, leaves_only=True)))
        raise DataError(f"the TensorDict has no {key!r}: expected the keys of a TorchRL roll-out, got {there}")
    return value


def _lasts(data: TensorDictBase, mask: Tensor | None) -> Tensor:
    """Which rows are the last of several trajectories of more than one step. (N,)"""
    trajectories = data.batch_size[:-1].numel()
    if mask is None:
        lengths = torch.full((trajectories,), data.batch_size.numel() // max(1, trajectories))
    else:
        lengths = mask.sum(-1).reshape(-1).cpu()
    lasts = torch.zeros(int(lengths.sum()), dtype=torch.bool)
    if trajectories > 1 and lengths.max() > 1:
        lasts[lengths[lengths > 0].cumsum(0) - 1] = True
    return lasts


def _vectors(steps: TensorDictBase, key: str | tuple[str, str]) -> Tensor:
    value = _found(steps, key)
    if value.dim() != 2:
        raise DataError(f"{key!r} has shape {tuple(value.shape[1:])} a step: expected a vector; flatten or encode it")
    return value
