"""Defects, full disks and interrupts: one line on stderr, the right exit code, and the same command goes on."""

from __future__ import annotations

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

COMMAND = [sys.executable, "-c", "from synther.cli import entry; entry()"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(*arguments: object, **options) -> subprocess.Popen:
    """A command that Ctrl-C reaches, even where these tests run in the background of a shell, which ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
            (KeyboardInterrupt(), "interrupted; the same command resumes from what was saved, or starts again"),
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


class TestProcesses:
    def test_a_refusal(self, tmp_path):
        process = start("upsampel", "x.npz", cwd=tmp_path)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (2, "")
        assert err == f"synther: unknown command 'upsampel': expected one of {', '.join(VERBS)}\n"

    def test_a_reader_that_went_away(self):
        process = start("presets")
        process.stdout.close()
        err = process.stderr.read()
        process.stderr.close()
        assert process.wait(timeout=60) == 1
        assert err == ""

    def test_interrupted_the_same_command_goes_on(self, synther, data, tiny, tmp_path, caplog):
        """And ends with the model of a fit that nobody interrupted."""
        path, whole = tmp_path / "m.safetensors", tmp_path / "whole.safetensors"
        often = ("--fit.evaluate-every", 50, "--fit.checkpoint-every", 50)
        command = ("fit", data, *tiny, "--fit.steps", 500, "--fit.batch-size", 16, *often, "--out")
        process = start(*command, path)
        deadline = time.monotonic() + 60
        while not Path(f"{path}.checkpoint").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (1, "")
        assert err.splitlines()[-1].startswith("synther: interrupted; the same command resumes")
        assert "Traceback" not in err
        assert [file.name for file in tmp_path.iterdir()] == ["m.safetensors.checkpoint"]

        assert synther(*command, path).code == 0
        assert "from step " in caplog.text
        assert [file.name for file in tmp_path.iterdir()] == ["m.safetensors"]
        assert synther(*command, whole).code == 0
        drawn = [Synthesizer.load(file).sample(100, seed=0, progress=False) for file in (path, whole)]
        assert drawn[0].equals(drawn[1])
