"""Which generator suits latents: the error, on held-out real rows, of actions cloned from what it makes. One table.

    synther pixels encode runs/stage-one walker.hdf5 --out latents
    python benchmarks/latents.py latents/seed-0.npz      # on the GPU where there is one
    python benchmarks/latents.py latents/seed-0.npz --device cpu --width 256 --depth 4 --steps 3000 --samples 20000

The verdict needs no renderer: heads that clone actions have to find in synthetic rows what the policy did in real ones.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import command_line, keep, origin, print_table

from synther import Synthesizer, Transitions, preset, read
from synther.agents.agent import Agent
from synther.agents.bc import BCConfig
from synther.agents.rows import Member, Rows
from synther.compute import pick_device
from synther.presets import LATENTS

STANDARD = {"data": {"scaling": "standard"}}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper, 32 calls": ("fast", {}),
    "best": ("best", {}),
    "best, p_mean -1.2": ("best", {"noise": {"p_mean": -1.2}}),
    "best, p_mean -0.4": ("best", {"noise": {"p_mean": -0.4}}),
    "best, standard scaling": ("best", STANDARD),
    "best, no residuals": ("best", {"data": {"residuals": "none"}}),
    "best, all three": ("best", dict(LATENTS)),
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("latents", type=Path, help="rows as `synther pixels encode` writes them")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20_000, help="of a fit")
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--updates", type=int, default=5_000, help="of the clones, of which eight are averaged")
    parser.add_argument("--only", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    chosen = parser.parse_args()
    device = pick_device(chosen.device)
    head = origin(device)
    rows = read(chosen.latents)
    order = np.random.default_rng(0).permutation(len(rows))
    fitted, held_out = rows[order[len(rows) // 5 :]], rows[order[: len(rows) // 5]]
    table = [_line("the real rows", fitted, held_out, chosen.updates, device, "-", "-")]
    shape: dict[str, Any] = {"network": {"width": chosen.width, "depth": chosen.depth}, "fit": {"steps": chosen.steps}}
    for name in chosen.only:
        base, changes = VARIANTS[name]
        began = time.monotonic()
        model = Synthesizer(preset(base, **shape).changed(**changes), device=str(device))
        model.fit(fitted, progress=False)
        seconds = f"{time.monotonic() - began:,.0f} s"
        made = model.sample(chosen.samples, seed=0, progress=False)
        loss = f"{model.measured['held_out']:.4f}"
        table.append(_line(name, made, held_out, chosen.updates, device, loss, seconds))
        print(" | ".join(table[-1]), flush=True)
    header = ["clones of", "error of actions", "held-out loss of the fit", "fit"]
    text = print_table(header, table)
    keep(chosen.out, head, text)


def _line(
    name: str, rows: Transitions, held_out: Transitions, updates: int, device: torch.device, *more: str
) -> list[str]:
    return [name, _error(rows, held_out, updates, device), *more]


def _error(rows: Transitions, held_out: Transitions, updates: int, device: torch.device) -> str:
    """Mean squared, and how far clones of eight seeds spread."""
    agent = Agent(BCConfig(), Rows([rows], device=device), [Member(seed) for seed in range(8)])
    agent.train(updates)
    acted = agent.policy().act(held_out.observation)
    errors = np.square(acted - held_out.action).mean((1, 2))
    return f"{errors.mean():.4f} ± {errors.std():.4f}"


if __name__ == "__main__":
    main()
