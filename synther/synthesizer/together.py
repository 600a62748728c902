"""Fitting the networks of one or several models: what each is fitted on, and which are fitted together."""

from __future__ import annotations

import logging
import os
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
from synther.conditions import Told
from synther.data import termination
from synther.data.following import class_count, class_rows
from synther.data.inference import MOST_CATEGORIES
from synther.data.kinds import Binary, Codebook, Levels, Spiked
from synther.data.layout import Layout
from synther.data.payouts import Payouts
from synther.data.preparing import Prepared
from synther.data.row_table import RowTable
from synther.data.transitions import Transitions
from synther.diffusion.config import FitConfig
from synther.diffusion.fit import Diverged, FitResult, fit_together
from synther.diffusion.networks import Network
from synther.diffusion.window import Window
from synther.errors import ConfigError, DataError, SyntherError
from synther.formats.stream import StoredRows
from synther.progress import Progress, resolve
from synther.relevance.discrete import DiscreteLaw

if TYPE_CHECKING:
    from synther.synthesizer import Synthesizer

log = logging.getLogger(__name__)
T = TypeVar("T")

TABLE_STEPS = 100
"""Steps of a fit, at most, where rows are drawn from a table instead."""


@dataclass(frozen=True)
class Task:
    """What one network is fitted on, and what is learned beside it."""

    rows: Transitions
    prepared: Prepared
    matrix: torch.Tensor
    """The prepared rows where the fit takes place."""
    start: Network | None
    held_out: torch.Tensor | None
    ending: termination.TerminationTree | None
    """What is to decide about terminals, where that was asked for."""
    usual_reward: Future[termination.UsualReward | None] | None = None
    """What is to decide which rows have the reward that comes again and again, likewise."""
    regions: Future[termination.Regions | None] | None = None
    """How often terminals and rewards are to come in each part of the world, likewise."""
    discrete: Future[DiscreteLaw | None] | None = None
    """How likely the discrete values are that nothing decides."""
    table: RowTable | None = None
    """What rows are to be drawn from instead of the network, where states and actions are few."""
    payouts: Payouts | None = None
    """Rare rewards, of which the network sees more than there are."""
    told: Told | None = None
    """What the network is told about each row."""
    stored: StoredRows | None = None
    """What the rows are a sample of, where all are too many for memory."""
    window: Window | None = None
    """What the network is then fitted on, instead of the matrix."""

    @property
    def repeats(self) -> NDArray[np.int64] | None:
        """How many times as often as others the network sees each row. (N,)"""
        paid = None if self.payouts is None else self.payouts.repeats(self.rows.reward)
        first = None if self.window is not None or self.told is None else self.told.repeats
        return paid if first is None else first if paid is None else paid * first

    @property
    def learned(self) -> NDArray[np.int64]:
        """The rows that generated ones are to be like before they are weighted, those with payouts several times."""
        every = np.arange(len(self.rows))
        return every if self.payouts is None else every.repeat(self.payouts.repeats(self.rows.reward))

    @property
    def all_rows(self) -> Transitions | StoredRows:
        return self.rows if self.stored is None else self.stored

    @property
    def hidden(self) -> tuple[float, ...]:
        return () if self.told is None else self.told.conditions.hidden

    def shortened(self, config: FitConfig) -> FitConfig:
        """A network that no row is drawn from is fitted only for a moment: its record and its likelihoods are asked for
        all the same."""
        return config if self.table is None else replace(config, steps=min(config.steps, TABLE_STEPS))


def learn_ending(rows: Transitions) -> tuple[termination.TerminationTree | None, float]:
    """What decides about terminals, and how much more reward these have than rows like them."""
    tree = termination.learn(rows)
    if tree is None and rows.terminal.any():
        log.info("no thresholds explain the terminals of these rows: they are generated")
    return tree, termination.terminal_reward(rows)


def learn_usual_reward(rows: Transitions, layout: Layout) -> Future[termination.UsualReward | None] | None:
    """Begin to learn which rows have the reward that comes again and again, where there is one, in a thread: it takes
    nothing but rows, and a GPU is busy with the network."""
    (kind,) = layout.reward
    if isinstance(kind, Spiked) and len(kind.spikes) == 1:
        return _begun(partial(termination.UsualReward.learn, rows, kind.spikes[0]))
    return _begun(partial(termination.UsualReward.learn, rows, kind.low)) if isinstance(kind, Binary) else None


def learn_regions(
    rows: Transitions, layout: Layout, ending: termination.TerminationTree | None
) -> Future[termination.Regions | None] | None:
    """Begin to learn how often terminals, and rewards that come again and again, come in each part of the world, where
    nothing but the network decides about them, likewise."""
    (kind,) = layout.reward
    rewards: Sequence[float] = kind.spikes if isinstance(kind, Spiked) else ()
    if isinstance(kind, (Binary, Codebook, Levels)) and class_count(kind) <= MOST_CATEGORIES:
        rewards = [value for (value,) in class_rows(kind)]
    decided = ending is not None and not ending.asks_for_reward(rows)
    if not rewards and (decided or not rows.terminal.any()):
        return None
    return _begun(partial(termination.Regions.learn, rows, rewards))  # what a terminal pays goes with it, if decided


def learn_discrete(
    rows: Transitions,
    layout: Layout,
    ending: termination.TerminationTree | None,
    usual_reward: Future[termination.UsualReward | None] | None,
    regions: Future[termination.Regions | None] | None,
    steps: int,
) -> Future[DiscreteLaw | None]:
    """Begin to learn how likely the discrete values of rows are, but for those that others decide or weigh. It takes
    no more steps than the network, so that it is done before that."""

    def learn() -> DiscreteLaw | None:
        in_parts = regions is not None and regions.result() is not None
        is_paid = usual_reward is not None and usual_reward.result() is not None
        decided = {"reward": in_parts or is_paid, "terminal": in_parts or ending is not None}
        skipped = [field for field, is_decided in decided.items() if is_decided]
        return DiscreteLaw.fit(rows, layout, skipped, steps=steps)

    return _begun(learn)


def _begun(work: Callable[[], T]) -> Future[T]:
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
    """Fit each of the `models` on its `rows`, with its start, held-out marks and condition, as `Synthesizer.fit` would
    alone.

    Those with the same options and width share every step; the groups that this makes are fitted in turn. A model whose
    rows teach nothing, or whose loss is no longer a number, gives its error, and the others go on. Seconds in a model's
    record, and a budget of minutes, are those of its group. With a `checkpoint` path each group keeps its state in a
    file beside it, `PATH-0` and so on, and a call with the same arguments goes on from there; `forget` removes them.
    """
    count, progress = len(models), resolve(progress)
    starts = [None] * count if starts is None else starts
    marks = [None] * count if held_out is None else held_out
    told = [None] * count if conditions is None else conditions
    _check(models, rows, starts, marks)
    outcomes: dict[int, Synthesizer | SyntherError] = {}
    tasks: dict[int, Task] = {}

    def look(place: int) -> tuple[Prepared, termination.TerminationTree | None] | DataError:
        try:
            return models[place]._look_through(rows[place], starts[place])
        except DataError as error:
            return error.with_traceback(None)  # which leads to the rows, and would keep them alive

    cores = max(1, min(count, os.cpu_count() or 1))
    for place, looked in enumerate(compute.in_turn(look, range(count), cores)):
        if isinstance(looked, DataError):
            outcomes[place] = looked
            continue
        try:
            tasks[place] = models[place]._begin(rows[place], starts[place], marks[place], told[place], looked=looked)
        except DataError as error:
            outcomes[place] = error.with_traceback(None)
    for number, places in enumerate(_groups(models, tasks)):
        kept = None if checkpoint is None else checkpoint.with_name(f"{checkpoint.name}-{number}")
        results = fit_networks([models[place] for place in places], [tasks[place] for place in places], kept, progress)
        for place, result in zip(places, results, strict=True):
            outcomes[place] = _completed(models[place], tasks.pop(place), result, progress)
    return [outcomes[place] for place in range(count)]


def forget(checkpoint: Path) -> None:
    """Remove what `fit_models` has kept beside `checkpoint`."""
    for file in checkpoint.parent.iterdir():
        if re.fullmatch(rf"{re.escape(checkpoint.name)}-\d+", file.name):
            file.unlink()


def _groups(models: Sequence[Synthesizer], tasks: dict[int, Task]) -> list[list[int]]:
    """Places of the models whose networks can be fitted together."""
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
    """The networks of models whose options are the same, fitted together."""
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
    """The rows as the network sees them, and beside them what it is told."""
    return task.matrix if task.told is None or not task.hidden else task.told.seen(task.matrix)


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
            f"expected rows, and where given a start and held-out marks, for each of {len(models)} models, "
            "got {} of rows, {} starts, {} of marks".format(*map(len, given))
        )
    if len(set(map(id, models))) < len(models):
        raise ConfigError("the same model is given twice: make a Synthesizer for each of the rows")
