"""SynthER: learn from the experience of a reinforcement-learning agent, and generate any amount of similar experience.

from synther import Synthesizer, read

real = read("walker2d-mixed.hdf5")
model = Synthesizer("paper").fit(real)
fake = model.sample(5_000_000)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synther.conditions import between, bottom, top
    from synther.data.transitions import Transitions
    from synther.errors import SyntherError
    from synther.formats import read, write
    from synther.presets import Settings, preset
    from synther.replay.synthetic import SyntheticReplay
    from synther.synthesizer import Synthesizer

__version__ = "0.2.0"

__all__ = [
    "Settings", "SyntherError", "Synthesizer", "SyntheticReplay", "Transitions", "between", "bottom", "preset", "read",
    "top", "write",
]  # fmt: skip

# The module that defines each public name.
_HOMES = {
    "Settings": "synther.presets",
    "SyntherError": "synther.errors",
    "Synthesizer": "synther.synthesizer",
    "SyntheticReplay": "synther.replay.synthetic",
    "Transitions": "synther.data.transitions",
    "between": "synther.conditions",
    "bottom": "synther.conditions",
    "preset": "synther.presets",
    "read": "synther.formats",
    "top": "synther.conditions",
    "write": "synther.formats",
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used, so that `import synther` is fast.

    Importing all modules would also import PyTorch.
    """
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'synther' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
