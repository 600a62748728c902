"""Small replay data, and the command line called without a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from synther import Transitions, write
from synther import report as experiment
from synther.cli import main
from synther.envs import evaluation, recording

from ..support import small_job
from ..support.processes import Here
from ..support.short import short_learners

TINY = [
    *("--network.width", "16", "--network.depth", "1", "--network.embedding", "8"),
    *("--fit.steps", "20", "--fit.evaluate-every", "10", "--fit.checkpoint-every", "10"),
    *("--sampler.steps", "2"),
]


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The output, which is one strict JSON object and nothing else."""

        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is not JSON")

        found = json.loads(self.out, parse_constant=refuse)
        assert isinstance(found, dict)
        return found


@pytest.fixture
def synther(capsys, monkeypatch) -> Callable[..., Answer]:
    """`synther("fit", path, ...)` as in a shell, with a wide terminal so that no line is folded."""
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.delenv("SYNTHER_DEBUG", raising=False)

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        return Answer(main(list(map(str, arguments))), *capsys.readouterr())

    return call


@pytest.fixture
def told(synther) -> Callable[..., tuple[str, dict[str, Any]]]:
    """What a command says to a person, and to a machine. It succeeds, and reports nothing else."""

    def call(*arguments: object) -> tuple[str, dict[str, Any]]:
        answer = synther(*arguments)
        assert (answer.code, answer.err) == (0, "")
        return answer.out, synther(*arguments, "--json").json

    return call


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(f.relative_to(folder)): f.read_bytes() if f.is_file() else None for f in sorted(folder.rglob("*"))}


@pytest.fixture
def refused(synther, tmp_path) -> Callable[..., str]:
    """The error of a command that is refused: one line, exit code 2, no output, and nothing written."""

    def call(*arguments: object) -> str:
        before = tree(tmp_path)
        code, out, err = synther(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("synther: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert tree(tmp_path) == before
        return err

    return call


@pytest.fixture
def run(request, capsys, monkeypatch) -> Callable[..., str]:
    """What `VERB`, the verb that a test file names, prints on stdout. Errors are raised."""
    monkeypatch.setenv("COLUMNS", "250")

    def call(*arguments: object) -> str:
        capsys.readouterr()
        request.module.VERB(list(map(str, arguments)))
        return capsys.readouterr().out

    return call


@pytest.fixture(scope="session")
def rows() -> Transitions:
    return small_job.made()


@pytest.fixture(scope="session")
def data(rows, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "my_replay.npz"
    write(rows, path)
    return path


@pytest.fixture(scope="session")
def model(rows, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "model.safetensors"
    fit = {"steps": 20, "evaluate_every": 10}
    small_job.model(fit=fit, sampler={"steps": 2}).fit(rows, progress=False).save(path)
    return path


@pytest.fixture
def no_processes(monkeypatch) -> None:
    """Episodes are played in this one."""
    for module in (evaluation, recording):
        monkeypatch.setattr(module, "Workers", Here)


@pytest.fixture(scope="module")
def quick_report() -> Iterator[None]:
    """Where nothing depends on how well networks learn, on what samplers of many steps make, or on the picture."""
    with pytest.MonkeyPatch.context() as patch:
        short_learners(patch)
        patch.setattr(experiment, "CALLS", (4,))
        patch.setattr(experiment, "EFFORT", {"cpu": 0.0, "cuda": 0.0})
        patch.setattr("synther.upsample.draw", lambda real, fake, path, found: path.write_bytes(b""))
        yield


@pytest.fixture
def tiny() -> list[str]:
    """Options of a fit that takes no time."""
    return list(TINY)
