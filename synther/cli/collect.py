"""`synther collect ENV --steps 100K --policy AGENT.safetensors --out DATA`, `synther collect RUN --out DATA`"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from synther.cli import options
from synther.cli.answer import answer
from synther.errors import ConfigError

if TYPE_CHECKING:
    from synther.data.transitions import Transitions

_STEPS, _POLICY = 100_000, "random"


@dataclass
class Collect(options.Output):
    """Keep experience as a data set: episodes of a policy in an environment, or the real buffer of an online run.

    Episodes are played on all cores. OUT appears when it is whole; one that exists is not replaced.
    """

    source: tyro.conf.Positional[str] = tyro.MISSING
    """An id of Gymnasium or of the dm_control suite, such as Hopper-v4, or a folder written by `synther online`."""
    out: str = tyro.MISSING
    """A file (.npz, .hdf5, .parquet), minari:NAMESPACE/NAME-v0, or a folder, which becomes a Minari data set."""
    steps: int | None = None
    """Rows to collect in an environment; 100K, which is what it is unless said, is understood."""
    policy: str | None = None
    """random, which it is unless said, FILE.npz:ENV/LEVEL, or an agent's file (.safetensors) of `train` or `online`."""
    member: int | None = None
    """Which of the agents in its file acts, from 0 on; the first unless said."""
    noise: float | None = None
    """Deviation of what is added to an agent's actions, where these lie in [-1, 1]; none unless said."""
    seed: int | None = None
    """The same seed gives the same rows, on however many cores; 0 unless said."""


def run(arguments: list[str]) -> None:
    chosen = options.parse("collect", Collect, arguments)
    from synther.data import formats
    from synther.experiments.collect import Summary, target_of

    target = target_of(chosen.out)
    rows = _rows(chosen)
    formats.write(target, rows)
    found = Summary.of(rows)
    facts = {"data": str(target), "env_id": rows.env_id, **asdict(found)}
    short = found.episodes - found.whole
    figures = [
        ("environment", rows.env_id or "-"),
        ("rows", f"{found.rows:,}"),
        ("episodes", f"{found.episodes:,}" + (f", {short:,} of them cut" if short else "")),
    ]
    if found.mean_return is not None:
        figures.append(("return", f"{found.mean_return:,.1f} ± {found.deviation:,.1f}"))
    if found.score is not None:
        figures.append(("score", f"{found.score:.1f}"))
    figures.append(("data", str(target)))
    answer(chosen.json, facts, figures)


def _rows(chosen: Collect) -> Transitions:
    from synther.experiments.collect import buffer_of, roll_out

    folder = Path(chosen.source).expanduser()
    if folder.is_dir():
        given = [name for name in ("steps", "policy", "member", "noise", "seed") if getattr(chosen, name) is not None]
        if given:
            raise ConfigError(f"{folder} is a run, whose rows are there already: --{given[0]} is for an environment")
        return buffer_of(folder)
    return roll_out(
        chosen.source,
        _POLICY if chosen.policy is None else chosen.policy,
        _STEPS if chosen.steps is None else chosen.steps,
        member=chosen.member,
        noise=chosen.noise,
        seed=chosen.seed or 0,
        progress=not chosen.quiet,
    )
