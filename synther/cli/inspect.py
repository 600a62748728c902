"""The command `synther inspect FILE`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from synther.cli import options
from synther.cli.answer import answer, standing, table


@dataclass(frozen=True)
class Inspect(options.Named):
    """Show the content of a data file, a file of frames, a model, a file of agents, or the folder of a run."""

    file: tyro.conf.Positional[str] = tyro.MISSING
    """Data (a file or a name), frames (.hdf5), a model or agents (.safetensors), or the folder of a run."""


def inspect(arguments: list[str]) -> None:
    chosen = options.parse("inspect", Inspect, arguments)
    path = Path(chosen.file).expanduser()
    if (path / "run.json").is_file():
        _run(chosen, path)
    elif path.suffix == ".safetensors":
        from synther.agents.policy import is_agent

        (_agents if is_agent(path) else _model)(chosen)
    else:
        from synther.pixels.formats.hdf5 import is_of_frames

        (_frames if is_of_frames(path) else _data)(chosen)


def _run(chosen: Inspect, folder: Path) -> None:
    from synther.experiments.results import Result
    from synther.folder import read_object

    described = read_object(folder / "run.json")
    files = sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
    places = [folder / "result.json", folder / "training" / "result.json"]  # the second one for `synther paper` runs
    result = next((Result.read(place) for place in places if place.exists()), None)
    unit = "steps" if "steps" in described else "updates"
    figures = [("files", ", ".join(files))]
    if result is not None:
        for arm in result.curves:
            figures += standing(f"{arm}, final", result.final(arm), unit)
    elif unit in described:
        figures.append(("result", "none yet: run the same command again to resume"))
    figures += _options(described)
    facts = {"kind": "run", "run": described, "result": result.to_json() if result else None, "files": files}
    answer(chosen.json, facts, figures, f"run {folder}")


def _options(described: dict[str, Any], *names: str) -> Iterator[tuple[str, str]]:
    """Yield the options that are set, with their full names (such as `fit.steps`) and their values as text."""
    for name, value in described.items():
        if isinstance(value, dict):
            yield from _options(value, *names, name)
        elif value is not None:
            yield ".".join((*names, name)), str(value)


def _model(chosen: Inspect) -> None:
    from synther.synthesizer import Synthesizer

    model = Synthesizer.load(chosen.file, device="cpu")
    record, settings, layout = model.record, model.settings, model.layout
    parameters = sum(weight.numel() for weight in model.network.parameters())
    facts: dict[str, Any] = {
        "kind": "model",
        "env_id": layout.env_id,
        "field_widths": layout.field_widths,
        "columns": list(layout.names),
        "computed": list(layout.computed),
        "weighted": list(model.weighted),
        "conditions": list(model.conditions.names),
        "ensemble": None if model.ensemble is None else model.ensemble.to_json(),
        "student": None if model.student is None else model.student.to_json(),
        "parameters": parameters,
        "settings": settings.to_json(),
        "record": asdict(record),
    }
    network, sampler, last, widths = settings.network, settings.sampler, model.measured, layout.field_widths
    cuts = {name: f"> {cut:.3f}" for name, cut in zip(layout.flag_names, layout.thresholds, strict=True)}
    if model.ending is not None and "terminal" in cuts:
        cuts["terminal"] = "from other columns"
    figures = [
        ("environment", layout.env_id or "-"),
        ("columns", f"{widths['observation']} of observation, {widths['action']} of action; network: {layout.width}"),
        ("network", f"{network.kind}, {network.depth} x {network.width}, {parameters:,} parameters"),
        ("fitted on", f"{record.rows:,} rows, {record.steps:,} steps in {record.seconds:.1f} s on {record.device}"),
        ("loss", f"{last['loss']:.4f}" + (f", held out {last['held_out']:.4f}" if "held_out" in last else "")),
        ("sampler", f"{sampler.kind}, {sampler.steps} steps, {sampler.network_calls} network calls per row"),
        ("student", "-" if model.student is None else f"{model.student.sampler.network_calls} network calls per row"),
        ("scaling", str(settings.data.scaling)),
        ("thresholds", ", ".join(f"{name} {cut}" for name, cut in cuts.items()) or "-"),
        ("conditions", ", ".join(model.conditions.names) or "-"),
        ("ensemble", "-" if model.ensemble is None else f"{model.ensemble.members} dynamics models"),
        ("weighted", ", ".join(model.weighted) or "-"),
        *(("computed", text) for text in layout.computed),
    ]
    answer(chosen.json, facts, figures, f"model {chosen.file}")


def _agents(chosen: Inspect) -> None:
    from synther.agents.policy import read

    described, tensors = read(chosen.file)
    numbers = sum(tensor.numel() for tensor in tensors.values())
    sizes = described.get("actor") or described.get("policy", {}).get("sizes")
    known = {
        "algorithm": described.get("algorithm", "a policy alone"),
        "seeds": ", ".join(map(str, described.get("seeds") or [one["seed"] for one in described.get("members", [])])),
        "updates": f"{described['updates']:,}" if "updates" in described else "",
        "frames": " x ".join(map(str, described.get("frame", []))),
        "actor": " - ".join(map(str, sizes or [])),
        "numbers": f"{numbers:,}",
    }
    facts = {"kind": "agents", "numbers": numbers, **described}
    answer(chosen.json, facts, [(name, text) for name, text in known.items() if text], f"agents {chosen.file}")


def _frames(chosen: Inspect) -> None:
    from synther.pixels.formats.hdf5 import Shard
    from synther.schema import parse

    shard = Shard(Path(chosen.file).expanduser())
    outcomes, about = shard.outcomes(), shard.about
    returns = outcomes.returns
    cut = len(returns) - about.get("whole_episodes", len(returns))
    mean, std = about.get("mean_return", returns.mean()), about.get("std_return", returns.std())
    known = {name: shard.known.get(name) for name in ("env_id", "action_repeat", "shadow_size")}
    facts = {
        "kind": "frames",
        **known,
        "frames": shard.records,
        "episodes": len(returns),
        "size": list(shard.size),
        "actions": shard.actions,
        "return": {"mean": float(mean), "std": float(std), "episodes": returns.tolist()},
        "recorded": parse(about.get("recorded", "{}"), dict[str, Any], "its attribute recorded"),
    }
    figures = [
        ("environment", known["env_id"] or "-"),
        ("frames", f"{shard.records:,} of {' x '.join(map(str, shard.size))}"),
        ("episodes", f"{len(returns):,}" + (f", {cut:,} of them cut" if cut else "")),
        ("actions", str(shard.actions)),
        ("action repeat", str(known["action_repeat"] or "-")),
        ("shadow size", str(known["shadow_size"] or "-")),
        ("return", f"{mean:,.1f} ± {std:,.1f}"),
    ]
    answer(chosen.json, facts, figures, f"frames {chosen.file}")


def _data(chosen: Inspect) -> None:
    from synther.data.moments import FIGURES, column_figures
    from synther.formats.stream import SAMPLE_ROWS, stored_rows

    stored, rows = stored_rows(chosen.file, SAMPLE_ROWS), chosen.read(chosen.file, most=SAMPLE_ROWS)
    total, columns = len(rows if stored is None else stored), list(column_figures(rows))
    if chosen.json:
        facts = {"kind": "data", "rows": total, "env_id": rows.env_id, "terminal_rate": float(rows.terminal.mean())}
        answer(True, {**facts, "columns": columns, "rows_read": len(rows)}, [])
        return
    print(rows.summary())
    table(("column", *FIGURES), [(c["name"], *(f"{c[key]:.4g}" for key in FIGURES)) for c in columns])
