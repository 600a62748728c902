"""Measure how long fitting and sampling take.

    python benchmarks/speed.py                   # the GPU if there is one, else the CPU
    python benchmarks/speed.py --device cpu      # how the time grows with rows, columns and width on this CPU
    python benchmarks/speed.py --decoding        # only the last table: sampling with and without decoding

On a GPU: the paper's network (6 x 1024) on 300K rows of 42 columns, 100K steps of batch 256 and 1024, and 1M rows with
the samplers of `paper` and `fast`. The times of the reference implementation and the theoretical bound are for an H200.
On a CPU: the demo, then the preset `laptop` with one quantity changed at a time, on random rows. Times of fits and of
samples are extrapolated from a part of the work.
On both, the last table: rows of a robot (17 observations, 6 actions, some at their limits). It shows the time to sample
them, the time to decode them (block by block into main memory, on one core of a CPU), and the time of `sample`, which
does both.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from machine import command_line, keep, origin, print_table

from synther import Synthesizer, Transitions, preset
from synther.compute import Precision, fetch, one_thread, pick_device, synchronize
from synther.data.decoding import Decoded, Decoder
from synther.diffusion.blocks import BlockSampler
from synther.diffusion.config import FitConfig, NetworkConfig, NoiseConfig, SamplerConfig
from synther.diffusion.fit import fit
from synther.diffusion.networks import Network
from synther.progress import Silent
from synther.synthesizer.drawing import Drawing

_FITS: tuple[tuple[int, Precision, str, str], ...] = (
    (256, "bf16", "692 s", "7 s"),
    (256, "tf32", "692 s", "-"),
    (256, "float32", "692 s", "-"),
    (1024, "bf16", "646 s", "12 s"),
)
"""Batch size, precision, time of the reference implementation, and theoretical bound of each fit."""
_FAST: tuple[Precision, ...] = ("bf16", "tf32")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=100_000, help="steps of the fits on the GPU")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows to sample on the GPU, and to decode")
    parser.add_argument("--decoding", action="store_true", help="only the table of sampling with and without decoding")
    chosen = parser.parse_args()
    device = pick_device(chosen.device)
    head, tables = origin(device), []
    if not chosen.decoding:
        tables = [_gpu(device, chosen.steps, chosen.rows) if device.type == "cuda" else _cpu(device), ""]
    keep(chosen.out, head, *tables, _decoding(device, chosen.rows))


def _timed(work: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def _draw(blocks: BlockSampler, count: int) -> None:
    for block in range(count):
        blocks.draw(0, block)


def _gpu(device: torch.device, steps: int, rows: int) -> str:
    noise, network = NoiseConfig(), NetworkConfig()
    data = torch.randn(300_000, 42, device=device)
    fit(data, network, FitConfig(steps=20), noise)  # loads the libraries and kernels
    table = []
    for batch, precision, reference, bound in _FITS:
        share = 1 if precision == "bf16" else 10
        config = FitConfig(steps=steps // share, batch_size=batch)
        seconds = share * _timed(partial(fit, data, network, config, noise, precision=precision), device)
        note = "" if share == 1 else f" ({share} times {steps // share:,})"
        table.append([f"{steps:,} fit steps, batch {batch}, {precision}{note}", reference, bound, f"{seconds:.1f} s"])
    net = Network(42, network).to(device).requires_grad_(False)
    for sampler, reference, bound in ((SamplerConfig(), "76 s", "4.2 s"), (preset("fast").sampler, "-", "0.5 s")):
        for precision in _FAST:
            blocks = BlockSampler(net, noise, sampler, precision)
            blocks.draw(0, 0)
            count = -(-rows // blocks.block_rows)
            seconds = _timed(partial(_draw, blocks, count), device)
            name = f"{rows:,} rows, {sampler.kind} in {sampler.steps} steps, {precision}"
            table.append(
                [
                    name,
                    reference if precision == "bf16" else "17.8 s" if sampler.kind == "sde" else "-",
                    bound,
                    f"{seconds:.2f} s",
                ]
            )
    for name in ("fast", "best"):
        model = Synthesizer(name, device=str(device), fit={"steps": 20}).fit(_rows(100_000, 17, 6), progress=False)
        model.sample(1000, progress=False)
        seconds = _timed(partial(model.sample, rows, progress=False), device)
        table.append([f"{rows:,} rows as Transitions in memory, `{name}`", "-", "-", f"{seconds:.2f} s"])
    return print_table(["work", "reference", "bound", "SynthER"], table)


def _rows(count: int, observations: int, actions: int) -> Transitions:
    """Return random rows. Only their number and shape matter here."""
    draw = np.random.default_rng(0)
    here, there = (draw.standard_normal((count, observations), np.float32) for _ in range(2))
    action = draw.uniform(-1, 1, (count, actions)).astype(np.float32)
    return Transitions(here, action, draw.standard_normal(count, np.float32), there, draw.random(count) < 0.01)


def _robot(count: int) -> Transitions:
    """Return rows of a robot: positions, velocities clipped at 10, actions clipped at 1. A fall is terminal."""
    draw = np.random.default_rng(0)
    position, velocity = draw.normal(0, 0.3, (count, 8)), draw.normal(0, 5, (count, 9)).clip(-10, 10)
    action = draw.normal(size=(count, 6)).clip(-1, 1)
    after = (0.8 * velocity + draw.normal(size=(count, 9))).clip(-10, 10)
    after[:, 3:] = (after[:, 3:] + action).clip(-10, 10)
    moved = position + 0.01 * after[:, 1:]
    here, there = np.concatenate([position, velocity], 1), np.concatenate([moved, after], 1)
    reward = after[:, 0] - 0.001 * (action**2).sum(1)
    f32 = np.float32
    return Transitions(here.astype(f32), action.astype(f32), reward.astype(f32), there.astype(f32), moved[:, 0] < -0.5)


def _decoding(device: torch.device, rows: int) -> str:
    name, steps = ("best", 200) if device.type == "cuda" else ("laptop", 100)
    model = Synthesizer(name, device=str(device), fit={"steps": steps}).fit(_robot(100_000), progress=False)
    model.distill(2, steps=steps // 2, rows=20_000, progress=False)
    columns = ["work", "drawn", "decoded", "`sample`", "peak on the GPU", "peak in main memory"]
    table = []
    for sampler in ("teacher", "distilled"):
        drawing = model._drawing(sampler, Silent()).ready()
        work = (
            f"{rows:,} rows, `{name}`, {drawing.config.network_calls} calls, decoded on {drawing.decoder.device.type}"
        )
        table.append([work, *_apart(drawing, partial(model.sample, rows, sampler=sampler, progress=False), rows)])
    return print_table(columns, table)


def _apart(drawing: Drawing, sample: Callable[[], object], rows: int) -> list[str]:
    """Return the seconds of sampling, of decoding and of both together, and the peaks of GPU and main memory."""
    sampler, decoder = drawing.sampler, drawing.decoder
    device, blocks, matrix = sampler.device, range(-(-rows // sampler.block_rows)), sampler.draw(0, 0)
    on_gpu = device.type == "cuda"
    draw = sampler.captured() if on_gpu else sampler.draw
    if on_gpu:
        sample()  # loads the libraries and kernels
        torch.cuda.reset_peak_memory_stats(device)
        drawn = _timed(lambda: deque((draw(0, block) for block in blocks), 0), device)
    else:
        drawn = _timed(lambda: deque(sampler.drawn(0, blocks, lambda *_: None), 0), device)
    with nullcontext() if on_gpu else one_thread():
        decoded = _timed(lambda: deque((_decode(decoder, matrix) for _ in blocks), 0), device)
    sampled = _timed(sample, device)
    gpu = torch.cuda.max_memory_allocated(device) / 2**30 if on_gpu else 0.0
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return [*(f"{each:.3f} s" for each in (drawn, decoded, sampled)), f"{gpu:.1f} GiB", f"{memory:.1f} GiB"]


def _decode(decoder: Decoder, matrix: torch.Tensor) -> Decoded:
    return decoder.rows(fetch(decoder.packed(matrix.to(decoder.device)))(), len(matrix))


def _cpu(device: torch.device) -> str:
    usual = {"rows": 20_000, "columns": 27, "width": 256}
    grown = {"rows": (80_000, 320_000), "columns": (54, 216), "width": (128, 512, 1024)}
    table = [_demo()]
    for change in [{}, *({quantity: size} for quantity, sizes in grown.items() for size in sizes)]:
        size = {**usual, **change}
        settings = preset("laptop", network={"width": size["width"]}, data={"threshold": "half"})
        some = 200 if size["width"] < 1024 else 40
        observations = (size["columns"] - 5) // 2
        data = _rows(size["rows"], observations, size["columns"] - 2 * observations - 2)
        model = Synthesizer(settings.changed(fit={"steps": some, "evaluate_every": some}), device="cpu")
        whole = _timed(partial(model.fit, data, progress=False), device)
        stepping = model.record.seconds
        fitting = whole - stepping + stepping * settings.fit.steps / some
        count = 8_192 if size["width"] < 1024 else 1_024
        sampling = _timed(partial(model.sample, count, progress=False), device) * 100_000 / count
        shape = [f"{size['rows']:,}", str(size["columns"]), f"4 x {size['width']}"]
        table.append([*shape, f"{fitting:.0f} s", f"{sampling:.0f} s", "-"])
    steps = preset("laptop").fit.steps
    return print_table(["rows", "columns", "network", f"fit, {steps:,} steps", "100,000 samples", "all in"], table)


def _demo() -> list[str]:
    """Time what `make demo` runs: read, fit, calibrate, sample, write, compare and draw."""
    with tempfile.TemporaryDirectory() as folder:
        words = f"-m synther upsample hopper-sac --samples 100K --out {folder}/demo --json --device cpu".split()
        began = time.perf_counter()
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - began
        model = Synthesizer.load(f"{folder}/demo/model.safetensors", device="cpu")
    sampling = next(line for line in done.stderr.splitlines() if line.startswith("sample: 100 %"))
    sampled = sampling.split(", ")[-1].split()[0]
    size = [f"{model.record.rows:,} (`make demo`)", str(model.layout.width), "4 x 256"]
    return [*size, f"{model.record.seconds:.0f} s", f"{float(sampled):.0f} s", f"{seconds:.0f} s"]


if __name__ == "__main__":
    main()
