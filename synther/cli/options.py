"""Options that several commands share, numbers like 5M, presets as defaults, and specs built from options."""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, fields, make_dataclass
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, get_type_hints

import tyro

from synther import config_file
from synther.data.transitions import Transitions
from synther.diffusion.config import DistillConfig, FitConfig, NetworkConfig, NoiseConfig, SamplerConfig
from synther.errors import ConfigError, SyntherError
from synther.presets import DataConfig, Settings, preset
from synther.schema import printable

if TYPE_CHECKING:
    from synther.agents.algorithm import AgentConfig

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""Off by default. Flags whose default depends on a preset have a `--no-NAME` too."""

On = Annotated[Flag, tyro.conf.arg(help_behavior_hint="(default: False)")]
"""On by default, so its flag is `--no-NAME`; without the hint, help would call that the default."""


@dataclass(frozen=True)
class Output:
    """How the command answers."""

    json: Flag = False
    """Print one JSON object on stdout instead of a table."""
    quiet: Flag = False
    """Report no progress on stderr."""
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """Read options from a TOML file. Options of the command line win."""
    write_config: Path | None = None
    """Write the given options as a TOML file for --config, and stop."""

    def passed(self, *names: str) -> dict[str, Any]:
        """Some options, and whether progress is shown, for a function that calls them the same."""
        return {name: getattr(self, name) for name in names} | {"progress": not self.quiet}


Options = TypeVar("Options", bound=Output)
Built = TypeVar("Built")
Place = TypeVar("Place", str, Path, Path | None)


_DATA = "A file (.npz, .hdf5, .parquet), a folder of Parquet files, a Minari id or folder, or a name: hopper-sac ..."
Data = Annotated[tyro.conf.Positional[str], tyro.conf.arg(help=_DATA)]
Results = Annotated[Path, tyro.conf.arg(help="Folder for the results.")]


@dataclass(frozen=True)
class Named(Output):
    """Where data sets are found by their names."""

    folder: Annotated[Path | None, tyro.conf.arg(name="data")] = None
    """Folder with data sets: walker2d-mixed.npz, D4RL's or V-D4RL's own files. Rolled-out data sets are kept there."""
    policies: Path | None = None
    """File of policies (.npz), with which missing data sets can be rolled out."""

    def read(self, source: str, seed: int = 0, most: int = sys.maxsize) -> Transitions:
        """The rows of a file, a Minari id or a named data set. Of Parquet files of more than `most` rows some."""
        from synther import datasets
        from synther.formats.stream import read_at_most

        is_name = self.folder is not None or self.policies is not None or datasets.is_known(source)
        if is_name and not Path(source).expanduser().exists():
            return datasets.read(source, data=self.folder, seed=seed, **self.passed("policies")).rows
        return read_at_most(source, seed, most)


@dataclass(frozen=True)
class Preparing(Named):
    """What rows are made from the data."""

    n_step: int = 1
    """Make n-step rows: the rewards of N steps, the observation after them, and their discount as an extra column."""
    discount: float = 0.99
    """Discount of a step, for --n-step."""
    next_actions: Flag = False
    """Add the next action of each row as an extra column, for agents such as rebrac."""

    def read_real(self, source: str, seed: int = 0, most: int = sys.maxsize) -> Transitions:
        """The rows of `read`, prepared."""
        from synther.data.episodes import prepared

        return prepared(self.read(source, seed, most), self.n_step, self.next_actions, self.discount)


@dataclass(frozen=True)
class Machine(Output):
    """Where the command runs."""

    device: str = "auto"
    """Device to run on: auto (a GPU if there is one), cpu, cuda or cuda:N."""
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    """auto is bf16 on a GPU and float32 on a CPU."""
    seed: int = 0
    """The same seed on the same machine gives the same result."""


@dataclass(frozen=True)
class Engine(Output):
    """Who does several pieces of work: runs, or the files of a folder. See `synther.engines`."""

    engine: Literal["local", "ray"] = "local"
    """local: this machine, one after another. ray: the workers of a Ray cluster, several at once."""
    parallel: int = 1
    """With local: how many at the same time, each in its own process. They share a GPU by CUDA MPS, if it is there."""
    gpus: float | None = None
    """With ray: GPUs of a worker; 0.5 for two workers on each GPU."""
    address: str | None = None
    """With ray: the address of a running cluster, such as 10.0.0.1:6379."""

    def run_by(self) -> Any:
        """These options as `engines.run_all` takes them."""
        return {name: getattr(self, name) for name in ("engine", "parallel", "gpus", "address")}


@dataclass(frozen=True)
class Asking(Output):
    """Which rows are asked for."""

    condition: tuple[str, ...] = ()
    """Conditions by name, and which rows: reward=top:0.1, bottom:0.1, between:0.4:0.6 (quantiles) or a value."""
    guidance: float = 1.0
    """How much the condition counts: 1 is as in the real rows, more exaggerates."""


@dataclass(frozen=True)
class Guiding(Output):
    """Whose actions synthetic rows have."""

    policy: Path | None = None
    """Draw rows with the actions of these agents: checkpoint.safetensors of `synther train` or `synther online`."""
    policy_strength: float = 1.0
    """With --policy: from 0, the actions of the data, to 1, those of the agents."""
    policy_std: float | None = None
    """With --policy: standard deviation of actions about theirs. Default: that of edac and sac agents, 0 for others."""

    def check_policy(self) -> None:
        """Refuse options of a policy that is not there."""
        if self.policy is None:
            refuse(self, ("policy_strength", "policy_std"), "is for --policy, which is not given: add it")


@dataclass(frozen=True)
class Fitting(Machine):
    """How a model is fitted. The preset sets the defaults of the last six groups."""

    of_latents: ClassVar[bool] = False
    """Whether latents are fitted, for which the preset `auto` has other settings."""

    preset: str = "auto"
    """A name of `synther presets`; auto is laptop without a GPU, best with one, with other settings for latents."""
    fraction: float | None = None
    """Use a random fraction of the rows."""
    minutes: float | None = None
    """Stop fitting after this many minutes (short for --fit.minutes)."""
    fit: FitConfig = field(default_factory=FitConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    data_options: Annotated[DataConfig, tyro.conf.arg(name="data")] = field(default_factory=DataConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)

    def part(self, rows: Transitions) -> Transitions:
        return rows if self.fraction is None else rows.subsample(self.fraction, self.seed)

    def settings(self) -> Settings:
        chosen = Settings(self.network, self.noise, self.fit, self.sampler, self.data_options, self.distill)
        return chosen if self.minutes is None else chosen.changed(fit={"minutes": self.minutes})


def parse(verb: str, options: type[Options], arguments: list[str]) -> Options:
    """Arguments as an `options` object; a preset among them sets the defaults of the others."""
    defaults: dict[str, Any] = {}
    if issubclass(options, Fitting):
        defaults = _preset_defaults(arguments, options.of_latents)
    known = list(config_file.options_of(options))
    if source := ahead(arguments, config="").config:
        config_file.ConfigFile.read(Path(source).expanduser()).check(verb, known)
        arguments = [word for word in arguments if word not in {option.superfluous for option in known}]
    parsed: Options = tyro.cli(
        options,
        prog=f"synther {verb}",
        args=arguments,
        default=options(**defaults) if defaults else tyro.constructors.MISSING_NONPROP,
        config=(tyro.conf.PositionalMetavarFromFieldName,),
        registry=readers(),
    )
    if isinstance(parsed, Machine) and parsed.seed < 0:
        raise ConfigError(f"--seed must be at least 0, got {parsed.seed}")
    if parsed.write_config is not None:
        config_file.write(parsed.write_config, verb, parsed, named(arguments), known)
        raise SystemExit(0)
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(_OneLine("synther: %(message)s"))
    logging.basicConfig(handlers=[shown])
    logging.getLogger("synther").setLevel(logging.WARNING if parsed.quiet else logging.INFO)
    return parsed


class _OneLine(logging.Formatter):
    """Messages hold names out of files, which may hold anything."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


def parse_with_agent(
    verb: str, options: type[Options], arguments: list[str], default: AgentConfig, *hidden: str
) -> tuple[Options, dict[str, Any]]:
    """The options of a verb, and those of the agent, `--agent.NAME`, without the `hidden` ones.

    The name of a flag would depend on its default, so agents have none: `--agent.deterministic False`.
    """
    own: Any = options  # mypy takes the hash of a class for that of its instances
    parsed = parse(verb, _with_agent(own, default, hidden), arguments)
    return parsed, {one.name: getattr(parsed.config, one.name) for one in fields(parsed.config) if one.init}


@cache
def _with_agent(options: type[Options], default: AgentConfig, hidden: tuple[str, ...]) -> Any:
    """The options of a verb with those of the agent as their field `config`."""
    kind, hints = type(default), get_type_hints(type(default))
    shown = [option.name for option in fields(kind) if option.init and option.name not in hidden]
    hide = {name: Annotated[hints[name], tyro.conf.Suppress] for name in hints if name not in shown}
    fixed = [(name, hint, field(default=getattr(default, name), init=False)) for name, hint in hide.items()]
    config: Any = make_dataclass(kind.__name__, fixed, bases=(kind,), frozen=True)
    values = {name: getattr(default, name) for name in shown}
    annotated = Annotated[config, tyro.conf.FlagConversionOff, tyro.conf.arg(name="agent")]
    group = ("config", annotated, field(default_factory=lambda: config(**values)))
    return make_dataclass(
        options.__name__, [group], bases=(options,), frozen=True, namespace={"__doc__": options.__doc__}
    )


def build(kind: type[Built], chosen: Output, **own: Any) -> Built:
    """A spec of some `kind`, from the options of the same names; `own` are its other fields."""
    names = {option.name for option in fields(kind)} - own.keys()  # type: ignore[arg-type]
    return kind(**{name: getattr(chosen, name) for name in names if hasattr(chosen, name)}, **own)


def from_anywhere(path: Place) -> Place:
    """A path as workers in other folders find it; what is no path here, such as the name of a data set, as it is."""
    if path is None or not Path(path).expanduser().exists():
        return path
    return type(path)(Path(path).expanduser().resolve())


def refuse(chosen: Output, names: Iterable[str], why: str) -> None:
    """Refuse options that are not left at their defaults; `why` says what they are for."""
    for name in names:
        if getattr(chosen, name) != getattr(type(chosen), name):
            raise ConfigError(f"--{'data' if name == 'folder' else name.replace('_', '-')} {why}")


def positional(options: type[Output], arguments: list[str], names: Collection[str], default: str) -> str:
    """Look ahead for the first argument that is one of `names`, and not the value of an option such as `--out`."""
    flags = {name for one in fields(options) if isinstance(one.default, bool) for name in (one.name, f"no_{one.name}")}
    for before, word in pairwise(["", *arguments]):
        is_value = before.startswith("--") and "=" not in before and before[2:].replace("-", "_") not in flags
        if word in names and not is_value:
            return word
    return default


def ahead(arguments: list[str], **defaults: str) -> argparse.Namespace:
    """Look ahead for some options, because the defaults of others depend on them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", default=default)
    try:
        return parser.parse_known_args(arguments)[0]
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None


def named(arguments: list[str]) -> list[str]:
    """The arguments without values, and options as help spells them: `--refresh_every=9` as `--refresh-every`."""
    return [word.partition("=")[0].replace("_", "-") for word in arguments]


def parse_count(text: str) -> int:
    """5M, 100K, 1.5M, 2_000, 1e6 or 42 as a whole number."""
    match = re.fullmatch(r"(-?[\d_]*\.?\d+(?:e\d{1,2})?)([KMB]?)", text.strip(), re.IGNORECASE)
    factor = {"": 1, "K": 1_000, "M": 1_000_000, "B": 1_000_000_000}
    value = Decimal(match[1].replace("_", "")) * factor[match[2].upper()] if match else Decimal("0.5")
    if value != int(value):
        raise ValueError(f"expected a whole number such as 5M, 100K or 1_000, got {text!r}")
    return int(value)


def _env_options(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):  # no ValueError, around which tyro would draw a box
        example = '{"max_episode_steps": 500}'
        raise SyntherError(f"--env-options must be a JSON object, such as {example!r}, got {text!r}")
    return found


# A shell leaves the ~ of `--out=~/runs` as it is.
_READERS: dict[Any, Callable[[str], Any]] = {
    int: parse_count,
    float: float,
    str: str,
    Path: lambda text: Path(text).expanduser(),
    dict[str, Any]: _env_options,
}


def _rule(kind: Any, optional: bool = False) -> Callable[[tyro.constructors.PrimitiveTypeInfo], Any]:
    """How options of a `kind` are read and shown. Help does not mention that they may be None."""
    wanted = kind | None if optional else kind
    taken: Any = {float: (float, int), dict[str, Any]: dict}.get(kind, kind)
    spec = tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar={Path: "PATH", dict[str, Any]: "JSON"}.get(kind, kind.__name__.upper()),
        instance_from_str=lambda words: None if optional and words[0] == "None" else _READERS[kind](words[0]),
        is_instance=lambda value: isinstance(value, taken) or (optional and value is None),
        str_from_instance=lambda value: [_shown(value) if kind is int else str(value)],
    )
    return lambda info: spec if info.type == wanted else None


def readers() -> tyro.constructors.ConstructorRegistry:
    """How tyro reads our options."""
    registry = tyro.constructors.ConstructorRegistry()
    for kind in _READERS:
        registry.primitive_rule(_rule(kind))
        registry.primitive_rule(_rule(kind, optional=True))
    return registry


def _shown(value: int | None) -> str:
    """1000000 as 1M and 5000 as 5K, where that is exact."""
    for size, letter in ((1_000_000, "M"), (1_000, "K")):
        if value and value % size == 0:
            return f"{value // size}{letter}"
    return str(value)


def _preset_defaults(arguments: list[str], latents: bool) -> dict[str, Any]:
    known = ahead(arguments, preset="auto", device="auto")
    gpu = False
    if known.preset == "auto" and not {"-h", "--help"} & set(arguments):
        from synther.compute import pick_device

        gpu = pick_device(known.device).type == "cuda"
    chosen = preset(known.preset, gpu=gpu, latents=latents)
    parts = {part.name: getattr(chosen, part.name) for part in fields(chosen)}
    return {"data_options" if name == "data" else name: part for name, part in parts.items()}
