"""TorchRL: a replay buffer whose batches are the TensorDicts that its losses take.

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
from synther.integrations.options import ReplayOptions
from synther.integrations.packing import packed, unpacked
from synther.replay.synthetic import SyntheticReplay

try:
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Bounded, Categorical, OneHot, Unbounded
except ImportError:
    raise MissingExtra("torchrl", "torchrl", "a replay buffer for TorchRL") from None


class SyntheticReplayBuffer:
    """What TorchRL's loops and trainers use of a replay buffer; `replay` is the `SyntheticReplay` behind it.

    `action_spec` is that of one environment; one-hot actions come back as such. The other options are those of
    `SyntheticReplay`. Observations are vectors under the key "observation".
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
        """Real rows that are there."""
        return len(self.replay)

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Batches without end, as of all buffers that draw at random."""
        while True:
            yield self.sample()

    @property
    def storage(self) -> SyntheticReplay:
        """What trainers ask for its device."""
        return self.replay

    def transitions(self) -> Transitions:
        """The real rows, in the order in which they came."""
        return self.replay.transitions()

    def add(self, data: TensorDictBase) -> None:
        """One step, a TensorDict without batch dimensions. A refresh that is due happens here."""
        self.extend(data.unsqueeze(0))

    def extend(self, data: TensorDictBase) -> None:
        """Steps of any number of batch dimensions, without those that only fill up a shorter trajectory.

        The last dimension is time: of several trajectories each is cut after its last step. A single one is cut where
        that of the next call does not go on from it.
        """
        mask = data.get(("collector", "mask"), None)
        steps = (data.reshape(-1) if mask is None else data[mask]).detach().cpu()
        ahead = steps.get("steps_to_next_obs", None)
        if ahead is not None and (ahead != 1).any():
            raise DataError(
                "the rows look several steps ahead (steps_to_next_obs, from MultiStep), which no batch tells: "
                "expected single steps; leave MultiStep out"
            )
        observation = _vectors(steps, "observation")
        terminated = _found(steps, ("next", "terminated")).reshape(len(steps))
        truncated = steps.get(("next", "truncated"), None)
        if truncated is not None:
            truncated = truncated.reshape(len(steps)) | (_lasts(data, mask) & ~terminated.bool())
        before = self.replay.added
        # A single step may belong to any trajectory: nobody knows whether one was cut.
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
        """So many rows, by default `batch_size`; "synthetic" says which were generated.

        No row follows another: `done` is `terminated`, and no row is `truncated`.
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
        """Nothing: all rows are drawn alike."""

    def state_dict(self) -> dict[str, Any]:
        """Everything, random state and generator included."""
        return {"replay": packed(self.replay)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the buffer whose `state_dict` this was."""
        self._take(unpacked(state["replay"], self.replay.device, self.replay.progress))

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save to a folder."""
        self.replay.save(path)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Become the buffer that was saved there."""
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
    values = getattr(getattr(spec, "space", None), "n", -1)  # how many; several discrete actions have no such number
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
