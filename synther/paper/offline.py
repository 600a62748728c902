"""Offline experiments: the paper's tables and figures, and our own on replay data and on data sets collected here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from synther.baselines.augmentation import AUGMENTATIONS
from synther.experiments.spec import Place, PolicyGuidance, Recipe, RunSpec, Training
from synther.experiments.specs import OfflineRun
from synther.folder import write_object
from synther.paper import published
from synther.paper.experiment import (
    ARM_TITLES,
    HALF,
    ORIGINAL,
    STOPPED,
    SYNTHER,
    TITLES,
    Average,
    Cell,
    Contrast,
    Experiment,
    Figure,
    Lines,
    Rows,
    cells_of,
    contrasts_of,
    rows_by_data,
)
from synther.paper.published import AVERAGES, FULL_EVAL, LARGER, LOCOMOTION, MAZES, Pair, Printed
from synther.progress import Progress

Arms = dict[str, dict[str, float]]

REAL: Arms = {"real": {"real": 1.0}}
SYNTHETIC: Arms = {"synthetic": {"synthetic": 1.0}}
BOTH = REAL | SYNTHETIC
MIXTURE: Arms = {"half": {"as_many": 0.5, "real": 0.5}}
NOISE: Arms = {name: {name: 1.0} for name in AUGMENTATIONS}

ALGORITHMS = ("td3_bc", "iql", "edac")
FIRST_TWO = ("td3_bc", "iql")
LARGER_NETWORK = {"width": 512, "depth": 3, "batch_size": 1024}
WIDE = ("halfcheetah-medium-expert", "hopper-medium", "hopper-medium-expert")
"""Data sets on which the paper's denoiser is twice as wide."""

SUBSAMPLED = {
    "walker2d-medium-replay": (0.07, 0.15, 0.33, 0.66),
    "walker2d-medium": (0.02, 0.05, 0.1, 0.2),
    "walker2d-medium-expert": (0.01, 0.03, 0.05, 0.1),
}
"""Fractions of about 20K to 200K rows, as in the paper, which names 3 % of medium-expert and 15 % of medium-replay."""

MEDIUM = ("halfcheetah-medium", "walker2d-medium", "hopper-medium")
MIXED = tuple(f"{env}-mixed" for env in ("halfcheetah", "walker2d", "hopper"))
D4RL_SETS = {name: name.replace("-mixed", "-medium-replay") for name in (*MIXED, *MEDIUM)}
"""For each data set of our own experiments, the D4RL set of the same kind."""

NOT_PRINTED = "The paper shows these results only as a figure, without numbers."
D4RL_FIGURE = "The paper shows these results only as a figure, for D4RL's walker2d-medium-replay."
NO_ALGORITHM = "The paper does not name the algorithm; TD3+BC is used here."
OTHER_DATA = "The paper's figures are for D4RL's own data; the training data used here is named above."

_BEST = Recipe(preset="best")


def _paper(data: str, samples: int = 5_000_000) -> Recipe:
    """Return the recipe of the paper's appendix."""
    return Recipe(samples=samples, changes={"network": {"width": 2048}} if data in WIDE else {})


def _run(
    data: str, algorithm: str, arms: Arms, recipe: Recipe | None = None, suffix: str = "", **more: Any
) -> OfflineRun:
    """Return a run with the sources that its arms need. `recipe` makes the synthetic rows (default: the paper's)."""
    recipe = recipe or _paper(data)
    known = {"synthetic": recipe, "as_many": replace(recipe, samples=None)}
    known |= {name: Recipe(name, recipe.samples) for name in AUGMENTATIONS}
    wanted = {source for shares in arms.values() for source in shares}
    sources = {name: source for name, source in known.items() if name in wanted}
    part = f"{100 * more['fraction']:g}pct-" if "fraction" in more else ""
    more.setdefault("updates", 3_000_000 if algorithm == "edac" else 1_000_000)
    return OfflineRun(f"{data}-{part}{algorithm}{suffix}", data, algorithm, arms, sources, **more)


def _run_per_source(name: str, data: str, algorithm: str, sources: dict[str, Recipe], seeds: int = 8) -> OfflineRun:
    """Return a run with one arm for each source."""
    return OfflineRun(name, data, algorithm, {source: {source: 1.0} for source in sources}, sources, seeds=seeds)


def _rows_by_arm(runs: Iterable[OfflineRun], printed: Mapping[str, Mapping[str, Pair]] | None = None) -> Rows:
    """Return a table with one row per arm and one column per algorithm. `printed` has the paper's figures by both."""
    table: Rows = {}
    for run in runs:
        for arm in run.arms:
            figure = Figure(*printed[arm][run.algorithm]) if printed else None
            table.setdefault(ARM_TITLES.get(arm, arm), {})[TITLES[run.algorithm]] = Cell(run.name, arm, figure)
    return table


_FULL = {(data, name): _run(data, name, BOTH) for name in ALGORITHMS for data in FULL_EVAL if name in FULL_EVAL[data]}
_LARGER = {data: _run(data, "td3_bc", BOTH, suffix="-larger", agent=LARGER_NETWORK) for data in LARGER}
_LARGER_CONTRASTS = (*contrasts_of(["larger"]), (f"larger {SYNTHER}", "baseline"))


def _larger_rows() -> Rows:
    rows = {}
    for data, run in _LARGER.items():
        baseline = Cell(_FULL[data, "td3_bc"].name, "real", Figure(*FULL_EVAL[data]["td3_bc"][0]))
        rows[data] = {"baseline": baseline, **cells_of(run, LARGER[data], "larger")}
    return rows


def full_eval() -> Experiment:
    about = "original data against SynthER's alone: TD3+BC, IQL, EDAC on all data sets"
    groups = {"locomotion average": LOCOMOTION, "maze average": MAZES}
    averages = tuple(Average.of(name, rows, AVERAGES[name]) for name, rows in groups.items())
    runs = tuple(_FULL.values())
    table = rows_by_data(runs, FULL_EVAL)
    return Experiment("full_eval", "tab:full_eval", about, runs, table, averages, contrasts_of(ALGORITHMS))


def vae_gan() -> Experiment:
    data = "halfcheetah-medium-replay"
    sources = {"diffusion": _paper(data), **{name: Recipe(name, trials=30) for name in ("tvae", "ctgan")}}
    runs = tuple(_run_per_source(f"{data}-{name}-generators", data, name, sources) for name in FIRST_TWO)
    table = _rows_by_arm(runs, published.VAE_GAN)
    about = "5M rows of diffusion, TVAE and CTGAN, fitted on halfcheetah-medium-replay"
    return Experiment("vae_gan", "tab:vae_gan_comparison", about, runs, table, bars="columns")


def subsample() -> Experiment:
    arms = BOTH | {"additive": NOISE["additive"]}
    runs: list[OfflineRun] = []
    table: Rows = {}
    lines: list[Lines] = []
    for data, fractions in SUBSAMPLED.items():
        places = {f"{data} {100 * fraction:g} %": fraction for fraction in fractions}
        for algorithm in FIRST_TWO:
            for row, fraction in places.items():
                runs.append(_run(data, algorithm, arms, fraction=fraction))
                table.setdefault(row, {}).update(cells_of(runs[-1]))
            lines.append(Lines(f"{data} {TITLES[algorithm]}", places, tuple(cells_of(runs[-1]))))
    about = "fractions of the walker2d sets: the real rows, SynthER's, additive noise"
    more: dict[str, Any] = {"contrasts": contrasts_of(FIRST_TWO), "lines": tuple(lines)}
    remarks = (NOT_PRINTED, "The fractions were chosen here, from about 20K to 200K rows.")
    return Experiment("subsample", "fig:subsample", about, tuple(runs), table, **more, remarks=remarks)


def barchart() -> Experiment:
    run = _run("walker2d-medium-replay", "iql", BOTH | NOISE, suffix="-noise", fraction=0.15)
    about = "15 % of walker2d-medium-replay with IQL: SynthER against three kinds of noise"
    table = _rows_by_arm([run])
    return Experiment("barchart", "fig:offline_barchart", about, (run,), table, bars="columns", remarks=(NOT_PRINTED,))


def larger() -> Experiment:
    average = Average.of("locomotion average", LOCOMOTION, {"larger": published.LARGER_AVERAGE})
    average.paper["baseline"] = Figure(*AVERAGES["locomotion average"]["td3_bc"][0])
    runs = (*(_FULL[data, "td3_bc"] for data in LARGER), *_LARGER.values())
    about = "TD3+BC with three layers of 512 and batches of 1024"
    return Experiment("larger", "tab:td3bc_larger", about, runs, _larger_rows(), (average,), _LARGER_CONTRASTS)


def upsample() -> Experiment:
    data, levels = "walker2d-medium-replay", 10
    counts = [round(50_000 * 100 ** (level / (levels - 1))) for level in range(levels)]
    sources = {f"{count:,} rows": _paper(data, count) for count in counts}
    run = _run_per_source(f"{data}-td3_bc-samples", data, "td3_bc", sources)
    lines = (Lines("Rows sampled", dict(zip(sources, counts, strict=True)), ("TD3+BC",), "rows"),)
    about = "number of sampled rows: ten levels from 50K to 5M, walker2d-medium-replay"
    table, remarks = _rows_by_arm([run]), (NOT_PRINTED, NO_ALGORITHM)
    return Experiment("upsample", "fig:upsample_ablations", about, (run,), table, lines=lines, remarks=remarks)


def network() -> Experiment:
    data = "hopper-medium-expert"
    shapes = {f"{kind} {depth}": {"width": 2048, "kind": kind, "depth": depth} for kind, depth in published.NETWORK}
    sources = {name: Recipe(changes={"network": shape}) for name, shape in shapes.items()}
    run = _run_per_source(f"{data}-td3_bc-networks", data, "td3_bc", sources, seeds=4)
    printed = {f"{kind} {depth}": {"td3_bc": pair} for (kind, depth), pair in published.NETWORK.items()}
    table = _rows_by_arm([run], printed)
    about = "kind and depth of the denoiser, hopper-medium-expert"
    return Experiment("network", "tab:network_ablations", about, (run,), table, bars="columns", remarks=(NO_ALGORITHM,))


def antmaze() -> Experiment:
    runs = tuple(_run(data, "td3_bc", BOTH, seeds=6) for data in published.ANTMAZE)
    table = rows_by_data(runs, {data: {"td3_bc": pairs} for data, pairs in published.ANTMAZE.items()})
    about = "TD3+BC on AntMaze: original data against SynthER's"
    contrasts = contrasts_of(["td3_bc"])
    return Experiment("antmaze", "tab:antmaze_offline", about, runs, table, contrasts=contrasts, bars="rows")


def mixture() -> Experiment:
    runs: list[OfflineRun] = []
    for name in FIRST_TWO:
        runs += [_FULL[data, name] for data in LOCOMOTION]
        runs += [_run(data, name, MIXTURE, suffix="-half") for data in LOCOMOTION]
    table = rows_by_data(runs, FULL_EVAL)
    printed = {name: (*AVERAGES["locomotion average"][name], pair) for name, pair in published.HALF_AVERAGE.items()}
    averages = (Average.of("locomotion average", LOCOMOTION, printed),)
    about = "as many synthetic rows as real ones, half of every batch each"
    contrasts = contrasts_of(FIRST_TWO, HALF)
    return Experiment("mixture", "tab:appendix_mixture", about, tuple(runs), table, averages, contrasts)


def rliable() -> Experiment:
    table = rows_by_data(_FULL.values(), FULL_EVAL)
    for data, row in _larger_rows().items():
        table[data] |= row
    runs = (*_FULL.values(), *_LARGER.values())
    about = "full_eval and larger together: probability of improvement, interquartile means"
    contrasts = (*_LARGER_CONTRASTS, *contrasts_of(ALGORITHMS))
    remarks = (NOT_PRINTED, "The offline part of the paper's figure is that of larger networks.")
    return Experiment("rliable", "fig:rliable", about, runs, table, contrasts=contrasts, remarks=remarks)


@dataclass(frozen=True)
class Sizes(RunSpec):
    """A job that counts the numbers in a data set, and the parameters of the paper's denoiser for it."""

    name: str
    data: str
    recipe: Recipe

    is_training = False

    def prepared(self, place: Place, progress: Progress) -> tuple[dict[str, Any], Training]:
        import torch

        from synther.diffusion.networks import Network

        rows = place.read(self.data, progress).rows
        columns = 2 * rows.observation.shape[1] + rows.action.shape[1] + 2
        with torch.device("meta"):
            network = Network(columns, self.recipe.settings().network)
        numbers, parameters = len(rows) * columns, sum(weight.numel() for weight in network.parameters())
        found = {"numbers": numbers / 1e6, "parameters": parameters / 1e6, "ratio": numbers / parameters}
        return {}, lambda folder, progress: write_object(self.result(folder), found)

    def result(self, folder: Path) -> Path:
        return folder / "result.json"


def compression() -> Experiment:
    columns = {"numbers": "numbers in the data, M", "parameters": "parameters, M", "ratio": "ratio"}
    jobs = tuple(Sizes(f"{data}-sizes", data, _paper(data)) for data in published.COMPRESSION)
    table = {}
    for job in jobs:
        printed = zip(columns.items(), published.COMPRESSION[job.data], strict=True)
        table[job.data] = {title: Cell(job.name, arm, Figure(value)) for (arm, title), value in printed}
    about = "numbers in the walker2d sets against parameters of the denoiser; nothing is trained"
    return Experiment("compression", "tab:compression_statistics", about, jobs, table)


def agents() -> Experiment:
    runs = [_run(data, name, REAL, _BEST, "-real") for name in FIRST_TWO for data in MEDIUM]
    return _own_data("agents", "the agents themselves, on original data: medium sets, TD3+BC and IQL", runs, FULL_EVAL)


def _subset(algorithm: str, fraction: float = 0.15) -> OfflineRun:
    arms = BOTH | (NOISE if fraction == 0.15 else {})
    return _run("walker2d-mixed", algorithm, arms, _BEST, "-ours", fraction=fraction)


def mixed_subsample() -> Experiment:
    runs = tuple(_subset(algorithm) for algorithm in FIRST_TWO)
    about = "15 % of walker2d-mixed: SynthER against three kinds of noise"
    return Experiment("mixed-subsample", "", about, runs, _rows_by_arm(runs), bars="columns", remarks=(D4RL_FIGURE,))


def _own_data(
    name: str, about: str, runs: Sequence[OfflineRun], printed: Printed, contrasts: tuple[Contrast, ...] = ()
) -> Experiment:
    """Return an experiment with one row per data set, and the paper's figures for the D4RL set of the same kind."""
    table = rows_by_data(runs, {own: printed[theirs] for own, theirs in D4RL_SETS.items()})
    return Experiment(name, "", about, tuple(runs), table, contrasts=contrasts, bars="rows", remarks=(OTHER_DATA,))


def mixed_eval() -> Experiment:
    """Return the experiment. For the medium sets, the runs on original data are those of the experiment `agents`."""
    generated = SYNTHETIC | MIXTURE
    runs: list[OfflineRun] = []
    for name in FIRST_TWO:
        runs += [_run(data, name, REAL | generated, _BEST, "-ours") for data in MIXED]
        for data in MEDIUM:
            runs += [_run(data, name, REAL, _BEST, "-real"), _run(data, name, generated, _BEST, "-ours")]
    about = "replay and medium sets: original data, SynthER's alone, half of each"
    contrasts = (*contrasts_of(FIRST_TWO), *contrasts_of(FIRST_TWO, HALF))
    return _own_data("mixed-eval", about, runs, FULL_EVAL, contrasts)


def mixed_larger() -> Experiment:
    runs = [_run(data, "td3_bc", BOTH, _BEST, "-larger-ours", agent=LARGER_NETWORK) for data in D4RL_SETS]
    about = "replay and medium sets: TD3+BC with three layers of 512 and batches of 1024"
    printed = {data: {"td3_bc": pairs} for data, pairs in LARGER.items()}
    return _own_data("mixed-larger", about, runs, printed, contrasts_of(["td3_bc"]))


def fractions() -> Experiment:
    places = {f"{100 * fraction:g} %": fraction for fraction in (0.03, 0.07, 0.15, 0.33, 0.66)}
    runs = {row: _subset("td3_bc", fraction) for row, fraction in places.items()}
    columns = (f"TD3+BC {ORIGINAL}", f"TD3+BC {SYNTHER}")
    table = {row: {column: cells_of(run)[column] for column in columns} for row, run in runs.items()}
    about = "parts of walker2d-mixed with TD3+BC: the real rows against SynthER's"
    more: dict[str, Any] = {"lines": (Lines("walker2d-mixed, TD3+BC", places, columns),), "remarks": (D4RL_FIGURE,)}
    return Experiment("fractions", "", about, tuple(runs.values()), table, contrasts=contrasts_of(["td3_bc"]), **more)


PLAIN = "TD3+BC"
REGULARISED: dict[str, tuple[str, dict[str, Any]]] = {
    PLAIN: ("td3_bc", {}),
    "layer norm": ("td3_bc", {"critic_network": "layer_norm"}),
    "dropout": ("td3_bc", {"dropout": 0.1}),
    "weight decay": ("td3_bc", {"weight_decay": 0.01}),
    "ReBRAC": ("rebrac", {}),
}
"""Regularisations that may help agents to learn from few rows, by column: an algorithm and its options."""


def _pooled(
    name: str, about: str, pools: Iterable[OfflineRun], generators: int, table: Rows, contrasts: Sequence[Contrast] = ()
) -> Experiment:
    """Return an experiment in which each run of `pools` is replaced by several runs, each with its own generator.

    The runs of a pool have different seeds. So the spread over the seeds includes the randomness of the generators.
    """
    runs = {
        pool.name: [replace(pool, name=f"{pool.name}-{n + 1}", seed=n * pool.seeds) for n in range(generators)]
        for pool in pools
    }
    names = {pool: tuple(run.name for run in own) for pool, own in runs.items()}
    jobs = tuple(run for own in runs.values() for run in own)
    return Experiment(name, "", about, jobs, table, contrasts=tuple(contrasts), pools=names)


def regularisation() -> Experiment:
    parts = {"walker2d-mixed": 0.15, "hopper-mixed": 0.15, "halfcheetah-mixed": 1.0}
    pools: list[OfflineRun] = []
    table: Rows = {f"{data} {100 * fraction:g} %": {} for data, fraction in parts.items()}
    for row, (data, fraction) in zip(table.values(), parts.items(), strict=True):
        for title, (algorithm, options) in REGULARISED.items():
            suffix = f"-{title.replace(' ', '_').replace('+', '_').lower()}"
            how: dict[str, Any] = {"agent": options, "fraction": fraction, "seeds": 3, "updates": 500_000}
            pools.append(_run(data, algorithm, BOTH, _BEST, suffix, **how))
            row |= cells_of(pools[-1], title=title)
            if title == PLAIN:
                pools.append(replace(pools[-1], name=f"{pools[-1].name}-holdout", holdout=0.1))
                for kind, arm in ((ORIGINAL, "real"), (SYNTHER, "synthetic")):
                    row[f"early stopping {kind}"] = Cell(pools[-1].name, f"{arm}{STOPPED}")
    about = "is it only regularisation? Real rows against SynthER's, with layer norm, dropout, weight decay, ReBRAC"
    return _pooled("regularisation", about, pools, 3, table, contrasts_of([*REGULARISED, "early stopping"]))


VARIANTS: dict[str, Recipe] = {
    "best": _BEST,
    "noise levels 20 to 0.002": Recipe(preset="best", changes={"noise": {"sigma_min": 0.002, "sigma_max": 20.0}}),
    "fitted on lower noise": Recipe(preset="best", changes={"noise": {"p_mean": -2.0}}),
    "instant": Recipe(preset="instant"),
    "paper": Recipe(preset="paper"),
}
"""Recipes with different fits and samplers, by row."""


def variants() -> Experiment:
    how: dict[str, Any] = {"fraction": 0.15, "seeds": 4, "updates": 500_000}
    runs = {
        title: _run("walker2d-mixed", "td3_bc", SYNTHETIC, recipe, f"-{title.replace(' ', '_')}", **how)
        for title, recipe in VARIANTS.items()
    }
    table = {title: {"TD3+BC": Cell(run.name, "synthetic")} for title, run in runs.items()}
    about = "15 % of walker2d-mixed with TD3+BC: rows of best, of its variants, and of other presets"
    return _pooled("variants", about, runs.values(), 4, table)


_FEWER = replace(_BEST, samples=1_000_000)
GUIDED: dict[str, Recipe] = {
    SYNTHER: _FEWER,
    "no guidance": replace(_FEWER, relevance="reward", guidance=0.0),
    "reward": replace(_FEWER, relevance="reward", guidance=1.0),
    "return": replace(_FEWER, relevance="return", guidance=1.0),
    "policy": replace(_FEWER, policy=PolicyGuidance()),
    "policy, strength 0.5": replace(_FEWER, policy=PolicyGuidance(strength=0.5)),
}
"""Recipes with different guidance, by column. "no guidance" has a network with a condition, as "reward" and "return"
have, but samples without guidance. The policies are agents of the same algorithm that learned from SynthER's rows."""
HALVES = {"half reward": "reward", "half return": "return"}
"""Columns with agents that learn from as many rows without guidance as rows with guidance."""


def guided_offline() -> Experiment:
    """Return the experiment. A random part of the data has no whole episodes, so it has no column "return"."""
    runs: list[OfflineRun] = []
    table: Rows = {}
    parts: dict[str, dict[str, float]] = {"walker2d-mixed": {"fraction": 0.15}, "hopper-mixed": {}}
    for data, how in parts.items():
        sources = {name: recipe for name, recipe in GUIDED.items() if not (how and recipe.relevance == "return")}
        arms: Arms = {name: {name: 1.0} for name in sources}
        arms |= {title: {SYNTHER: 0.5, name: 0.5} for title, name in HALVES.items() if name in sources}
        for algorithm in FIRST_TWO:
            run = _run(data, algorithm, REAL, None, "-guided", updates=500_000, **how)
            runs.append(replace(run, arms=arms, sources=sources))
            columns = {f"{TITLES[algorithm]} {title}": Cell(runs[-1].name, title) for title in arms}
            table.setdefault(f"{data} {100 * how['fraction']:g} %" if how else data, {}).update(columns)
    about = "rows of high reward, of high return or of a policy, against all rows alike: TD3+BC and IQL"
    titles = [title for title in (*GUIDED, *HALVES) if title != SYNTHER]
    contrasts = tuple(pair for name in FIRST_TWO for title in titles for pair in contrasts_of([name], title, SYNTHER))
    return Experiment("guided-offline", "", about, tuple(runs), table, contrasts=contrasts)
