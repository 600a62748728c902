"""Fitting the denoisers of several seeds together: their weights in one stack, their steps in one captured round.

Each member has its own rows, streams of random numbers, norm of the gradient, average and held-out loss, as in a fit
alone; rounding in the products aside it ends with the same weights. A member whose patience has run out, or whose loss
is no longer a number, leaves the stack, and the others go on without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from synther import compute
from synther.diffusion.checkpoint import Checkpoint
from synther.diffusion.config import FitConfig, NetworkConfig, NoiseConfig
from synther.diffusion.fit import (
    SAVE_SECONDS,
    Diverged,
    FitResult,
    average_rate,
    begin,
    draw_round,
    is_over,
    keeps_best,
    measure,
    next_rates,
    noted,
)
from synther.diffusion.flat import FlatWeights
from synther.diffusion.networks import Network
from synther.diffusion.stacked import losses_and_gradients, windows
from synther.errors import ConfigError
from synther.kernels.adam import adam_step
from synther.progress import Progress, Silent

log = logging.getLogger(__name__)


@dataclass
class _Member:
    """One of the fits: what is its own, and what has become of it."""

    rows: Tensor
    fitted: Tensor
    held_out: Tensor | None
    seed: int
    result: FitResult
    source: torch.Generator
    best: Tensor | None = None
    """The averaged weights (P,) with the lowest held-out loss."""
    diverged: Diverged | None = None

    def measure(
        self, steps: int, loss: float, seconds: float, average: Tensor, config: FitConfig, noise: NoiseConfig
    ) -> None:
        """Record what came of `steps` more steps, after which the averaged weights are `average` (P,)."""
        try:
            is_best = measure(self.result, steps, loss, seconds, self.held_out, noise, self.seed)
        except Diverged as error:
            self.diverged = error.with_traceback(None)  # which leads to the rows, and would keep them alive
            return
        if is_best:
            self.best = average.clone()

    def kept(self, average: Tensor, config: FitConfig) -> Tensor:
        """The weights that it ends with."""
        if self.best is not None and keeps_best(config, self.result.history):
            return self.best
        return average.clone()

    def is_over(self, config: FitConfig) -> bool:
        return self.diverged is not None or is_over(self.result, config)


@dataclass
class _State:
    """What changes from round to round. All but the last are (S, P), a row a member."""

    weights: Tensor
    average: Tensor
    adam_mean: Tensor
    adam_square: Tensor
    adam_step: Tensor

    @classmethod
    def initial(cls, weights: Tensor) -> _State:
        mean, square = torch.zeros_like(weights), torch.zeros_like(weights)
        return cls(weights, weights.clone(), mean, square, weights.new_zeros(()))

    def of(self, places: list[int]) -> _State:
        """A copy with some of the members only."""
        mean, square = self.adam_mean[places], self.adam_square[places]
        return _State(self.weights[places], self.average[places], mean, square, self.adam_step)


class _Trainer:
    """The members that go on, all at the same step, and a stretch of steps as a function of their state."""

    def __init__(
        self,
        members: list[_Member],
        state: _State,
        flat: FlatWeights,
        config: FitConfig,
        noise: NoiseConfig,
        dtype: torch.dtype,
    ) -> None:
        self.members, self.state, self.config, self.noise = members, state, config, noise
        network, device = members[0].result.network, state.weights.device
        self.skip, self.batch, self.round_steps = network.skip, config.batch_for(len(members[0].rows)), config.ema_every
        self.working = state.weights.to(dtype)  # the weights themselves, where they have this type
        self.gradient = torch.zeros_like(self.working)
        self.parameters, self.gradients = windows(flat, self.working), windows(flat, self.gradient)
        self.loss_sums = state.weights.new_zeros(len(members))
        # What a round is given: its noisy rows, its learning rates, how far the averages move at its end.
        size = (self.round_steps, len(members), self.batch)
        self.inputs = torch.zeros(*size, network.columns, device=device, dtype=dtype)
        self.features = torch.zeros(*size, network.level_in.in_features, device=device, dtype=dtype)
        self.target = state.weights.new_zeros(*size, network.columns)
        self.rates = state.weights.new_zeros(self.round_steps)
        self.average_rate = state.weights.new_zeros(())
        for member, average in zip(members, state.average, strict=True):
            flat.bind(member.result.network, average)
        changing = [*vars(state).values(), self.working, self.loss_sums]
        self._captured = compute.capture(self._whole_round, device, changing)

    def run(self, first: int, rates: Tensor) -> list[float]:
        """Steps `first` onwards, one for each of the `rates`. Returns the mean loss of each member."""
        self.loss_sums.zero_()
        for at, some in enumerate(torch.split(rates.to(self.rates.device), self.round_steps)):
            self._run_round(first // self.round_steps + at, some)
        return [total / len(rates) for total in self.loss_sums.tolist()]  # waits for the device

    def _run_round(self, number: int, rates: Tensor) -> None:
        """A round, of fewer steps than a whole one only at the very end."""
        count = self.round_steps * self.batch
        for place, member in enumerate(self.members):
            rows, fitted, source, seed = member.rows, member.fitted, member.source, member.seed
            inputs, level, target = draw_round(rows, fitted, self.noise, source, seed, number, count)
            features = member.result.network.features(level)
            for drawn, given in ((inputs, self.inputs), (features, self.features), (target, self.target)):
                given[:, place] = drawn.view(self.round_steps, self.batch, -1)
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
        s, c = self.state, self.config
        given = (self.features[step], self.inputs[step], self.target[step])
        self.loss_sums.add_(losses_and_gradients(self.parameters, *given, self.gradients, skip=self.skip))
        s.adam_step.add_(1)
        # In turn, because each has the norm of its own gradient. The time goes into reading and writing the weights.
        for member in range(len(self.members)):
            adam_step(
                s.weights[member], self.working[member], self.gradient[member], s.adam_mean[member],
                s.adam_square[member], s.adam_step, self.rates[step], clip=c.clip, beta1=c.beta1, beta2=c.beta2,
            )  # fmt: skip

    def close(self) -> None:
        """Let go of what is captured: on a CPU it refers back to the trainer, which would keep the rows alive."""
        del self._captured


def fit_together(
    rows: Sequence[Tensor],
    network: NetworkConfig,
    config: FitConfig,
    noise: NoiseConfig,
    *,
    seeds: Sequence[int],
    precision: compute.Precision = "auto",
    start: Sequence[Network | None] | None = None,
    held_out: Sequence[Tensor | None] | None = None,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> list[FitResult | Diverged]:
    """Fit a denoiser for each of the `rows` (N, D), scaled, N as each has it, on the device where they are.

    Every member comes out as from `fit` with its rows, its seed, its `start` and its marks in `held_out`; one that
    diverges as the error that `fit` would have raised. Seconds are those of all members together, a budget of minutes
    is theirs, too. With a `checkpoint` path the state of all is kept there every minute, and a call with the same
    arguments goes on from it; when the fits are over it is the caller's to remove.
    """
    starts = [None] * len(rows) if start is None else start
    marks = [None] * len(rows) if held_out is None else held_out
    _check(rows, seeds, starts, marks, config)
    device = rows[0].device
    precision = compute.pick_precision(precision, device)
    advice = "fit fewer seeds together, lower fit.batch or network.width, or fit on a share of the rows"
    with compute.matmul_precision(precision), compute.working_on(device, advice), torch.inference_mode(False):
        members = []
        for given, seed, one, chosen in zip(rows, seeds, starts, marks, strict=True):
            first, fitted, apart = begin(given, network, config, seed, one, chosen)
            result = FitResult(first.to(device).requires_grad_(False), 0, 0.0)
            members.append(_Member(given, fitted, apart, seed, result, torch.Generator(device)))
        kept = None
        if checkpoint is not None:
            kept = Checkpoint(checkpoint, rows, network, config, noise, list(seeds), precision, starts, marks)
        _fit(members, config, noise, compute.working_dtype(precision), kept, progress or Silent())
    return [member.diverged or member.result for member in members]


def _fit(
    members: list[_Member],
    config: FitConfig,
    noise: NoiseConfig,
    dtype: torch.dtype,
    kept: Checkpoint | None,
    progress: Progress,
) -> None:
    flat = FlatWeights(members[0].result.network)
    going, state = members, _State.initial(torch.stack([flat.gather(member.result.network) for member in members]))
    if kept is not None and kept.exists():
        going, state = _taken_up(members, flat, *kept.load())
        log.info("going on from step %d of %s", going[0].result.steps, kept.path)
    done, saved = going[0].result.steps, going[0].result.seconds
    began = time.monotonic() - saved
    with progress.phase("fit", config.steps, done) as phase:
        while going:
            trainer = _Trainer(going, state, flat, config, noise, dtype)
            staying = list(range(len(going)))
            while len(staying) == len(going):
                rates = next_rates(config, going[0].result)
                losses = trainer.run(going[0].result.steps, rates)
                seconds = time.monotonic() - began
                for member, loss, average in zip(going, losses, state.average, strict=True):
                    member.measure(len(rates), loss, seconds, average, config, noise)
                phase.advance(len(rates), _noted(going))
                staying = [place for place, member in enumerate(going) if not member.is_over(config)]
                if kept is not None and len(staying) == len(going) and seconds - saved >= SAVE_SECONDS:
                    kept.save(*_to_keep(members, going, state, flat))
                    saved = seconds
            trainer.close()
            for place in set(range(len(going))).difference(staying):
                flat.bind(going[place].result.network, going[place].kept(state.average[place], config))
            state, going = state.of(staying), [going[place] for place in staying]


def _to_keep(
    members: list[_Member], going: list[_Member], state: _State, flat: FlatWeights
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """For a checkpoint: the state of those who go on, the weights of those who are done, and how each of them went."""
    tensors, courses = dict(vars(state)), []
    for place, member in enumerate(members):
        goes_on = any(member is one for one in going)
        if goes_on and member.best is not None:
            tensors[f"best.{place}"] = member.best
        if not goes_on and member.diverged is None:
            tensors[f"done.{place}"] = flat.gather(member.result.network)
        diverged = None if member.diverged is None else str(member.diverged)
        courses.append({"goes_on": goes_on, "diverged": diverged, "course": member.result.course()})
    return tensors, {"members": courses}


def _taken_up(
    members: list[_Member], flat: FlatWeights, tensors: dict[str, Tensor], course: dict[str, Any]
) -> tuple[list[_Member], _State]:
    """Bring the members to where the checkpoint was written: those who go on from there, and their state."""
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
    return going, _State(**{name: tensors[name] for name in _State.__dataclass_fields__})


def _check(
    rows: Sequence[Tensor],
    seeds: Sequence[int],
    starts: Sequence[Network | None],
    marks: Sequence[Tensor | None],
    config: FitConfig,
) -> None:
    counts = [len(each) for each in (rows, seeds, starts, marks)]
    if not rows or len(set(counts)) > 1:
        raise ConfigError(
            "expected rows, a seed, and where given a start and held-out marks for each of at least one member, "
            "got {} of rows, {} seeds, {} starts, {} of marks".format(*counts)
        )
    columns, places = {each.shape[1] for each in rows}, {each.device for each in rows}
    if len(columns) > 1 or len(places) > 1:
        raise ConfigError(
            f"expected rows of one width on one device, got {sorted(columns)} columns on {sorted(map(str, places))}: "
            "fit the others apart"
        )
    batches = {config.batch_for(len(each)) for each in rows}
    if len(batches) > 1:
        raise ConfigError(f"the numbers of rows call for batches of {sorted(batches)}: set fit.batch to one for all")


def _noted(members: list[_Member]) -> str:
    """The latest measurements in words, for progress: their means."""
    latest = [member.result.history[-1] for member in members if member.diverged is None]
    names = [name for name in ("loss", "held_out") if latest and all(name in entry for entry in latest)]
    means = {name: sum(entry[name] for entry in latest) / len(latest) for name in names}
    return f"{noted(means)}, {len(latest)} going" if means else "diverged"
