"""Find out which generator suits latents: train heads on its rows, and test them on held-out real episodes.

    synther pixels encode runs/stage-one cheetah-run-expert.hdf5 --out latents
    python benchmarks/latents.py latents/seed-0.npz      # on the GPU if there is one
    python benchmarks/latents.py latents/seed-0.npz --device cpu --width 256 --depth 4 --steps 3000 --samples 20000

Neither an environment nor a renderer is needed. A fifth of the episodes is held out, with all shifts of their frames.
Heads of the agent that encoded the frames are trained on the other real rows, on synthetic rows, and on half of each.
The columns of the table:

- error of actions: mean squared error, for actions in [-1, 1]. At starts: the same for the first decisions of episodes.
- error of values (DrQ+BC): root mean square difference to the discounted rewards that follow in the episode, relative
  to the std of these. Rewards after the end of an episode are assumed to be the mean reward of the data. Only the first
  half of each episode is used, where this assumption matters little. The correlation ignores scale and offset.
- spread of outcomes: std of next latents and reward around a linear prediction from observation and action, relative
  to the same on held-out rows. Below 1, outcomes are too certain.
- starts: the share of rows for which the nearest real row is at the start of an episode.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from machine import command_line, keep, origin, print_table
from numpy.typing import NDArray

from synther import Synthesizer, Transitions, preset, read
from synther.agents.agent import Agent
from synther.agents.critics import min_over_critics, values
from synther.agents.drq_bc import DrQBC, HeadsConfig
from synther.agents.rows import Arm, Member, Rows
from synther.compute import pick_device
from synther.data.episodes import episode_ends
from synther.data.spaces import Box
from synther.experiments.pixels import heads_of, latents_in
from synther.presets import LATENTS

Array = NDArray[Any]

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper, 32 calls": ("fast", {}),
    "best": ("best", {}),
    "best, p_mean -0.4": ("best", {"noise": {"p_mean": -0.4}}),
    "best, standard scaling": ("best", {"data": {"scaling": "standard"}}),
    "best, no residuals": ("best", {"data": {"residuals": "none"}}),
    "best, all three": ("best", dict(LATENTS)),
}
_MOST = 20_000
"""Largest number of rows that are measured."""
_NOISY = 0.23
"""Share of the updates in which the exploration noise of the heads decreases, as in V-D4RL."""


class Split(NamedTuple):
    """Real rows, split by episode."""

    fitted: Transitions
    fitted_place: Array
    """Index of each of these rows within its episode."""
    held_out: Transitions
    held_out_place: Array
    returns: Array
    """Sum of discounted rewards from each held-out row on. NaN in the second half of an episode."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("latents", type=Path, help="a file that `synther pixels encode` wrote")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--steps", type=int, default=50_000, help="steps of a fit")
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=20_000, help="updates of the heads")
    parser.add_argument("--seeds", type=int, default=6, help="number of heads that are averaged")
    parser.add_argument("--starts", type=int, default=5, help="number of decisions that are the start of an episode")
    parser.add_argument("--only", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    chosen = parser.parse_args(arguments)
    device = pick_device(chosen.device)
    head = origin(device)
    about, rows = latents_in(chosen.latents.parent), read(chosen.latents)
    heads = heads_of(about["run"]["agent"], about["features"])
    heads = replace(heads, stddev_updates=max(1, round(_NOISY * chosen.updates)))
    split = split_by_episode(rows, heads, seed=0)
    train: dict[str, Any] = {"updates": chosen.updates, "seeds": range(chosen.seeds), "starts": chosen.starts}
    (errors,) = errors_of_heads([split.fitted], heads, split, device, **train)
    table = [["the real rows", *errors, *figures(split.held_out, split, chosen.starts, device), "-", "-", "-"]]
    print(" | ".join(table[0]), flush=True)
    shape: dict[str, Any] = {"network": {"width": chosen.width, "depth": chosen.depth}, "fit": {"steps": chosen.steps}}
    for name in chosen.only:
        base, changes = VARIANTS[name]
        began = time.monotonic()
        model = Synthesizer(preset(base, **shape).changed(**changes), device=str(device))
        model.fit(split.fitted, progress=False)
        loss, seconds = f"{model.measured['held_out']:.4f}", f"{time.monotonic() - began:,.0f} s"
        made = model.sample(chosen.samples, seed=0, progress=False)
        own = *figures(made, split, chosen.starts, device), str(len(model.layout.names)), loss, seconds
        alone, half = errors_of_heads([made, split.fitted], heads, split, device, **train)
        table += [[name, *alone, *own], [f"{name}, half real", *half, *["-"] * len(own)]]
        for line in table[-2:]:
            print(" | ".join(line), flush=True)
    header = ["heads on", "error of actions", "at starts", "error of values", "correlation", "spread of outcomes"]
    text = print_table([*header, "starts", "columns", "held-out loss of the fit", "fit"], table)
    size = f"{len(split.fitted):,} rows to learn from, {len(split.held_out):,} held out."
    keep(chosen.out, head, size, "", text)


def split_by_episode(rows: Transitions, heads: HeadsConfig, *, seed: int) -> Split:
    """Hold out a fifth of the episodes, at least one.

    Episodes with the same actions are random shifts of the same episode. They stay together.
    """
    spans = [slice(*span) for span in pairwise([0, *(np.flatnonzero(episode_ends(rows)) + 1).tolist()])]
    names = [rows.action[span].tobytes() for span in spans]
    episodes = sorted(set(names))
    if len(episodes) < 2:
        raise SystemExit(f"expected latents of at least two episodes, got {len(episodes)}: encode more frames")
    drawn = np.random.default_rng(seed).permutation(len(episodes))[: max(1, len(episodes) // 5)]
    kept_back = {episodes[number] for number in drawn}
    place = np.concatenate([np.arange(span.stop - span.start) for span in spans])
    out = np.repeat([name in kept_back for name in names], [span.stop - span.start for span in spans])
    tail = rows.reward[: len(out)][~out].mean() / (1 - heads.row_discount)
    returns = np.concatenate([_returns(rows[span], heads, tail) for span in spans])
    numbers = np.arange(len(out))
    fitted, held_out = numbers[~out], numbers[out]
    return Split(rows[fitted], place[fitted], rows[held_out], place[held_out], returns[held_out])


def _returns(episode: Transitions, heads: HeadsConfig, tail: float) -> Array:
    """Return the sum of discounted rewards from each row on, with NaN in the second half of the episode.

    A row covers `nstep` decisions, and the next row begins one decision later. `tail` is the value after the end.
    """
    found = np.empty(len(episode))
    for at in reversed(range(len(episode))):
        later = at + heads.nstep
        after = found[later] if later < len(episode) else tail
        found[at] = episode.reward[at] + (0.0 if episode.terminal[at] else heads.row_discount * after)
    found[len(found) - len(found) // 2 :] = np.nan
    return found


def errors_of_heads(
    tables: list[Transitions],
    heads: HeadsConfig,
    split: Split,
    device: torch.device,
    *,
    updates: int,
    seeds: Sequence[int],
    starts: int,
) -> list[list[str]]:
    """Train heads and return their errors as text: heads on the first table and, if there is a second table, heads on
    half of each."""
    arms = [Arm(), *([Arm((0, 1), (0.5, 0.5))] if len(tables) > 1 else [])]
    (space,) = split.fitted.action_space or ()
    assert isinstance(space, Box)
    rows = Rows(tables, device=device, low=space.low, high=space.high)
    agent = Agent(heads, rows, [Member(seed, arm) for arm in arms for seed in seeds])
    agent.train(updates)
    some = np.linspace(0, len(split.held_out) - 1, min(_MOST, len(split.held_out))).astype(int)
    held_out, place, returns = split.held_out[some], split.held_out_place[some], split.returns[some]
    low, high = np.array(space.low), np.array(space.high)
    seen = agent.algorithm._of_actor if isinstance(agent.algorithm, DrQBC) else slice(None)
    acted = agent.policy(device).act(held_out.observation[:, seen])
    wrong = np.square(2 * (acted - held_out.action) / (high - low)).mean(2)  # (members, rows)
    valued = _values(agent, held_out, low, high)
    found = []
    for own in np.split(np.arange(len(agent.members)), len(arms)):
        errors = [wrong[own].mean(1), wrong[own][:, place < starts].mean(1)]
        if valued is not None:
            known = np.isfinite(returns)
            wanted, got = returns[known], valued[own][:, known]
            errors.append(np.sqrt(np.square(got - wanted).mean(1)) / wanted.std())
            errors.append(np.array([np.corrcoef(one, wanted)[0, 1] for one in got]))
        texts = [f"{error.mean():.3f} ± {error.std():.3f}" for error in errors]
        found.append([*texts, *["-"] * (4 - len(texts))])
    return found


@torch.no_grad()
def _values(agent: Agent, rows: Transitions, low: Array, high: Array) -> Array | None:
    """Return the critics' values of the rows, (members, rows), or None for heads without critics."""
    own = agent.algorithm
    if not isinstance(own, DrQBC):
        return None
    action = torch.as_tensor(2 * (rows.action - low) / (high - low) - 1, dtype=torch.float32, device=agent.device)
    seen = torch.as_tensor(rows.observation[:, own._of_critic], dtype=torch.float32, device=agent.device)
    members = len(agent.members)
    parts = (
        min_over_critics(values(own.critics, *(part.expand(members, *part.shape) for part in some)))
        for some in zip(torch.split(seen, 4_096), torch.split(action, 4_096), strict=True)
    )
    return torch.cat(list(parts), 1).cpu().numpy()


def figures(rows: Transitions, split: Split, starts: int, device: torch.device) -> Iterator[str]:
    """Yield the spread of outcomes and the share of starts, as text."""
    some = rows[np.linspace(0, len(rows) - 1, min(_MOST, len(rows))).astype(int)]
    given, outcome = (_matrix(split.fitted, kind, device) for kind in ("given", "outcome"))
    weights = torch.linalg.lstsq(given, outcome, driver="gels").solution

    def spread(rows: Transitions) -> torch.Tensor:
        off = _matrix(rows, "outcome", device) - _matrix(rows, "given", device) @ weights
        return torch.std(off, 0)

    usual = spread(split.held_out)
    random = usual > 1e-6
    yield f"{float((spread(some) / usual)[random].median()):.2f}"
    real = torch.cat([given, outcome], 1)
    scale = real.std(0)
    scale[scale < 1e-6] = 1.0
    own = torch.cat([_matrix(some, kind, device) for kind in ("given", "outcome")], 1) / scale
    at_start = torch.from_numpy(split.fitted_place < starts).to(device)
    nearest = torch.cat([torch.cdist(part, real / scale).argmin(1) for part in torch.split(own, 1_024)])
    yield f"{100 * float(at_start[nearest].float().mean()):.2f} %"


def _matrix(rows: Transitions, kind: str, device: torch.device) -> torch.Tensor:
    if kind == "given":
        parts = [rows.observation, rows.action, np.ones((len(rows), 1))]
    else:
        parts = [rows.reward[:, None], rows.next_observation]
    return torch.as_tensor(np.concatenate(parts, 1), dtype=torch.float32, device=device)


if __name__ == "__main__":
    main()
