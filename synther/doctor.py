"""Check this machine: versions, devices, rendering, memory, disk space and optional libraries."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from synther import compute
from synther.cores import cores
from synther.envs.camera import graphics
from synther.errors import SyntherError
from synther.origin import origin
from synther.progress import counted

State = Literal["ok", "missing", "low"]

LEAST_MEMORY, LEAST_DISK = 4e9, 5e9
"""Bytes of free memory and of free disk space below which they are reported as low.

A fit of a million rows should fit into the memory, and a file of five million synthetic rows on the disk.
"""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    state: State
    found: str
    advice: str = ""
    """What to do if something is missing or low. Empty if nothing has to be done."""


EXTRAS = {
    "parquet": ("pyarrow", "Parquet files"),
    "gym": ("gymnasium", "Gymnasium's environments: evaluation, simulators, recording"),
    "minari": ("minari", "Minari's data sets"),
    "sb3": ("stable_baselines3", "Stable-Baselines3's buffers"),
    "torchrl": ("torchrl", "TorchRL's buffers"),
    "d3rlpy": ("d3rlpy", "d3rlpy's data sets"),
    "dmc": ("dm_control", "the dm_control suite and pixel agents"),
    "mazes": ("gymnasium_robotics", "D4RL's mazes"),
    "worlds": ("minigrid", "MiniGrid and Box2D"),
    "stats": ("rliable", "statistics over tasks"),
    "track": ("tensorboard", "TensorBoard and Weights & Biases"),
    "ray": ("ray", "runs on a Ray cluster"),
    "tabular": ("ctgan", "TVAE and CTGAN, for comparison"),
}
"""For each extra of the package: a module that it installs, and its purpose."""


def examine(folder: Path) -> list[Finding]:
    """Run all checks. The free disk space is that of `folder`, where results would be written."""
    return [*_versions(), *_machine(folder), *_renderers(), *_extras()]


def _versions() -> list[Finding]:
    known = origin(torch.device("cpu"))
    core = [line for line in requires("synther") or [] if "extra ==" not in line]
    names = [
        "".join(letter if letter.isalnum() or letter in "-_" else " " for letter in line).split()[0] for line in core
    ]
    libraries = ", ".join(f"{name} {_version(name)}" for name in sorted(names))
    return [
        Finding("synther", "ok", known["synther"]),
        Finding("python", "ok", f"{platform.python_version()} at {sys.executable}"),
        Finding("libraries", "ok", libraries),
    ]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "?"


def _machine(folder: Path) -> list[Finding]:
    found = []
    for number in range(torch.cuda.device_count()):
        device = torch.device("cuda", number)
        free, total = torch.cuda.mem_get_info(device)
        found.append(
            Finding(f"cuda:{number}", "ok", f"{compute.describe(device)}, {_size(free)} of {_size(total)} free")
        )
    if not found:
        advice = "Optional: the presets best and paper need a GPU to be fast. Without a GPU, auto is the preset laptop."
        found.append(Finding("gpu", "missing", "PyTorch sees no CUDA device", advice))
    used = counted(cores(), "core"), counted(torch.get_num_threads(), "thread")
    found.append(Finding("cpu", "ok", ", ".join([platform.machine(), *used])))
    memory = _free_memory()
    if memory is not None:
        advice = "" if memory > LEAST_MEMORY else "Use fewer rows (--fraction), or a smaller preset (laptop)."
        found.append(Finding("memory", "low" if advice else "ok", f"{_size(memory)} free", advice))
    disk = shutil.disk_usage(folder).free
    advice = "" if disk > LEAST_DISK else "Choose an --out on another disk: 5M rows of walker2d take 0.9 GB."
    found.append(Finding("disk", "low" if advice else "ok", f"{_size(disk)} free in {folder}", advice))
    return found


def _free_memory() -> float | None:
    """Return the bytes of memory that programs can still allocate, or None if it is unknown."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError):
        return None


def _renderers() -> list[Finding]:
    if find_spec("mujoco") is None:
        return [Finding("renderer", "missing", "MuJoCo is not installed", "pip install 'synther[gym]'")]
    try:
        return [Finding("renderer", "ok", f"MuJoCo renders with {graphics()}")]
    except SyntherError as error:
        return [Finding("renderer", "missing", "MuJoCo cannot render", str(error))]


def _extras() -> list[Finding]:
    return [
        Finding(extra, "missing", f"for {purpose}", f"pip install 'synther[{extra}]'")
        if find_spec(module) is None
        else Finding(extra, "ok", f"{module} {_version(module)}: for {purpose}")
        for extra, (module, purpose) in EXTRAS.items()
    ]


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB"
