"""Measure the quality of a default fit on environments that it was not tuned on. Prints one table.

    python benchmarks/environments.py --folder environments --out results/environments.md

Collects 20,000 rows of each environment into FOLDER, fits a preset, and samples the same number of rows. The table has
these figures of the synthetic rows, where they can be measured:

- the share of observations, and of transitions, that are possible in the environment
- the difference to the simulator's next observation (median and root mean square, in stds) and reward (mean)
- the share of correct terminals: the lower one of precision and recall, with the simulator's terminals as the truth
- how much more the change of position differs from the velocity than in real rows
- the share of bodies of which some contact forces are 0 and others are not
- the measures and the verdict of `synther assess`

Results in FOLDER are not measured again. Use a new folder after you change the generator. Needs `minigrid`, `box2d`
and MuJoCo in addition to Gymnasium.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from law_tables import possible, tabular
from machine import command_line, keep, origin, print_table
from numpy.typing import NDArray

from synther import Synthesizer, Transitions, read, write
from synther.assess.judge import assess
from synther.durable import replacing
from synther.envs.simulator import simulate, supports

Array = NDArray[Any]
Policy = Callable[[Any, Array, np.random.Generator], Any]
"""A function that chooses an action from the environment, its observation and a random generator."""

MINIGRID = "MiniGrid-Empty-Random-6x6-v0"
OBSTACLES = "MiniGrid-Dynamic-Obstacles-6x6-v0"
Steps = Mapping[tuple[int, int], float]
"""The change of a column in one step per unit of its velocity, for pairs of columns: position and velocity."""
LANDER_STEPS: Steps = {(0, 2): 0.01, (1, 3): 0.0225}
WALKER_STEPS: Steps = {(0, 1): 0.5, (4, 5): 0.08, (9, 10): 0.08}
ANT_FORCES = range(27, 105, 6)
"""The first column of the six contact forces of each body of Ant."""
RANDOM = 0.3
"""Share of random actions of the policies that otherwise try to solve the task."""


@dataclass(frozen=True)
class Environment:
    """How to collect the rows of an environment, and how to compare synthetic rows with the truth."""

    collect: Callable[[int, int], Transitions]
    """Collects rows, given their number and a seed."""
    measure: Callable[[Transitions, Transitions], dict[str, float]]
    """Returns figures by name, given real and synthetic rows."""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder for data and results")
    parser.add_argument("--only", nargs="+", choices=ENVIRONMENTS, default=list(ENVIRONMENTS), help="environments")
    parser.add_argument("--preset", default="auto", help="auto chooses a preset for this machine")
    parser.add_argument("--rows", type=int, default=20_000, help="rows to collect and to fit on")
    parser.add_argument("--samples", type=int, default=20_000, help="rows to sample")
    parser.add_argument("--fit-steps", type=int, help="fit steps instead of the preset's, for example for a short test")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    head = origin()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for name in chosen.only:
        if not _place(chosen, name).exists():
            _measure(name, chosen, head)
    text = _table([json.loads(_place(chosen, name).read_text()) for name in chosen.only])
    keep(chosen.out, head, text)


def _place(chosen: argparse.Namespace, name: str) -> Path:
    folder: Path = chosen.folder
    return folder / f"{name}-{chosen.preset}.json"


def _measure(name: str, chosen: argparse.Namespace, head: list[str]) -> None:
    place = _place(chosen, name)
    real = rows_of(name, chosen.folder, chosen.rows, chosen.seed)
    changes: dict[str, Any] = {"fit": {"steps": chosen.fit_steps}} if chosen.fit_steps else {}
    began = time.perf_counter()
    model = Synthesizer(chosen.preset, seed=chosen.seed, **changes).fit(real, progress=False)
    fitted = time.perf_counter()
    synthetic = model.sample(chosen.samples, seed=chosen.seed + 1, progress=False)
    drawn = time.perf_counter()
    env_id = real.env_id if real.env_id is not None and supports(real.env_id) else None
    judged = assess(
        real, synthetic, simulator=None if env_id is None else partial(simulate, env_id), simulator_name=env_id
    )
    line = {
        "environment": name,
        "rows": len(real),
        "samples": len(synthetic),
        "preset": chosen.preset,
        "fit_seconds": fitted - began,
        "sample_seconds": drawn - fitted,
        "figures": ENVIRONMENTS[name].measure(real, synthetic),
        "measures": {measure.name: [measure.value, measure.real] for measure in judged.measures},
        "verdict": judged.verdict.decision,
        "settings": model.settings.to_json(),
        "origin": head,
    }
    with replacing(place) as beside:
        beside.write_text(json.dumps(line) + "\n")
    print("  ".join(_cells(line)), flush=True)


def rows_of(name: str, folder: Path, rows: int, seed: int) -> Transitions:
    """Return rows of an environment from the file in `folder`. If there is no file, collect the rows first."""
    place = folder / f"{name}-{rows}-{seed}.npz"
    if not place.exists():
        write(ENVIRONMENTS[name].collect(rows, seed), place)
    return read(place)


def _table(lines: list[dict[str, Any]]) -> str:
    header = ["environment", "observations that exist", "possible transitions"]
    header += [
        "next observation off: median",
        "root mean square",
        "reward off",
        "right terminals",
        "disagreement",
        "half in contact",
        "AUC",
        "coverage",
        "marginal",
        "verdict",
        "fit",
        "sample",
    ]
    return print_table(header, [_cells(line) for line in lines])


def _cells(line: Mapping[str, Any]) -> list[str]:
    figures, measures = line["figures"], line["measures"]

    def figure(name: str, form: str) -> str:
        return format(figures[name], form) if name in figures else "-"

    def beside_real(name: str) -> str:
        value, real = measures[name]
        return "-" if value is None else f"{value:.3f}" + ("" if real is None else f" (real {real:.3f})")

    return [
        line["environment"],
        figure("observations", ".1%"),
        figure("transitions", ".1%"),
        figure("median_off", ".4f"),
        figure("off", ".3f"),
        figure("reward_off", ".2g"),
        figure("terminals", ".1%"),
        figure("disagreement", ".1f"),
        figure("half_in_contact", ".1%"),
        *map(beside_real, ("auc", "coverage", "marginal")),
        line["verdict"],
        f"{line['fit_seconds']:.0f} s",
        f"{line['sample_seconds']:.0f} s",
    ]


def _steps(env: Any, policy: Policy, count: int, seed: int) -> Iterator[tuple[Array, Any, float, Array, bool, bool]]:
    """Yield (observation, action, reward, next observation, terminal, timeout) of `count` steps."""
    draw = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    for step in range(count):
        action = policy(env, observation, draw)
        following, reward, terminal, timeout, _ = env.step(action)
        yield observation, action, float(reward), following, terminal, (timeout or step == count - 1) and not terminal
        observation = env.reset()[0] if terminal or timeout else following


def roll_out(env: Any, policy: Policy, rows: int, seed: int, **known: Any) -> Transitions:
    """Return rows of consecutive episodes. `known` are further fields of the rows."""
    names = ("observation", "action", "reward", "next_observation", "terminal", "timeout")
    columns = zip(*_steps(env, policy, rows, seed), strict=True)
    fields: dict[str, Any] = {name: np.asarray(column) for name, column in zip(names, columns, strict=True)}
    return Transitions(**fields, **known)


def _at_random(env: Any, observation: Array, draw: np.random.Generator) -> Any:
    return draw.integers(env.action_space.n)


def _anywhere(env: Any, observation: Array, draw: np.random.Generator) -> Any:
    space = env.action_space
    return draw.uniform(space.low, space.high).astype(space.dtype)


def _gymnasium(env_id: str, policy: Policy, options: Mapping[str, Any], rows: int, seed: int) -> Transitions:
    import gymnasium

    env = gymnasium.make(env_id, **options)
    return roll_out(env, policy, rows, seed, env_id=env_id, env_options=dict(options))


def _minigrid_image(env_id: str = MINIGRID) -> Any:
    import gymnasium
    import minigrid  # noqa: F401  # registers its environments

    return gymnasium.wrappers.TransformObservation(
        gymnasium.make(env_id), lambda seen: seen["image"].reshape(-1), gymnasium.spaces.Box(0, 255, (147,), np.uint8)
    )


def _collect_minigrid(rows: int, seed: int) -> Transitions:
    return roll_out(_minigrid_image(), _at_random, rows, seed)


def minigrid_truth() -> tuple[set[bytes], set[tuple[bytes, int, bytes]]]:
    """Return all possible observations and all transitions (o, a, o'): every action in every cell and direction."""
    env = _minigrid_image()
    env.reset(seed=0)
    inner = env.unwrapped
    observations, transitions = set(), set()
    for x, y, way, action in np.ndindex(inner.width, inner.height, 4, int(env.action_space.n)):
        if inner.grid.get(x, y) is not None:  # a wall or the goal
            continue
        inner.agent_pos, inner.agent_dir, inner.step_count = (x, y), way, 0
        before = inner.gen_obs()["image"].tobytes()
        after = env.step(action)[0].tobytes()
        observations |= {before, after}
        transitions.add((before, action, after))
    return observations, transitions


def _judge_minigrid(real: Transitions, synthetic: Transitions) -> dict[str, float]:
    known, steps = minigrid_truth()
    before, after = ([row.tobytes() for row in side] for side in (synthetic.observation, synthetic.next_observation))
    done = zip(before, synthetic.action.tolist(), after, strict=True)
    return {
        "distinct": len(known),
        "observations": float(np.mean([one in known for one in before + after])),
        "transitions": float(np.mean([one in steps for one in done])),
    }


def _collect_obstacles(rows: int, seed: int) -> Transitions:
    return roll_out(_minigrid_image(OBSTACLES), _at_random, rows, seed)


def _judge_obstacles(real: Transitions, synthetic: Transitions) -> dict[str, float]:
    """Return the share of observations that occur in the real rows. Not all can be listed: obstacles move at random."""
    known = {row.tobytes() for side in (real.observation, real.next_observation) for row in side}
    seen = [row.tobytes() in known for side in (synthetic.observation, synthetic.next_observation) for row in side]
    return {"observations": float(np.mean(seen))}


def _land(env: Any, observation: Array, draw: np.random.Generator) -> Any:
    """Return the action of Gymnasium's heuristic for LunarLander, or sometimes a random action."""
    from gymnasium.envs.box2d.lunar_lander import heuristic

    if draw.random() < RANDOM:
        return draw.uniform(-1, 1, 2).astype(np.float32) if env.unwrapped.continuous else draw.integers(4)
    action = heuristic(env, observation)  # type: ignore[no-untyped-call]
    return action.astype(np.float32) if env.unwrapped.continuous else action


def _disagreement(steps: Steps, rows: Transitions) -> Array:
    """Return the part of the change of each position that the next velocity does not explain, as root mean square."""
    off = [
        rows.next_observation[:, place]
        - rows.observation[:, place].astype(np.float64)
        - scale * rows.next_observation[:, velocity]
        for (place, velocity), scale in steps.items()
    ]
    return np.asarray(np.sqrt(np.mean(np.square(off), 1)))


def _judge_steps(steps: Steps, real: Transitions, synthetic: Transitions) -> dict[str, float]:
    return {"disagreement": float(np.max(_disagreement(steps, synthetic) / _disagreement(steps, real)))}


def _judge_ant(real: Transitions, synthetic: Transitions) -> dict[str, float]:
    """Return the share of bodies of which some forces are 0 and others are not."""
    zero = [synthetic.observation[:, first : first + 6] == 0 for first in ANT_FORCES]
    return {"half_in_contact": float(np.mean([forces.any(1) & ~forces.all(1) for forces in zero]))}


def _judge_table(name: str, real: Transitions, synthetic: Transitions) -> dict[str, float]:
    return {"transitions": float(possible(name, synthetic).mean())}


def blackjack_possible(rows: Transitions) -> Array:
    """Mark the rows that the rules of blackjack allow: (s, a, s') with reward and terminal, (N,)."""
    total, dealer, ace = rows.observation.T
    after, shown, usable = rows.next_observation.T
    state = (total >= np.where(ace == 1, 12, 4)) & (total <= 21) & (dealer >= 1) & (dealer <= 10) & (shown == dealer)
    stuck = (after == total) & (usable == ace) & rows.terminal & np.isin(rows.reward, (-1, 0, 1))
    hard = total - 10 * (ace == 1)
    drawn = np.zeros(len(rows), bool)
    for card in range(1, 11):
        soft = ((ace == 1) | ((card == 1) & (hard <= 10))) & (hard + card <= 11)
        drawn |= (after == hard + card + 10 * soft) & (usable == soft)
    bust = after > 21
    drawn &= (rows.terminal == bust) & (rows.reward == np.where(bust, -1, 0))
    return np.asarray(state & np.where(rows.action == 0, stuck, drawn))


def _judge_blackjack(real: Transitions, synthetic: Transitions) -> dict[str, float]:
    return {"transitions": float(blackjack_possible(synthetic).mean())}


def _balance(env: Any, observation: Array, draw: np.random.Generator) -> Any:
    """Push the cart of CartPole to the side to which the pole falls."""
    return draw.integers(2) if draw.random() < RANDOM else int(observation[2] + 0.5 * observation[3] > 0)


def _swing(env: Any, observation: Array, draw: np.random.Generator) -> Any:
    """Push the car of MountainCar in the direction in which it moves, which adds energy."""
    return draw.integers(3) if draw.random() < RANDOM else 2 * int(observation[1] >= 0)


def _swing_up(env: Any, observation: Array, draw: np.random.Generator) -> Any:
    """Apply a torque to Acrobot that depends on the direction in which the second link turns. This lifts the arm."""
    return draw.integers(3) if draw.random() < RANDOM else 2 * int(observation[5] > 0)


def _push(env: Any, observation: Array, draw: np.random.Generator) -> Any:
    """Push the car of continuous MountainCar in the direction in which it moves, with random force."""
    way = 1 if observation[1] >= 0 else -1
    return np.array([draw.uniform(-1, 1) if draw.random() < RANDOM else way * draw.uniform(0.5, 1)], np.float32)


def _judge_simulated(env_id: str, real: Transitions, synthetic: Transitions) -> dict[str, float]:
    """Compare synthetic outcomes with the simulator's outcomes of the same observations and actions."""
    following, reward, ended = simulate(env_id, synthetic.observation, synthetic.action, processes=1)
    std = real.next_observation.std(0, dtype=np.float64)
    varies = std > 0
    off = (synthetic.next_observation - following)[:, varies] / std[varies]
    most = max(int(synthetic.terminal.sum()), int(ended.sum()))
    return {
        "off": float(np.sqrt(np.mean(off**2))),
        "median_off": float(np.median(np.abs(off))),
        "reward_off": float(np.mean(np.abs(synthetic.reward - reward))),
        "terminals": float((synthetic.terminal & ended).sum() / most) if most else 1.0,
    }


_WIND = {"enable_wind": True}
ENVIRONMENTS = {
    "minigrid": Environment(_collect_minigrid, _judge_minigrid),
    "lunarlander": Environment(
        partial(_gymnasium, "LunarLander-v3", _land, _WIND), partial(_judge_steps, LANDER_STEPS)
    ),
    "lunarlander-continuous": Environment(
        partial(_gymnasium, "LunarLander-v3", _land, _WIND | {"continuous": True}), partial(_judge_steps, LANDER_STEPS)
    ),
    "frozenlake": Environment(partial(tabular, "frozenlake"), partial(_judge_table, "frozenlake")),
    "taxi": Environment(partial(tabular, "taxi"), partial(_judge_table, "taxi")),
    "blackjack": Environment(partial(_gymnasium, "Blackjack-v1", _at_random, {}), _judge_blackjack),
    "cartpole": Environment(partial(_gymnasium, "CartPole-v1", _balance, {}), partial(_judge_simulated, "CartPole-v1")),
    "mountaincar": Environment(
        partial(_gymnasium, "MountainCar-v0", _swing, {}), partial(_judge_simulated, "MountainCar-v0")
    ),
    "acrobot": Environment(partial(_gymnasium, "Acrobot-v1", _swing_up, {}), partial(_judge_simulated, "Acrobot-v1")),
    "pendulum": Environment(
        partial(_gymnasium, "Pendulum-v1", _anywhere, {}), partial(_judge_simulated, "Pendulum-v1")
    ),
    "reacher": Environment(partial(_gymnasium, "Reacher-v5", _anywhere, {}), partial(_judge_simulated, "Reacher-v5")),
    "mountaincar-continuous": Environment(
        partial(_gymnasium, "MountainCarContinuous-v0", _push, {}),
        partial(_judge_simulated, "MountainCarContinuous-v0"),
    ),
    "obstacles": Environment(_collect_obstacles, _judge_obstacles),
    "bipedalwalker": Environment(
        partial(_gymnasium, "BipedalWalker-v3", _anywhere, {}), partial(_judge_steps, WALKER_STEPS)
    ),
    "ant": Environment(partial(_gymnasium, "Ant-v5", _anywhere, {}), _judge_ant),
}


if __name__ == "__main__":
    main()
