"""`SyntheticReplay`: a replay buffer for online agents whose batches are partly synthetic."""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from synther import compute
from synther.conditions import OWN_RELEVANCE, Relevant
from synther.data import spaces
from synther.data.checks import check_count
from synther.data.spaces import Space
from synther.data.transitions import FIELDS, Transitions
from synther.errors import ConfigError, DataError, FormatError, SyntherError
from synther.guides import Gradient, Guide
from synther.presets import Settings
from synther.presets import preset as named
from synther.progress import Progress, resolve
from synther.relevance import Relevance
from synther.replay import files
from synther.replay.background import Background, Failed
from synther.replay.columns import Batch, Columns
from synther.replay.mixture import Mixture
from synther.replay.refit import Generation, Job, Refit, Refresh, drawn, seed_of, usual_samples
from synther.replay.shortcut import Given
from synther.replay.store import Store
from synther.synthesizer import Synthesizer

log = logging.getLogger(__name__)

_OPTIONS = ("capacity", "refresh_every", "samples", "refit", "replace", "background", "seed", "precision")
_BATCHES, _FITS, _HELD_OUT = range(3)  # random streams, one per purpose


class SyntheticReplay:
    """The newest `capacity` real rows and `samples` synthetic rows, regenerated every `refresh_every` real rows.

        replay = SyntheticReplay(1_000_000)
        replay.add(observation, action, reward, next_observation, terminal)
        batch = replay.sample(256)

    `ratio` is the synthetic fraction of a batch. Default `samples`: a million on a GPU, 100,000 on a CPU. `preset` is
    the name of a preset or a `Settings`. `refit="warm"` starts each fit from the previous weights and stops early;
    "scratch" fits a new network, as in the paper. A refresh replaces the fraction `replace` of the synthetic rows,
    oldest first. With `background`, it runs in another process.

    With `relevance`, synthetic rows are like the most `relevant` share of the real ones: "reward", "return",
    "curiosity", or a function that takes rows to one number each. `guidance` above 1 goes further in that direction.
    """

    def __init__(
        self,
        capacity: int,
        *,
        ratio: float = 0.5,
        refresh_every: int = 10_000,
        samples: int | None = None,
        preset: str | Settings = "auto",
        refit: Refit = "warm",
        replace: float = 1.0,
        background: bool = False,
        relevance: str | Relevance | None = None,
        relevant: float = 0.25,
        guidance: float = 2.0,
        guide: Guide | Gradient | None = None,
        shuffled: bool = True,
        action_space: Space | None = None,
        observation_space: Space | None = None,
        seed: int = 0,
        device: str = "auto",
        precision: compute.Precision = "auto",
        progress: Progress | bool = True,
    ) -> None:
        self.capacity = _whole("capacity", capacity)
        self.refresh_every = _whole("refresh_every", refresh_every)
        if refit not in get_args(Refit):
            raise ConfigError(f"refit must be one of {', '.join(get_args(Refit))}, got {refit!r}")
        if not 0 < replace <= 1:
            raise ConfigError(
                f"replace, the fraction of synthetic rows that a refresh replaces, must lie in (0, 1], got {replace}"
            )
        self.device = compute.pick_device(device)
        self.samples = check_count(usual_samples(self.device) if samples is None else samples)
        self.precision = compute.pick_precision(precision, self.device)
        self.settings = named(preset, gpu=self.device.type == "cuda")
        self.refit: Refit = refit
        # Converted to plain Python types, because they are saved as JSON.
        self.replace, self.background, self.seed = float(replace), bool(background), _whole("seed", seed, 0)
        name = OWN_RELEVANCE if callable(relevance) else relevance
        self.relevance = relevance
        self.relevant = None if name is None else Relevant(name, float(relevant), float(guidance))
        if guide is not None and self.background:
            raise ConfigError("a guide cannot be sent to the background: expected background=False, or no guide")
        self.guide = guide
        self.progress = progress
        self.spaces: dict[str, Any] = {"action_space": action_space, "observation_space": observation_space}
        for name, space in self.spaces.items():
            spaces.check_parts(space, name)
        self.mixture = Mixture(ratio, shuffled=shuffled)
        self.generator = compute.generator(self.device, self.seed, _BATCHES)
        self._history: list[Refresh] = []
        self._model: Synthesizer | None = None
        self._store: Store | None = None
        self._running: tuple[Refresh, Background] | None = None
        self._owed = False  # a refresh was started and then cancelled; it is due again

    @property
    def history(self) -> list[Refresh]:
        """The records of all refreshes."""
        self._collect()
        return self._history

    @property
    def model(self) -> Synthesizer | None:
        """The generator of the latest successful refresh."""
        self._collect()
        return self._model

    @property
    def store(self) -> Store:
        """The stored rows. Their columns are known once the first row is added."""
        if self._store is None:
            raise DataError("the replay is empty: add rows first")
        return self._store

    @property
    def added(self) -> int:
        """Real rows added so far."""
        return 0 if self._store is None else self._store.real.added

    def __repr__(self) -> str:
        self._collect()
        synthetic = 0 if self._store is None else len(self._store.synthetic)
        rows = f"{len(self):,} of {self.capacity:,} real rows, {synthetic:,} synthetic"
        return f"SyntheticReplay({rows}, ratio {self.mixture.ratio:g}, on {self.device})"

    def __len__(self) -> int:
        """Number of real rows in the buffer."""
        return 0 if self._store is None else len(self._store.real)

    def add(
        self,
        observation: ArrayLike,
        action: ArrayLike,
        reward: ArrayLike,
        next_observation: ArrayLike,
        terminal: ArrayLike,
        timeout: ArrayLike | None = None,
    ) -> None:
        """Add one row: (O,), (A,) or an integer, a number, (O,) and a flag; or N rows, with a leading axis N.

        If a row is invalid, an error is raised and no row is added. A refresh that is due runs in this call.
        """
        given = (observation, action, reward, next_observation, terminal, timeout)
        if self._store is None or not self._store.add_alike(given):
            self._add_checked(given)
        self._collect()
        if self._due():
            self.refresh()

    def sample(self, batch_size: int) -> Batch:
        """Draw `batch_size` rows with replacement: only real rows until there are synthetic ones, then at the ratio."""
        count = _whole("batch_size", batch_size)
        if count > self.capacity:
            raise ConfigError(f"batch_size {count} is more than the capacity, {self.capacity}: raise the capacity")
        store = self.store
        self._collect()
        return store.columns.batch(*self.mixture.draw(store.real, store.synthetic, count, self.generator))

    def transitions(self) -> Transitions:
        """The real rows, oldest first.

        Timeouts are included if they were always given and each row continues the previous one or starts an episode.
        """
        return self.store.transitions()

    def refresh(self) -> None:
        """Fit on the real rows and generate synthetic ones now, or start to do so in the background.

        A refresh that is already running in the background is cancelled.
        """
        self._collect()
        self.close()
        job = self._job()
        self._owed = False
        begun = Refresh(len(self._history), self.added, len(self), job.samples)
        try:
            if self.background:
                self._running = begun, Background(job)
            else:
                self._keep(begun, job.run(resolve(self.progress)))
        except SyntherError as error:
            self._failed(begun, error)

    def redraw(self, guide: Guide | Gradient | None = None) -> None:
        """Replace the synthetic rows by others of the present generator, guided by what an agent has learned since.

        `guide` is by default the replay's own. Batches stay real until the first refresh, which this does not replace.
        """
        self._collect()
        if self._model is None:
            raise ConfigError("there is no generator yet to draw rows from: expected redraw after the first refresh")
        seed = int(torch.randint(2**31, (), generator=self.generator, device=self.device))
        asked = guide if guide is not None else self.guide
        columns, progress = self.store.columns, resolve(self.progress)
        self.store.synthetic.add(drawn(self._model, columns, self.samples, seed, progress, self.relevant, asked))

    def wait(self) -> None:
        """Wait for a refresh in the background and use its rows."""
        if self._running is not None:
            self._running[1].wait()
            self._collect()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save to a folder. After `load`, batches and refreshes continue exactly as they would have here.

        A refresh that is running in the background is not waited for; it is due again after loading.
        """
        self._collect()
        options = {name: getattr(self, name) for name in _OPTIONS}
        options |= {"ratio": self.mixture.ratio, "shuffled": self.mixture.shuffled}
        options |= {name: spaces.to_json(space) for name, space in self.spaces.items()}
        if self.relevant is not None:
            asked = self.relevant
            options |= {"relevance": asked.relevance, "relevant": asked.share, "guidance": asked.guidance}
        described = {
            "options": options | {"preset": self.settings.to_json()},
            "device": self.device.type,
            "mixed": self.mixture.mixed,
            "history": [dataclasses.asdict(refresh) for refresh in self._history],
            "owed": self._owed or self._running is not None,
            "store": None if self._store is None else self._store.to_json(),
        }
        tensors = {} if self._store is None else self._store.tensors()
        files.write(path, described, {**tensors, "generator": self.generator.get_state()}, self._model)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str = "auto",
        relevance: Relevance | None = None,
        guide: Guide | Gradient | None = None,
        progress: Progress | bool = True,
    ) -> SyntheticReplay:
        """Load a saved replay. On another kind of device it continues with other random numbers.

        A `relevance` function of your own and a guide are not in the file: pass them again.
        """
        kind = compute.pick_device(device).type
        described, tensors, model = files.read(path, device)
        if relevance is None and described.get("options", {}).get("relevance") == OWN_RELEVANCE:
            raise ConfigError(
                f"{path} has a relevance function of your own, which is not in it: load(path, relevance=f)"
            )
        try:
            options = described["options"]
            options["preset"] = Settings.from_json(options["preset"])
            options |= {name: spaces.from_json(options[name]) for name in ("action_space", "observation_space")}
            if kind != described["device"]:
                options["precision"] = "auto"
            if options.get("relevance") == OWN_RELEVANCE:
                options["relevance"] = relevance
            replay = cls(**options, guide=guide, device=device, progress=progress)
            if model is not None:
                model.precision = replay.precision
            replay._model = model
            replay._owed = described.get("owed", False)  # absent in older files
            replay.mixture.mixed = described["mixed"]
            replay._history = [Refresh(**entry) for entry in described["history"]]
            if described["store"] is not None:
                replay._store = Store.restored(described["store"], tensors, replay.device)
            if kind == described["device"]:
                replay.generator.set_state(tensors["generator"])
            return replay
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise FormatError(f"{path} is a damaged replay file: {error}") from error

    def close(self) -> None:
        """Cancel a refresh that is running in the background. It is due again with the next row."""
        if self._running is not None:
            self._running[1].close()
            self._running, self._owed = None, True

    def __getstate__(self) -> dict[str, Any]:
        """For pickling: a running refresh becomes one that is due, and the random state a NumPy array."""
        self._collect()
        own = {"_running": None, "_owed": self._owed or self._running is not None}
        return {**self.__dict__, **own, "generator": self.generator.get_state().numpy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.generator = torch.Generator(self.device)
        self.generator.set_state(torch.from_numpy(state["generator"].copy()))

    def _add_checked(self, given: Given) -> None:
        """The slow path: rows of new types or shapes, and invalid rows."""
        fields: dict[str, Any] = dict(zip(FIELDS, given, strict=True))
        if np.ndim(fields["observation"]) == 1:
            fields = {name: None if value is None else _one_row(value) for name, value in fields.items()}
        rows = Transitions(**fields, **self.spaces)
        store = self._store or Store(Columns.of(rows), self.capacity, self.samples, self.device)
        store.add(rows)
        store.shortcut.learn(given, len(rows))
        self._store = store

    def _due(self) -> bool:
        last = self._history[-1].added if self._history else 0
        overdue = self._owed or self.added // self.refresh_every > last // self.refresh_every
        return overdue and self._running is None and self.mixture.ratio > 0

    def _job(self) -> Job:
        store, own = self.store, self.relevance
        rows = store.columns.transitions(store.real.by_age().cpu().numpy())
        return Job.of(
            store.columns,
            rows,
            self.settings,
            self.refit,
            stream=(self.seed, _HELD_OUT),
            gone=self.added - len(self),
            before=self._model,
            samples=max(1, round(self.replace * self.samples)) if len(store.synthetic) else self.samples,
            seed=seed_of(self.seed, _FITS, len(self._history)),
            device=str(self.device),
            precision=self.precision,
            relevant=self.relevant,
            condition=np.asarray(own(rows), np.float64) if callable(own) else None,
            guide=self.guide,
        )

    def _collect(self) -> None:
        """Use the result of a refresh in the background, if it is done."""
        if self._running is None or not self._running[1].done:
            return
        begun, background = self._running
        self._running = None
        try:
            self._keep(begun, background.result())
        except Failed as error:
            self._failed(begun, error)

    def _keep(self, begun: Refresh, generation: Generation) -> None:
        self._model = generation.model
        self.store.synthetic.add(generation.rows)
        self._history.append(generation.recorded(begun))
        log.info("refresh after %s rows: %s", f"{begun.added:,}", self._history[-1])

    def _failed(self, begun: Refresh, error: Exception) -> None:
        self._history.append(dataclasses.replace(begun, reason=str(error)))
        kept = "the old synthetic rows stay" if self._model is not None else "batches stay real"
        log.warning("the refresh after %s rows failed, %s: %s", f"{begun.added:,}", kept, error)


def _one_row(value: Any) -> Any:
    return value[None] if isinstance(value, Tensor) else np.asarray(value)[None]


def _whole(name: str, value: int, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ConfigError(f"{name} must be a whole number and at least {least}, got {value!r}")
    return int(value)
