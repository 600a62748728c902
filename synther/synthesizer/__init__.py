"""`Synthesizer`: fit a generator on real rows, sample synthetic rows, save and load. This package connects data/ (rows
as a matrix) with diffusion/ (a network that generates such a matrix).

Read this file first, then together.py (what is fitted), drawing.py (how blocks of rows are generated), picking.py
(which of them are kept) and shards.py (files of many rows).
"""

from __future__ import annotations

import logging
import os
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike

from synther import compute, formats
from synther.calibration.rare_rows import RareRows
from synther.conditions import Conditions
from synther.data.checks import check_count, drawing_seed
from synther.data.fingerprint import fingerprint
from synther.data.layout import Layout
from synther.data.preparing import Prepared, prepare
from synther.data.scaling import Scaler
from synther.data.termination import TerminationTree
from synther.data.transitions import Transitions
from synther.diffusion.config import DISTILLED, SamplerConfig
from synther.diffusion.distill import distill, student_fit, student_sampler, teacher_rows
from synther.diffusion.fit import Diverged, FitResult
from synther.diffusion.networks import Network, rearranged
from synther.diffusion.schedule import keeps_best
from synther.diffusion.start import Moments
from synther.engines import check_workers
from synther.errors import ConfigError
from synther.formats.stream import StoredRows, stored_rows
from synther.guides import Gradient, Guide
from synther.model_file import FitRecord, Fitted, Student
from synther.plain import whole_seed
from synther.presets import Settings, preset
from synther.progress import Progress, Silent, resolve
from synther.relevance.dynamics import Ensemble
from synther.row_table import RowTable
from synther.synthesizer.drawing import ANY_ROWS, Constraints, Drawing
from synther.synthesizer.likelihood import nats
from synther.synthesizer.picking import Picking, Relabel
from synther.synthesizer.requests import TEACHER, Requests, Sampler, check_generated, chosen_sampler
from synther.synthesizer.row_conditions import RowConditions, check_streamed, compute_conditions, first_rows
from synther.synthesizer.shards import Shards, Workers, unfinished, write_with
from synther.synthesizer.single_file import PREVIEW_ROWS, write_file
from synther.synthesizer.streamed import sample_of, with_window
from synther.synthesizer.time_limits import warn_of_time_limit
from synther.synthesizer.together import (
    Task,
    fit_networks,
    learn_discrete,
    learn_ending,
    learn_regions,
    learn_usual_reward,
    real_quantiles,
    report_overfitting,
    shares_of,
)

log = logging.getLogger(__name__)


class Synthesizer:
    """Generates synthetic rows like the real rows that it was fitted on.

        model = Synthesizer("paper").fit(real)
        fake = model.sample(5_000_000)

    `settings` is the name of a preset or a `Settings`. Other keywords change single options, for example
    `Synthesizer("laptop", fit={"steps": 5000}, sampler={"steps": 32})`.
    """

    def __init__(
        self,
        settings: str | Settings = "auto",
        *,
        device: str = "auto",
        precision: compute.Precision = "auto",
        seed: int = 0,
        **changes: Mapping[str, Any],
    ) -> None:
        self.device = compute.pick_device(device)
        self.precision = compute.pick_precision(precision, self.device)
        self.seed = whole_seed(seed)
        self.settings = preset(settings, gpu=self.device.type == "cuda", latents=False, **changes)
        self._fitted: Fitted | None = None

    def __repr__(self) -> str:
        network, record = self.settings.network, self._fitted and self._fitted.record
        fitted = f"fitted on {record.rows:,} rows, {record.steps:,} steps" if record else "not fitted"
        return f"Synthesizer({network.kind} {network.depth} x {network.width}, {fitted}, on {self.device})"

    @property
    def layout(self) -> Layout:
        """The layout that converts rows to the network's matrix and back, with the thresholds of the model's own
        sampler."""
        return self._drawing(TEACHER, Silent()).layout

    @property
    def ending(self) -> TerminationTree | None:
        """The decision tree for terminals. None if the network generates terminals."""
        return self._model.ending

    @property
    def weighted(self) -> tuple[str, ...]:
        """The discrete columns with wrong probabilities in the network's rows. Rows are weighted to correct these."""
        reweighting = self._model.reweightings.get(self.settings.sampler)
        return () if reweighting is None else tuple(reweighting.real.names[column] for column in reweighting.blurred)

    @property
    def scaler(self) -> Scaler:
        return self._model.scaler

    @property
    def network(self) -> Network:
        return self._model.network

    @property
    def conditions(self) -> Conditions:
        """The conditions that `sample(..., condition=...)` accepts."""
        return self._model.conditions

    @property
    def ensemble(self) -> Ensemble | None:
        """The dynamics models of `fit(..., ensemble=True)`. None without them."""
        return self._model.ensemble

    @property
    def student(self) -> Student | None:
        """The distilled network, which generates a row in a few calls. None if the model was not distilled."""
        return self._model.student

    @property
    def record(self) -> FitRecord:
        return self._model.record

    @property
    def measured(self) -> dict[str, float]:
        """Step and losses of the weights that were kept: the last weights, or the best ones with early stopping."""
        history = self.record.history
        if not keeps_best(self.settings.fit, history):
            return history[-1]
        return min(history, key=lambda entry: entry["held_out"])

    @property
    def _model(self) -> Fitted:
        if self._fitted is None:
            raise ConfigError("this Synthesizer has not been fitted: call fit(transitions), or Synthesizer.load(path)")
        return self._fitted

    def fit(
        self,
        rows: Transitions | StoredRows | str | os.PathLike[str] | Mapping[str, Any],
        *,
        condition: Any = None,
        start: Synthesizer | None = None,
        held_out: np.ndarray[Any, np.dtype[np.bool_]] | None = None,
        ensemble: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: Progress | bool = True,
    ) -> Self:
        """Learn the distribution of `rows`. They may be `Transitions`, a dict of arrays, a pandas DataFrame, or any
        source that `read` accepts.

        With a `condition`, `sample` can generate rows with a certain property, such as a high reward. It is the name of
        a relevance function ("reward", "return"), a function of rows, an array (N,) or (N, K) of numbers, or a dict of
        these by name.

        With `start`, the fit begins with the weights of a fitted model with the same network options. `held_out` (N,)
        marks the rows on which the loss is measured. Do not mark rows on which `start` was fitted. By default, a share
        `fit.holdout` of the rows is chosen at random. Do not hold out whole episodes: episodes differ, so their loss
        rises before the fit has learned rare rows.

        With `ensemble`, small dynamics models are fitted on the rows first. The model keeps them, and `sample` can then
        discard inconsistent rows (`keep`) and replace rewards and terminals (`relabel`).

        A Parquet file or folder with more than `fit.window_rows` rows is streamed: only `fit.window_rows` rows are in
        memory at a time, and they are replaced little by little. Everything but the network is learned from a random
        sample of at most 2M rows. Such a fit accepts no `held_out`, and only conditions that are functions of each
        single row.

        With a `checkpoint` path, an interrupted fit resumes from that file if the same call is made again. The file is
        not removed at the end, and neither is the checkpoint of a student (`student_checkpoint`) next to it. Remove
        both after you have saved the model.
        """
        progress = resolve(progress)
        stored = rows if isinstance(rows, StoredRows) else stored_rows(rows, self.settings.fit.window_rows)
        if stored is None:
            task = self._begin(formats.rows_of(rows), start, held_out, condition)
        else:
            task = self._begin_streamed(stored, start, held_out, condition)
        how: Any = {"seed": self.seed, "device": self.device, "progress": progress}
        dynamics = Ensemble.fit(task.rows, layout=task.prepared.layout, **how) if ensemble else None
        path = None if checkpoint is None else Path(checkpoint).expanduser()
        (result,) = fit_networks([self], [task], path, progress)
        if isinstance(result, Diverged):
            raise result
        self._complete(task, result, progress, None if path is None else student_checkpoint(path))
        self._model.ensemble = dynamics
        return self

    def _begin(
        self,
        rows: Transitions,
        start: Synthesizer | None,
        held_out: np.ndarray[Any, np.dtype[np.bool_]] | None,
        condition: Any = None,
        conditions: RowConditions | None = None,
        analysed: tuple[Prepared, TerminationTree | None] | None = None,
    ) -> Task:
        """Prepare a fit on `rows`. This is the first of three parts of `fit`. The second is `fit_networks` in
        together.py, for one or several models, and the third is `_complete`.

        If the caller has computed the conditions of the rows or the result of `_analyse` already, it passes them as
        `conditions` and `analysed`.
        """
        warn_of_time_limit(rows)
        if isinstance(held_out, Transitions):
            raise ConfigError(
                "held_out must be an array of booleans that marks rows, got Transitions: concatenate both, and mark "
                "the rows of the second part"
            )
        data = self.settings.data
        prepared, ending = self._analyse(rows, start) if analysed is None else analysed
        for text in prepared.layout.computed:
            log.info("computed, not generated: %s", textwrap.shorten(text, 160, placeholder=" ..."))
        with compute.working_on(self.device, "fit on a share of the rows, or on a CPU"):
            matrix = torch.from_numpy(prepared.matrix).to(self.device)
        if conditions is None:
            conditions = compute_conditions(rows, condition, first_rows(rows) if data.starts else None)
        is_conditioned = bool(conditions.conditions.scales)
        weights = None if start is None else self._weights_of(start, prepared.layout, conditions.conditions)
        held_out_rows = None if held_out is None else torch.from_numpy(np.asarray(held_out))
        decided, counted = data.terminals == "decided", data.finite == "counted"
        usual = learn_usual_reward(rows, prepared.layout) if decided else None
        regions = learn_regions(rows, prepared.layout, ending) if decided else None
        # Rows with a certain condition cannot be drawn from a table.
        table = RowTable.fit(rows, prepared.layout) if counted and not is_conditioned else None
        if table is not None:
            log.info("few states and actions: rows are drawn from a table of %d different rows", len(table.count))
        discrete = None
        if counted and table is None:
            discrete = learn_discrete(rows, prepared.layout, ending, usual, regions, self.settings.fit.steps)
        # With a condition, rare rows must occur as often as the requested value of the condition requires.
        oversampled = data.starts and table is None and not is_conditioned
        rare = RareRows.find(rows, prepared.layout) if oversampled else None
        return Task(
            rows, prepared, matrix, weights, held_out_rows, ending, usual, regions, discrete, table, rare, conditions
        )

    def _analyse(self, rows: Transitions, start: Synthesizer | None) -> tuple[Prepared, TerminationTree | None]:
        """Return the rows as a matrix with its layout, and the tree that decides about terminals. This uses one core
        and no GPU."""
        data = self.settings.data
        order = start._outcome_order() if isinstance(start, Synthesizer) else ()
        how = data.scaling, data.coding, data.spikes, data.integers, data.residuals
        with compute.one_thread():
            ending, price = learn_ending(rows) if data.terminals == "decided" else (None, 0.0)
            prepared = prepare(rows, *how, order, data.finite == "counted", price, ending is not None)
        if ending is not None and prepared.layout.pays_at_end and ending.asks_for_reward(rows):
            ending = None  # rewards will be computed from terminals, so they cannot decide about terminals
        return prepared, ending

    def _begin_streamed(
        self,
        stored: StoredRows,
        start: Synthesizer | None,
        held_out: np.ndarray[Any, np.dtype[np.bool_]] | None,
        condition: Any,
    ) -> Task:
        """Prepare a fit on rows that stay on disk."""
        if held_out is not None:
            raise ConfigError(
                f"held_out: {len(stored):,} rows are streamed, and the fit chooses the held-out ones: leave it out"
            )
        check_streamed(condition)
        config = self.settings.fit
        sample = sample_of(stored, config, self.seed)
        first = sample.begins if self.settings.data.starts else None
        conditions = compute_conditions(sample.rows, condition, first)
        task = self._begin(sample.rows, start, None, condition, conditions)
        with compute.working_on(self.device, "lower fit.window_rows"):
            return with_window(task, stored, sample, condition, config, self.seed)

    def _complete(
        self, task: Task, result: FitResult[Network], progress: Progress, checkpoint: Path | None = None
    ) -> Self:
        """Store everything that was fitted, and calibrate the sampler. This is the third part of `fit`.

        `checkpoint` is the path of the checkpoint of a student.
        """
        rows, prepared = task.rows, task.prepared
        device, data = compute.describe(self.device), fingerprint(task.all_rows)
        record = FitRecord(len(task.all_rows), result.steps, result.seconds, device, self.seed, data, result.history)
        moments = Moments.of(task.matrix if task.rare is None else task.matrix[torch.from_numpy(task.learned)]).cpu()
        usual = None if task.usual_reward is None else task.usual_reward.result()
        regions = None if task.regions is None else task.regions.result()
        if usual is not None and task.ending is not None and not task.ending.asks_for_reward(rows):
            regions = None  # trees decide both terminals and rewards
        discrete = None if task.discrete is None else task.discrete.result()
        conditions = Conditions() if task.conditions is None else task.conditions.conditions
        self._fitted = Fitted(
            prepared.layout, prepared.scaler, result.network, record, prepared.rates, moments, task.ending, usual,
            regions, discrete, task.table, task.rare, conditions, shares_of(rows, prepared.layout),
            *real_quantiles(task),
        )  # fmt: skip
        report_overfitting(self.settings.fit, self.record.history)
        self._drawing(TEACHER, progress).ready()
        if self.settings.distill.calls and task.table is None:
            self._make_student(self.seed, checkpoint, progress)
        return self

    def distill(
        self,
        calls: int = 2,
        *,
        steps: int | None = None,
        rows: int | None = None,
        seed: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: Progress | bool = True,
    ) -> Self:
        """Fit a student, a second network that generates a row in `calls` network calls. From then on, `sample` uses
        it.

        Rows with a condition, `like`, `guide` or `given` are still generated by the fitted network, and so are all rows
        with `sample(..., sampler="teacher")`. No real rows are needed: the fitted network generates `rows` rows, from
        which the student learns in `steps` steps. The defaults of both depend on the length of the fit, and distilling
        takes no longer than the fit. The default `seed` is the model's. A previous student is replaced.

        With a `checkpoint` path, an interrupted call resumes from that file, as in `fit`.
        """
        check_generated(self._model, "distill")
        changed = self.settings.changed(distill={"calls": calls, "steps": steps, "rows": rows})
        student_sampler(changed.distill.calls, changed.sampler)  # raises an error for an impossible number of calls
        self.settings = changed
        path = None if checkpoint is None else Path(checkpoint).expanduser()
        self._make_student(self.seed if seed is None else whole_seed(seed), path, resolve(progress))
        return self

    def _make_student(self, seed: int, checkpoint: Path | None, progress: Progress) -> None:
        model, settings, config = self._model, self.settings, self.settings.distill
        sampler = student_sampler(config.calls, settings.sampler)
        steps = model.record.steps
        result = distill(
            model.network,
            settings.noise,
            student_fit(config, settings.fit, steps),
            sampler,
            rows=teacher_rows(config, steps * settings.fit.batch_for(model.record.rows)),
            teacher_steps=config.teacher_steps,
            asked=model.conditions.taught(),
            seed=seed,
            precision=self.precision,
            checkpoint=checkpoint,
            progress=progress,
        )
        model.student = Student(result.network, sampler, seed, result.steps, result.seconds, result.history)
        self._drawing(DISTILLED, progress).ready()

    def _weights_of(self, start: Synthesizer, layout: Layout, conditions: Conditions) -> Network:
        """Return a copy of the network of `start`, with inputs and outputs for the columns of `layout` and for
        `conditions`. Columns keep their weights by name."""
        if not isinstance(start, Synthesizer):
            raise ConfigError(f"a fit starts from a Synthesizer, got {start!r}: Synthesizer.load(path) reads one")
        if start.settings.network != self.settings.network:
            mine, other = self.settings.network, start.settings.network
            raise ConfigError(f"a fit of {mine} cannot start from one of {other}: expected the same network")
        old_columns = {name: column for column, name in enumerate(start._model.layout.names)}
        old_conditions = {name: place for place, name in enumerate(start.conditions.names)}
        columns = [old_columns.get(name) for name in layout.names]
        places = [old_conditions.get(name) for name in conditions.names]
        return rearranged(start.network, columns, places).to(self.device)

    def _outcome_order(self) -> tuple[str, ...]:
        """Return the names of the outcomes in the order of their regression. Fits that start from this model keep the
        order."""
        residuals = self._model.scaler.residuals
        return () if residuals is None else tuple(self._model.layout.names[column] for column in residuals.outcomes)

    def _drawing(self, sampler: Sampler | None, progress: Progress, constraints: Constraints = ANY_ROWS) -> Drawing:
        """Return the object that generates rows with `sampler`. None stands for the default of `sampler_for`."""
        config, model = self.sampler_for(sampler, asked=not constraints.none), self._model
        if config.kind == DISTILLED:
            model = model.distilled()
        return Drawing(model, self.settings, config, self.precision, progress, constraints)

    def sampler_for(self, sampler: Sampler | None = None, *, asked: bool = False) -> SamplerConfig:
        """Return the sampler that `sample(..., sampler=sampler)` uses. `asked` says whether there is a condition,
        `like`, a guide or `given`. The default is the student's sampler if there is a student and `asked` is False."""
        return chosen_sampler(sampler, self.settings, self._model.student, asked=asked)

    def sample(
        self,
        count: int | None = None,
        *,
        seed: int | None = None,
        sampler: Sampler | None = None,
        condition: Any = None,
        guidance: float | Mapping[str, float] = 1.0,
        like: Transitions | None = None,
        strength: float = 0.5,
        guide: Guide | Gradient | None = None,
        given: Mapping[str, ArrayLike] | None = None,
        keep: float = 1.0,
        relabel: Relabel | None = None,
        progress: Progress | bool = True,
    ) -> Transitions:
        """Generate `count` rows in memory. Each call returns different rows. Pass a `seed` to get the same rows again.

        With the same seed, a smaller count returns the first rows of a larger one. If the model has a student (see
        `distill`), the student generates the rows. The fitted network does so with a condition, `like`, `guide` or
        `given`, or with `sampler="teacher"`.

        A model that was fitted with a `condition` can generate rows that meet it: `top(0.1)`, `bottom(0.2)`,
        `between(0.4, 0.6)`, a value, an array of values to choose from, real rows with the values to use, or a dict of
        these by name. With `guidance` 1, rows are distributed like the real rows that meet the condition. Values above
        1 go further in that direction, and 0 ignores the condition. Several conditions can have a weight each, by name.
        `condition="start"` generates episode starts.

        With `like`, each row starts as one of these rows. Noise is added to it and removed again. A `strength` near 0
        changes the rows little. With strength 1, the result does not depend on the given rows. By default there are as
        many rows as in `like`.

        A `guide` moves rows towards a policy (`policy_guide`), towards actions that a critic values highly
        (`value_guide`), or along a user-defined gradient. See guides.py. Guides need actions that are numbers.

        With `given` observations, actions or both, the rest of each row is generated. There is one row for each given
        one, in the same order, so leave out `count`.

        With `keep` below 1, more rows are generated and this share of them is kept. Rows that the ensemble finds less
        consistent than real rows are discarded first. `relabel="ensemble"` replaces rewards and terminals by samples
        from the ensemble. A dict {"reward": f, "terminal": g} replaces them by the results of functions of rows, (N,)
        each.
        """
        requests = Requests(condition, guidance, like, strength, guide, given, keep, relabel)
        count = requests.count(count)
        arrays: dict[str, Any] = {}
        filled = 0
        for block in self._blocks(count, seed, sampler, requests, progress):
            for name, array in block.arrays().items():
                if name not in arrays:
                    arrays[name] = _empty((count, *array.shape[1:]), array.dtype)
                arrays[name][filled : filled + len(block)] = array
            filled += len(block)
        return self._dressed(arrays)

    def sample_blocks(
        self,
        count: int | None = None,
        *,
        seed: int | None = None,
        sampler: Sampler | None = None,
        condition: Any = None,
        guidance: float | Mapping[str, float] = 1.0,
        like: Transitions | None = None,
        strength: float = 0.5,
        guide: Guide | Gradient | None = None,
        given: Mapping[str, ArrayLike] | None = None,
        keep: float = 1.0,
        relabel: Relabel | None = None,
        progress: Progress | bool = True,
    ) -> Iterator[Transitions]:
        """Generate the rows of `sample` block by block. The next blocks are generated while you use the present one."""
        requests = Requests(condition, guidance, like, strength, guide, given, keep, relabel)
        yield from self._blocks(count, seed, sampler, requests, progress)

    def _blocks(
        self,
        count: int | None,
        seed: int | None,
        sampler: Sampler | None,
        requests: Requests,
        progress: Progress | bool,
    ) -> Iterator[Transitions]:
        count, seed, progress = requests.count(count), drawing_seed(seed), resolve(progress)
        picking = self._picking(sampler, requests, progress)
        done = 0
        with progress.phase("sample", count) as phase:
            for block in picking.blocks(count, seed):
                requests.fill(block, done)
                done += len(block)
                yield block
                phase.advance(len(block))

    def _dressed(self, arrays: Mapping[str, Any]) -> Transitions:
        """Return generated arrays as `Transitions` with the spaces and the environment of the real rows."""
        layout = self._model.layout
        spaces: Any = {"action_space": layout.action_space, "observation_space": layout.observation_space}
        return Transitions.of(arrays, **spaces, env_id=layout.env_id, env_options=layout.env_options)

    def sample_to(
        self,
        path: str | os.PathLike[str],
        count: int,
        *,
        seed: int = 0,
        sampler: Sampler | None = None,
        condition: Any = None,
        guidance: float | Mapping[str, float] = 1.0,
        guide: Guide | Gradient | None = None,
        keep: float = 1.0,
        relabel: Relabel | None = None,
        progress: Progress | bool = True,
        **workers: Unpack[Workers],
    ) -> Transitions:
        """Write `count` generated rows to a file or a folder, in constant memory. Return the first 100,000 of them (or
        fewer) as a preview.

        While a file is written, its rows are collected in a folder `PATH.partial`, and an interrupted call continues
        with the rows that are there. This works because the default seed is 0: every call generates the same rows as
        `sample` with that seed. Pass another `seed` to get other rows.

        If `path` ends with a slash, has no suffix, or is a folder, the same rows are written to a folder of Parquet
        files. Several processes can write these files: `parallel=2` uses two child processes, and `engine="ray"` the
        processes of a cluster, with `gpus` and `address` as in `synther.engines.run_all`. An interrupted call continues
        with the missing files, also with other workers.
        """
        count, seed = check_count(count), whole_seed(seed)
        final, progress = Path(path).expanduser(), resolve(progress)
        check_workers(**workers)
        alone = workers.get("parallel", 1) == 1 and workers.get("engine", "local") == "local"
        into_folder = formats.names_folder(path)
        if not into_folder:
            formats.check_rows_target(path)
            if not alone:
                raise ConfigError(
                    f"{path}: several workers can only write a folder, not a single file: choose a folder as --out"
                )
        if not alone and isinstance(relabel, Mapping):
            raise ConfigError("relabel: functions cannot be sent to other processes: leave out engine and parallel")
        if not alone and guide is not None:
            raise ConfigError("guide: it cannot be sent to other processes: leave out engine and parallel")
        requests = Requests(condition, guidance, guide=guide, keep=keep, relabel=relabel)
        picking = self._picking(sampler, requests, progress)
        if into_folder:
            shards = Shards.of(final.resolve(), count, seed, picking)
            with unfinished(shards, picking.identity(count, seed) | {"file_blocks": shards.blocks}) as is_unfinished:
                if is_unfinished and alone:
                    shards.write(range(len(shards)), picking, self._dressed, progress)
                elif is_unfinished:
                    write_with(self, workers, shards, picking, requests, progress)
            return formats.read(shards.file(0))[:PREVIEW_ROWS]
        return write_file(final, count, seed, picking, self._dressed, progress)

    def _picking(self, sampler: Sampler | None, requests: Requests, progress: Progress) -> Picking:
        """Return the object that generates rows for these requests and keeps the right ones. It is calibrated already,
        so its rows depend only on the model, the requests and the seed."""
        choice, constraints = requests.choice(self._model), requests.constraints(self._model)
        return Picking(self._drawing(sampler, progress, constraints).ready(), choice)

    def trace(self, count: int, *, seed: int = 0) -> Iterator[tuple[float, np.ndarray[Any, Any], Transitions]]:
        """Generate rows and yield each state between noise and data, for plots.

        For each noise level of the model's sampler, yield the level, the rows as the network sees them (a matrix
        (count, D), of std 1 for finished rows), and the same rows decoded as transitions.
        """
        drawing = self._drawing(TEACHER, Silent())
        for sigma, rows in drawing.sampler.trace(seed, min(check_count(count), drawing.sampler.block_rows)):
            matrix = rows.float().cpu().numpy()
            yield sigma, matrix, drawing.decoded(matrix)

    def matrix(self, rows: Transitions) -> np.ndarray[Any, Any]:
        """Return `rows` as the network sees them, without noise. (N, D)"""
        return self.scaler.transform(self.layout.pack(rows))

    def rows_of(self, matrix: np.ndarray[Any, Any]) -> Transitions:
        """Convert an output of the network (N, D) to rows. This is the inverse of `matrix`. Flags are cut at the
        thresholds of the model's own sampler."""
        return self._drawing(TEACHER, Silent()).decoded(matrix)

    def log_likelihood(self, rows: Transitions, *, steps: int = 64) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the log-likelihood of each row under the model in nats, in the rows' original units. (N,)

        Discrete columns count as real ones. The scalings "quantile" and "blend" follow the rows that they were fitted
        on closely. If there were only a few thousand rows, these look more likely than new rows, by some hundredths of
        a nat per column.
        """
        if steps < 1:
            raise ConfigError(f"steps must be at least 1, got {steps}")
        return nats(self._model, self.settings.noise, rows, steps)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the model to one safetensors file, with everything that `load` needs."""
        calibration = self._drawing(TEACHER, Silent()).ready().calibration
        self._model.save(Path(path).expanduser(), self.settings, calibration)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, device: str = "auto", precision: compute.Precision = "auto"
    ) -> Synthesizer:
        """Load a saved model, ready to sample. The device may differ from the one on which the model was fitted."""
        with torch.inference_mode(False):
            settings, fitted = Fitted.load(Path(path).expanduser())
            model = cls(settings, device=device, precision=precision, seed=fitted.record.seed)
            fitted.network.to(model.device)
            if fitted.student is not None:
                fitted.student.network.to(model.device)
            if fitted.ensemble is not None:
                fitted.ensemble.to(model.device)
        model._fitted = fitted
        return model


def student_checkpoint(checkpoint: Path) -> Path:
    """Return the path of the student's checkpoint. `fit` keeps it next to its own checkpoint."""
    return checkpoint.with_name(f"{checkpoint.name}-student")


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError):  # ValueError if the number of bytes is too large for NumPy
        raise ConfigError(
            f"{shape[0]:,} rows do not fit into memory: generate fewer, or let sample_to write them to a file"
        ) from None
