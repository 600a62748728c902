"""What the outside world may rely on: the public names, the version, what is shipped, what an import costs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import synther
from synther.data import shipped

PACKAGE = Path(synther.__file__).parent
PROJECT = PACKAGE.parent / "pyproject.toml"


@pytest.fixture(scope="module")
def project():
    if not PROJECT.is_file():
        pytest.skip("installed without its source tree")
    return tomllib.loads(PROJECT.read_text())


def test_every_public_name_is_there_and_is_the_thing_itself():
    from synther.data.formats import read, write
    from synther.data.transitions import Transitions
    from synther.errors import SyntherError
    from synther.presets import Settings, preset
    from synther.replay.synthetic import SyntheticReplay
    from synther.synthesizer import Synthesizer

    things = {"Settings": Settings, "SyntherError": SyntherError, "Synthesizer": Synthesizer}
    things |= {"SyntheticReplay": SyntheticReplay, "Transitions": Transitions}
    things |= {"preset": preset, "read": read, "write": write}
    assert synther.__all__ == [*sorted(name for name in things if name[0].isupper()), "preset", "read", "write"]
    assert {name: getattr(synther, name) for name in synther.__all__} == things
    assert dir(synther) == sorted([*synther.__all__, "__version__"])
    with pytest.raises(AttributeError, match="Sythesizer"):
        _ = synther.Sythesizer


def test_the_version_and_the_command_are_the_projects(project):
    from synther.cli import entry

    assert synther.__version__ == project["project"]["version"]
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
