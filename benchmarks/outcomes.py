"""Compare the generator as a dynamics model with an ensemble of networks. Prints one table.

    python benchmarks/outcomes.py                # the shipped hopper rows, and a world with known noise
    python benchmarks/outcomes.py --data walker2d.npz --rows 50000

Outcomes are sampled for observations and actions of held-out episodes, 8 for each. *Error* is the error of their mean,
*spread* is their std. Both are in stds of the real changes.
"""

from __future__ import annotations

import numpy as np
from law_worlds import noise
from machine import command_line, keep, origin, print_table

from synther import Synthesizer, Transitions, read
from synther.data.episodes import episode_ids
from synther.formats.shipped import path as shipped
from synther.relevance.dynamics import Ensemble, OneStep, one_step

HELD_OUT = 2_000
"""Number of held-out rows."""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", help="a file of rows; default: the shipped hopper-sac and the world `noise`")
    parser.add_argument("--rows", type=int, default=20_000, help="rows to fit")
    parser.add_argument("--preset", default="auto")
    chosen = parser.parse_args()
    head = origin()
    table = []
    worlds = (
        {chosen.data: read(chosen.data)}
        if chosen.data
        else {
            "hopper-sac": read(shipped("hopper-sac")),
            "noise": noise(chosen.rows + HELD_OUT, 0),
        }
    )
    for name, rows in worlds.items():
        fitted, held_out = _split(rows, chosen.rows)
        model = Synthesizer(chosen.preset).fit(fitted, progress=False)
        ensemble = Ensemble.fit(fitted)

        def generated(
            observation: np.ndarray, action: np.ndarray, seed: int, model: Synthesizer = model
        ) -> Transitions:
            return model.sample(given={"observation": observation, "action": action}, seed=seed, progress=False)

        for who, outcomes in (("generator", generated), ("ensemble", ensemble.outcomes)):
            table.append([name, who, *_figures(one_step(outcomes, held_out))])
    columns = ["data", "model", "error of s'", "spread of s'", "error of the reward", "spread of the reward"]
    keep(chosen.out, head, print_table(columns, table))


def _split(rows: Transitions, count: int) -> tuple[Transitions, Transitions]:
    """Return rows to fit, and held-out rows of other episodes."""
    rows = rows[: count + HELD_OUT]
    ids = episode_ids(rows)
    held = np.zeros(len(rows), bool)
    held[-HELD_OUT:] = True
    if ids is not None:
        held = ids >= ids[-HELD_OUT]
    return rows[~held], rows[held][:HELD_OUT]


def _figures(found: OneStep) -> list[str]:
    return [f"{value:.4f}" for value in (found.error, found.spread, found.reward_error, found.reward_spread)]


if __name__ == "__main__":
    main()
