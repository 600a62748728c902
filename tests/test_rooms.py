"""The map of the package holds, and what the outside world may rely on: public names, version, what an import costs."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import synther
from synther.formats import shipped

PACKAGE = Path(synther.__file__).parent
PROJECT = PACKAGE.parent / "pyproject.toml"


@pytest.fixture(scope="module")
def project():
    if not PROJECT.is_file():
        pytest.skip("installed without its source tree")
    return tomllib.loads(PROJECT.read_text())


def test_every_public_name_is_there_and_is_the_thing_itself():
    from synther.conditions import between, bottom, top
    from synther.data.transitions import Transitions
    from synther.errors import SyntherError
    from synther.formats import read, write
    from synther.presets import Settings, preset
    from synther.replay.synthetic import SyntheticReplay
    from synther.synthesizer import Synthesizer

    things = {"Settings": Settings, "SyntherError": SyntherError, "Synthesizer": Synthesizer}
    things |= {"SyntheticReplay": SyntheticReplay, "Transitions": Transitions}
    things |= {"between": between, "bottom": bottom, "preset": preset, "read": read, "top": top, "write": write}
    assert synther.__all__ == sorted(things)
    assert {name: getattr(synther, name) for name in synther.__all__} == things
    assert dir(synther) == sorted([*synther.__all__, "__version__"])
    with pytest.raises(AttributeError, match="Sythesizer"):
        _ = synther.Sythesizer


def test_the_version_and_the_command_are_the_projects(project):
    from synther.cli import entry

    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "synther.__version__"}
    assert f"## [{synther.__version__}]" in (PACKAGE.parent / "CHANGELOG.md").read_text()
    assert f'version: "{synther.__version__}"' in (PACKAGE.parent / "CITATION.cff").read_text()
    assert project["project"]["scripts"] == {"synther": "synther.cli:entry"}
    assert callable(entry)


def test_types_and_data_are_shipped(project):
    patterns = project["tool"]["setuptools"]["package-data"]["synther"]
    listed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    assert (PACKAGE / "py.typed") in listed
    assert {shipped.path(name) for name in shipped.names()} <= listed


def test_import_waits_for_no_heavy_library():
    heavy = ("torch", "numpy", "tyro", "h5py", "matplotlib", "gymnasium", "pyarrow")
    script = f"import sys, synther; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


FILES = sorted(PACKAGE.rglob("*.py"))

ANYONE = {"errors", "durable", "progress", "cores", "plain", "registry", "locks", "folder", "n_step", "children"}
ANYONE |= {"interrupts", "schema", "codes", "gym_specs"}
"""Foundations, which import nothing of ours but each other."""

ROWS = {"data", "formats"}

BELOW = ANYONE | ROWS | {"diffusion", "compute", "presets", "synthesizer", "envs", "assess", "agents", "replay"}
BELOW |= {
    "baselines",
    "pixels",
    "origin",
    "upsample",
    "report",
    "conditions",
    "relevance",
    "guides",
    "trackers",
    "engines",
}
"""What datasets, collect, compare and plots are built on, and all that is above them."""

BESIDE = {"datasets", "collect", "compare", "plots"}

MAY_IMPORT = {
    **{room: ANYONE - {room} for room in ANYONE},
    "data": ANYONE | {"compute"},
    "formats": ANYONE | {"data"},
    "compute": ANYONE,
    "descent": ANYONE,
    "kernels": ANYONE,
    "config_file": ANYONE,
    "trackers": ANYONE,
    "engines": ANYONE,
    "diffusion": ANYONE | {"compute", "kernels"},
    "presets": ANYONE | {"diffusion", "compute"},
    "relevance": ANYONE | {"data", "compute", "descent"},
    "conditions": ANYONE | {"data", "diffusion", "relevance"},
    "guides": ANYONE | {"data", "diffusion", "relevance"},
    "calibration": ANYONE | {"data"},
    "row_table": ANYONE | {"data"},
    "model_file": ANYONE
    | {"data", "compute", "diffusion", "presets", "conditions", "relevance", "calibration", "row_table"},
    "synthesizer": ANYONE
    | ROWS
    | {"diffusion", "compute", "presets", "model_file", "calibration", "conditions", "relevance", "guides", "engines"}
    | {"row_table"},
    "replay": ANYONE | ROWS | {"diffusion", "compute", "presets", "synthesizer", "conditions", "relevance", "guides"},
    "integrations": ANYONE | ROWS | {"compute", "presets", "replay", "synthesizer"},
    "envs": ANYONE | ROWS,
    "assess": ANYONE | {"data", "compute", "descent", "calibration"},
    "baselines": ANYONE | {"data", "compute", "relevance"},
    "agents": ANYONE | {"compute", "kernels"},
    "pixels": ANYONE | ROWS | {"compute", "kernels", "envs", "agents"},
    "origin": ANYONE | {"compute"},
    "doctor": ANYONE | {"compute", "envs", "origin"},
    "upsample": ANYONE
    | ROWS
    | {"presets", "compute", "diffusion", "assess", "synthesizer", "conditions", "relevance", "guides"},
    "report": ANYONE | {"origin", "data", "assess", "synthesizer", "diffusion", "envs"},
    "plots": ANYONE,
    "datasets": BELOW,
    "collect": BELOW | {"datasets"},
    "compare": BELOW | {"plots"},
    "experiments": BELOW | BESIDE,
    "paper": BELOW | BESIDE | {"experiments"},
    "cli": BELOW | BESIDE | {"experiments", "paper", "config_file", "doctor"},
}
"""Every room may also import itself; the front door `synther/__init__.py` may import all but the command line."""

HEAVY = {"gymnasium", "h5py", "minari", "pyarrow", "stable_baselines3", "matplotlib", "mujoco", "dm_control", "shimmy"}
HEAVY |= {"ctgan", "optuna", "pandas", "sklearn", "scipy", "gymnasium_robotics", "rliable", "arch", "ray", "wandb"}
HEAVY |= {"tensorboard", "torchrl", "tensordict", "d3rlpy"}
GUESTS = {"sb3": {"stable_baselines3", "gymnasium"}, "torchrl": {"torchrl", "tensordict"}, "d3rlpy": {"d3rlpy"}}
"""A file of the integrations is for one library, and nobody imports it who does not want that library."""
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(nodes: Iterable[ast.AST], path: Path) -> Iterator[str]:
    """Full names of all modules that syntax nodes import, `from synther import x` as `synther.x`."""
    here = ("synther", *path.relative_to(PACKAGE).parts[:-1])
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(here[: len(here) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (above, node.module) if part)
            yield from (f"{module}.{alias.name}" for alias in node.names) if module == "synther" else (module,)


def at_import_time(*statements: ast.AST) -> Iterator[ast.AST]:
    """What runs when the module is imported: no function bodies, nothing only a type checker sees."""
    for node in statements:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield from at_import_time(*node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from at_import_time(*ast.iter_child_nodes(node))


def test_imports_keep_to_the_map() -> None:
    """Each line of a failure is a file and what it may not import. A new room needs a line in MAY_IMPORT."""
    doors = {"__init__": set(MAY_IMPORT) - {"cli"}, "__main__": {"cli"}}
    wrong = {}
    for path in FILES:
        room, names = room_of(path), imported(ast.walk(tree_of(path)), path)
        ours = {name.split(".")[1] for name in names if name.startswith("synther.")}
        allowed = doors[room] if room in doors else MAY_IMPORT[room] | {room}
        wrong[str(path)] = ours - allowed - {"__version__"}
    assert {path: names for path, names in wrong.items() if names} == {}


def test_heavy_libraries_are_imported_when_used() -> None:
    """Inside the function that needs them."""
    early = {}
    for path in FILES:
        names = {name.split(".")[0] for name in imported(at_import_time(tree_of(path)), path)}
        early[str(path)] = names & HEAVY - (GUESTS.get(path.stem, set()) if room_of(path) == "integrations" else set())
    assert {path: names for path, names in early.items() if names} == {}


def test_no_file_is_a_drawer() -> None:
    names = {part.removesuffix(".py") for path in FILES for part in path.relative_to(PACKAGE).parts}
    assert not names & DRAWERS


def test_no_package_holds_more_than_a_fifth_of_the_code() -> None:
    lines = Counter[str]()
    for path in FILES:
        lines[room_of(path)] += len(path.read_text().splitlines())
    (largest, own), *_ = lines.most_common(1)
    assert own <= lines.total() / 5, largest


def test_the_map_itself_has_no_circle() -> None:
    done: set[str] = set()
    waiting = {room: uses - ANYONE for room, uses in MAY_IMPORT.items()}
    while waiting:
        free = {room for room, uses in waiting.items() if uses <= done}
        assert free, f"these import each other: {', '.join(sorted(waiting))}"
        done |= free
        waiting = {room: uses for room, uses in waiting.items() if room not in free}
