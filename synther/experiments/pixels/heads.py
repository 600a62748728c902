"""Stage two as a resumable run in a folder: the heads of pixel agents, trained anew on latents of each seed's own.

Latents of all seeds may be more than memory holds. Seeds are independent of each other, so they are trained together as
far as their rows fit, and those groups one after another, each in a folder of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import torch

from synther import compute
from synther.agents.agent import Agent
from synther.agents.drq_bc import DrQBCConfig
from synther.agents.policy import load_policy
from synther.agents.rows import Arm, Member, Rows
from synther.agents.stacked import Stack
from synther.data.transitions import Transitions
from synther.errors import ConfigError, DataError, FormatError
from synther.experiments import loop, tracking
from synther.experiments.pixels.stage_one import description, finish, identity, is_trained, kind_of, result_of
from synther.experiments.record import check_alive
from synther.experiments.results import Result
from synther.experiments.specs import PixelRun
from synther.folder import RunFolder
from synther.pixels.agent import PixelConfig
from synther.pixels.encoder import Features
from synther.pixels.policy import PixelPolicy, load_pixel_policy
from synther.progress import Progress, resolve

log = logging.getLogger(__name__)

ARM = "latents"
"""What results call heads that were trained on latents."""

_CPU_BYTES = 4 << 30
_GPU_SHARE = 0.25
"""Of the memory, that the rows of seeds which are trained together may take."""


class LatentSource(Protocol):
    """Latents of one seed; those of all seeds at once may be too many. See `experiments.sources`."""

    def description(self) -> dict[str, Any]: ...
    def size(self) -> int: ...
    def rows(self, file: None, progress: Progress) -> Transitions: ...


def retrain_to(
    spec: PixelRun,
    run: Path,
    sources: Sequence[LatentSource],
    folder: Path,
    *,
    features: Features,
    progress: Progress | bool = True,
) -> Result:
    """Train the heads of every seed of `run`, a folder of stage one, on the rows of its source. Encoder and trunks stay
    as they are. `folder` receives what stage one leaves behind, too, and a folder for each group of seeds.

    Of the spec, only the length and the machine matter: agents and seeds are those of `run`. Started again it resumes;
    with other rows or options it refuses to touch the folder.
    """
    own, about = identity(run), description(run)
    seeds: list[int] = about["seeds"]
    if len(sources) != len(seeds):
        raise ConfigError(f"{run} has {len(seeds)} seeds: expected rows for each of them, got {len(sources)}")
    policy = load_pixel_policy(run / loop.CHECKPOINT, features=features)
    device = compute.pick_device(spec.device)
    groups = _groups(sources, seeds, device)
    heads = _Retraining(spec, _heads_of(about["agent"], features), policy, folder)
    if spec.precision == "bf16":  # the products of heads alone are too small to gain from it
        raise ConfigError("heads are trained in float32 or tf32, got bf16")
    tracking.check(spec)
    described = {
        "kind": "heads",
        "run": own,
        "features": features,
        "rows": [source.description() for source in sources],
        "groups": [group.seeds for group in groups],
        **{name: getattr(spec, name) for name in ("updates", "measure_every", "precision")},
        "device": device.type,
        **{name: about[name] for name in ("seeds", "env_id", "action_repeat")},
    }
    written = RunFolder(folder)
    new = not written.begun
    with written.work(described, lambda: is_trained(folder)) as unfinished:
        if unfinished:
            others = len(groups) > 1
            with _taken_back(written) if new else nullcontext():
                result = _together(groups, [heads.train(group, resolve(progress), others) for group in groups])
            check_alive(result.updates, [place in result.diverged[ARM] for place in range(len(seeds))])
            finish(folder, result, policy.with_heads(_joined([heads.actor(group) for group in groups])))
        else:
            log.info("%s is trained already", folder)
    return result_of(folder)


@contextmanager
def _taken_back(written: RunFolder) -> Iterator[None]:
    """Rows that turn out to be wrong leave nothing in a folder just claimed, where the right ones would be refused."""
    try:
        yield
    except (ConfigError, DataError, FormatError):
        if not any(written.path.rglob(loop.CHECKPOINT)):
            written.release()
        raise


@dataclass(frozen=True)
class _Group:
    """Seeds whose rows fit into memory together."""

    seeds: list[int]
    sources: list[LatentSource]

    @property
    def name(self) -> str:
        return f"seeds-{self.seeds[0]}-{self.seeds[-1]}"


def _groups(sources: Sequence[LatentSource], seeds: Sequence[int], device: torch.device) -> list[_Group]:
    """In their order, as many together as fit, one at least: the same groups whenever it is asked on such a machine."""
    room = float(_CPU_BYTES)
    if device.type == "cuda":
        room = _GPU_SHARE * torch.cuda.get_device_properties(device).total_memory
    groups: list[_Group] = []
    taken = 0
    for source, seed in zip(sources, seeds, strict=True):
        size = source.size()
        if not groups or taken + size > room:
            groups.append(_Group([], []))
            taken = 0
        groups[-1].seeds.append(seed)
        groups[-1].sources.append(source)
        taken += size
    return groups


@dataclass(frozen=True)
class _Retraining:
    """The heads of one group after another."""

    spec: PixelRun
    heads: PixelConfig
    policy: PixelPolicy
    folder: Path

    def train(self, group: _Group, progress: Progress, others: bool) -> Result:
        """`others`: whether there are more groups than this."""
        folder = self.folder / group.name
        if is_trained(folder):
            return result_of(folder)
        RunFolder(folder).claim({"kind": "group", "seeds": group.seeds})
        tables = (self._checked(source.rows(None, progress)) for source in group.sources)
        device = compute.pick_device(self.spec.device)
        low, high = self.policy.low.numpy(), self.policy.high.numpy()
        with compute.working_on(device, "take fewer rows, or seeds"):
            rows = Rows(tables, device=device, low=low, high=high, count=len(group.sources))
        members = [Member(seed, Arm((place,), (1.0,), place)) for place, seed in enumerate(group.seeds)]
        precision: Any = self.spec.precision
        agent = Agent(self.heads, rows, members, precision=precision)
        how: dict[str, Any] = {"label": f"train {ARM}", "others": others}
        result = loop.train(agent, self.spec, folder, [ARM], group.seeds, progress, **how)
        finish(folder, result)
        return result

    def actor(self, group: _Group) -> Stack:
        return load_policy(self.folder / group.name / loop.CHECKPOINT).actor

    def _checked(self, rows: Transitions) -> Transitions:
        own, got = self.policy.trunk.features, rows.observation.shape[1]
        wanted = 2 * own if getattr(self.heads, "features", "shared") == "both" else own
        if got != wanted:
            raise DataError(f"expected latents of {wanted} columns for these heads, got {got}")
        return rows


def _heads_of(described: Mapping[str, Any], features: Features) -> PixelConfig:
    """The heads of an agent that a run has described, for latents of these features."""
    kind = kind_of(described["algorithm"])
    heads = kind(**{option.name: described[option.name] for option in fields(kind) if option.init})
    if isinstance(heads, DrQBCConfig):
        return replace(heads, features="both" if features == "both" else "shared")
    return heads


def _joined(actors: Sequence[Stack]) -> Stack:
    first = actors[0]
    return Stack(torch.cat([actor.weights for actor in actors]), first.sizes, first.free_size)


def _together(groups: Sequence[_Group], found: Sequence[Result]) -> Result:
    """One result of all groups, which were trained one after another."""
    parts = {part: sum(result.seconds_of[part] for result in found) for part in found[0].seconds_of}
    firsts = accumulate([len(group.seeds) for group in groups], initial=0)
    lost = tuple(first + seed for first, result in zip(firsts, found, strict=False) for seed in result.diverged[ARM])
    return replace(found[0], seconds=sum(parts.values()), seconds_of=parts, diverged={ARM: lost})
