"""Make synthetic data sets of graded quality from real rows: some are as good as real rows, some are useless."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from synther import Synthesizer, Transitions, preset
from synther.baselines.augmentation import Augmentation
from synther.baselines.table import Table
from synther.baselines.tabular import Tabular, TvaeConfig
from synther.compute import pick_device

Array = NDArray[Any]

FITS: dict[str, dict[str, dict[str, int]]] = {
    # name of a set: the preset's options that its fit changes
    "best-100k": {"fit": {"steps": 100_000}},
    "best-width-64": {"fit": {"steps": 20_000}, "network": {"width": 64}},
    "best-20k": {"fit": {"steps": 20_000}},
    "best-5k": {"fit": {"steps": 5_000}},
    "best-1k": {"fit": {"steps": 1_000}},
}
TVAE = "tvae"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the sets, and of the fits that make them."""

    rows: int = 200_000
    """Number of rows of each set."""
    preset: str = "best"
    """Preset of the diffusion fits."""
    most_steps: int = 100_000
    """Largest number of steps of a diffusion fit."""
    mean_steps: int = 5_000
    """Training steps of the network that predicts mean outcomes."""
    tvae_epochs: int = 60
    tvae_rows: int = 20_000
    """Number of rows that TVAE is fitted on."""
    jobs: int = 4
    """Number of processes that prepare TVAE's columns."""
    device: str = "auto"


def makers(real: Transitions, sizes: Sizes) -> dict[str, Callable[[], Transitions]]:
    """Return a function for each set, by the set's name. The fits come first, because they take longest."""
    found: dict[str, Callable[[], Transitions]] = {name: partial(_fitted, real, name, sizes) for name in FITS}
    if find_spec("ctgan") is not None:
        found[TVAE] = partial(_tvae, real, sizes)
    found |= {name: partial(change, Copies(real, sizes)) for name, change in CHANGED.items()}
    if not real.terminal.any():
        del found["terminals-dropped"]
    return found


def _fitted(real: Transitions, name: str, sizes: Sizes) -> Transitions:
    changes = FITS[name]
    steps = min(changes["fit"]["steps"], sizes.most_steps)
    settings = preset(sizes.preset, **{**changes, "fit": {"steps": steps}})  # type: ignore[arg-type]
    model = Synthesizer(settings, seed=0, device=sizes.device).fit(real, progress=False)
    print(f"{name}: fitted in {model.record.seconds:.1f} s, {model.measured}", flush=True)
    return model.sample(sizes.rows, seed=0, progress=False)


def _tvae(real: Transitions, sizes: Sizes) -> Transitions:
    few = real.subsample(min(1.0, sizes.tvae_rows / len(real)))
    model = Tabular(TvaeConfig(epochs=sizes.tvae_epochs), device=sizes.device)
    return model.fit(Table.of(few, jobs=sizes.jobs), progress=False).sample(sizes.rows, seed=0)


@dataclass(frozen=True)
class Copies:
    """Sets that are copies of real rows with changes."""

    real: Transitions
    sizes: Sizes

    @property
    def draw(self) -> np.random.Generator:
        """A random generator with the same seed for every set."""
        return np.random.default_rng(0)

    def plain(self, share: float = 1.0) -> Transitions:
        """Draw rows with replacement from a share of the real rows. They do not form episodes."""
        seen = self.real.subsample(share)
        rows = seen[self.draw.integers(len(seen), size=self.sizes.rows)]
        return replace(rows, timeout=None, observation_space=None)

    def disturbed(self, deviation: float) -> Transitions:
        """Add noise to observations and next observations."""
        rows, draw = self.plain(), self.draw
        here, there = (
            (part + draw.normal(0, deviation, part.shape)).astype(np.float32)
            for part in (rows.observation, rows.next_observation)
        )
        return replace(rows, observation=here, next_observation=there)

    def outcomes(self, factor: float) -> Transitions:
        """Move next observations towards their predicted mean (factor below 1) or away from it (factor above 1)."""
        rows = self.plain()
        mean = _mean_outcomes(self.real, rows, self.sizes.mean_steps, pick_device(self.sizes.device))
        there = (mean + factor * (rows.next_observation - mean)).astype(np.float32)
        for column in range(there.shape[1]):  # flags, such as a contact, stay 0 or 1
            if len(np.unique(self.real.observation[:, column])) <= 2:
                there[:, column] = rows.next_observation[:, column]
        return replace(rows, next_observation=there)

    def random_terminals(self) -> Transitions:
        rows = self.plain()
        rate = max(0.01, float(rows.terminal.mean()))
        return replace(rows, terminal=self.draw.random(len(rows)) < rate)

    def shuffled(self) -> Transitions:
        """Shuffle each column on its own, so that the columns are independent of each other."""
        rows, draw = self.plain(), self.draw
        fields: dict[str, Any] = {name: draw.permuted(array, axis=0) for name, array in rows.arrays().items()}
        return replace(rows, **fields)

    def half_shuffled(self) -> Transitions:
        half = self.sizes.rows // 2
        return Transitions.concatenate([self.plain()[:half], self.shuffled()[half:]])

    def noisy_rewards(self) -> Transitions:
        rows = self.plain()
        noise = self.draw.normal(0, float(self.real.reward.std()), len(rows))
        return replace(rows, reward=(rows.reward + noise).astype(np.float32))


CHANGED: dict[str, Callable[[Copies], Transitions]] = {
    "noise-0.01": lambda copies: copies.disturbed(0.01),
    "noise-0.1": lambda copies: Augmentation("additive").fit(copies.real).sample(copies.sizes.rows, seed=0),
    "outcomes-narrow": lambda copies: copies.outcomes(0.5),
    "outcomes-wide": lambda copies: copies.outcomes(3.0),
    "terminals-dropped": lambda copies: replace(copies.plain(), terminal=np.zeros(copies.sizes.rows, bool)),
    "terminals-random": Copies.random_terminals,
    "copies": Copies.plain,
    "copies-2pct": lambda copies: copies.plain(0.02),
    "shuffled": Copies.shuffled,
    "half-shuffled": Copies.half_shuffled,
    "rewards-noisy": Copies.noisy_rewards,
}


def _mean_outcomes(real: Transitions, rows: Transitions, steps: int, device: torch.device) -> Array:
    """Return the expected next observation of `rows`, as predicted by a network that was trained on the `real` rows."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        given = torch.from_numpy(np.hstack([real.observation, real.action])).float().to(device)
        change = torch.from_numpy(real.next_observation - real.observation).float().to(device)
        center, scale, unit = given.mean(0), given.std(0) + 1e-6, change.std(0) + 1e-6
        network = nn.Sequential(
            *(nn.Linear(given.shape[1], 256), nn.SiLU()),
            *(nn.Linear(256, 256), nn.SiLU()),
            nn.Linear(256, change.shape[1]),
        ).to(device)
        adam = torch.optim.Adam(network.parameters(), lr=1e-3)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
        for _ in range(steps):
            places = torch.randint(len(given), (512,), device=device)
            loss = (network((given[places] - center) / scale) - change[places] / unit).square().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            falling.step()
        inputs = torch.from_numpy(np.hstack([rows.observation, rows.action])).float().to(device)
        with torch.no_grad():
            expected = network((inputs - center) / scale) * unit
    mean: Array = rows.observation + expected.cpu().numpy()
    return mean
