"""Refresh in another process, without blocking the agent. The processes communicate through files in a folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from synther import compute
from synther.errors import SyntherError
from synther.progress import Silent
from synther.replay.refit import Generation, Job
from synther.synthesizer import Synthesizer


class Failed(SyntherError):
    """The process ended without a result."""


class Threads:
    """The PyTorch threads of this process. Half of them are given up while a background process computes.

    Two processes that both use every core block each other: a thread waits for another thread, which waits for a core
    that the other process uses.
    """

    def __init__(self) -> None:
        self._borrowers, self._all, self._kept = 0, 0, 0

    @property
    def spare(self) -> int:
        """Threads for a background process."""
        return max(1, (self._all if self._borrowers else torch.get_num_threads()) // 2)

    def lend(self) -> None:
        if self._borrowers == 0:
            self._all = torch.get_num_threads()
            self._kept = max(1, self._all - self.spare)
            torch.set_num_threads(self._kept)
        self._borrowers += 1

    def take_back(self) -> None:
        self._borrowers -= 1
        if self._borrowers == 0 and torch.get_num_threads() == self._kept:  # unless the user has changed the number
            torch.set_num_threads(self._all)


THREADS = Threads()


class Background:
    """A running job. It ends with this object and with the process that started it."""

    def __init__(self, job: Job) -> None:
        self._device, self._precision = job.device, job.precision
        lender = THREADS if compute.pick_device(job.device).type == "cpu" else None
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="synther-refresh-"))
            try:
                job.save(self._folder)
                self._process = _started(self._folder, lender.spare if lender else torch.get_num_threads())
            except BaseException:
                shutil.rmtree(self._folder, ignore_errors=True)
                raise
        except (OSError, SafetensorError) as error:  # no space for its files, or no new process
            raise Failed(f"the process could not start: {error}") from error
        if lender:
            lender.lend()
        self._end = weakref.finalize(self, _end, self._process, self._folder, os.getpid(), lender)

    @property
    def done(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> None:
        self._process.wait()

    def result(self) -> Generation:
        """Wait for the job and return its result. Raises `Failed` if there is none."""
        try:
            if self._process.wait() != 0:
                said = (self._folder / "errors").read_text(errors="replace").strip().splitlines()
                raise Failed(f"{said[-1] if said else 'no message'} (exit code {self._process.returncode})")
            return self._read()
        except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:  # damaged files
            raise Failed(f"its result cannot be read: {error}") from error
        finally:
            self._end()

    def _read(self) -> Generation:
        folder = self._folder
        model = Synthesizer.load(folder / "model.safetensors", device=self._device, precision=self._precision)
        rows = load_file(folder / "rows.safetensors")["rows"]
        return Generation(model, rows, **json.loads((folder / "seconds.json").read_text()))

    def close(self) -> None:
        """End the process, even if it is not done."""
        self._end()


def work(folder: Path) -> None:
    """The work of the other process."""
    generation = Job.load(folder).run(Silent())
    generation.model.save(folder / "model.safetensors")
    save_file({"rows": generation.rows}, folder / "rows.safetensors")
    seconds = {"fit_seconds": generation.fit_seconds, "sample_seconds": generation.sample_seconds}
    (folder / "seconds.json").write_text(json.dumps(seconds))


def _started(folder: Path, threads: int) -> subprocess.Popen[bytes]:
    """Start a process with the same module path. Ctrl-C does not reach it."""
    modules = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with (folder / "errors").open("wb") as errors:
        # Not multiprocessing: it runs the caller's script again if that has no __main__ guard.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "synther.replay.worker", str(folder)],  # -P: without the working folder
            env={**os.environ, "PYTHONPATH": modules, "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
            process_group=0,  # an interrupted agent may continue; if it ends, so does this process
        )


def _end(process: subprocess.Popen[bytes], folder: Path, owner: int, lender: Threads | None) -> None:
    if os.getpid() != owner:  # a fork of the owner, which has a copy of this object
        return
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)
    if lender:
        lender.take_back()
