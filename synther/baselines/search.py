"""The paper's search for good options of TVAE and CTGAN, with Optuna. The first trial has the default options.

The study is saved as a journal in the folder of the run. If the same search is started again, it continues. A trial
that was interrupted is repeated.

Read `search` first, then `_rounds` (the loop over trials), `_Study` (Optuna) and `_workers` (processes).
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from synther.baselines.tabular import Config, config_of, to_json
from synther.children import end_with_parent
from synther.durable import replacing
from synther.errors import ConfigError, DataError, Failed, MissingExtra
from synther.progress import Progress, resolve

log = logging.getLogger(__name__)

Score = Callable[[Config], float]
"""A function that returns how good a configuration is, from 0 to 1. With several jobs it must be picklable, because it
is sent to other processes."""


@dataclass(frozen=True)
class Trial:
    """The result of one configuration."""

    config: Config
    score: float
    """The score, or 0 if the fit failed."""
    seconds: float
    error: str | None = None


@dataclass(frozen=True)
class Found:
    """The result of a search: all trials in the order of their numbers. The default options come first."""

    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        return max(self.trials, key=lambda trial: trial.score)

    def to_json(self) -> dict[str, Any]:
        def entry(trial: Trial) -> dict[str, Any]:
            return {**vars(trial), "config": to_json(trial.config)}

        name = self.best.config.name
        return {"model": name, "best": entry(self.best), "trials": [entry(trial) for trial in self.trials]}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Found:
        trials = [{**entry, "config": config_of(found["model"], entry["config"])} for entry in found["trials"]]
        return cls(tuple(Trial(**entry) for entry in trials))


def search(
    start: Config,
    score: Score,
    folder: Path,
    *,
    trials: int = 30,
    jobs: int = 1,
    seed: int = 0,
    progress: Progress | bool = True,
) -> Found:
    """Score `start` and `trials` other configurations in its search space, `jobs` at a time. Write the result to
    `folder/search.json` and return it.

    Only one process at a time may search in a folder.
    """
    if trials < 0 or jobs < 1:
        raise ConfigError(f"expected trials of at least 0 and jobs of at least 1, got {trials} and {jobs}")
    result = folder / "search.json"
    if result.exists():
        return Found.from_json(json.loads(result.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    with _Study(start, folder / "search.journal", seed) as study:
        rounds = _rounds(study, score, trials + 1, jobs)
        with closing(rounds), resolve(progress).phase(f"search {start.name}", trials + 1, len(study.done())) as phase:
            for trial in rounds:
                note = trial.error or f"{trial.score:.4f}, best {max(t.score for t in study.done()):.4f}"
                phase.advance(1, note)
        found = Found(tuple(study.done()))
    if found.best.score <= 0:
        raise DataError(f"none of the {len(found.trials)} trials of {start.name} worked: {found.trials[0].error}")
    with replacing(result) as temporary:
        temporary.write_text(json.dumps(found.to_json(), indent=2) + "\n")
    return found


def _rounds(study: _Study, score: Score, wanted: int, jobs: int) -> Generator[Trial, None, None]:
    """Run trials until the study has `wanted` of them. Yield each trial that is finished."""
    with _workers(score, jobs) as pool:
        running: dict[Future[Trial], Any] = {}
        while (done := len(study.done())) < wanted:
            while len(running) < min(jobs, wanted - done):
                optuna_trial, config = study.ask()
                known = next((trial for trial in study.done() if trial.config == config), None)
                if known is not None:  # the same options would give the same score again
                    study.tell(optuna_trial, known)
                    yield known
                    done += 1
                else:
                    running[pool.submit(_trial, config)] = optuna_trial
            finished = wait(running, return_when=FIRST_COMPLETED).done
            for future in finished:
                trial = future.result()
                study.tell(running.pop(future), trial)
                yield trial


class _Study:
    """Optuna's study of one model, saved in a journal to which only this process writes."""

    def __init__(self, start: Config, journal: Path, seed: int) -> None:
        self.start, self.journal, self.seed = start, journal, seed
        self.waiting: list[dict[str, Any]] = []

    def __enter__(self) -> _Study:
        try:
            import optuna
            from optuna.storages.journal import JournalFileBackend
        except ImportError:
            raise MissingExtra("optuna", "tabular", "searching the options of TVAE and CTGAN") from None
        self.optuna = optuna
        self.verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        _repair(self.journal)
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(self.journal)))
        name = self.start.name
        self.study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
        self.states = optuna.trial.TrialState
        for interrupted in self.study.get_trials(deepcopy=False, states=(self.states.RUNNING,)):
            log.info("trial %d of %s was interrupted and is repeated", interrupted.number, name)
            self.study.tell(interrupted.number, state=self.states.FAIL)
            self.waiting.append(interrupted.params)
        if self.start not in [trial.config for trial in self.done()]:
            first = {option: getattr(self.start, option) for option in self.start.space}
            self.waiting = [first, *(params for params in self.waiting if params != first)]
        return self

    def __exit__(self, *error: object) -> None:
        self.optuna.logging.set_verbosity(self.verbosity)

    def done(self) -> list[Trial]:
        """Return the finished trials."""
        complete = self.study.get_trials(deepcopy=False, states=(self.states.COMPLETE,))
        parts = [(self._config(trial.params), trial.value, trial.user_attrs) for trial in complete]
        return [Trial(config, value or 0.0, notes["seconds"], notes["error"]) for config, value, notes in parts]

    def ask(self) -> tuple[Any, Config]:
        """Return Optuna's next trial and its configuration. They depend on the previous trials, but not on how often
        the search was interrupted."""
        if self.waiting:
            self.study.enqueue_trial(self.waiting.pop(0))
        number = len(self.study.get_trials(deepcopy=False, states=(self.states.COMPLETE, self.states.RUNNING)))
        source = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        self.study.sampler = self.optuna.samplers.TPESampler(seed=source)
        choices = self.optuna.distributions.CategoricalDistribution
        trial = self.study.ask({option: choices(values) for option, values in self.start.space.items()})
        return trial, self._config(trial.params)

    def tell(self, optuna_trial: Any, trial: Trial) -> None:
        """Save the result of a trial that `ask` returned."""
        optuna_trial.set_user_attr("seconds", trial.seconds)
        optuna_trial.set_user_attr("error", trial.error)
        self.study.tell(optuna_trial, trial.score)

    def _config(self, params: Mapping[str, Any]) -> Config:
        return replace(self.start, **params)


def _repair(journal: Path) -> None:
    """Remove what a killed process left behind: its lock file, and an incomplete last line."""
    journal.with_name(journal.name + ".lock").unlink(missing_ok=True)
    if journal.exists():
        content = journal.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            os.truncate(journal, end)


def _trial(config: Config) -> Trial:
    """Score one configuration. If the model diverges with these options, the score is 0 and the search continues."""
    began = time.monotonic()
    assert _score is not None
    try:
        score, error = float(_score(config)), None
    except (ValueError, ArithmeticError) as failure:
        score, error = 0.0, str(failure)
    if not np.isfinite(score):
        score, error = 0.0, f"the score is {score}"
    return Trial(config, score, time.monotonic() - began, error)


_score: Score | None = None
"""The score function of this process."""


@contextmanager
def _workers(score: Score, jobs: int) -> Iterator[Executor]:
    """Start `jobs` processes that score configurations. A single job runs in this process."""
    if jobs == 1:
        _set_score(score)
        try:
            yield _InThisProcess()
        finally:
            _set_score(None)  # free its memory: it may contain a large table
        return
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker, initargs=(score,))
    try:
        yield pool
    except BaseException as error:
        # A running fit cannot be cancelled, and the user should not have to wait for its end.
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        if isinstance(error, BrokenProcessPool):
            raise Failed("a process of the search died: choose fewer --jobs, or free some memory") from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _InThisProcess(Executor):
    """An executor that does the work when it is submitted, in the same thread."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments, **options))
        return future


def _set_score(score: Score | None) -> None:
    global _score
    _score = score


def _start_worker(score: Score) -> None:
    """Prepare a worker process, which uses one thread."""
    import torch

    torch.set_num_threads(1)
    end_with_parent()
    _set_score(score)
