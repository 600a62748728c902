"""Defects, full disks and interrupts: one line on stderr, the right exit code, and the same command goes on."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from synther import Synthesizer
from synther.cli import VERBS
from synther.errors import Failed
from synther.folder import only_writer

COMMAND = [sys.executable, "-c", "from synther.cli import entry; entry()"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(*arguments: object, **options) -> subprocess.Popen:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": ENVIRONMENT, **options}
    return subprocess.Popen([*COMMAND, *map(str, arguments)], **options)


class TestTrouble:
    @pytest.fixture
    def failing(self, monkeypatch):
        def fail_with(error: BaseException) -> None:
            def run(arguments):
                raise error

            monkeypatch.setattr("synther.cli.models.presets", run)

        return fail_with

    @pytest.mark.parametrize(
        ("error", "line"),
        [
            (RuntimeError("the cat"), "RuntimeError: the cat (a bug in SynthER; SYNTHER_DEBUG=1 shows the traceback)"),
            (OSError(28, "No space left on device", "x.hdf5"), "[Errno 28] No space left on device: 'x.hdf5'"),
            (Failed("a process died"), "a process died"),
            (
                KeyboardInterrupt(),
                "interrupted: run the same command again; it resumes from its checkpoint if it has one",
            ),
        ],
        ids=str,
    )
    def test_it_is_one_line(self, synther, failing, error, line):
        failing(error)
        assert synther("presets") == (1, "", f"synther: {line}\n")

    @pytest.mark.parametrize("error", [RuntimeError("the cat"), OSError("the disk")])
    def test_a_defect_can_be_looked_at(self, synther, failing, monkeypatch, error):
        failing(error)
        monkeypatch.setenv("SYNTHER_DEBUG", "1")
        with pytest.raises(type(error), match=str(error)):
            synther("presets")


class TestOutputs:
    @pytest.fixture
    def commands(self, data, tiny, tmp_path) -> dict[str, tuple]:
        """Commands with a file as --out, which comes last."""
        model = tmp_path / "m.safetensors"
        return {
            "fit": ("fit", data, *tiny, "--out", model),
            "sample": ("sample", model, "--samples", 40, "--out", tmp_path / "s.npz"),
            "collect": ("collect", "Pendulum-v1", "--steps", 20, "--out", tmp_path / "c.npz"),
        }

    def test_a_finished_command_says_so(self, synther, commands, caplog):
        for command in commands.values():
            assert synther(*command).code == 0
            written = command[-1].stat().st_mtime_ns
            caplog.clear()
            assert synther(*command).code == 0
            assert "already" in caplog.text
            assert command[-1].stat().st_mtime_ns == written
            assert synther(*command[:-1], command[-1], "--seed", 1).code == 2  # another one of the same name
            assert command[-1].stat().st_mtime_ns == written

    def test_a_finished_file_whose_command_was_killed_is_known(self, synther, commands, tmp_path):
        assert synther(*commands["fit"]).code == 0
        assert synther(*commands["sample"]).code == 0
        (tmp_path / "s.npz.partial").mkdir()  # killed before it could be removed
        assert synther(*commands["sample"]).code == 0
        assert not (tmp_path / "s.npz.partial").exists()
        (tmp_path / ".s.npz.made").unlink()
        assert synther(*commands["sample"]).code == 2  # somebody's file
        (tmp_path / "s.npz").unlink()
        assert synther(*commands["sample"]).code == 0

    @pytest.mark.parametrize("name", ["fit", "sample", "collect"])
    def test_two_at_once(self, synther, commands, name):
        if name == "sample":
            assert synther(*commands["fit"]).code == 0
        out = commands[name][-1]
        with only_writer(out):
            answer = synther(*commands[name])
        assert answer.code == 2
        assert out.name in answer.err
        assert "--out" in answer.err
        assert not out.exists()

    @pytest.mark.parametrize(
        ("name", "number"),
        [*(("fit", number) for number in (errno.ENOSPC, errno.EROFS, errno.EACCES)),
         *((name, errno.ENOSPC) for name in ("sample", "collect", "upsample", "train"))],
    )  # fmt: skip
    def test_a_disk_that_takes_nothing(self, synther, commands, data, tiny, tmp_path, monkeypatch, name, number):
        folder = tmp_path / "place"
        if name == "sample":
            assert synther(*commands["fit"]).code == 0
        learning = ("--updates", 10, "--device", "cpu", "--agent.width", 8, "--agent.batch-size", 8, "--seeds", 1)
        others = {
            "upsample": ("upsample", data, *tiny, "--samples", 40, "--out", folder),
            "train": ("train", "bc", data, *learning, "--out", folder),
        }
        command = others.get(name) or (*commands[name][:-1], folder / commands[name][-1].name)
        folder.mkdir()
        real = os.replace

        def replace(source, target):
            if Path(target).is_relative_to(folder):
                raise OSError(number, os.strerror(number), str(source))
            real(source, target)

        monkeypatch.setattr(os, "replace", replace)
        answer = synther(*command)
        assert answer.code == 1, answer
        assert str(folder) in answer.err
        assert "could not be written" in answer.err
        assert [file.name for file in folder.rglob("*") if "writing" in file.name or file.suffix == ".npz"] == []


class TestProcesses:
    def test_a_refusal(self, tmp_path):
        process = start("upsampel", "x.npz", cwd=tmp_path)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (2, "")
        assert err == "synther: unknown command 'upsampel': did you mean upsample?\n"
        out, err = start("x.npz", cwd=tmp_path).communicate(timeout=60)
        assert err == f"synther: unknown command 'x.npz': expected one of {', '.join(VERBS)}\n"

    def test_a_reader_that_went_away(self):
        process = start("presets")
        process.stdout.close()
        err = process.stderr.read()
        process.stderr.close()
        assert process.wait(timeout=60) == 1
        assert err == ""

    def test_interrupted_the_same_command_goes_on(self, synther, data, tiny, tmp_path, caplog):
        """And ends with the model of a fit that nobody interrupted. SIGTERM raises what Ctrl-C raises."""
        path, whole = tmp_path / "m.safetensors", tmp_path / "whole.safetensors"
        often = ("--fit.evaluate-every", 20, "--fit.checkpoint-every", 20)
        command = ("fit", data, *tiny, "--fit.steps", 200, "--fit.batch-size", 16, *often, "--out")
        process = start(*command, path)
        deadline = time.monotonic() + 60
        while not Path(f"{path}.checkpoint").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (1, "")
        assert err.splitlines()[-1].startswith("synther: interrupted: run the same command again")
        assert "Traceback" not in err
        assert [file.name for file in tmp_path.iterdir()] == ["m.safetensors.checkpoint"]

        assert synther(*command, path).code == 0
        assert "from step " in caplog.text
        assert [file.name for file in tmp_path.iterdir()] == ["m.safetensors"]
        assert synther(*command, whole).code == 0
        drawn = [Synthesizer.load(file).sample(100, seed=0, progress=False) for file in (path, whole)]
        assert drawn[0].equals(drawn[1])
