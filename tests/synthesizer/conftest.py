"""Models fitted once for all files, and rows drawn from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from synther import Synthesizer, Transitions
from synther.diffusion.blocks import BlockSampler

from ..support.watch import Watch
from .rows import QUICK, TINY, made


@pytest.fixture
def drawn_blocks(monkeypatch) -> list[int]:
    """The numbers of the blocks that this process draws."""
    drawn: list[int] = []
    draw = BlockSampler.draw

    def counted(self, seed, block):
        drawn.append(block)
        return draw(self, seed, block)

    monkeypatch.setattr(BlockSampler, "draw", counted)
    return drawn


@pytest.fixture(scope="session")
def real() -> Transitions:
    return made()


@pytest.fixture(scope="session")
def watched_fit(real) -> tuple[Synthesizer, Watch]:
    watch = Watch()
    return Synthesizer("laptop", **TINY).fit(real, progress=watch), watch


@pytest.fixture(scope="session")
def model(watched_fit) -> Synthesizer:
    return watched_fit[0]


@pytest.fixture(scope="session")
def fake(model) -> Transitions:
    return model.sample(20_000, seed=0, progress=False)


@pytest.fixture(scope="session")
def saved(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    model.save(path)
    return path


@pytest.fixture(scope="session")
def quick() -> Synthesizer:
    """Poor rows, but soon."""
    return Synthesizer("laptop", **QUICK).fit(made(300), progress=False)
