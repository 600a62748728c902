"""Does the verdict of an assessment predict how well agents learn from the rows?

    python benchmarks/verdict_agents.py record lunarlander-wind.npz
    python benchmarks/verdict_agents.py thin walker2d-mixed.npz walker2d-third.npz --every 3
    python benchmarks/verdict_agents.py generate walker2d-third.npz --folder verdict
    python benchmarks/verdict_agents.py train walker2d-third.npz --folder verdict
    python benchmarks/verdict_agents.py assess walker2d-third.npz --folder verdict
    python benchmarks/verdict_agents.py table --folder verdict --out results/verdict-agents.md

`generate` makes synthetic data sets of graded quality from DATA: diffusion models after long and short fits, noise,
outcomes with a std that is too small or too large, wrong terminals, copies, and TVAE if `ctgan` is installed. `train`
trains TD3+BC on each set and on the real rows, all seeds together. `assess` assesses each set without a simulator.
`table` compares scores and assessments. Results that are already in FOLDER are not computed again, so you can stop
every command and repeat it. `generate` and `train` need a GPU, `record` needs Box2D.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from graded_sets import TVAE, Sizes, makers
from machine import keep, origin, print_table
from numpy.typing import NDArray
from verdict_tables import Case, sheets_of

from synther import Transitions, read, write
from synther.assess.judge import assess
from synther.durable import replacing
from synther.envs.episodes import action_box
from synther.envs.evaluation import Evaluator
from synther.envs.making import opened
from synther.envs.policies import UniformPolicy
from synther.experiments.offline import train_to
from synther.experiments.results import Result
from synther.experiments.sources import REAL, Given, Source, TrainingData
from synther.experiments.specs import OfflineRun
from synther.formats import metadata


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = _command_line().parse_args(arguments)
    chosen.run(chosen)


def _command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    def command(name: str, run: Callable[[argparse.Namespace], None], about: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=about, description=about)
        one.set_defaults(run=run)
        return one

    one = command("record", _record, "record data of LunarLander with wind, from a policy that improves")
    one.add_argument("target", type=Path)
    one.add_argument("--steps", type=int, default=80_000)
    one = command("thin", _thin, "write every Nth episode of DATA to TARGET")
    one.add_argument("data")
    one.add_argument("target", type=Path)
    one.add_argument("--every", type=int, default=3)

    one = command("generate", _generate, "make the graded data sets")
    _about_sets(one)
    one.add_argument("--share", default="0/1", help="I/N: make every Nth set, beginning with number I")
    for size in fields(Sizes):
        one.add_argument("--" + size.name.replace("_", "-"), type=type(size.default), default=size.default)

    one = command("train", _train, "train TD3+BC on each set and on the real rows")
    _about_sets(one)
    one.add_argument("--seeds", type=int, default=8)
    one.add_argument("--updates", type=int, default=200_000)
    one.add_argument("--episodes", type=int, default=10)
    one.add_argument("--together", type=int, default=20, help="number of sets that are trained in one run")
    one.add_argument("--width", type=int, default=256, help="width of the agents' networks")
    one.add_argument("--workers", type=int, help="processes that play episodes")
    one.add_argument("--device", default="auto")

    one = command("assess", _assess, "assess each set against the real rows")
    _about_sets(one)
    one.add_argument("--processes", type=int, default=1)

    one = command("table", _table, "compare scores and assessments")
    one.add_argument("--folder", type=Path, required=True)
    one.add_argument("--out", type=Path, help="also write the tables to this file, and the figures to JSON beside it")
    one.add_argument(
        "--decide", action="store_true", help="compute the verdicts again, with the thresholds of this version"
    )
    one.add_argument("--draws", type=int, default=1_000, help="number of bootstrap samples for the intervals")
    return parser


def _about_sets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", help="a file, or the name of shipped data")
    parser.add_argument("--folder", type=Path, required=True, help="folder for all results")
    parser.add_argument("--only", nargs="*", help=f"names of sets; `{REAL}` means the real rows")


def _place(chosen: argparse.Namespace, part: str) -> Path:
    """Return the folder FOLDER/DATA/PART. Create it if it does not exist."""
    place: Path = chosen.folder / Path(chosen.data).stem / part
    place.mkdir(parents=True, exist_ok=True)
    return place


def _is_chosen(name: str, chosen: argparse.Namespace) -> bool:
    return chosen.only is None or name in chosen.only


def _files(chosen: argparse.Namespace) -> dict[str, Path]:
    """Return the files of the chosen sets that `generate` has made, by name."""
    found = {file.stem: file for file in sorted(_place(chosen, "sets").glob("*.npz"))}
    return {name: file for name, file in found.items() if _is_chosen(name, chosen)}


def _write_json(file: Path, content: object) -> None:
    with replacing(file) as beside:
        beside.write_text(json.dumps(content, indent=1) + "\n")


def _record(chosen: argparse.Namespace) -> None:
    from lander import record  # which needs Box2D

    rows = record(chosen.steps)
    _write_compact(chosen.target, rows)
    number = _episodes(rows)
    assert number is not None
    returns = np.bincount(number, weights=rows.reward)
    for part in np.array_split(np.arange(number[-1] + 1), 10):
        first = int(np.argmax(number == part[0]))
        print(f"from row {first:,}: {len(part)} episodes, mean return {returns[part].mean():.0f}", flush=True)


def _thin(chosen: argparse.Namespace) -> None:
    rows = read(chosen.data)
    number = _episodes(rows)
    if number is None:
        raise SystemExit(f"{chosen.data} has no timeouts, so the ends of episodes are unknown: use data with timeouts")
    _write_compact(chosen.target, rows[number % chosen.every == 0])


def _episodes(rows: Transitions) -> NDArray[np.int64] | None:
    """Return the number of each row's episode, or None if the rows do not know where episodes end."""
    if rows.timeout is None:
        return None
    ends = rows.terminal | rows.timeout
    number: NDArray[np.int64] = np.cumsum(ends) - ends
    return number


def _write_compact(file: Path, rows: Transitions) -> None:
    """Write rows in the format that stores each observation only once. The file is half as large."""
    number = _episodes(rows)
    assert number is not None
    last = np.flatnonzero(np.diff(number, append=-1))
    lengths, count = np.diff(last, prepend=-1), len(last)
    goes_on = np.ones(len(rows), bool)
    goes_on[last] = False
    if not np.array_equal(rows.next_observation[goes_on], rows.observation[1:][goes_on[:-1]]):
        raise SystemExit("the next observation of a row is not the observation of the row after it: the order is wrong")
    observations = np.empty((len(rows) + count, rows.observation.shape[1]), np.float32)
    observations[np.arange(len(rows)) + np.repeat(np.arange(count), lengths)] = rows.observation
    observations[last + np.arange(count) + 1] = rows.next_observation[last]
    arrays: dict[str, Any] = {
        "observations": observations,
        "actions": rows.action.astype(np.float32),
        "rewards": rows.reward.astype(np.float32),
        "episode_lengths": lengths,
        "terminated": rows.terminal[last],
        metadata.KEY: np.array(metadata.dump(rows)),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as beside, beside.open("wb") as stream:
        np.savez_compressed(stream, **arrays)
    print(f"{file}: {len(rows):,} rows, {count} episodes, {file.stat().st_size / 1e6:.1f} MB", flush=True)


def _generate(chosen: argparse.Namespace) -> None:
    real, folder = read(chosen.data), _place(chosen, "sets")
    ways = makers(real, Sizes(**{size.name: getattr(chosen, size.name) for size in fields(Sizes)}))
    if TVAE not in ways and _is_chosen(TVAE, chosen) and not (folder / f"{TVAE}.npz").exists():
        print(f"{TVAE} is skipped: ctgan is not installed", flush=True)
    first, every = map(int, chosen.share.split("/"))
    for name in [name for name in ways if _is_chosen(name, chosen)][first::every]:
        if not (folder / f"{name}.npz").exists():
            began = time.monotonic()
            write(ways[name](), folder / f"{name}.npz")
            print(f"{chosen.data}: {name}: made in {time.monotonic() - began:.1f} s", flush=True)


def _train(chosen: argparse.Namespace) -> None:
    real, files, scores = read(chosen.data), _files(chosen), _place(chosen, "scores")
    names = [REAL, *files] if _is_chosen(REAL, chosen) else list(files)
    missing = [name for name in names if not (scores / f"{name}.json").exists()]
    for first in range(0, len(missing), chosen.together):
        result = _train_together(real, missing[first : first + chosen.together], files, chosen)
        _keep_scores(result, real, chosen)


def _train_together(real: Transitions, names: list[str], files: dict[str, Path], chosen: argparse.Namespace) -> Result:
    low, high = real.action.min(0), real.action.max(0)
    others: dict[str, Source] = {}
    for name in (name for name in names if name != REAL):
        rows = read(files[name])
        others[name] = Given(replace(rows, action=np.clip(rows.action, low, high)))  # agents act inside these bounds
    plan = OfflineRun(
        agent={"width": chosen.width},
        updates=chosen.updates,
        seeds=chosen.seeds,
        evaluate_every=chosen.updates,
        episodes=chosen.episodes,
        workers=chosen.workers,
        checkpoint_seconds=120,  # rarely: a checkpoint of a hundred agents has half a gigabyte
        tensorboard="off",
        device=chosen.device,
    )
    material = TrainingData(real, others, {name: {name: 1.0} for name in names})
    key = hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]
    print(f"{chosen.data}: {len(names) * chosen.seeds} agents on {', '.join(names)}", flush=True)
    result = train_to(plan, material, _place(chosen, "runs") / key)
    print(f"{chosen.data}: {result.updates:,} updates in {result.seconds:.0f} s", flush=True)
    return result


def _keep_scores(result: Result, real: Transitions, chosen: argparse.Namespace) -> None:
    """Write the D4RL scores of the last evaluation of each set, or the returns if the task has no D4RL score."""
    floor: float | None = None
    for name in result.curves:
        final = result.final(name)
        if final is None:
            raise SystemExit(
                f"{chosen.data}: the agents were not evaluated: install the environment, or name it in the data"
            )
        if final.scores is None and floor is None:
            floor = _return_of_chance(real, chosen.workers)
        content = {
            "unit": "return" if final.scores is None else "score",
            "floor": 0.0 if floor is None else floor,
            "values": final.returns if final.scores is None else final.scores,
            "updates": result.updates,
        }
        _write_json(_place(chosen, "scores") / f"{name}.json", content)
        print(f"{chosen.data}: {name}: {final.spread_of_scores or final.spread_of_returns}", flush=True)


def _return_of_chance(real: Transitions, workers: int | None) -> float:
    """Return the mean return of random actions. It has the role that a score of 0 has for D4RL scores."""
    assert real.env_id is not None
    with opened(real.env_id, **real.env_options or {}) as env:
        chance = UniformPolicy(*action_box(env, real.env_id))
    with Evaluator(real.env_id, range(10), episodes=10, workers=workers, options=real.env_options) as evaluator:
        return float(evaluator.evaluate([chance] * 10).returns.mean())


def _assess(chosen: argparse.Namespace) -> None:
    folder = _place(chosen, "assessments")
    files: dict[str, Path | None] = {**_files(chosen)}
    if _is_chosen(REAL, chosen):
        files[REAL] = None
    work = [(chosen.data, file, folder / f"{name}.json") for name, file in files.items()]
    work = [entry for entry in work if not entry[2].exists()]
    if chosen.processes == 1:
        for entry in work:
            _assess_one(*entry)
    elif work:
        with ProcessPoolExecutor(chosen.processes, multiprocessing.get_context("spawn")) as pool:
            for waiting in [pool.submit(_assess_one, *entry) for entry in work]:
                waiting.result()


def _assess_one(data: str, file: Path | None, place: Path) -> None:
    began, real = time.monotonic(), read(data)
    if file is None:  # assess real rows: every fifth episode is compared with the other episodes
        number = _episodes(real)
        apart = (np.arange(len(real)) if number is None else number) % 5 == 0
        real, rows = real[~apart], real[apart]
    else:
        rows = read(file)
    found = assess(real, rows).to_json()
    seconds = time.monotonic() - began
    kept = {name: found[name] for name in ("rows_real", "rows_synthetic", "verdict", "measures", "notes")}
    _write_json(place, kept | {"seconds": seconds})
    print(f"{data}: {place.stem}: {found['verdict']['decision']}, {seconds:.0f} s", flush=True)


def _table(chosen: argparse.Namespace) -> None:
    head = origin()
    cases = {}
    for data in sorted(path for path in chosen.folder.iterdir() if path.is_dir()):
        scored, assessed = ({file.stem for file in (data / part).glob("*.json")} for part in ("scores", "assessments"))
        if REAL not in scored or not scored & assessed - {REAL}:
            print(f"{data.name} is skipped: it needs scores on real rows, and sets with both scores and assessments")
            continue
        cases[data.name] = [Case.of(data, name, again=chosen.decide) for name in sorted(scored & assessed)]
    if not cases:
        raise SystemExit(f"{chosen.folder} has no results to compare: run generate, train and assess first")
    texts, figures = [], {}
    for sheet in sheets_of(cases, chosen.draws):
        print(f"\n{sheet.title}\n", flush=True)
        texts += [f"## {sheet.title}\n", print_table(sheet.header, sheet.rows), ""]
        figures[sheet.title] = sheet.figures
    keep(chosen.out, head, *texts)
    if chosen.out:
        every = [case.to_json() for found in cases.values() for case in found]
        _write_json(chosen.out.with_suffix(".json"), {"origin": head, "sets": every, "tables": figures})


if __name__ == "__main__":
    main()
