"""Parse the options of commands.

Every command has a frozen dataclass of options, from which tyro builds its command line: a docstring below a field is
the help text of the option. The classes here hold options that several commands share.
"""

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
from synther.cli.wrong_words import in_one_line
from synther.data.transitions import Transitions
from synther.diffusion.config import DistillConfig, FitConfig, NetworkConfig, NoiseConfig, SamplerConfig
from synther.errors import ConfigError, SyntherError
from synther.presets import DataConfig, Settings, preset
from synther.schema import printable

if TYPE_CHECKING:
    from synther.agents.algorithm import AgentConfig

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""A flag `--NAME` that is off by default. It has no `--no-NAME`, unlike the flags whose default a preset sets."""

On = Annotated[Flag, tyro.conf.arg(help_behavior_hint="(default: False)")]
"""A flag that is on by default, so there is only `--no-NAME`. The hint corrects its help, which would say True."""


@dataclass(frozen=True)
class Output:
    """Options of every command: how it prints its results, and config files."""

    json: Flag = False
    """Print one JSON object on stdout instead of a table."""
    quiet: Flag = False
    """Do not report progress on stderr."""
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """Read options from this TOML file. Options on the command line override it."""
    write_config: Path | None = None
    """Write the given options to a TOML file that --config can read, and stop."""

    def passed(self, *names: str) -> dict[str, Any]:
        """Return the options `names` and `progress` as keyword arguments for a function."""
        return {name: getattr(self, name) for name in names} | {"progress": not self.quiet}


@dataclass(frozen=True)
class Actors(Output):
    """Options of commands in which trained agents act."""

    network: tuple[str, ...] = ()
    """Your own networks (module:function) that the agents were trained with. A name in a file imports nothing."""

    def register_networks(self) -> None:
        """Import the networks and register them, so that agents which have them can be loaded."""
        if self.network:
            from synther.agents.own_code import register_network

            for name in self.network:
                register_network(name, "--network")


Options = TypeVar("Options", bound=Output)
Built = TypeVar("Built")
Place = TypeVar("Place", str, Path, Path | None)


_DATA = (
    "A file (.npz, .hdf5, .parquet), a folder of Parquet files, a Minari id or folder, or the name of a data set, such "
    "as hopper-sac."
)
Data = Annotated[tyro.conf.Positional[str], tyro.conf.arg(help=_DATA)]
Results = Annotated[Path, tyro.conf.arg(help="Folder for the results.")]
Device = Annotated[str, tyro.conf.arg(help="Device to run on: auto (a GPU if there is one), cpu, cuda or cuda:N.")]


@dataclass(frozen=True)
class Named(Output):
    """Options that say where to find a data set by its name."""

    folder: Annotated[Path | None, tyro.conf.arg(name="data")] = None
    """Folder to search for data sets by name: walker2d-mixed.npz, for example, or files of D4RL and V-D4RL.
    Data sets that are rolled out from policies are saved there."""
    policies: Path | None = None
    """File of policies (.npz). A named data set that is not found is rolled out from these policies."""

    def read(self, source: str, seed: int = 0, most: int = sys.maxsize) -> Transitions:
        """Read a file, a Minari id or a named data set. Of larger Parquet files, read `most` rows at random places."""
        from synther import datasets
        from synther.formats.stream import read_at_most

        is_name = self.folder is not None or self.policies is not None or datasets.is_known(source)
        if is_name and not Path(source).expanduser().exists():
            return datasets.read(source, data=self.folder, seed=seed, **self.passed("policies")).rows
        return read_at_most(source, seed, most)


@dataclass(frozen=True)
class Preparing(Named):
    """Options that change the rows of the data before they are used."""

    n_step: int = 1
    """Convert to n-step rows: the discounted sum of N rewards, and the observation after N steps.
    The discount of that observation's value is an extra column."""
    discount: float = 0.99
    """With --n-step: discount factor of one step."""
    next_actions: Flag = False
    """Add the next action to every row as an extra column, for agents that learn from it, such as rebrac."""

    def read_real(self, source: str, seed: int = 0, most: int = sys.maxsize) -> Transitions:
        """Read rows as `read` does, and convert them to n-step rows or add next actions, as the options say."""
        from synther.data.episodes import prepared

        return prepared(self.read(source, seed, most), self.n_step, self.next_actions, self.discount)


@dataclass(frozen=True)
class Machine(Output):
    """Device, precision and random seed."""

    device: Device = "auto"
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    """Precision of the computation. auto: bf16 on a GPU, float32 on a CPU."""
    seed: int = 0
    """Random seed. The same seed on the same machine gives the same result."""


@dataclass(frozen=True)
class Engine(Output):
    """Where several tasks are executed, such as runs, fits of models or files of rows. See `synther.engines`."""

    engine: Literal["local", "ray"] = "local"
    """If there are several tasks (runs, models or files): local executes them on this machine, ray on a Ray cluster."""
    parallel: int = 1
    """With --engine local: number of tasks at the same time, each in its own process. They share the GPU."""
    gpus: float | None = None
    """With --engine ray: GPUs for each task. 0.5: two tasks share a GPU. Default: 1 if the cluster has GPUs."""
    address: str | None = None
    """With --engine ray: address of a running cluster, such as 10.0.0.1:6379. Default: start one on this machine."""

    def run_by(self) -> Any:
        """Return these options as keyword arguments of `engines.run_all`."""
        return {name: getattr(self, name) for name in ("engine", "parallel", "gpus", "address")}


@dataclass(frozen=True)
class Asking(Output):
    """Options that request rows by a condition."""

    condition: tuple[str, ...] = ()
    """Request rows by a condition of the model: NAME=REQUEST, such as reward=top:0.1 (the highest tenth).
    Other requests are bottom:0.1, between:0.4:0.6 (quantiles), or a value such as 3.5."""
    guidance: float = 1.0
    """Strength of the condition. 1: rows like the real rows that meet it. Above 1: more extreme rows."""


@dataclass(frozen=True)
class Guiding(Output):
    """Options that guide synthetic rows towards the actions of a policy."""

    policy: Path | None = None
    """Generate rows with the actions of these agents: checkpoint.safetensors of `synther train` or `synther online`."""
    policy_strength: float = 1.0
    """With --policy: a number from 0 (actions like those in the data) to 1 (actions of the agents)."""
    policy_std: float | None = None
    """With --policy: standard deviation of the generated actions around the actions of the agents.
    Default: the agents' own standard deviation for edac and sac, 0 for other agents."""

    def check_policy(self) -> None:
        """Raise an error if an option of the policy is given without `--policy`."""
        if self.policy is None:
            refuse(self, ("policy_strength", "policy_std"), "needs --policy, which is not given: add it")


@dataclass(frozen=True)
class Fitting(Machine):
    """How a model is fitted and sampled. The preset sets the defaults of the six groups of options."""

    of_latents: ClassVar[bool] = False
    """Whether the rows are latents of pixel agents, for which the presets `best` and `laptop` have other settings."""

    preset: str = "auto"
    """Sets the defaults of the groups of options below: see `synther presets`. auto: best on a GPU, laptop on a CPU."""
    fraction: float | None = None
    """Use only this fraction of the rows, chosen at random. Default: all rows."""
    minutes: float | None = None
    """Stop fitting after this many minutes (same as --fit.minutes)."""
    fit: FitConfig = field(default_factory=FitConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    data_options: Annotated[DataConfig, tyro.conf.arg(name="data")] = field(default_factory=DataConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)

    def part(self, rows: Transitions) -> Transitions:
        """Return the random part of `rows` that `--fraction` selects."""
        return rows if self.fraction is None else rows.subsample(self.fraction, self.seed)

    def settings(self) -> Settings:
        """Return the settings of the generator: the preset, with the options that were given."""
        chosen = Settings(self.network, self.noise, self.fit, self.sampler, self.data_options, self.distill)
        return chosen if self.minutes is None else chosen.changed(fit={"minutes": self.minutes})


def parse(verb: str, options: type[Options], arguments: list[str]) -> Options:
    """Parse `arguments` with the defaults of the preset they name, read or write a config file, and set up logging."""
    defaults = _preset_defaults(arguments, options.of_latents) if issubclass(options, Fitting) else {}
    known = list(config_file.options_of(options))
    if source := ahead(arguments, config="").config:
        config_file.ConfigFile.read(Path(source).expanduser()).check(verb, known)
        arguments = [word for word in arguments if word not in {option.superfluous for option in known}]
    with in_one_line(verb, known, arguments):
        parsed: Options = tyro.cli(
            options,
            prog=f"synther {verb}",
            args=arguments,
            default=options(**defaults) if defaults else tyro.constructors.MISSING_NONPROP,
            config=(tyro.conf.PositionalMetavarFromFieldName,),
            registry=REGISTRY,
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
    """Escape control characters in log messages, because messages contain names from files."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


def parse_with_agent(
    verb: str, options: type[Options], arguments: list[str], default: AgentConfig, *hidden: str
) -> tuple[Options, dict[str, Any]]:
    """Parse the options of a verb, and the options of the agent (`--agent.NAME`) except the `hidden` ones."""
    own: Any = options  # mypy takes the hash of a class for that of its instances
    parsed = parse(verb, _with_agent(own, default, hidden), arguments)
    return parsed, {one.name: getattr(parsed.config, one.name) for one in fields(parsed.config) if one.init}


@cache
def _with_agent(options: type[Options], default: AgentConfig, hidden: tuple[str, ...]) -> Any:
    """Return a subclass of `options` with an additional field `config`, which holds the options of the agent."""
    kind, hints = type(default), get_type_hints(type(default))
    shown = [option.name for option in fields(kind) if option.init and option.name not in hidden]
    hide = {name: Annotated[hints[name], tyro.conf.Suppress] for name in hints if name not in shown}
    fixed = [(name, hint, field(default=getattr(default, name), init=False)) for name, hint in hide.items()]
    config: Any = make_dataclass(kind.__name__, fixed, bases=(kind,), frozen=True)
    values = {name: getattr(default, name) for name in shown}
    # True and False are values (`--agent.deterministic False`), because names of flags depend on the defaults.
    annotated = Annotated[config, tyro.conf.FlagConversionOff, tyro.conf.arg(name="agent")]
    group = ("config", annotated, field(default_factory=lambda: config(**values)))
    return make_dataclass(
        options.__name__, [group], bases=(options,), frozen=True, namespace={"__doc__": options.__doc__}
    )


def build(kind: type[Built], chosen: Output, **own: Any) -> Built:
    """Build a spec of class `kind`. Its fields are copied from the options with the same names, or given in `own`."""
    names = {option.name for option in fields(kind)} - own.keys()  # type: ignore[arg-type]
    return kind(**{name: getattr(chosen, name) for name in names if hasattr(chosen, name)}, **own)


def from_anywhere(path: Place) -> Place:
    """Make an existing path absolute, for workers in other folders. Return other text (a name of data) unchanged."""
    if path is None or not Path(path).expanduser().exists():
        return path
    return type(path)(Path(path).expanduser().resolve())


def refuse(chosen: Output, names: Iterable[str], why: str) -> None:
    """Raise an error if one of the options `names` differs from its default. `why` is the rest of the message."""
    for name in names:
        if getattr(chosen, name) != getattr(type(chosen), name):
            raise ConfigError(f"--{'data' if name == 'folder' else name.replace('_', '-')} {why}")


def positional(options: type[Output], arguments: list[str], names: Collection[str], default: str) -> str:
    """Return the first argument that is one of `names` and not the value of an option such as `--out`, or `default`."""
    flags = {name for one in fields(options) if isinstance(one.default, bool) for name in (one.name, f"no_{one.name}")}
    for before, word in pairwise(["", *arguments]):
        is_value = before.startswith("--") and "=" not in before and before[2:].replace("-", "_") not in flags
        if word in names and not is_value:
            return word
    return default


def ahead(arguments: list[str], **defaults: str) -> argparse.Namespace:
    """Return the values of the options `defaults` before all arguments are parsed, as other defaults depend on them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", default=default)
    try:
        return parser.parse_known_args(arguments)[0]
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None


def named(arguments: list[str]) -> list[str]:
    """Return the arguments without values behind `=`, and with dashes: `--refresh_every=9` as `--refresh-every`."""
    return [word.partition("=")[0].replace("_", "-") for word in arguments]


def parse_count(text: str) -> int:
    """Parse a whole number such as 5M, 100K, 1.5M, 2_000, 1e6 or 42."""
    match = re.fullmatch(r"(-?[\d_]*\.?\d+(?:e\d{1,2})?)([KMB]?)", text.strip(), re.IGNORECASE)
    factor = {"": 1, "K": 1_000, "M": 1_000_000, "B": 1_000_000_000}
    value = Decimal(match[1].replace("_", "")) * factor[match[2].upper()] if match else Decimal("0.5")
    if value != int(value):
        raise ValueError(f"expected a whole number such as 5M, 100K or 1_000, got {text!r}")
    return int(value)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected a number such as 0.5, got {text!r}") from None


def _env_options(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):  # not a ValueError: tyro would draw a box around its message
        example = '{"max_episode_steps": 500}'
        raise SyntherError(f"--env-options must be a JSON object, such as {example!r}, got {text!r}")
    return found


# Paths are expanded here, because a shell does not expand the ~ in `--out=~/runs`.
_READERS: dict[Any, Callable[[str], Any]] = {
    int: parse_count,
    float: _number,
    str: str,
    Path: lambda text: Path(text).expanduser(),
    dict[str, Any]: _env_options,
}


def _rule(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
    """Return how tyro reads and shows an option of a type in `_READERS`. The help does not show `| None`."""
    kind: Any = next((kind for kind in _READERS if info.type in (kind, kind | None)), None)
    if kind is None:
        return None
    optional = info.type != kind
    taken: Any = {float: (float, int), dict[str, Any]: dict}.get(kind, kind)
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar={Path: "PATH", dict[str, Any]: "JSON"}.get(kind, kind.__name__.upper()),
        instance_from_str=lambda words: None if optional and words[0] == "None" else _READERS[kind](words[0]),
        is_instance=lambda value: isinstance(value, taken) or (optional and value is None),
        str_from_instance=lambda value: [_shown(value) if kind is int else str(value)],
    )


REGISTRY = tyro.constructors.ConstructorRegistry()
"""How tyro reads the types in `_READERS`."""
REGISTRY.primitive_rule(_rule)


def _shown(value: int | None) -> str:
    """Return a number in short form if that is exact: 1000000 as 1M, 5000 as 5K."""
    for size, letter in ((1_000_000, "M"), (1_000, "K")):
        if value and value % size == 0:
            return f"{value // size}{letter}"
    return str(value)


def _preset_defaults(arguments: list[str], latents: bool) -> dict[str, Any]:
    """Return the settings of the preset that `arguments` name, by the names of the fields of `Fitting`."""
    known = ahead(arguments, preset="auto", device="auto")
    gpu = False
    if known.preset == "auto" and not {"-h", "--help"} & set(arguments):
        from synther.compute import pick_device

        gpu = pick_device(known.device).type == "cuda"
    chosen = preset(known.preset, gpu=gpu, latents=latents)
    return {"data_options" if name == "data" else name: part for name, part in vars(chosen).items()}
