"""Where the latent rows of a seed come from: they are there, in a file, or drawn from a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from synther.data import formats
from synther.data.fingerprint import fingerprint
from synther.data.transitions import Transitions
from synther.errors import ConfigError, FormatError
from synther.folder import digest_of, read_object
from synther.pixels.eyes import Features
from synther.progress import Progress
from synther.synthesizer import Synthesizer

_BYTES = 4
"""Of a number."""

_SUFFIXES = [suffix for suffixes in formats.FORMATS.values() for suffix in suffixes]


class LatentSource(Protocol):
    """Rows of one seed, which may be too many to have those of all seeds at once."""

    def description(self) -> dict[str, Any]:
        """What the rows depend on."""

    def size(self) -> int:
        """Bytes that the rows take, roughly."""

    def rows(self, progress: Progress) -> Transitions:
        """The same ones whenever they are asked for."""


@dataclass(frozen=True, eq=False)
class Held:
    """Rows that are there."""

    held: Transitions

    def description(self) -> dict[str, Any]:
        return {"rows": fingerprint(self.held)}

    def size(self) -> int:
        return sum(array.nbytes for array in self.held.arrays().values())

    def rows(self, progress: Progress) -> Transitions:
        return self.held


@dataclass(frozen=True)
class Stored:
    """Rows of a file."""

    file: Path

    def description(self) -> dict[str, Any]:
        return {"file": digest_of(self.file)}

    def size(self) -> int:
        return self.file.stat().st_size

    def rows(self, progress: Progress) -> Transitions:
        return formats.read(self.file)


@dataclass(frozen=True)
class Drawn:
    """So many rows of a saved model: sooner drawn again than read from a file, which is a hundred times its size."""

    model: Path
    samples: int
    seed: int
    device: str = "auto"

    def description(self) -> dict[str, Any]:
        return {"model": digest_of(self.model), "samples": self.samples, "seed": self.seed}

    def size(self) -> int:
        return _BYTES * self.samples * len(self._load().layout.names)

    def rows(self, progress: Progress) -> Transitions:
        return self._load().sample(self.samples, seed=self.seed, progress=progress)

    def _load(self) -> Synthesizer:
        return Synthesizer.load(self.model, device=self.device)


def file_of(folder: Path, seed: int) -> Path:
    """The rows of a seed in a folder that has a file for each: `seed-0.npz`, or another suffix."""
    found = [file for file in sorted(folder.glob(f"seed-{seed}.*")) if file.suffix.lower() in _SUFFIXES]
    if len(found) != 1:
        told = "none" if not found else ", ".join(file.name for file in found)
        raise FormatError(f"{folder}: expected one file seed-{seed} ({', '.join(_SUFFIXES)}), got {told}")
    return found[0]


def stored(folder: Path, run: dict[str, Any]) -> tuple[Features, list[LatentSource]]:
    """Whose features the latents in `folder` are, real or synthetic, and the file of each seed of `run`, which is what
    `trained.identity` says of the agents that they must be of."""
    about = latents_in(folder)
    if about["run"] != run:
        raise ConfigError(f"{folder} holds latents of other agents: encode the frames with these")
    return about["features"], [Stored(file_of(folder, seed)) for seed in run["seeds"]]


def latents_in(folder: Path) -> dict[str, Any]:
    """What a folder of latents, real or synthetic, says of itself."""
    about = read_object(folder / "run.json") if (folder / "run.json").exists() else {}
    if about.get("kind") not in ("latents", "synthetic") or not {"run", "features"} <= about.keys():
        raise ConfigError(f"{folder} holds no latents: expected the --out of `synther pixels encode` or `upsample`")
    return about
