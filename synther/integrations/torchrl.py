"""TorchRL: a `TensorDictReplayBuffer` with partly synthetic batches.

buffer = SyntheticReplayBuffer(storage=LazyTensorStorage(1_000_000), batch_size=256)
buffer.extend(data)
loss = sac_loss(buffer.sample())
"""

from __future__ import annotations

import inspect
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from synther.data.spaces import Box, Discrete, Space
from synther.data.transitions import EXTRA, Transitions
from synther.errors import ConfigError, DataError, MissingExtra
from synther.integrations.adapter import not_in_files, packed, unpacked
from synther.replay.adapting import Stored
from synther.replay.columns import Columns
from synther.replay.rows import ReplayOptions, SyntheticRows, check_options

try:
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Bounded, Categorical, OneHot, ReplayBuffer, TensorDictReplayBuffer, Unbounded
    from torchrl.data.replay_buffers import PrioritizedSampler, RandomSampler, SamplerWithoutReplacement
except ImportError:
    raise MissingExtra("torchrl", "torchrl", "a replay buffer for TorchRL") from None

Key = tuple[str, ...]
"""A nested key of a TensorDict, such as ("next", "reward")."""

_THEIRS = ("priority_key", "action_spec", "action_key", *inspect.signature(ReplayBuffer.__init__).parameters)
"""Options of TorchRL's buffers, and those that only this buffer has."""
_ENDS = ("done", "terminated", "truncated")
"""Last parts of the keys that say where episodes end."""
_SAVED = "synthetic"
"""Name of the synthetic rows in saved states and folders."""


class SyntheticReplayBuffer(TensorDictReplayBuffer):  # type: ignore[misc]  # the library has no types here
    """A `TensorDictReplayBuffer` with partly synthetic batches after the first refresh.

    Storage, sampler, writer and transforms are those of TorchRL, and it draws the real rows of a batch. The other rows
    are drawn from `synthetic`, with the same keys as stored rows, before the transforms. In a batch, the key
    "synthetic" marks them, and their "index" is -1, for which samplers store no priority. A refresh runs in `sample`
    when it is due.

    Steps must have an action, ("next", "reward"), and ("next", "terminated") or ("next", "done"). Keys that also exist
    under "next" are observations. Other numbers are modelled too, except those that a collector writes under
    "collector", which are 0 in synthetic rows. `action_spec` is the action spec of a single environment. It says which
    actions are possible. By default this is concluded from the stored actions. The other options are those of
    `SyntheticReplay`.
    """

    synthetic: SyntheticRows
    _is_known = False
    """Whether the first steps were checked."""

    def __init__(self, *, action_spec: Any = None, action_key: str = "action", **options: Any) -> None:
        check_options(options, *_THEIRS)
        own = {name: options.pop(name) for name in [*options] if name in ReplayOptions.__annotations__}
        self._options, self._action_key = own, (action_key,)
        self._action_space = None if action_spec is None else _space(action_spec)
        self.synthetic = SyntheticRows(**own)
        self._form: _Form | None = None
        self._drawing = threading.Lock()  # threads may prefetch batches
        super().__init__(**options)
        if self.storage.ndim != 1:
            raise ConfigError(f"the storage has ndim={self.storage.ndim}: expected ndim=1, for single steps")
        if not isinstance(self.sampler, (RandomSampler, SamplerWithoutReplacement, PrioritizedSampler)) or hasattr(
            self.sampler, "slice_len"
        ):
            raise ConfigError(
                f"the sampler is {type(self.sampler).__name__}: expected RandomSampler, SamplerWithoutReplacement or "
                "PrioritizedSampler, which draw single steps, because synthetic steps do not follow each other"
            )
        unit = options.get("sample_unit")
        if unit is not None and type(unit).__name__ != "Transition":
            raise ConfigError(
                f"sample_unit is {type(unit).__name__}: expected Transition or no sample_unit, because synthetic steps "
                "do not follow each other"
            )

    def add(self, data: TensorDictBase) -> int:
        """Add one step, and return its index."""
        place: int = super().add(data)
        self._check_first()
        return place

    def extend(self, *given: Any, **how: Any) -> Tensor:
        """Add several steps, and return their indices."""
        places: Tensor = super().extend(*given, **how)
        self._check_first()
        return places

    def _check_first(self) -> None:
        """Check whether a generator can model the steps when the first ones are added, instead of at a later
        refresh."""
        if not self._is_known and self.synthetic.mixture.ratio > 0 and len(self):
            _Form.of(self._steps_at(np.arange(1)), self._action_key, self.priority_key)
            self._is_known = True

    def refresh(self) -> None:
        """Fit the generator on the stored steps and generate synthetic steps, now or in the background."""
        form, real = self._real()
        with self._drawing:
            self._form = form
            self.synthetic.refresh_on(real.rows, self.write_count, places=real.places)

    def _real(self) -> tuple[_Form, Stored]:
        """Return the form of the stored steps, and the rows on which the generator is fitted."""
        steps, places = self._stored()
        form = _Form.of(steps, self._action_key, self.priority_key)
        rows = form.rows(steps)
        if self._action_space is not None:
            rows = replace(rows, action_space=self._action_space)
        return form, Stored(rows, places=places)

    def transitions(self) -> Transitions:
        """Return the real rows, oldest first. Other keys than observation, action, reward and ends are extra columns.

        Timeouts are included if ("next", "truncated") is stored, and if each step continues the previous step or starts
        an episode.
        """
        steps, _ = self._stored()
        rows = _Form.of(steps, self._action_key, self.priority_key).rows(steps)
        rows = replace(rows, action_space=self._action_space)
        truncated = steps.get(("next", "truncated"), None)
        if truncated is None:
            return rows
        timeout = truncated.reshape(len(steps)).cpu().numpy().astype(bool) & ~rows.terminal
        led = (rows.next_observation[:-1] == rows.observation[1:]).all(1) | rows.terminal[:-1] | timeout[:-1]
        return replace(rows, timeout=timeout) if led.all() else rows

    def sample(self, *given: Any, **how: Any) -> Any:
        """Draw a batch, with the arguments of TorchRL's buffers. A refresh runs in this call when it is due."""
        if self.synthetic.due(self.write_count, lambda: self._real()[1]):
            self.refresh()
        return super().sample(*given, **how)

    def _sample(self, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """Draw a batch. TorchRL calls this for every batch, in other threads if it prefetches."""
        with self._drawing:
            real, synthetic = self.synthetic.split(batch_size)
            drawn = self.synthetic.draw(synthetic) if synthetic else None
            order = self.synthetic.order(batch_size) if synthetic else None
            form, columns = self._form, self.synthetic.columns
        data, info = super()._sample(max(1, real))
        if drawn is None or form is None or columns is None:
            return data, {**info, "synthetic": torch.zeros(batch_size, dtype=torch.bool, device=data.device)}
        made = form.steps(drawn, columns)
        if len(self.transform):
            made = self.transform(made)
        both = torch.cat([data[:real], made]) if real else made
        joined = {name: _with_others(value, real, synthetic) for name, value in info.items()}
        joined["synthetic"] = torch.arange(batch_size) >= real
        if order is not None:
            both = both[order.to(both.device)]
            joined = {name: value[order.to(value.device)] for name, value in joined.items()}
        return both, joined

    def empty(self, *given: Any, **how: Any) -> None:
        """Delete all rows, and the generator."""
        super().empty(*given, **how)
        self.synthetic.close()
        self.synthetic = SyntheticRows(**self._options)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole buffer, with its random state and the generator."""
        return {**super().state_dict(), _SAVED: packed(self.synthetic)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the buffer from its `state_dict`. The `state_dict` of a TorchRL buffer restores only the real
        rows."""
        super().load_state_dict(state_dict)
        if _SAVED in state_dict:
            self._take(unpacked(state_dict[_SAVED], self.synthetic.device, **not_in_files(self._options)))

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save the buffer to a folder."""
        super().dumps(path)
        self.synthetic.save(Path(path) / _SAVED)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Restore the buffer from a folder."""
        super().loads(path)
        how = not_in_files(self._options)
        self._take(SyntheticRows.load(Path(path) / _SAVED, device=str(self.synthetic.device), **how))

    def _take(self, synthetic: SyntheticRows) -> None:
        """Replace the synthetic rows and the generator."""
        self.synthetic.close()
        self.synthetic = synthetic
        if len(self):
            self._form = _Form.of(self._stored()[0], self._action_key, self.priority_key)

    def __getstate__(self) -> dict[str, Any]:
        where = str(self.synthetic.device)
        return {**super().__getstate__(), _SAVED: packed(self.synthetic), "_where": where, "_drawing": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        synthetic = unpacked(state[_SAVED], state.pop("_where"), **not_in_files(state["_options"]))
        super().__setstate__({**state, _SAVED: synthetic, "_drawing": threading.Lock()})

    def _stored(self) -> tuple[TensorDictBase, NDArray[np.int64]]:
        """Return all stored steps, oldest first, and their indices in the storage."""
        if not len(self):
            raise DataError("the replay buffer is empty: add rows first")
        places = np.arange(len(self))
        if self.write_count > len(self):
            places = np.roll(places, -(self.write_count % len(self)))
        return self._steps_at(places), places

    def _steps_at(self, places: NDArray[np.int64]) -> TensorDictBase:
        steps = self.storage.get(torch.from_numpy(places))
        if isinstance(steps, list):
            steps = torch.stack(steps)
        if steps.batch_dims != 1:
            raise DataError(
                f"the storage holds steps of shape {tuple(steps.batch_size[1:])}: expected single steps; extend the "
                "buffer with data.reshape(-1)"
            )
        return steps


@dataclass(frozen=True)
class _Leaf:
    """A tensor of a TensorDict: its key, and shape and type of one step."""

    key: Key
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def width(self) -> int:
        return max(1, int(np.prod(self.shape)))

    def restored(self, columns: Tensor) -> Tensor:
        """Convert columns (B, width) to values of this shape and type. Integers are rounded to the nearest one."""
        if not self.dtype.is_floating_point:
            columns = columns > 0.5 if self.dtype is torch.bool else columns.round()
        return columns.to(self.dtype).reshape(len(columns), *self.shape)


@dataclass(frozen=True)
class _Form:
    """The keys of stored steps, and which of them are observations, action, reward, end and extra columns."""

    leaves: tuple[_Leaf, ...]
    observations: tuple[_Leaf, ...]
    action: _Leaf
    one_hot: bool
    reward: _Leaf
    ended: Key
    extra: tuple[_Leaf, ...]
    device: torch.device | None
    """Device of the TensorDict."""
    place: torch.device
    """Device of its tensors."""

    @classmethod
    def of(cls, steps: TensorDictBase, action: Key, priority: str) -> _Form:
        """Find the form of `steps`. Raise an error if a required key is missing or if an observation is an image."""
        leaves = {
            _path(key): _Leaf(_path(key), tuple(value.shape[1:]), value.dtype)
            for key, value in steps.items(include_nested=True, leaves_only=True)
            if isinstance(value, Tensor)
        }
        reward, terminated = ("next", "reward"), ("next", "terminated")
        ended = terminated if terminated in leaves else ("next", "done")
        for key in (action, reward, ended):
            if key not in leaves:
                raise DataError(
                    f"the steps have no {'/'.join(key)}: expected the keys of a TorchRL roll-out, got "
                    f"{', '.join('/'.join(found) for found in leaves)}"
                )
        if leaves[reward].width != 1:
            raise DataError(f"next/reward has shape {leaves[reward].shape} per step: expected one number")
        known = {action, reward, ("index",), ("_weight",), ("priority_weight",), (priority,)}
        others = [leaf for leaf in leaves.values() if leaf.key not in known and leaf.key[-1] not in _ENDS]
        others = [leaf for leaf in others if leaf.key[0] != "collector"]
        observations = tuple(leaf for leaf in others if ("next", *leaf.key) in leaves)
        if not observations:
            raise DataError("no key of the steps also exists under 'next': expected observations and next observations")
        for leaf in observations:
            if len(leaf.shape) > 2 or leaf.dtype is torch.uint8:
                raise DataError(
                    f"{'/'.join(leaf.key)} is an image of shape {leaf.shape}: expected vectors; encode images first"
                )
        following = {("next", *leaf.key) for leaf in observations}
        extra = tuple(leaf for leaf in others if leaf not in observations and leaf.key not in following)
        chosen = steps.get(action).reshape(len(steps), -1)
        one_hot = not chosen.is_floating_point() and chosen.shape[1] > 1 and _is_one_hot(chosen)
        where = steps.device, chosen.device
        return cls(tuple(leaves.values()), observations, leaves[action], one_hot, leaves[reward], ended, extra, *where)

    def rows(self, steps: TensorDictBase) -> Transitions:
        """Convert steps (N,) to rows."""
        action = steps.get(self.action.key).reshape(len(steps), -1)
        if self.one_hot:
            action = action.long().argmax(-1)
        return Transitions(
            observation=self._columns(steps, ()),
            action=action.detach().cpu().numpy(),
            reward=steps.get(self.reward.key).reshape(len(steps)).detach().cpu().numpy(),
            next_observation=self._columns(steps, ("next",)),
            terminal=steps.get(self.ended).reshape(len(steps)).cpu().numpy(),
            extra={
                _name(leaf.key): steps.get(leaf.key).reshape(len(steps), -1).detach().cpu().numpy()
                for leaf in self.extra
            },
        )

    def steps(self, rows: Tensor, columns: Columns) -> TensorDictBase:
        """Convert synthetic rows (B, width) to steps."""
        rows, count, places = rows.to(self.place), len(rows), columns.places
        found: dict[Key, Tensor] = {}
        for prefix, field in (((), "observation"), (("next",), "next_observation")):
            parts = torch.split(rows[:, places[field]], [leaf.width for leaf in self.observations], 1)
            for leaf, part in zip(self.observations, parts, strict=True):
                found[(*prefix, *leaf.key)] = leaf.restored(part)
        for leaf in self.extra:
            found[leaf.key] = leaf.restored(rows[:, places[EXTRA + _name(leaf.key)]])
        action = rows[:, places["action"]]
        if self.one_hot:
            action = torch.nn.functional.one_hot(action[:, 0].long(), self.action.width)
        found[self.action.key] = self.action.restored(action)
        found[self.reward.key] = self.reward.restored(rows[:, places["reward"]])
        over = rows[:, places["terminal"]]
        steps = TensorDict({}, [count], device=self.device)
        for leaf in self.leaves:
            if leaf.key[0] == "next" and leaf.key[-1] in ("done", "terminated"):
                found[leaf.key] = leaf.restored(over.expand(count, leaf.width))
            value = found.get(leaf.key)
            if value is None:
                value = torch.zeros(count, *leaf.shape, dtype=leaf.dtype, device=self.place)
            steps.set(leaf.key, value)
        return steps

    def _columns(self, steps: TensorDictBase, prefix: Key) -> NDArray[Any]:
        """Return the observations below `prefix` as columns (N, O)."""
        parts = [steps.get((*prefix, *leaf.key)).reshape(len(steps), -1) for leaf in self.observations]
        single = all(part.dtype in (torch.float32, torch.bool, torch.int8, torch.int16) for part in parts)
        wide = torch.float32 if single else torch.float64
        return torch.cat([part.to(wide) for part in parts], 1).detach().cpu().numpy()


def _path(key: Any) -> Key:
    return (key,) if isinstance(key, str) else tuple(key)


def _name(key: Key) -> str:
    """Return the name of the extra column for a key."""
    return "key_" + "_".join("".join(sign if sign.isalnum() else "_" for sign in part) for part in key)


def _is_one_hot(action: Tensor) -> bool:
    """Return whether every action (N, A) is a one-hot vector."""
    whole = action.long()
    return bool(((whole == 0) | (whole == 1)).all()) and bool((whole.sum(1) == 1).all())


def _with_others(value: Any, real: int, others: int) -> Tensor:
    """Append values for synthetic rows to the values of real rows: -1 for an index, and for a weight the mean.

    With the mean weight, the share of synthetic rows in a weighted loss equals their share in the batch.
    """
    value = torch.as_tensor(value).reshape(-1)[:real]  # the value of a single row may be a scalar
    fill = value.new_full((), 1 if value.is_floating_point() else -1)
    if value.is_floating_point() and real:
        fill = value.mean()
    return torch.cat([value, fill.expand(others)])


def _space(spec: Any) -> Space:
    """Convert an action spec of TorchRL to our action space."""
    values = getattr(getattr(spec, "space", None), "n", -1)  # number of values; -1 for several discrete actions
    one_hot = isinstance(spec, OneHot) and tuple(spec.shape) == (values,)
    if one_hot or (isinstance(spec, Categorical) and spec.shape.numel() == 1 and values > 0):
        return (Discrete(int(values)),)
    real = isinstance(spec, (Bounded, Unbounded)) and spec.dtype.is_floating_point and len(spec.shape) == 1
    if not real:
        raise ConfigError(
            f"action_spec is {type(spec).__name__} of shape {tuple(getattr(spec, 'shape', ()))}: expected the spec of "
            "a single environment (env.action_spec_unbatched), with a vector of real numbers or one discrete action"
        )
    if isinstance(spec, Unbounded):
        return (Box.uniform(-torch.inf, torch.inf, spec.shape[0]),)
    return (Box(tuple(spec.space.low.tolist()), tuple(spec.space.high.tolist())),)
