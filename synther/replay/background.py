"""A refresh in another process, which never blocks the agent. The two speak through the files of a folder."""

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
    """A process that ended without a result."""


class Threads:
    """PyTorch's in this process, half of which it does without while others compute beside it.

    Two processes that want every core stop each other: whenever work is split, the one thread waits for the other,
    which waits for a core that the other process has.
    """

    def __init__(self) -> None:
        self._borrowers, self._all, self._kept = 0, 0, 0

    @property
    def spare(self) -> int:
        """For a process beside this one."""
        return max(1, (self._all if self._borrowers else torch.get_num_threads()) // 2)

    def lend(self) -> None:
        if self._borrowers == 0:
            self._all = torch.get_num_threads()
            self._kept = max(1, self._all - self.spare)
            torch.set_num_threads(self._kept)
        self._borrowers += 1

    def take_back(self) -> None:
        self._borrowers -= 1
        if self._borrowers == 0 and torch.get_num_threads() == self._kept:  # unless somebody has chosen another number
            torch.set_num_threads(self._all)


THREADS = Threads()


class Background:
    """A job under way. It ends with this object, and with the process that began it."""

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
        except (OSError, SafetensorError) as error:  # no room for its files, or no process to be had
            raise Failed(f"it could not begin: {error}") from error
        if lender:
            lender.lend()
        self._end = weakref.finalize(self, _end, self._process, self._folder, os.getpid(), lender)

    @property
    def done(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> None:
        self._process.wait()

    def result(self) -> Generation:
        """What the job gave, once it is done; `Failed` says why where it gave nothing."""
        try:
            if self._process.wait() != 0:
                said = (self._folder / "errors").read_text(errors="replace").strip().splitlines()
                raise Failed(f"{said[-1] if said else 'no word'} (exit code {self._process.returncode})")
            return self._read()
        except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:  # files that somebody has touched
            raise Failed(f"what it left cannot be read: {error}") from error
        finally:
            self._end()

    def _read(self) -> Generation:
        folder = self._folder
        model = Synthesizer.load(folder / "model.safetensors", device=self._device, precision=self._precision)
        rows = load_file(folder / "rows.safetensors")["rows"]
        return Generation(model, rows, **json.loads((folder / "seconds.json").read_text()))

    def close(self) -> None:
        """End the process, whether it is done or not."""
        self._end()


def work(folder: Path) -> None:
    """What the other process does."""
    generation = Job.load(folder).run(Silent())
    generation.model.save(folder / "model.safetensors")
    save_file({"rows": generation.rows}, folder / "rows.safetensors")
    seconds = {"fit_seconds": generation.fit_seconds, "sample_seconds": generation.sample_seconds}
    (folder / "seconds.json").write_text(json.dumps(seconds))


def _started(folder: Path, threads: int) -> subprocess.Popen[bytes]:
    """A process that finds the modules that this one finds. Ctrl-C does not reach it."""
    modules = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with (folder / "errors").open("wb") as errors:
        # Not multiprocessing, which runs the caller's script a second time where it has no __main__ guard.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "synther.replay.worker", str(folder)],  # -P: not those of the working folder
            env={**os.environ, "PYTHONPATH": modules, "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
            process_group=0,  # an agent that is interrupted may go on; if it ends, so does this
        )


def _end(process: subprocess.Popen[bytes], folder: Path, owner: int, lender: Threads | None) -> None:
    if os.getpid() != owner:  # a fork of it, which has this object too, is at its end
        return
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)
    if lender:
        lender.take_back()
