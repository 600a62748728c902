"""Run a refresh in another process, so that the agent can continue. The processes exchange files in a folder."""

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
from synther.errors import Failed
from synther.progress import Silent
from synther.replay.refit import Generation, Job
from synther.synthesizer import Synthesizer


class Threads:
    """The PyTorch threads of this process. While a background process runs, this process uses only half of them.

    If both processes used every core, they would block each other: a thread would wait for another thread of its
    process, which waits for a core that the other process uses.
    """

    def __init__(self) -> None:
        self._borrowers, self._all, self._kept = 0, 0, 0

    @property
    def spare(self) -> int:
        """Number of threads for a background process."""
        return max(1, (self._all if self._borrowers else torch.get_num_threads()) // 2)

    def lend(self) -> None:
        """Reduce the threads of this process, when a background process starts."""
        if self._borrowers == 0:
            self._all = torch.get_num_threads()
            self._kept = max(1, self._all - self.spare)
            torch.set_num_threads(self._kept)
        self._borrowers += 1

    def take_back(self) -> None:
        """Use all threads again, when the last background process has ended."""
        self._borrowers -= 1
        if self._borrowers == 0 and torch.get_num_threads() == self._kept:  # False if the user changed the number
            torch.set_num_threads(self._all)


THREADS = Threads()


class Background:
    """A job that runs in another process. That process ends with this object and with the process that started it."""

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
        """Wait for the job and return its result. Raises `Failed` if it has no result."""
        try:
            if self._process.wait() != 0:
                lines = (self._folder / "errors").read_text(errors="replace").strip().splitlines()
                raise Failed(f"{lines[-1] if lines else 'no message'} (exit code {self._process.returncode})")
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
        """End the process, even if its job is not finished."""
        self._end()


def work(folder: Path) -> None:
    """Run the job in `folder` and write its results to the same folder. Called in the background process."""
    generation = Job.load(folder).run(Silent())
    generation.model.save(folder / "model.safetensors")
    save_file({"rows": generation.rows}, folder / "rows.safetensors")
    seconds = {"fit_seconds": generation.fit_seconds, "sample_seconds": generation.sample_seconds}
    (folder / "seconds.json").write_text(json.dumps(seconds))


def _started(folder: Path, threads: int) -> subprocess.Popen[bytes]:
    """Start the background process, with the same module path as this process. Ctrl-C does not reach it."""
    modules = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with (folder / "errors").open("wb") as errors:
        # multiprocessing would run the caller's script again if it has no __main__ guard.
        return subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "synther.replay.worker",
                str(folder),
            ],  # -P: do not import from the working folder
            env={**os.environ, "PYTHONPATH": modules, "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
            process_group=0,  # an interrupted agent may continue; if it ends, so does this process
        )


def _end(process: subprocess.Popen[bytes], folder: Path, owner: int, lender: Threads | None) -> None:
    """Kill the background process, remove its folder and take back its threads."""
    if os.getpid() != owner:  # this process is a fork of the owner, with a copy of the `Background` object
        return
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)
    if lender:
        lender.take_back()
