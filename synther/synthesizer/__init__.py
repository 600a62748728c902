"""`Synthesizer`: fit on experience, sample more of it, save and load. The one joint of data and diffusion."""

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
from synther.conditions import Conditions, Told, check_streamed, first_rows, tell
from synther.data.calibration import Weights
from synther.data.checks import check_count, drawing_seed
from synther.data.fingerprint import fingerprint
from synther.data.layout import Layout
from synther.data.marginals import MOST_ROWS, Quantiles, quantiles
from synther.data.payouts import Payouts
from synther.data.preparing import Prepared, prepare
from synther.data.row_table import RowTable
from synther.data.scaling import Scaler
from synther.data.termination import TerminationTree
from synther.data.time_limits import warn_of_time_limit
from synther.data.transitions import Transitions
from synther.diffusion.config import DISTILLED, SamplerConfig
from synther.diffusion.distill import distill, student_fit, student_sampler, teacher_rows
from synther.diffusion.fit import Diverged, FitResult, has_overfit, keeps_best
from synther.diffusion.networks import Network, rearranged
from synther.diffusion.start import Moments
from synther.engines import check_workers
from synther.errors import ConfigError
from synther.formats.stream import StoredRows, stored_rows
from synther.guides import Gradient, Guide
from synther.model_file import FitRecord, Fitted, Student
from synther.plain import whole_seed
from synther.presets import OVERFIT, Settings, preset
from synther.progress import Progress, Silent, resolve
from synther.relevance.dynamics import Ensemble
from synther.synthesizer.drawing import Drawing, Wishes
from synther.synthesizer.likelihood import nats
from synther.synthesizer.picking import Picking, Relabel
from synther.synthesizer.requests import TEACHER, Requests, Sampler, check_generated, chosen_sampler
from synther.synthesizer.shards import Shards, Workers, unfinished, write_with
from synther.synthesizer.single_file import PREVIEW_ROWS, write_file
from synther.synthesizer.streamed import sample_of, with_window
from synther.synthesizer.together import (
    Task,
    fit_networks,
    learn_discrete,
    learn_ending,
    learn_regions,
    learn_usual_reward,
)

log = logging.getLogger(__name__)


class Synthesizer:
    """A generator of transitions.

        model = Synthesizer("paper").fit(real)
        fake = model.sample(5_000_000)

    `settings` is a preset's name or a `Settings`; further keywords change single options:
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
        """How rows become the matrix of the network and back, with the thresholds of the model's own sampler."""
        return self._drawing(TEACHER, Silent()).layout

    @property
    def ending(self) -> TerminationTree | None:
        """The decision tree for terminals. None if the network generates them."""
        return self._model.ending

    @property
    def weighted(self) -> tuple[str, ...]:
        """The discrete columns that the network blurs. Rows are weighted by how likely their values are."""
        learned = self._model.reweightings.get(self.settings.sampler)
        return () if learned is None else tuple(learned.real.names[column] for column in learned.blurred)

    @property
    def scaler(self) -> Scaler:
        return self._model.scaler

    @property
    def network(self) -> Network:
        return self._model.network

    @property
    def conditions(self) -> Conditions:
        """The conditions that `sample` can ask for."""
        return self._model.conditions

    @property
    def ensemble(self) -> Ensemble | None:
        """The dynamics models of `fit(..., ensemble=True)`. None without them."""
        return self._model.ensemble

    @property
    def student(self) -> Student | None:
        """The network that draws a row in a few calls. None if the model was not distilled."""
        return self._model.student

    @property
    def record(self) -> FitRecord:
        return self._model.record

    @property
    def measured(self) -> dict[str, float]:
        """Step and losses of the weights that were kept: the last ones, or the best ones with early stopping."""
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
        """Learn the distribution of `rows`: Transitions, a dict of arrays, a pandas DataFrame, or what `read` takes.

        With a `condition`, `sample` can ask for some of the rows, such as rows of high reward. It is the name of a
        relevance function ("reward", "return"), a function of rows, an array (N,) or (N, K) of numbers, or a dict of
        these by name.

        With `start`, the fit begins with the weights of a fitted model of the same network. `held_out` (N,) marks the
        rows on which the loss is measured; do not mark rows that `start` has learned. By default, `fit.holdout` of the
        rows are drawn at random. Do not hold out whole episodes: episodes differ, so their loss rises before the fit
        has learned rare rows.

        With `ensemble`, small dynamics models are fitted on the rows first. The model keeps them, and `sample` can then
        discard inconsistent rows (`keep`) and replace rewards and terminals (`relabel`).

        A Parquet file or folder with more than `fit.window_rows` rows is streamed: so many rows are in memory at a time
        and are replaced little by little. Everything but the network is learned from a random sample of at most 2M
        rows. Such a fit takes no `held_out`, and only conditions that are functions of each row alone.

        With a `checkpoint` path, a killed fit resumes from that file when the same call is made again. The file stays
        there, with that of a student (`student_checkpoint`) beside it. Remove both when the model is saved.
        """
        progress = resolve(progress)
        stored = rows if isinstance(rows, StoredRows) else stored_rows(rows, self.settings.fit.window_rows)
        if stored is None:
            task = self._begin(formats.rows_of(rows), start, held_out, condition)
        else:
            task = self._begin_streamed(stored, start, held_out, condition)
        how: Any = {"seed": self.seed, "device": self.device, "progress": progress}
        judges = Ensemble.fit(task.rows, layout=task.prepared.layout, **how) if ensemble else None
        kept = None if checkpoint is None else Path(checkpoint).expanduser()
        (result,) = fit_networks([self], [task], kept, progress)
        if isinstance(result, Diverged):
            raise result
        self._complete(task, result, progress, None if kept is None else student_checkpoint(kept))
        self._model.ensemble = judges
        return self

    def _begin(
        self,
        rows: Transitions,
        start: Synthesizer | None,
        held_out: np.ndarray[Any, np.dtype[np.bool_]] | None,
        condition: Any = None,
        told: Told | None = None,
        looked: tuple[Prepared, TerminationTree | None] | None = None,
    ) -> Task:
        """The first of three parts of `fit`: together.py has the second, for one or several models. A caller that has
        computed the conditions of the rows already gives them as `told`, and what `_look_through` has found as
        `looked`."""
        warn_of_time_limit(rows)
        data = self.settings.data
        prepared, ending = self._look_through(rows, start) if looked is None else looked
        for text in prepared.layout.computed:
            log.info("computed, not generated: %s", textwrap.shorten(text, 160, placeholder=" ..."))
        with compute.working_on(self.device, "fit on a share of the rows, or on a CPU"):
            matrix = torch.from_numpy(prepared.matrix).to(self.device)
        if told is None:
            told = tell(rows, condition, first_rows(rows) if data.starts else None)
        weights = None if start is None else self._weights_of(start, prepared.layout, told.conditions)
        marks = None if held_out is None else torch.from_numpy(np.asarray(held_out))
        decided, counted = data.terminals == "decided", data.finite == "counted"
        usual = learn_usual_reward(rows, prepared.layout) if decided else None
        regions = learn_regions(rows, prepared.layout, ending) if decided else None
        # A table of rows knows no conditions.
        table = RowTable.fit(rows, prepared.layout) if counted and not told.conditions.scales else None
        if table is not None:
            log.info("few states and actions: rows are drawn from a table of %d different ones", len(table.count))
        discrete = None
        if counted and table is None:
            discrete = learn_discrete(rows, prepared.layout, ending, usual, regions, self.settings.fit.steps)
        # Where a condition is asked for, rows come as often as the condition does.
        seen_more = data.starts and table is None and not told.conditions.scales
        payouts = Payouts.find(rows, prepared.layout) if seen_more else None
        return Task(rows, prepared, matrix, weights, marks, ending, usual, regions, discrete, table, payouts, told)

    def _look_through(self, rows: Transitions, start: Synthesizer | None) -> tuple[Prepared, TerminationTree | None]:
        """The rows as a matrix, and what decides about terminals. It needs one core, and no device."""
        data = self.settings.data
        order = start._outcome_order() if isinstance(start, Synthesizer) else ()
        how = data.scaling, data.coding, data.spikes, data.integers, data.residuals
        with compute.one_thread():
            ending, price = learn_ending(rows) if data.terminals == "decided" else (None, 0.0)
            prepared = prepare(rows, *how, order, data.finite == "counted", price, ending is not None)
        if ending is not None and prepared.layout.pays_at_end and ending.asks_for_reward(rows):
            ending = None  # the reward follows from the terminal, and tells nothing about it any more
        return prepared, ending

    def _begin_streamed(
        self,
        stored: StoredRows,
        start: Synthesizer | None,
        held_out: np.ndarray[Any, np.dtype[np.bool_]] | None,
        condition: Any,
    ) -> Task:
        """The same for rows that stay on disk."""
        if held_out is not None:
            raise ConfigError(
                f"held_out: {len(stored):,} rows are streamed, of which the fit chooses the held-out ones: leave it out"
            )
        check_streamed(condition)
        config = self.settings.fit
        sample = sample_of(stored, config, self.seed)
        told = tell(sample.rows, condition, sample.begins if self.settings.data.starts else None)
        task = self._begin(sample.rows, start, None, condition, told)
        with compute.working_on(self.device, "lower fit.window_rows"):
            return with_window(task, stored, sample, condition, config, self.seed)

    def _complete(
        self, task: Task, result: FitResult[Network], progress: Progress, checkpoint: Path | None = None
    ) -> Self:
        """Become the model of these rows and this network, ready to sample. The checkpoint is that of a student."""
        rows, prepared = task.rows, task.prepared
        where, data = compute.describe(self.device), fingerprint(task.all_rows)
        record = FitRecord(len(task.all_rows), result.steps, result.seconds, where, self.seed, data, result.history)
        moments = Moments.of(task.matrix if task.payouts is None else task.matrix[torch.from_numpy(task.learned)]).cpu()
        usual = None if task.usual_reward is None else task.usual_reward.result()
        regions = None if task.regions is None else task.regions.result()
        if usual is not None and task.ending is not None and not task.ending.asks_for_reward(rows):
            regions = None  # both are decided
        discrete = None if task.discrete is None else task.discrete.result()
        told = Conditions() if task.told is None else task.told.conditions
        self._fitted = Fitted(
            prepared.layout, prepared.scaler, result.network, record, prepared.rates, moments, task.ending, usual,
            regions, discrete, task.table, task.payouts, told, _shares(prepared.layout, rows), *_quantiles(task),
        )  # fmt: skip
        self._tell_of_overfitting()
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
        """Make a student, which draws a row in this many network calls, and is used from now on.

        Rows that something is asked of (a condition, `like`, `guide`, `given`) are still drawn by the fitted network,
        and so are all with `sample(..., sampler="teacher")`. No real rows are needed: the student learns from `rows`
        that the fitted network draws, in so many `steps`. By default both follow from the length of the fit, and
        distilling takes no longer than that. The `seed` is by default the model's. A student that was there before is
        replaced.

        A killed call goes on from its `checkpoint`, as `fit` does.
        """
        check_generated(self._model, "distill")
        changed = self.settings.changed(distill={"calls": calls, "steps": steps, "rows": rows})
        student_sampler(changed.distill.calls, changed.sampler)  # refuses a number that makes no student
        self.settings = changed
        kept = None if checkpoint is None else Path(checkpoint).expanduser()
        self._make_student(self.seed if seed is None else whole_seed(seed), kept, resolve(progress))
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

    def _tell_of_overfitting(self) -> None:
        config, history = self.settings.fit, self.record.history
        if not has_overfit(history, config.overfit or OVERFIT):
            return
        least, last = min(history, key=lambda entry: entry["held_out"]), history[-1]
        figures = least["held_out"], f"{least['step']:,.0f}", last["held_out"], f"{last['step']:,.0f}"
        told = "the held-out loss was %.3g after %s steps and %.3g after %s: the fit memorised its rows"
        if keeps_best(config, history):
            log.info(told + "; the best weights are kept", *figures)
        else:
            advice = ". With fit.overfit (--fit.overfit %g) a fit stops in time and keeps its best weights"
            log.warning(told + advice, *figures, OVERFIT)

    def _weights_of(self, start: Synthesizer, layout: Layout, told: Conditions) -> Network:
        """Another model's network for the columns of `layout`, which may have come or gone since."""
        if not isinstance(start, Synthesizer):
            raise ConfigError(f"a fit starts from a Synthesizer, got {start!r}: Synthesizer.load(path) reads one")
        if start.settings.network != self.settings.network:
            mine, other = self.settings.network, start.settings.network
            raise ConfigError(f"a fit of {mine} cannot start from one of {other}: expected the same network")
        before = {name: column for column, name in enumerate(start._model.layout.names)}
        known = {name: place for place, name in enumerate(start.conditions.names)}
        columns, conditions = [before.get(name) for name in layout.names], [known.get(name) for name in told.names]
        return rearranged(start.network, columns, conditions).to(self.device)

    def _outcome_order(self) -> tuple[str, ...]:
        """Names of the outcomes in the order of their regression, which fits that start from this one keep."""
        residuals = self._model.scaler.residuals
        return () if residuals is None else tuple(self._model.layout.names[column] for column in residuals.outcomes)

    def _drawing(self, sampler: Sampler | None, progress: Progress, wishes: Wishes = Wishes()) -> Drawing:  # noqa: B008
        """How rows come about with `sampler`, or the model's own."""
        config, model = self.sampler_for(sampler, asked=not wishes.none), self._model
        if config.kind == DISTILLED:
            model = model.distilled()
        return Drawing(model, self.settings, config, self.precision, progress, wishes)

    def sampler_for(self, sampler: Sampler | None = None, *, asked: bool = False) -> SamplerConfig:
        """The sampler that `sample(..., sampler=sampler)` draws rows with; `asked` is whether something is asked of
        them. By default it is the student's, where there is one and nothing is asked."""
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
        """Draw `count` new rows into memory. Every call draws other rows, unless you pass a `seed`.

        The same seed gives the same rows, and a smaller count gives the first of them. If the model has a student (see
        `distill`), the student draws the rows, unless you ask for certain rows or choose another `sampler`.

        A model that was fitted with a `condition` can draw rows that meet it: `top(0.1)`, `bottom(0.2)`,
        `between(0.4, 0.6)`, a value, an array of values to choose from, real rows whose values to use, or a dict of
        these by name. With `guidance` 1, rows are distributed like the real rows that meet the condition. Values above
        1 go further in that direction, and 0 ignores the condition. Several conditions can have a weight each, by name.
        `condition="start"` asks for rows that begin an episode.

        With `like`, each row starts as one of these rows; noise is added and removed again. A `strength` near 0 changes
        little, and with 1 nothing is left of the given rows.

        A `guide` moves rows towards a policy (`policy_guide`), what critics value (`value_guide`), or along a gradient
        of your own: see guides.py. Guides need actions that are numbers.

        With `given` observations, actions or both, the rest of each row is drawn: one row for each, in order, without a
        `count`.

        With `keep` below 1, more rows are drawn and this share of them is kept: those that the ensemble finds less
        consistent than real rows go first. `relabel="ensemble"` replaces reward and terminal by draws of the ensemble,
        a dict {"reward": f, "terminal": g} by what functions of rows say, (N,) each.
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
        """The rows of `sample` block by block, while the next ones are drawn."""
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
        """Generated arrays as rows that know their spaces."""
        layout = self._model.layout
        known: Any = {"action_space": layout.action_space, "observation_space": layout.observation_space}
        return Transitions.of(arrays, **known, env_id=layout.env_id, env_options=layout.env_options)

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
        """Write `count` new rows to a file or a folder, of any size, in constant memory; return the first 100,000 or
        fewer to look at.

        Rows of a file gather in a folder `PATH.partial`, and an interrupted call goes on from what is there. This works
        because the default seed is 0: every call draws the same rows, those of `sample` with that seed. Pass another
        `seed` for other rows.

        A `path` that ends with a slash, has no suffix, or is a folder already becomes a folder of Parquet files, which
        hold the same rows. Any process can write any of its files: `parallel=2` lets two child processes do it, and
        `engine="ray"` those of a cluster, with `gpus` and `address` as in `synther.engines.run_all`. An interrupted
        call goes on with the files that are missing, also with other workers.
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
                    f"{path}: several workers write a folder, not a single file: choose a folder as --out"
                )
        if not alone and isinstance(relabel, Mapping):
            raise ConfigError("relabel: functions stay in this process: leave out engine and parallel")
        if not alone and guide is not None:
            raise ConfigError("a guide stays in this process: leave out engine and parallel")
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
        """Rows that are a function of the model, the seed and these requests, with all found out that they need."""
        choice, wishes = requests.choice(self._model), requests.wishes(self._model)
        return Picking(self._drawing(sampler, progress, wishes).ready(), choice)

    def trace(self, count: int, *, seed: int = 0) -> Iterator[tuple[float, np.ndarray[Any, Any], Transitions]]:
        """Rows on their way from noise to data, for looking at: at each noise level of the model's sampler the rows as
        the network sees them, a matrix (count, D) of std 1, and what they would be as transitions."""
        drawing = self._drawing(TEACHER, Silent())
        for sigma, rows in drawing.sampler.trace(seed, min(check_count(count), drawing.sampler.block_rows)):
            matrix = rows.float().cpu().numpy()
            yield sigma, matrix, drawing.decoded(matrix)

    def matrix(self, rows: Transitions) -> np.ndarray[Any, Any]:
        """`rows` as the network sees them, without noise. (N, D)"""
        return self.scaler.transform(self.layout.pack(rows))

    def rows_of(self, matrix: np.ndarray[Any, Any]) -> Transitions:
        """The reverse of `matrix`: what the network makes (N, D), as rows, flags cut as the model's own sampler cuts
        them."""
        return self._drawing(TEACHER, Silent()).decoded(matrix)

    def log_likelihood(self, rows: Transitions, *, steps: int = 64) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Nats of each row under the model, in the rows' own units (discrete columns count as real ones). (N,)

        Scaling by quantiles or blend follows the rows it was fitted on closely: where these were few thousand, it makes
        them look more likely than fresh ones, by some hundredths of a nat a column.
        """
        if steps < 1:
            raise ConfigError(f"steps must be at least 1, got {steps}")
        return nats(self._model, self.settings.noise, rows, steps)

    def save(self, path: str | os.PathLike[str]) -> None:
        """One safetensors file with everything that `load` needs."""
        calibration = self._drawing(TEACHER, Silent()).ready().calibration
        self._model.save(Path(path).expanduser(), self.settings, calibration)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, device: str = "auto", precision: compute.Precision = "auto"
    ) -> Synthesizer:
        """A saved model, ready to sample, on any device."""
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
    """Where `fit` keeps the state of a student, beside its own checkpoint."""
    return checkpoint.with_name(f"{checkpoint.name}-student")


def _shares(layout: Layout, rows: Transitions) -> Weights:
    """How often each value of each group of few values comes in `rows`."""
    counts = layout.class_counts
    columns = layout.classes(rows).T
    found = [np.bincount(column, minlength=count) / len(rows) for column, count in zip(columns, counts, strict=True)]
    return tuple(tuple(share.tolist()) for share in found)


def _quantiles(task: Task) -> tuple[Quantiles, Quantiles]:
    """Those of the real rows, and of starts of episodes: none if the network is not told which rows are starts."""
    matrix, learned, first = task.matrix, task.learned, None if task.told is None else task.told.first

    def of(chosen: np.ndarray[Any, np.dtype[np.int64]]) -> Quantiles:
        some = torch.from_numpy(chosen[:: max(1, -(-len(chosen) // MOST_ROWS))]).to(matrix.device)
        return quantiles(task.prepared.layout, task.prepared.scaler, matrix[some])

    if first is None:
        return of(learned), ()
    return of(learned[~first[learned]]), of(learned[first[learned]])


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError):  # the latter where not even the number of bytes is a number that NumPy knows
        raise ConfigError(
            f"{shape[0]:,} rows do not fit into memory: ask for fewer, or let sample_to write them to a file"
        ) from None
