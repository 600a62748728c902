"""`synther presets`"""

from __future__ import annotations

from dataclasses import dataclass

from synther.cli import options
from synther.cli.answer import answer, table
from synther.presets import ABOUT, PRESETS


@dataclass(frozen=True)
class Presets(options.Output):
    """List the presets and what they choose."""


def run(arguments: list[str]) -> None:
    chosen = options.parse("presets", Presets, arguments)
    if chosen.json:
        answer(True, {name: {"about": ABOUT[name], **settings.to_json()} for name, settings in PRESETS.items()}, [])
        return
    rows = []
    for name, settings in PRESETS.items():
        network, fit, sampler = settings.network, settings.fit, settings.sampler
        size, steps, calls = f"{network.depth} x {network.width}", f"{fit.steps:,}", str(sampler.network_calls)
        rows.append((name, size, steps, f"{sampler.kind} {sampler.steps}", calls, ABOUT[name]))
    table(("preset", "network", "fit steps", "sampler", "calls", "what for"), rows)
