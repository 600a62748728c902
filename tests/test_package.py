"""What would be published: a wheel and a source archive that build, and run with the core dependencies alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import Distribution, distribution, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with both archives, built from a copy of what git knows."""
    pytest.importorskip("build")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    known = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if known.returncode:
        pytest.skip("not a checkout")
    for name in filter(None, known.stdout.split("\0")):
        if not name.startswith(("results/", "tests/", "docs/")) and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return out


def core() -> dict[str, Distribution]:
    """The core dependencies, and theirs, as they are installed here."""
    found: dict[str, Distribution] = {}
    waiting = [line for line in requires("synther") or [] if "extra ==" not in line]
    while waiting:
        line = waiting.pop()
        name = re.match(r"[\w.-]+", line)[0].lower().replace("_", "-")
        if name in found or "extra ==" in line:
            continue
        try:
            found[name] = distribution(name)
        except ImportError:  # for another system
            continue
        waiting += requires(name) or []
    return found


@pytest.fixture(scope="module")
def empty(built, tmp_path_factory) -> Path:
    """An environment with the wheel and links to the core dependencies, and nothing else."""
    place = tmp_path_factory.mktemp("empty")
    venv.create(place, with_pip=False, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    for one in core().values():
        for name in {file.parts[0] for file in one.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            target = Path(str(one.locate_file(name)))
            if target.exists() and not (packages / name).exists():
                (packages / name).symlink_to(target)
    return place / "bin" / "python"


@pytest.mark.slow
def test_twine_finds_nothing(built):
    pytest.importorskip("twine")
    files = list(map(str, built.iterdir()))
    assert {Path(file).suffix for file in files} == {".whl", ".gz"}
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True, capture_output=True)


@pytest.mark.slow
def test_upsample_needs_the_core_dependencies_alone(empty, tmp_path):
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str) -> str:
        command = [str(empty), "-m", *words]
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    small = ("--samples", "1K", "--fit.steps", "30", "--fit.evaluate-every", "10", "--network.width", "32")
    out = run("synther", "upsample", "hopper-sac", *small, "--out", "run")
    assert "1,000" in out
    assert (tmp_path / "run" / "synthetic.hdf5").is_file()
    found = run("synther", "doctor", "--json")
    assert '"state": "missing"' in found
    assert "pip install 'synther[gym]'" in found
