"""Commands whose whole process group is killed at random moments, again and again, until they are done.

A server process imports everything once and forks each command into a group of its own, because to start Python takes
longer than most commands. `run(folder, kills)` gives a line for each command; by hand:

    python -m tests.faults.kills --kills 200
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from synther import Synthesizer, Transitions, read, write

from ..experiments.pendulum import swings

MARK = "SYNTHER_KILLS"
"""Environment variable by which processes that outlive their group are found."""
TINY = "--network.width 16 --network.depth 1 --network.embedding 8 --sampler.steps 2 --fit.evaluate-every 10"
FIT = f"{TINY} --fit.steps 300 --fit.checkpoint-every 10 --device cpu"
AGENT = "--device cpu --agent.width 8 --agent.depth 1 --agent.batch-size 8 --seeds 1 --workers 1"

SERVER = """
import json, os, sys, traceback
import torch
torch.set_num_threads(1)
import h5py, pyarrow.parquet, gymnasium, minari, matplotlib.pyplot, tyro
import synther.upsample, synther.report, synther.experiments.online, synther.experiments.offline, synther.compare.run
from synther.cli import main
from tests.faults.kills import refresh_in_background
for line in sys.stdin:
    order = json.loads(line)
    worker = os.fork()
    if not worker:
        os.setsid()
        out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1), os.dup2(out, 2)
        code = 1
        try:
            given = order["arguments"]
            code = refresh_in_background(given[1]) if given[0] == "background" else main(given)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    print(worker, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Command:
    arguments: str
    """With {data} for the folder of inputs, and {out} for that of outputs."""
    result: Callable[[Path], Any]
    """What came of it, from the folder of outputs; None as long as nothing is there under a final name. It must be the
    same as that of an undisturbed command."""


class Line(NamedTuple):
    command: str
    kills: int
    lives: int
    """How often it was started until it was done, in all rounds."""
    rounds: int


def hopper() -> Transitions:
    draw = np.random.default_rng(0)
    observation = draw.normal(size=(300, 11)).astype(np.float32)
    action = draw.uniform(-1, 1, (300, 3)).astype(np.float32)
    return Transitions(observation, action, observation[:, 0], observation + 0.1, np.arange(300) % 10 == 0)


def refresh_in_background(folder: str) -> int:
    """A replay that is refreshed by another process, and saved."""
    from synther.replay.synthetic import SyntheticReplay

    settings = {"network": {"width": 16, "depth": 1, "embedding": 8}, "fit": {"steps": 300}, "sampler": {"steps": 2}}
    replay = SyntheticReplay(
        1000, preset=Synthesizer("laptop", **settings).settings, refresh_every=100, samples=200, background=True,
        device="cpu", seed=0, progress=False,
    )  # fmt: skip
    some = swings(100)
    replay.add(some.observation, some.action, some.reward, some.next_observation, some.terminal)
    replay.wait()
    replay.save(folder)
    return 0


def of_file(name: str) -> Callable[[Path], Any]:
    return lambda out: _digest(read(out / name)) if (out / name).exists() else None


def _digest(found: Transitions) -> dict[str, str]:
    return {name: array.tobytes().hex()[:4096] + str(array.shape) for name, array in found.arrays().items()}


def of_model(out: Path) -> Any:
    path = out / "m.safetensors"
    return _digest(Synthesizer.load(path, device="cpu").sample(50, seed=0, progress=False)) if path.exists() else None


def of_json(name: str, *keys: str) -> Callable[[Path], Any]:
    """Entries that do not depend on the time it took."""

    def result(out: Path) -> Any:
        found = [json.loads(path.read_text()) for path in sorted(out.glob(name))]
        return [{key: one[key] for key in keys} for one in found] or None

    return result


def of_replay(out: Path) -> Any:
    from synther.replay.synthetic import SyntheticReplay

    if not (out / "replay" / "replay.safetensors").exists():
        return None
    replay = SyntheticReplay.load(out / "replay", device="cpu", progress=False)
    drawn = replay.model.sample(50, seed=0, progress=False)
    return _digest(drawn), replay.mixture.mixed, [refresh.kept for refresh in replay.history]


def of_stdout(out: Path) -> Any:
    return None  # nothing is written: the output of the command is compared


COMMANDS = {
    "fit": Command(f"fit {{data}}/rows.npz {FIT} --condition reward --out {{out}}/m.safetensors", of_model),
    "sample": Command("sample {data}/m.safetensors --samples 60K --device cpu --out {out}/s.hdf5", of_file("s.hdf5")),
    "upsample": Command(
        f"upsample {{data}}/rows.npz {FIT} --samples 20K --out {{out}}/up", of_file("up/synthetic.hdf5")
    ),
    "train": Command(
        f"train bc {{data}}/rows.npz {AGENT} --updates 3K --evaluate-every 500 --episodes 1 --out {{out}}/t",
        of_json("t/result.json", "updates", "diverged", "arms"),
    ),
    "online": Command(
        f"online Pendulum-v1 {AGENT} --steps 60 --learning-starts 20 --evaluate-every 30 --episodes 1 --out {{out}}/o",
        of_json("o/result.json", "env_steps", "diverged", "arms"),
    ),
    "evaluate": Command("evaluate {data}/agents --episodes 1 --workers 1 --json --quiet", of_stdout),
    "collect": Command("collect Pendulum-v1 --steps 400 --out {out}/c.npz", of_file("c.npz")),
    "assess": Command(
        "assess {data}/rows.npz {data}/s.npz --no-simulator --out {out}/a",
        of_json("a/assessment.json", "rows_real", "measures"),
    ),
    "compare": Command(
        "compare {data}/rows.npz --generators additive --samples 500 --device cpu --out {out}/cmp",
        of_json("cmp/additive/figures.json", "name", "marginal", "correlation", "terminal_rate"),
    ),
    "paper": Command(
        "paper run agents --only hopper-medium-td3_bc --data {data} --out {out}/p --updates 40 --seeds 1 "
        "--evaluate-every 20 --workers 1 --device cpu",
        of_json("p/runs/*/training/result.json", "updates", "diverged", "arms"),
    ),
    "paper on Ray": Command(
        "paper run agents --only hopper-medium-td3_bc --data {data} --out {out}/r --updates 40 --seeds 1 "
        "--evaluate-every 20 --workers 1 --device cpu --engine ray",
        of_json("r/runs/*/training/result.json", "updates", "diverged", "arms"),
    ),
    "background": Command("background {out}/replay", of_replay),
}


class Server:
    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid4().hex
        environment = {**os.environ, "OMP_NUM_THREADS": "1", MARK: self.mark, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def life(self, arguments: list[str], seconds: float | None) -> tuple[int, float]:
        """The exit code, and how long it lived. After so many seconds its group is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(
            json.dumps({"arguments": arguments, "out": str(self.folder / "said")}), file=self._process.stdin, flush=True
        )
        began, group = time.monotonic(), int(self._process.stdout.readline())
        if seconds is not None:
            os.set_blocking(self._process.stdout.fileno(), False)
            while time.monotonic() < began + seconds:
                if (line := self._process.stdout.readline()) != "":
                    os.set_blocking(self._process.stdout.fileno(), True)
                    return int(line), time.monotonic() - began
                time.sleep(0.01)
            os.set_blocking(self._process.stdout.fileno(), True)
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:  # over in this moment, or not yet a group of its own
                with suppress(ProcessLookupError):
                    os.kill(group, signal.SIGKILL)
        code = int(self._process.stdout.readline())
        return code, time.monotonic() - began

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")

    def left(self) -> list[int]:
        """Processes of commands that are still there, though their group was killed."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self._process.pid:
                try:
                    if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def inputs(server: Server, folder: Path) -> None:
    folder.mkdir()
    write(swings(300), folder / "rows.npz")
    write(hopper(), folder / "hopper-medium.npz")
    fit = COMMANDS["fit"].arguments.format(data=folder, out=folder).split()
    train = f"train bc {folder}/rows.npz {AGENT} --updates 20 --evaluate-every 20 --episodes 1 --out {folder}/agents"
    for arguments in (fit, f"sample {folder}/m.safetensors --samples 500 --out {folder}/s.npz".split(), train.split()):
        code, _ = server.life(arguments, None)
        assert code == 0, server.said


def killed(server: Server, name: str, data: Path, folder: Path, kills: int, draw: random.Random) -> Line:
    """Kill a command so often, in as many rounds as that takes, and compare every round with one that was not."""
    command = COMMANDS[name]

    def arguments(out: Path) -> list[str]:
        out.mkdir(parents=True, exist_ok=True)
        return command.arguments.format(data=data, out=out).split()

    whole = folder / "whole"
    code, seconds = server.life(arguments(whole), None)
    assert code == 0, server.said
    expected, told = command.result(whole), server.said if command.result is of_stdout else None
    assert told or expected is not None
    done = lives = rounds = 0
    while done < kills:
        out, before = folder / f"round-{rounds}", done
        while True:
            spared = done >= kills or done - before >= 8
            code, _ = server.life(arguments(out), None if spared else draw.uniform(0, 1.1 * seconds))
            lives += 1
            found = command.result(out)
            assert found in (None, expected), f"{name}: half-written after {done} kills"
            if code != -signal.SIGKILL:
                assert code == 0, f"{name} after {done} kills: {server.said}"
                break
            done += 1
            _wait_until_gone(server, name)
        rounds += 1
        assert found == expected
        assert told is None or server.said == told
        again, _ = server.life(arguments(out), None)
        assert (again, command.result(out)) == (0, expected), f"{name} started again: {server.said}"
        litter = [path.name for path in out.rglob("*") if ".writing" in path.name or path.name.endswith(".partial")]
        assert not litter, f"{name} left {litter}"
    return Line(name, done, lives, rounds)


def _wait_until_gone(server: Server, name: str) -> None:
    """Nothing that a command has started outlives it for long, whatever its group is."""
    until = time.monotonic() + 60
    while server.left():
        assert time.monotonic() < until, f"{name}: processes {server.left()} are left"
        time.sleep(0.05)


def run(folder: Path, kills: int, names: list[str], seed: int = 0) -> list[Line]:
    draw, server, lines = random.Random(seed), Server(folder), []
    try:
        inputs(server, folder / "data")
        for place, name in enumerate(names):
            own = kills * (place + 1) // len(names) - kills * place // len(names)
            began = time.monotonic()
            lines.append(killed(server, name, folder / "data", folder / name.replace(" ", "-"), own, draw))
            print(*lines[-1], f"{time.monotonic() - began:.0f} s", sep="\t", flush=True)
    finally:
        server.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--only", nargs="*", default=list(COMMANDS))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(platform.platform(), f"{os.cpu_count()} cores, Python {platform.python_version()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        lines = run(Path(folder), given.kills, given.only, given.seed)
    print("kills", sum(line.kills for line in lines))


if __name__ == "__main__":
    main()
