"""Fit one denoiser, or several denoisers together, in rounds of optimiser steps.

Example: `fit_together` with three seeds fits three denoisers. These are the *members*. The weights of all members form
one stack. A round of steps updates the whole stack; on a GPU it is captured as a CUDA graph. Each member has its own
rows, random streams, gradient norm, averaged weights and held-out loss. It ends with the same weights as when it is
fitted alone, apart from rounding in the matrix products. A member leaves the stack when it has reached a stopping rule
or when its loss is no longer finite.

All random numbers of a round are a function of (seed, round number), and checkpoints are written between two rounds.
Therefore a fit that was killed and resumed ends with the same weights as an uninterrupted fit.

Read `fit` and `fit_together` first, then `Member` (one fit), `Trainer` (the steps of all members), `_fit` (the loop).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor

from synther import compute
from synther.diffusion.checkpoint import Checkpoint
from synther.diffusion.config import FitConfig, NoiseConfig
from synther.diffusion.edm import Loss, Problem, Problems, draw_problem, squared_error
from synther.diffusion.gradient import FlatWeights, is_narrow, loss_and_gradient
from synther.diffusion.networks import DenoisingNetwork, N, NetworkSpec
from synther.diffusion.schedule import average_rate, is_over, keeps_best, next_rates
from synther.diffusion.window import Window
from synther.errors import ConfigError, SyntherError
from synther.kernels.adam import adam_step
from synther.progress import Progress, Silent, measured

log = logging.getLogger(__name__)

_WEIGHTS, _ROUNDS, _SPLIT, _NOISE = range(4)  # random streams, one for each purpose; blocks.py has stream 4
SAVE_SECONDS = 60
"""Seconds after which a checkpoint is written even before `checkpoint_every` steps, because a machine may be slow."""
MOST_HELD_OUT = 10_000
"""Maximum number of rows on which the held-out loss is measured."""
STEP_CALLS = 3
"""Cost of an optimiser step per row, in network calls: one forward pass, and two for the gradients of weights and
inputs."""
_FEW_HELD_OUT = 1_000  # with fewer held-out rows, each row is measured with several draws of noise


@dataclass
class FitResult(Generic[N]):
    """The fitted network with averaged weights, and the history of its fit."""

    network: N
    steps: int
    seconds: float
    history: list[dict[str, float]] = field(default_factory=list)
    """One entry for each measurement, with the keys step, loss (mean since the previous measurement), held_out (if rows
    were held out) and seconds."""

    def course(self) -> dict[str, Any]:
        """Return all fields except the network, for JSON."""
        return {"steps": self.steps, "seconds": self.seconds, "history": self.history}


class Diverged(SyntherError):
    """Raised when the loss is no longer a finite number."""


def fit(
    rows: Tensor | Window,
    network: NetworkSpec[N],
    config: FitConfig,
    noise: NoiseConfig,
    *,
    seed: int = 0,
    precision: compute.Precision = "auto",
    start: N | None = None,
    held_out: Tensor | None = None,
    hidden: Sequence[float] = (),
    repeats: Tensor | None = None,
    loss: Loss = squared_error,
    problems: Problems = draw_problem,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
    phase: str = "fit",
) -> FitResult[N]:
    """Fit a denoiser on scaled `rows`, on the device of the rows.

    - `rows`: a tensor (N, D), or a `Window` if there are more rows than memory holds.
    - `network`: describes the architecture, for example a `NetworkConfig`.
    - `start`: a network of the same shape. If given, the fit begins with its weights.
    - `held_out` (N,): marks the rows to hold out. By default, a random share of the rows is held out.
    - `hidden`: if given, the last len(hidden) columns of the rows are conditions, as quantiles in [0, 1]. Each of them
      is hidden from the network with its probability in `hidden`.
    - `repeats` (N,): how many times as often as other rows each row is drawn.
    - `loss`: the function to minimise.
    - `problems`: the function that turns rows into a regression problem. If it does not add noise to the rows
      themselves, they may have other columns than the network `start`.
    - `checkpoint`: if given, the state of the fit is kept in this file. A fit with the same arguments resumes from it
      (functions are compared by name). The caller removes the file.
    - `phase`: the name under which progress is reported.
    """
    (outcome,) = fit_together(
        [rows], network, config, noise, seeds=[seed], precision=precision, start=[start], held_out=[held_out],
        hidden=hidden, repeats=[repeats], loss=loss, problems=problems, checkpoint=checkpoint, progress=progress,
        phase=phase,
    )  # fmt: skip
    if isinstance(outcome, Diverged):
        raise outcome
    return outcome


def fit_together(
    rows: Sequence[Tensor | Window],
    network: NetworkSpec[N],
    config: FitConfig,
    noise: NoiseConfig,
    *,
    seeds: Sequence[int],
    precision: compute.Precision = "auto",
    start: Sequence[N | None] | None = None,
    held_out: Sequence[Tensor | None] | None = None,
    hidden: Sequence[float] = (),
    repeats: Sequence[Tensor | None] | None = None,
    loss: Loss = squared_error,
    problems: Problems = draw_problem,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
    phase: str = "fit",
) -> list[FitResult[N] | Diverged]:
    """Fit one denoiser for each element of `rows`, in one stack. The elements may differ in their number of rows.

    Each result equals that of `fit` with the same seed, start and held-out marks. For a member that diverges, the list
    contains the error that `fit` would raise. The seconds, the time limit in minutes and the checkpoint cover all
    members together.
    """
    starts = [None] * len(rows) if start is None else start
    marks = [None] * len(rows) if held_out is None else held_out
    often = [None] * len(rows) if repeats is None else repeats
    _check(rows, seeds, starts, marks, config)
    device = rows[0].device
    precision = compute.pick_precision(precision, device)
    advice = "lower fit.batch_size or network.width, or fit on a share of the rows"
    if len(rows) > 1:
        advice = f"fit fewer seeds together, {advice}"
    # Inference mode of the caller is switched off. No gradient can flow through weights that are made in this mode, but
    # likelihood.py needs such gradients.
    small = device.type == "cpu" and is_narrow(network)
    threads = compute.one_thread() if small else nullcontext()
    with compute.matmul_precision(precision), compute.working_on(device, advice), torch.inference_mode(False), threads:
        members = [
            Member.begin(given, network, config, seed, first, marked, hidden, times, problems)
            for given, seed, first, marked, times in zip(rows, seeds, starts, marks, often, strict=True)
        ]
        kept = None
        if checkpoint is not None:
            arguments = [network, config, noise, list(seeds), precision, starts, marks, loss]
            # Conditions and another `problems` belong to the identity of the fit only if they are used.
            conditioned = [list(hidden), often] if hidden else []
            drawn = [] if problems is draw_problem else [problems]
            identities = [given.identity if isinstance(given, Window) else given for given in rows]
            kept = Checkpoint(checkpoint, device, identities, *arguments, *conditioned, *drawn)
        _fit(members, config, noise, loss, compute.working_dtype(precision), kept, progress or Silent(), phase)
    return [member.diverged or member.result for member in members]


def split(rows: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor | None]:
    """Hold out a random `share` of the rows. Return the indices of the other rows (M,) and the held-out rows."""
    fitted, chosen = (places.to(rows.device) for places in split_places(len(rows), share, seed))
    return fitted, rows[chosen] if len(chosen) else None


def split_places(rows: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split `rows` row numbers at random. Return the numbers to fit on, and those to hold out."""
    # NOTE[paper]: the reference fits on every row and measures nothing.
    count = min(round(share * rows), MOST_HELD_OUT, rows - 1)
    if count == 0:
        return torch.arange(rows), torch.arange(0)
    order = torch.randperm(rows, generator=compute.generator(torch.device("cpu"), seed, _SPLIT))
    return order[count:], order[:count]


def split_as(rows: Tensor, marks: Tensor) -> tuple[Tensor, Tensor | None]:
    """Hold out the rows that `marks` (N,) marks. Return the indices of the other rows (M,) and the held-out rows.

    If more than MOST_HELD_OUT rows are marked, every k-th marked row is returned, so that at most MOST_HELD_OUT remain.
    """
    if marks.dtype != torch.bool or marks.shape != (len(rows),) or marks.all():
        raise ConfigError(
            f"held_out: expected one boolean for each of the {len(rows)} rows, and at least one False (a row to fit "
            f"on); got {marks.dtype} of shape {tuple(marks.shape)} with {int(marks.count_nonzero())} of them True"
        )
    chosen, fitted = marks.to(rows.device).nonzero()[:, 0], (~marks).to(rows.device).nonzero()[:, 0]
    return fitted, rows[chosen[:: -(-len(chosen) // MOST_HELD_OUT)]] if len(chosen) else None


@torch.no_grad()
def held_out_loss(
    network: DenoisingNetwork,
    rows: Tensor,
    noise: NoiseConfig,
    seed: int,
    loss: Loss = squared_error,
    hidden: Sequence[float] = (),
    problems: Problems = draw_problem,
) -> float:
    """Return the loss on held-out rows. The noise is a function of `seed`, so it is the same in every measurement."""
    rows = rows.repeat(-(-_FEW_HELD_OUT // len(rows)), 1)
    return float(loss(network, problems(rows, noise, compute.generator(rows.device, seed, _NOISE), hidden)))


@dataclass
class Member(Generic[N]):
    """One of the fits: its rows, its random numbers and its result so far."""

    rows: Tensor
    count: int
    """Number of all rows. If the rows are a window, `rows` has fewer."""
    fitted: Tensor
    """Indices of the rows to fit on (M,). A row that is drawn more often than others appears several times."""
    held_out: Tensor | None
    seed: int
    result: FitResult[N]
    source: torch.Generator
    best: Tensor | None = None
    """The averaged weights (P,) with the lowest held-out loss."""
    diverged: Diverged | None = None
    hidden: Sequence[float] = ()
    problems: Problems = draw_problem
    window: Window | None = None
    """The window that holds `rows`, or None if all rows are in memory."""

    @classmethod
    def begin(
        cls,
        given: Tensor | Window,
        network: NetworkSpec[N],
        config: FitConfig,
        seed: int,
        start: N | None = None,
        marks: Tensor | None = None,
        hidden: Sequence[float] = (),
        repeats: Tensor | None = None,
        problems: Problems = draw_problem,
    ) -> Member[N]:
        """Split the rows, build the network and return a member that has made no step yet."""
        window = given if isinstance(given, Window) else None
        rows, count = (given, len(given)) if isinstance(given, Tensor) else (given.rows, given.total)
        if window is not None:
            fitted, held_out = torch.empty(0, dtype=torch.int64), window.held_out
        else:
            fitted, held_out = split(rows, config.holdout, seed) if marks is None else split_as(rows, marks)
        if config.patience is not None and held_out is None:
            raise ConfigError(
                f"fit.patience needs held-out rows, but none of {count} rows is held out (fit.holdout is "
                f"{config.holdout}): raise fit.holdout, or do not set fit.patience"
            )
        if config.overfit is not None and held_out is None:
            log.info("no rows are held out: fit.overfit cannot stop this fit")
        if repeats is not None:
            fitted = fitted.repeat_interleave(repeats.to(fitted.device)[fitted])
        with torch.random.fork_rng(devices=[]):
            compute.reseed(torch.default_generator, seed, _WEIGHTS)
            columns = rows.shape[1] - len(hidden) if start is None else start.columns
            first = network.build(columns, *((len(hidden),) if hidden else ()))
        if start is not None:
            first.load_state_dict(start.state_dict())
        result = FitResult(first.to(rows.device).requires_grad_(False), 0, 0.0)
        source = torch.Generator(rows.device)
        return cls(rows, count, fitted, held_out, seed, result, source, None, None, hidden, problems, window)

    def draw_round(self, number: int, count: int, noise: NoiseConfig) -> Problem:
        """Draw the `count` rows of round `number` and return their regression problem: a function of (seed, number)."""
        if self.window is not None:
            self.fitted = self.window.at(number)
        compute.reseed(self.source, self.seed, _ROUNDS, number)
        picked = torch.randint(len(self.fitted), (count,), generator=self.source, device=self.rows.device)
        return self.problems(self.rows[self.fitted[picked]], noise, self.source, self.hidden)

    def measure(self, steps: int, mean: float, seconds: float, average: Tensor, noise: NoiseConfig, loss: Loss) -> None:
        """Record `steps` more steps, their mean loss, and the held-out loss of the averaged weights `average` (P,)."""
        result = self.result
        result.steps += steps
        result.seconds = seconds
        entry = {"step": result.steps, "loss": mean, "seconds": seconds}
        if self.held_out is not None:
            arguments = self.held_out, noise, self.seed, loss, self.hidden, self.problems
            entry["held_out"] = held_out_loss(result.network, *arguments)
        if not all(map(math.isfinite, entry.values())):
            self.diverged = Diverged(
                f"the loss is {mean} at step {result.steps}: lower fit.learning_rate, or scale the data"
            )
            return
        result.history.append(entry)
        if self.held_out is not None and entry["held_out"] <= min(e["held_out"] for e in result.history):
            self.best = average.clone()

    def is_over(self, config: FitConfig) -> bool:
        """Return whether the member has diverged or has reached a stopping rule."""
        return self.diverged is not None or is_over(self.result, config)

    def final(self, average: Tensor, config: FitConfig) -> Tensor:
        """Return the weights that the fit ends with (P,), in their own memory."""
        best = self.best if keeps_best(config, self.result.history) else None
        return average.clone() if best is None else best


@dataclass
class State:
    """Weights and optimiser state of all members. All tensors are (S, P), one row per member, except `adam_step`."""

    weights: Tensor
    average: Tensor
    adam_mean: Tensor
    adam_square: Tensor
    adam_step: Tensor

    @classmethod
    def initial(cls, weights: Tensor) -> State:
        """Return the state before the first step, with these `weights` (S, P)."""
        mean, square = torch.zeros_like(weights), torch.zeros_like(weights)
        return cls(weights, weights.clone(), mean, square, weights.new_zeros(()))

    def of(self, places: list[int]) -> State:
        """Return a copy that has only the members at `places`."""
        mean, square = self.adam_mean[places], self.adam_square[places]
        return State(self.weights[places], self.average[places], mean, square, self.adam_step)


class Trainer:
    """Runs optimiser steps of all members that are not finished. All members are at the same step.

    All data is in tensors that keep their address, so that a round of steps is captured once and then replayed.
    """

    def __init__(
        self,
        members: Sequence[Member[Any]],
        state: State,
        config: FitConfig,
        noise: NoiseConfig,
        loss: Loss = squared_error,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.members, self.state, self.config, self.noise = members, state, config, noise
        self.batch, self.round_steps = config.batch_for(members[0].count), config.ema_every
        networks = [member.result.network for member in members]
        flat = FlatWeights(networks[0])
        for network, average in zip(networks, state.average, strict=True):
            flat.bind(network, average)
        self.gradient = loss_and_gradient(networks, flat, state.weights, loss, dtype)
        self.loss_sums = state.weights.new_zeros(len(members))
        # The inputs of a round: the regression problems, the learning rates, and the rate of the averaged weights.
        size, hidden = (self.round_steps, len(members), self.batch), members[0].hidden
        columns = networks[0].columns
        given = state.weights.new_zeros(1, len(hidden)) if hidden else None
        conditions = self.gradient.condition(0, state.weights.new_zeros(1, 1), given).shape[1]
        self.inputs = self.gradient.working.new_zeros(*size, columns)
        self.condition = self.gradient.working.new_zeros(*size, conditions)
        self.target = state.weights.new_zeros(*size, columns)
        self.rates = state.weights.new_zeros(self.round_steps)
        self.average_rate = state.weights.new_zeros(())
        changing = [*vars(state).values(), self.gradient.working, self.loss_sums]
        self._captured = compute.capture(self._whole_round, state.weights.device, changing)

    def run(self, first: int, rates: Tensor) -> list[float]:
        """Run one step for each learning rate in `rates`, from step `first` on. Return the mean loss of each member."""
        self.loss_sums.zero_()
        for at, some in enumerate(torch.split(rates.to(self.rates.device), self.round_steps)):
            self._run_round(first // self.round_steps + at, some)
        return [total / len(rates) for total in self.loss_sums.tolist()]  # waits for the device

    def _run_round(self, number: int, rates: Tensor) -> None:
        """Run one round. It has fewer steps than `round_steps` only if it is the last round of the fit."""
        for place, member in enumerate(self.members):
            inputs, c_noise, target, given = member.draw_round(number, self.round_steps * self.batch, self.noise)
            condition = self.gradient.condition(place, c_noise, given)
            for drawn, into in ((inputs, self.inputs), (condition, self.condition), (target, self.target)):
                into[:, place] = drawn.view(self.round_steps, self.batch, -1)
        self.rates[: len(rates)] = rates
        self.average_rate.fill_(average_rate(self.config, number))
        if len(rates) == self.round_steps:
            self._captured()
        else:
            self._steps(len(rates))

    def _whole_round(self) -> None:
        self._steps(self.round_steps)

    def _steps(self, count: int) -> None:
        for step in range(count):
            self._step(step)
        self.state.average.lerp_(self.state.weights, self.average_rate)

    def _step(self, step: int) -> None:
        s, c, g = self.state, self.config, self.gradient
        self.loss_sums.add_(g(self.inputs[step], self.condition[step], self.target[step]))
        s.adam_step.add_(1)
        # The reference uses AdamW without weight decay, which is Adam. Most time goes into reading and writing weights,
        # which this kernel does once per step.
        adam_step(
            s.weights, g.working, g.gradient, s.adam_mean, s.adam_square, s.adam_step, self.rates[step],
            max_grad_norm=c.max_grad_norm, beta1=c.beta1, beta2=c.beta2,
        )  # fmt: skip

    def close(self) -> None:
        """Delete the captured round. On a CPU it refers to the trainer: this cycle would keep the rows in memory."""
        del self._captured


def _fit(
    members: list[Member[N]],
    config: FitConfig,
    noise: NoiseConfig,
    loss: Loss,
    dtype: torch.dtype,
    kept: Checkpoint | None,
    progress: Progress,
    phase_name: str = "fit",
) -> None:
    """Fit all members to their end, from the checkpoint `kept` if its file exists."""
    flat = FlatWeights(members[0].result.network)
    going, state = members, State.initial(torch.stack([flat.gather(member.result.network) for member in members]))
    if kept is not None and kept.exists():
        going, state = _resumed(members, flat, state, *kept.load())
        log.info("resuming from step %d of %s", max(member.result.steps for member in members), kept.path)
    saved = max((member.result.steps, member.result.seconds) for member in members)
    began = time.monotonic() - saved[1]
    with progress.phase(phase_name, config.steps, saved[0]) as phase:
        # Report the measurements of the interrupted process again.
        for place, entry in enumerate(going[0].result.history if going else []):
            measured(phase, int(entry["step"]), _means(going, place))
        while going:
            trainer = Trainer(going, state, config, noise, loss, dtype)
            staying = list(range(len(going)))
            while len(staying) == len(going):
                now = going[0].result
                rates = next_rates(config, now)
                losses = trainer.run(now.steps, rates)
                seconds = time.monotonic() - began
                for member, mean, average in zip(going, losses, state.average, strict=True):
                    member.measure(len(rates), mean, seconds, average, noise, loss)
                phase.advance(len(rates), _noted(going, len(members), config))
                measured(phase, now.steps, _means(going))
                staying = [place for place, member in enumerate(going) if not member.is_over(config)]
                due = now.steps - saved[0] >= config.checkpoint_every or seconds - saved[1] >= SAVE_SECONDS
                if kept is not None and due and len(staying) == len(going):
                    kept.save(*_to_keep(members, going, state, flat))
                    saved = now.steps, seconds
            trainer.close()
            for place in set(range(len(going))).difference(staying):
                flat.bind(going[place].result.network, going[place].final(state.average[place], config))
            state, going = state.of(staying), [going[place] for place in staying]
            if kept is not None:
                kept.save(*_to_keep(members, going, state, flat))


def _to_keep(
    members: list[Member[N]], going: list[Member[N]], state: State, flat: FlatWeights
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what a checkpoint stores: the state of unfinished members, the weights of finished members, and the course
    of each fit."""
    tensors, courses = dict(vars(state)) if going else {}, []
    for place, member in enumerate(members):
        goes_on = any(member is one for one in going)
        if goes_on and member.best is not None:
            tensors[f"best.{place}"] = member.best
        if not goes_on and member.diverged is None:
            tensors[f"done.{place}"] = flat.gather(member.result.network)
        diverged = None if member.diverged is None else str(member.diverged)
        courses.append({"goes_on": goes_on, "diverged": diverged, "course": member.result.course()})
    return tensors, {"members": courses}


def _resumed(
    members: list[Member[N]], flat: FlatWeights, state: State, tensors: dict[str, Tensor], course: dict[str, Any]
) -> tuple[list[Member[N]], State]:
    """Set the members to the point at which the checkpoint was written. Return the unfinished members and their
    state."""
    going = []
    for place, (member, kept) in enumerate(zip(members, course["members"], strict=True)):
        member.result = replace(member.result, **kept["course"])
        if kept["goes_on"]:
            member.best = tensors.get(f"best.{place}")
            going.append(member)
        elif kept["diverged"] is None:
            flat.bind(member.result.network, tensors[f"done.{place}"])
        else:
            member.diverged = Diverged(kept["diverged"])
    return going, State(**{name: tensors[name] for name in vars(state)}) if going else state.of([])


def _check(
    rows: Sequence[Tensor | Window],
    seeds: Sequence[int],
    starts: Sequence[DenoisingNetwork | None],
    marks: Sequence[Tensor | None],
    config: FitConfig,
) -> None:
    """Raise an error if the members cannot be fitted together."""
    counts = [len(each) for each in (rows, seeds, starts, marks)]
    if not rows or len(set(counts)) > 1:
        raise ConfigError(
            "expected rows, seeds, start and held_out to have one element for each of at least one member, "
            "got rows: {}, seeds: {}, start: {}, held_out: {} elements".format(*counts)
        )
    given = [(each.rows, each.total) if isinstance(each, Window) else (each, len(each)) for each in rows]
    columns, places = {each.shape[1] for each, _ in given}, {each.device for each, _ in given}
    if len(columns) > 1 or len(places) > 1:
        raise ConfigError(
            "expected rows with the same number of columns on the same device, "
            f"got {sorted(columns)} columns on {sorted(map(str, places))}: fit them separately"
        )
    batches = {config.batch_for(count) for _, count in given}
    if len(batches) > 1:
        raise ConfigError(
            f"members with different numbers of rows would get different batch sizes, {sorted(batches)}: set "
            "fit.batch_size"
        )


def _means(going: Sequence[Member[Any]], place: int = -1) -> dict[str, float]:
    """Return the measurements at index `place` of the history (by default the latest), averaged over the members that
    have not diverged."""
    latest = [member.result.history[place] for member in going if member.diverged is None]
    names = [name for name in ("loss", "held_out") if latest and all(name in entry for entry in latest)]
    return {name: sum(entry[name] for entry in latest) / len(latest) for name in names}


def _noted(going: Sequence[Member[Any]], members: int, config: FitConfig) -> str:
    """Return the latest measurements, averaged over the members, as the text that progress shows."""
    latest = [member.result.history[-1] for member in going if member.diverged is None]
    if not latest:
        return "diverged"
    notes = [f"{name.replace('_', ' ')} {mean:.4f}" for name, mean in _means(going).items()]
    if config.minutes is not None:
        notes.append(f"{latest[0]['seconds'] / 60:.1f} of {config.minutes:g} min")
    return ", ".join([*notes, f"{len(latest)} going"] if members > 1 else notes)
