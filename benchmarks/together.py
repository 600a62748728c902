"""Compare the time to fit the denoisers of several seeds together with the time of one alone. Prints one table.

    python benchmarks/together.py                # the GPU if there is one, else the CPU

On a GPU: the paper's network (6 x 1024), 100K steps of batch 256, on random rows of 42 columns. Their number is that of
an agent halfway through a run of 100K steps. On a CPU: a small network and few steps, only to show that it works. The
last column is the held-out loss of the first seed. It must be the same in every line, except for rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from machine import command_line, keep, origin, print_table

from synther.compute import Precision, pick_device, synchronize
from synther.diffusion.config import FitConfig, NetworkConfig, NoiseConfig
from synther.diffusion.fit import Diverged, FitResult, fit_together
from synther.diffusion.networks import Network

_ROWS, _COLUMNS, _WARM_UP = 50_000, 42, 20
_TARGETS = {"one alone": "27 s", "6 together": "92 s"}  # 100K steps in bf16 on one H200


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, help="steps of each fit; default: 100,000 on a GPU, else 200")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--precision", default="auto", choices=["auto", "bf16", "tf32", "float32"])
    chosen = parser.parse_args()
    device = pick_device(chosen.device)
    head = origin(device)
    steps = chosen.steps or (100_000 if device.type == "cuda" else 200)
    table = _table(device, steps, chosen.seeds, chosen.precision)
    keep(chosen.out, head, table)


def _table(device: torch.device, steps: int, seeds: int, precision: Precision) -> str:
    whole = device.type == "cuda"
    network = NetworkConfig() if whole else NetworkConfig(width=128, depth=3)
    rows = [_rows(seed).to(device) for seed in range(seeds)]
    noise = NoiseConfig()

    def together(members: int, count: int) -> FitResult[Network] | Diverged:
        config, given = FitConfig(steps=count, batch_size=256), rows[:members]
        return fit_together(given, network, config, noise, seeds=range(members), precision=precision)[0]

    works: dict[str, Callable[[int], FitResult[Network] | Diverged]] = {
        "one alone": lambda count: together(1, count),
        f"{seeds} together": lambda count: together(seeds, count),
    }
    lines, first = [], 0.0
    for name, work in works.items():
        work(_WARM_UP)  # loads the libraries and kernels
        seconds, loss = _timed(work, steps, device)
        first = first or seconds
        target = _TARGETS.get(name, "-") if whole and steps == 100_000 else "-"
        lines.append([f"{steps:,} steps, {name}", target, f"{seconds:.1f} s", f"{seconds / first:.2f}", loss])
    return print_table(["work", "target", "time", "times one alone", "held-out loss"], lines)


def _rows(seed: int) -> torch.Tensor:
    """Return random rows. Their number depends on the seed (up to 10 % more or less), as it does for agents."""
    source = torch.Generator().manual_seed(seed)
    return torch.randn(_ROWS + _ROWS // 10 * (seed % 3 - 1), _COLUMNS, generator=source)


def _timed(work: Callable[[int], FitResult[Network] | Diverged], steps: int, device: torch.device) -> tuple[float, str]:
    synchronize(device)
    began = time.perf_counter()
    result = work(steps)
    synchronize(device)
    seconds = time.perf_counter() - began
    return seconds, str(result) if isinstance(result, Diverged) else f"{result.history[-1]['held_out']:.5f}"


if __name__ == "__main__":
    main()
