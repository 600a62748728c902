"""Fit and sample the generators of a comparison, each in its own folder."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from synther import compute, formats
from synther.assess.fidelity import correlation, marginal, matrices_of
from synther.baselines.augmentation import AUGMENTATIONS, Augmentation
from synther.baselines.mbpo import MBPO
from synther.baselines.search import search
from synther.baselines.table import Table
from synther.baselines.tabular import CONFIGS, Config, Tabular, config_of, to_json
from synther.conditions import Relevant
from synther.data.checks import check_count
from synther.data.transitions import Transitions
from synther.folder import read_object, write_object
from synther.guides import Guide
from synther.plain import check_least
from synther.presets import Settings
from synther.progress import Progress
from synther.synthesizer import Synthesizer
from synther.upsample import fit_to

log = logging.getLogger(__name__)

NOISE = tuple(AUGMENTATIONS)
"""Names of the generators that add noise to real rows."""
GENERATORS = ("diffusion", *CONFIGS, "mbpo", *NOISE)
"""Names of all generators, in the order of the table."""
TRIAL_SAMPLES = 20_000
"""Maximum number of generated rows for the score of a trial."""


@dataclass(frozen=True)
class Plan:
    """Options for fitting and sampling the generators. `synther compare --help` explains them."""

    settings: Settings = field(default_factory=Settings)
    """Settings of the diffusion model."""
    samples: int = 100_000
    trials: int = 30
    epochs: int = 300
    trial_epochs: int = 30
    trial_rows: int = 20_000
    jobs: int = 1
    env_id: str | None = None
    simulator: bool = True
    device: str = "auto"
    precision: compute.Precision = "auto"
    seed: int = 0
    relevant: Relevant | None = None
    """Which rows the diffusion model generates. None: rows distributed like all real rows."""

    def __post_init__(self) -> None:
        check_count(self.samples)
        check_least(self, trials=0, epochs=1, trial_epochs=1, trial_rows=2, jobs=1)


@dataclass(frozen=True)
class Fitted:
    """Facts about the fit of a generator."""

    seconds: float
    """Time of the fit, without the search for its settings."""
    parameters: int
    """Number of weights that are needed to sample."""
    settings: dict[str, Any]


@dataclass(frozen=True)
class TrialScore:
    """The score that the search for settings maximizes: the mean of marginal and correlation, from 0 to 1."""

    table: Table
    real: Transitions
    samples: int
    device: str
    seed: int

    def __call__(self, config: Config) -> float:
        model = Tabular(config, device=self.device, seed=self.seed).fit(self.table, progress=False)
        a, b = matrices_of(self.real, model.sample(self.samples, seed=self.seed))
        return float(np.nanmean([marginal(a, b)[1], correlation(a, b)]))


class Maker:
    """Fits any generator on the real `rows` with the options of `plan`, and generates its rows."""

    def __init__(self, rows: Transitions, plan: Plan, progress: Progress) -> None:
        self.real, self.plan, self.progress = rows, plan, progress

    def description(self, name: str) -> dict[str, Any]:
        """Return the options that the rows of generator `name` depend on, besides data, number of rows and seed."""
        plan = self.plan
        if name in (*NOISE, "mbpo"):
            return {}
        if name == "diffusion":
            relevant = {} if plan.relevant is None else {"relevant": asdict(plan.relevant)}
            return {"settings": plan.settings.to_json(), "precision": self._unfitted().precision, **relevant}
        chosen = {"trials": plan.trials, "epochs": plan.epochs}
        return {**chosen, "trial_epochs": plan.trial_epochs, "trial_rows": plan.trial_rows} if plan.trials else chosen

    def rows(self, name: str, folder: Path) -> tuple[Transitions, Fitted]:
        """Return the rows of generator `name`. They are read from `folder` if they exist there already."""
        plan = self.plan
        if name in NOISE:  # not stored, because generating them is faster than reading
            made = Augmentation(name).fit(self.real).sample(plan.samples, seed=plan.seed)
            return made, Fitted(0.0, 0, {})
        data, note = folder / "synthetic.npz", folder / "fit.json"
        if data.exists():
            return formats.read(data), read_object(note, Fitted)
        if name == "diffusion":
            model = self.diffusion(folder)
            parameters = sum(weight.numel() for weight in model.network.parameters())
            made, fitted = self.drawn(model), Fitted(model.record.seconds, parameters, plan.settings.to_json())
        elif name == "mbpo":
            made, fitted = self._timed(MBPO(device=plan.device, seed=plan.seed), self.real, {})
        else:
            config = self._searched(config_of(name), folder) if plan.trials else config_of(name)
            config = replace(config, epochs=plan.epochs)
            tabular = Tabular(config, device=plan.device, seed=plan.seed)
            made, fitted = self._timed(tabular, self._table, to_json(config))
        write_object(note, asdict(fitted))
        formats.write(made, data)
        return made, fitted

    def diffusion(self, folder: Path) -> Synthesizer:
        """Return the diffusion model in `folder`. It is fitted first if it does not exist."""
        condition = () if self.plan.relevant is None else (self.plan.relevant.relevance,)
        return fit_to(folder / "model.safetensors", self.real, self._unfitted(), self.progress, condition)

    def drawn(self, model: Synthesizer, guide: Guide | None = None) -> Transitions:
        """Sample the rows of the diffusion model, with the condition of the plan if there is one."""
        request = {} if self.plan.relevant is None else self.plan.relevant.asked()
        return model.sample(self.plan.samples, seed=self.plan.seed, guide=guide, progress=self.progress, **request)

    def _unfitted(self) -> Synthesizer:
        plan = self.plan
        return Synthesizer(plan.settings, device=plan.device, precision=plan.precision, seed=plan.seed)

    def _searched(self, config: Config, folder: Path) -> Config:
        """Search for the best settings of a tabular generator, and return them."""
        plan = self.plan
        table, samples = self._table.take(plan.trial_rows, plan.seed), min(plan.samples, TRIAL_SAMPLES)
        score = TrialScore(table, self.real, samples, plan.device, plan.seed)
        how: dict[str, Any] = {"trials": plan.trials, "jobs": plan.jobs, "seed": plan.seed, "progress": self.progress}
        return search(replace(config, epochs=plan.trial_epochs), score, folder, **how).best.config

    def _timed(self, model: MBPO | Tabular, data: Any, settings: dict[str, Any]) -> tuple[Transitions, Fitted]:
        """Fit `model` on `data`, measure the time, and generate rows."""
        began = time.monotonic()
        model.fit(data, progress=self.progress)
        seconds = time.monotonic() - began
        return model.sample(self.plan.samples, seed=self.plan.seed), Fitted(seconds, model.parameters, settings)

    @cached_property
    def _table(self) -> Table:
        log.info("fitting mixtures to the columns of %d rows", len(self.real))
        return Table.of(self.real, jobs=self.plan.jobs, seed=self.plan.seed)
