"""Measure how much a refresh slows an agent on a CPU, in the foreground and in the background. Prints one table.

    python benchmarks/background.py                      # the preset laptop with 600 steps, 20,000 rows
    python benchmarks/background.py --steps 3500 --samples 100000 --threads 4

The agent's updates are those of a critic: three networks with two layers of width 256, and batches of 256. The table
has the updates per second before the refresh and during it. During a refresh in the foreground there are no updates.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from machine import command_line, keep, origin, print_table

from synther import SyntheticReplay, preset, read

ROWS, NETWORKS, BATCH = 5_000, 3, 256
ALONE = 5.0  # seconds for which updates are timed without a refresh


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    head = origin(torch.device("cpu"))
    update = _critic()
    alone = _rate(update, ALONE)
    table = []
    for background in (False, True):
        seconds, during = _refreshed(update, background, chosen.steps, chosen.samples)
        where = "background" if background else "foreground"
        table.append([where, f"{seconds:.1f} s", f"{alone:.0f}", f"{during:.0f}"])
    keep(chosen.out, head, print_table(["refresh in the", "takes", "updates a second before", "during it"], table))


def _critic() -> Callable[[], None]:
    width = 256
    networks = [
        torch.nn.Sequential(
            torch.nn.Linear(14, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, 1),
        )
        for _ in range(NETWORKS)
    ]
    optimizer = torch.optim.Adam([parameter for network in networks for parameter in network.parameters()])
    inputs, wanted = torch.randn(BATCH, 14), torch.randn(BATCH, 1)

    def update() -> None:
        optimizer.zero_grad()
        sum(((network(inputs) - wanted) ** 2).mean() for network in networks).backward()
        optimizer.step()

    return update


def _rate(update: Callable[[], None], seconds: float) -> float:
    began, updates = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        update()
        updates += 1
    return updates / (time.monotonic() - began)


def _refreshed(update: Callable[[], None], background: bool, steps: int, samples: int) -> tuple[float, float]:
    """Return the seconds of a refresh, and the agent's updates per second during it."""
    settings = preset("laptop", fit={"steps": steps})
    replay = SyntheticReplay(
        ROWS, refresh_every=10**9, samples=samples, preset=settings, background=background, device="cpu", progress=False
    )
    rows = read("hopper-sac")[:ROWS]
    replay.add(rows.observation, rows.action, rows.reward, rows.next_observation, rows.terminal)
    began, updates = time.monotonic(), 0
    replay.refresh()
    while not replay.history:
        update()
        updates += 1
        replay.sample(1)  # takes over the new rows once they are ready
    seconds = time.monotonic() - began
    return seconds, updates / seconds


if __name__ == "__main__":
    main()
