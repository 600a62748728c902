"""Fit the networks of one or several models, and learn everything that a model needs besides its network.

Example: an experiment fits one model for each of eight seeds. If they have the same options, `fit_models` fits their
networks together, which is faster than one after the other. `Task` holds the data of one fit. The functions
`learn_...` learn trees and tables from the real rows, most of them in a thread while the network is fitted.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from synther import compute
from synther.calibration.marginals import MOST_ROWS, Quantiles, quantiles
from synther.calibration.rare_rows import RareRows
from synther.calibration.rates import Weights
from synther.cores import cores
from synther.data import termination
from synther.data.following import class_count, class_rows
from synther.data.inference import MOST_CATEGORIES
from synther.data.kinds import Binary, Codebook, Levels, Spiked
from synther.data.layout import Layout
from synther.data.preparing import Prepared
from synther.data.transitions import Transitions
from synther.diffusion.config import FitConfig
from synther.diffusion.fit import Diverged, FitResult, fit_together
from synther.diffusion.networks import Network
from synther.diffusion.schedule import has_overfit, keeps_best
from synther.diffusion.window import Window
from synther.errors import ConfigError, DataError, SyntherError
from synther.formats.stream import StoredRows
from synther.presets import OVERFIT
from synther.progress import Progress, resolve
from synther.relevance.discrete import DiscreteLaw
from synther.row_table import RowTable
from synther.synthesizer.row_conditions import RowConditions

if TYPE_CHECKING:
    from synther.synthesizer import Synthesizer

log = logging.getLogger(__name__)
T = TypeVar("T")

TABLE_STEPS = 100
"""Maximum number of steps of a fit, if rows are drawn from a table instead of the network."""


@dataclass(frozen=True)
class Task:
    """The data for one fit, and everything that is learned besides the network."""

    rows: Transitions
    prepared: Prepared
    matrix: torch.Tensor
    """The scaled rows (N, D), on the device of the fit."""
    start: Network | None
    held_out: torch.Tensor | None
    ending: termination.TerminationTree | None
    """The tree that will decide about terminals. None if the network generates them."""
    usual_reward: Future[termination.UsualReward | None] | None = None
    """The tree that will decide which rows have the usual reward. None if the network generates this."""
    regions: Future[termination.Regions | None] | None = None
    """How often terminals and rewards will occur in each region of the state space. None if this is not corrected."""
    discrete: Future[DiscreteLaw | None] | None = None
    """The probabilities of discrete values in real rows. None if they are not corrected."""
    table: RowTable | None = None
    """The table from which rows will be drawn, in a world of few states and actions. None if a network generates
    them."""
    rare: RareRows | None = None
    """Rows that take part in the fit several times."""
    conditions: RowConditions | None = None
    """The conditions of each row."""
    stored: StoredRows | None = None
    """All rows, if they stay on disk. `rows` are then a sample of them."""
    window: Window | None = None
    """The window of rows on which the network is fitted instead of `matrix`, if all rows stay on disk."""

    @property
    def repeats(self) -> NDArray[np.int64] | None:
        """How many times each row takes part in the fit (N,). None if every row takes part once."""
        of_rare = None if self.rare is None else self.rare.repeats(self.rows)
        of_starts = None if self.window is not None or self.conditions is None else self.conditions.repeats
        if of_rare is None or of_starts is None:
            return of_rare if of_starts is None else of_starts
        return of_rare * of_starts

    @property
    def learned(self) -> NDArray[np.int64]:
        """The numbers of the rows with the distribution that the network learns: rare rows occur several times.
        Episode starts occur once, because they are a condition of the network."""
        every = np.arange(len(self.rows))
        return every if self.rare is None else every.repeat(self.rare.repeats(self.rows))

    @property
    def all_rows(self) -> Transitions | StoredRows:
        return self.rows if self.stored is None else self.stored

    @property
    def hidden(self) -> tuple[float, ...]:
        """The probability with which each condition is hidden during the fit."""
        return () if self.conditions is None else self.conditions.conditions.hidden

    def shortened(self, config: FitConfig) -> FitConfig:
        """Limit the number of steps if rows are drawn from a table. Such a model still has a network, for its record
        and its likelihoods, but generates no rows with it."""
        return config if self.table is None else replace(config, steps=min(config.steps, TABLE_STEPS))


def learn_ending(rows: Transitions) -> tuple[termination.TerminationTree | None, float]:
    """Return the tree that decides about terminals (or None), and the mean extra reward of a terminal row compared with
    similar rows."""
    tree = termination.learn(rows)
    if tree is None and rows.terminal.any():
        log.info("no thresholds explain the terminals of these rows: the network generates them")
    return tree, termination.terminal_reward(rows)


def learn_usual_reward(rows: Transitions, layout: Layout) -> Future[termination.UsualReward | None] | None:
    """Start a thread that learns which rows have the usual reward. Return None if there is no usual reward.

    A thread costs no time, because this uses only the CPU, and the network is fitted on a GPU at the same time.
    """
    (kind,) = layout.reward
    if isinstance(kind, Spiked) and len(kind.spikes) == 1:
        return _begun(partial(termination.UsualReward.learn, rows, kind.spikes[0]))
    return _begun(partial(termination.UsualReward.learn, rows, kind.low)) if isinstance(kind, Binary) else None


def learn_regions(
    rows: Transitions, layout: Layout, ending: termination.TerminationTree | None
) -> Future[termination.Regions | None] | None:
    """Start a thread that learns how often terminals, and rewards of few values, occur in each region of the state
    space. Return None if trees decide them, or if there are none."""
    (kind,) = layout.reward
    rewards: Sequence[float] = kind.spikes if isinstance(kind, Spiked) and layout.sparse is None else ()
    if isinstance(kind, (Binary, Codebook, Levels)) and class_count(kind) <= MOST_CATEGORIES:
        rewards = [value for (value,) in class_rows(kind)]
    decided = ending is not None and not ending.asks_for_reward(rows)
    if not rewards and (decided or not rows.terminal.any()):
        return None
    # Terminals are counted even if a tree decides them, so that the rewards of terminal rows are right.
    return _begun(partial(termination.Regions.learn, rows, rewards))


def learn_discrete(
    rows: Transitions,
    layout: Layout,
    ending: termination.TerminationTree | None,
    usual_reward: Future[termination.UsualReward | None] | None,
    regions: Future[termination.Regions | None] | None,
    steps: int,
) -> Future[DiscreteLaw | None]:
    """Start a thread that learns the probabilities of discrete values, except for rewards and terminals that a tree
    decides or weights. It takes at most `steps` steps, as many as the network, so it is finished first."""

    def learn() -> DiscreteLaw | None:
        in_parts = regions is not None and regions.result() is not None
        is_paid = usual_reward is not None and usual_reward.result() is not None
        decided = {"reward": in_parts or is_paid, "terminal": in_parts or ending is not None}
        skipped = [field for field, is_decided in decided.items() if is_decided]
        return DiscreteLaw.fit(rows, layout, skipped, steps=steps)

    return _begun(learn)


def _begun(work: Callable[[], T]) -> Future[T]:
    """Run `work` in a thread."""
    pool = ThreadPoolExecutor(1)
    begun = pool.submit(work)
    pool.shutdown(wait=False)  # the thread ends with its work
    return begun


def fit_models(
    models: Sequence[Synthesizer],
    rows: Sequence[Transitions],
    *,
    starts: Sequence[Synthesizer | None] | None = None,
    held_out: Sequence[NDArray[np.bool_] | None] | None = None,
    conditions: Sequence[Any] | None = None,
    checkpoint: Path | None = None,
    progress: Progress | bool = True,
) -> list[Synthesizer | SyntherError]:
    """Fit each of the `models` on its `rows`, with its start, held-out rows and condition. The results are the same as
    those of `Synthesizer.fit` for each model alone.

    Models with the same options and the same number of columns form a group, which shares every step. Groups are fitted
    one after the other. If the rows of a model cannot be learned, or its loss is no longer finite, its result is the
    error, and the other models continue. The seconds in a model's record, and a time limit in minutes, are those of its
    group.

    With a `checkpoint` path, each group keeps its state in a file `PATH-0`, `PATH-1` and so on. A call with the same
    arguments continues from there. `forget` removes these files.
    """
    count, progress = len(models), resolve(progress)
    starts = [None] * count if starts is None else starts
    held_out = [None] * count if held_out is None else held_out
    conditions = [None] * count if conditions is None else conditions
    _check(models, rows, starts, held_out)
    outcomes: dict[int, Synthesizer | SyntherError] = {}
    tasks: dict[int, Task] = {}

    def analyse(place: int) -> tuple[Prepared, termination.TerminationTree | None] | DataError:
        try:
            return models[place]._analyse(rows[place], starts[place])
        except DataError as error:
            return error.with_traceback(None)  # the traceback would keep the rows in memory

    threads = max(1, min(count, cores()))
    for place, analysed in enumerate(compute.in_turn(analyse, range(count), threads)):
        if isinstance(analysed, DataError):
            outcomes[place] = analysed
            continue
        try:
            tasks[place] = models[place]._begin(
                rows[place], starts[place], held_out[place], conditions[place], analysed=analysed
            )
        except DataError as error:
            outcomes[place] = error.with_traceback(None)
    for number, places in enumerate(_groups(models, tasks)):
        path = None if checkpoint is None else checkpoint.with_name(f"{checkpoint.name}-{number}")
        results = fit_networks([models[place] for place in places], [tasks[place] for place in places], path, progress)
        for place, result in zip(places, results, strict=True):
            outcomes[place] = _completed(models[place], tasks.pop(place), result, progress)
    return [outcomes[place] for place in range(count)]


def forget(checkpoint: Path) -> None:
    """Remove the checkpoints that `fit_models` has written for the path `checkpoint`."""
    for file in checkpoint.parent.iterdir():
        if re.fullmatch(rf"{re.escape(checkpoint.name)}-\d+", file.name):
            file.unlink()


def _groups(models: Sequence[Synthesizer], tasks: dict[int, Task]) -> list[list[int]]:
    """Group the numbers of the models by everything that must be equal to fit their networks together."""
    groups: dict[Hashable, list[int]] = {}
    for place, task in tasks.items():
        model, settings = models[place], models[place].settings
        config = task.shortened(settings.fit)
        options = (settings.network, config, settings.noise, model.device, model.precision)
        shape = config.batch_for(len(task.matrix)), task.matrix.shape[1], task.hidden
        groups.setdefault((*options, *shape), []).append(place)
    return list(groups.values())


def fit_networks(
    models: Sequence[Synthesizer], tasks: Sequence[Task], checkpoint: Path | None, progress: Progress
) -> list[FitResult[Network] | Diverged]:
    """Fit the networks of models with the same options together."""
    settings = models[0].settings
    return fit_together(
        [with_conditions(task) if task.window is None else task.window for task in tasks],
        settings.network,
        tasks[0].shortened(settings.fit),
        settings.noise,
        seeds=[model.seed for model in models],
        precision=models[0].precision,
        start=[task.start for task in tasks],
        held_out=[task.held_out for task in tasks],
        hidden=tasks[0].hidden,
        repeats=[None if task.repeats is None else torch.from_numpy(task.repeats) for task in tasks],
        checkpoint=checkpoint,
        progress=progress,
    )


def with_conditions(task: Task) -> torch.Tensor:
    """Return the rows as the network sees them (N, D + K): scaled, with their conditions as further columns."""
    if task.conditions is None or not task.hidden:
        return task.matrix
    return task.conditions.appended_to(task.matrix)


def shares_of(rows: Transitions, layout: Layout) -> Weights:
    """Return the share of each value in `rows`, for each group of columns with few values."""
    counts = layout.class_counts
    columns = layout.classes(rows).T
    shares = [np.bincount(column, minlength=count) / len(rows) for column, count in zip(columns, counts, strict=True)]
    return tuple(tuple(share.tolist()) for share in shares)


def real_quantiles(task: Task) -> tuple[Quantiles, Quantiles]:
    """Return quantiles of the scaled real rows. If episode starts are a condition, return those of all other rows and
    those of the episode starts. Otherwise the second part is empty."""
    matrix, learned = task.matrix, task.learned
    first = None if task.conditions is None else task.conditions.first

    def of(chosen: NDArray[np.int64]) -> Quantiles:
        some = torch.from_numpy(chosen[:: max(1, -(-len(chosen) // MOST_ROWS))]).to(matrix.device)
        return quantiles(task.prepared.layout, task.prepared.scaler, matrix[some])

    if first is None:
        return of(learned), ()
    return of(learned[~first[learned]]), of(learned[first[learned]])


def report_overfitting(config: FitConfig, history: list[dict[str, float]]) -> None:
    """Log a message if the held-out loss rose far above its lowest value during the fit."""
    if not has_overfit(history, config.overfit or OVERFIT):
        return
    least, last = min(history, key=lambda entry: entry["held_out"]), history[-1]
    figures = least["held_out"], f"{least['step']:,.0f}", last["held_out"], f"{last['step']:,.0f}"
    message = "the held-out loss was %.3g after %s steps and %.3g after %s: the fit memorised its rows"
    if keeps_best(config, history):
        log.info(message + "; the best weights are kept", *figures)
    else:
        advice = ". With fit.overfit (--fit.overfit %g) a fit stops in time and keeps its best weights"
        log.warning(message + advice, *figures, OVERFIT)


def _completed(
    model: Synthesizer, task: Task, result: FitResult[Network] | Diverged, progress: Progress
) -> Synthesizer | SyntherError:
    if isinstance(result, Diverged):
        return result
    try:
        return model._complete(task, result, progress)
    except DataError as error:
        return error.with_traceback(None)


def _check(models: Sequence[Synthesizer], *given: Sequence[Any]) -> None:
    if {len(each) for each in given} != {len(models)}:
        raise ConfigError(
            f"expected one entry for each of {len(models)} models in rows, starts and held_out, "
            "got {} of rows, {} of starts, {} of held_out".format(*map(len, given))
        )
    if len(set(map(id, models))) < len(models):
        raise ConfigError("the same model is given twice: create a separate Synthesizer for each entry of rows")
