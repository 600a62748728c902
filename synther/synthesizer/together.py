"""Models of several seeds, fitted together where their networks can be."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther.data.transitions import Transitions
from synther.diffusion.fit import Diverged, FitResult
from synther.diffusion.together import fit_together
from synther.errors import ConfigError, DataError, SyntherError
from synther.progress import Progress, resolve
from synther.synthesizer import Synthesizer
from synther.synthesizer.task import Task


def fit_models(
    models: Sequence[Synthesizer],
    rows: Sequence[Transitions],
    *,
    starts: Sequence[Synthesizer | None] | None = None,
    held_out: Sequence[NDArray[np.bool_] | None] | None = None,
    checkpoint: Path | None = None,
    progress: Progress | bool = True,
) -> list[Synthesizer | SyntherError]:
    """Fit each of the `models` on its `rows`, with its start and its held-out marks, as `Synthesizer.fit` would alone.

    Those with the same options and width share every step; the groups that this makes are fitted in turn. A model whose
    rows teach nothing, or whose loss is no longer a number, gives its error, and the others go on. Seconds in a model's
    record, and a budget of minutes, are those of its group. With a `checkpoint` path each group keeps its state in a
    file beside it, `PATH-0` and so on, and a call with the same arguments goes on from there; `forget` removes them.
    """
    count, progress = len(models), resolve(progress)
    starts = [None] * count if starts is None else starts
    marks = [None] * count if held_out is None else held_out
    _check(models, rows, starts, marks)
    outcomes: dict[int, Synthesizer | SyntherError] = {}
    tasks: dict[int, Task] = {}
    for place, (model, given, start, chosen) in enumerate(zip(models, rows, starts, marks, strict=True)):
        try:
            tasks[place] = model._begin(given, start, chosen)
        except DataError as error:
            outcomes[place] = error.with_traceback(None)  # which leads to the rows, and would keep them alive
    for number, places in enumerate(_groups(models, tasks)):
        kept = None if checkpoint is None else checkpoint.with_name(f"{checkpoint.name}-{number}")
        results = _fit_networks([models[place] for place in places], [tasks[place] for place in places], kept, progress)
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
        batch = settings.fit.batch_for(len(task.matrix))
        options = (settings.network, settings.fit, settings.noise, model.device, model.precision)
        groups.setdefault((*options, batch, task.matrix.shape[1]), []).append(place)
    return list(groups.values())


def _fit_networks(
    models: Sequence[Synthesizer], tasks: Sequence[Task], checkpoint: Path | None, progress: Progress
) -> Sequence[FitResult | Diverged]:
    if len(models) == 1:
        try:
            return [models[0]._fit_network(tasks[0], checkpoint, progress)]
        except Diverged as error:
            return [error.with_traceback(None)]
    settings = models[0].settings
    return fit_together(
        [task.matrix for task in tasks],
        settings.network,
        settings.fit,
        settings.noise,
        seeds=[model.seed for model in models],
        precision=models[0].precision,
        start=[task.start for task in tasks],
        held_out=[task.held_out for task in tasks],
        checkpoint=checkpoint,
        progress=progress,
    )


def _completed(
    model: Synthesizer, task: Task, result: FitResult | Diverged, progress: Progress
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
