"""The paper's offline tables and figures."""

from __future__ import annotations

from collections.abc import Iterable

from synther.experiments.spec import Recipe
from synther.experiments.specs import OfflineRun
from synther.paper import published
from synther.paper.experiment import Average, Cell, Contrast, Experiment, Figure, Lines
from synther.paper.parts import (
    ADDITIVE_ARM,
    ARM_TITLES,
    HALF,
    HALF_ARM,
    LARGER_NETWORK,
    NOISE_ARMS,
    ORIGINAL,
    REAL_ARM,
    SYNTHER,
    SYNTHETIC_ARM,
    TITLES,
    cells_of,
    contrasts_of,
    papers_recipe,
    rows_by_arm,
    run_of,
    run_of_all,
)
from synther.paper.published import FULL_EVAL, LARGER, LOCOMOTION, MAZES
from synther.paper.sizes import NUMBERS, PARAMETERS, RATIO, Sizes


def _full_runs() -> dict[tuple[str, str], OfflineRun]:
    arms = REAL_ARM | SYNTHETIC_ARM
    return {
        (data, algorithm): run_of(data, algorithm, arms, papers_recipe(data))
        for algorithm in TITLES
        for data, figures in FULL_EVAL.items()
        if algorithm in figures
    }


def _full_rows(names: Iterable[str], algorithms: Iterable[str]) -> dict[str, dict[str, Cell]]:
    runs, rows = _full_runs(), {}
    for data in names:
        of_row: dict[str, Cell] = {}
        for algorithm in algorithms:
            if algorithm in FULL_EVAL[data]:
                of_row |= cells_of(runs[data, algorithm], *FULL_EVAL[data][algorithm])
        rows[data] = of_row
    return rows


def _published_average(name: str, algorithms: Iterable[str]) -> dict[str, Figure]:
    return {
        f"{TITLES[algorithm]} {kind}": Figure(*pair)
        for algorithm in algorithms
        for kind, pair in zip((ORIGINAL, SYNTHER), published.AVERAGES[name][algorithm], strict=True)
    }


def full_eval() -> Experiment:
    return Experiment(
        "full_eval",
        "tab:full_eval",
        "original data against SynthER's alone: TD3+BC, IQL, EDAC on all data sets",
        tuple(_full_runs().values()),
        _full_rows(FULL_EVAL, TITLES),
        (
            Average("locomotion average", LOCOMOTION, _published_average("locomotion average", TITLES)),
            Average("maze average", MAZES, _published_average("maze average", TITLES)),
        ),
        contrasts_of(TITLES.values()),
    )


def vae_gan() -> Experiment:
    data = "halfcheetah-medium-replay"
    sources = {"diffusion": papers_recipe(data), **{name: Recipe(name, trials=30) for name in ("tvae", "ctgan")}}
    runs = {name: run_of_all(f"{data}-{name}-generators", data, name, sources) for name in ("td3_bc", "iql")}
    table = {
        generator: {TITLES[name]: Cell(run.name, generator, Figure(*of_row[name])) for name, run in runs.items()}
        for generator, of_row in published.VAE_GAN.items()
    }
    about = "5M rows of diffusion, TVAE and CTGAN, fitted on halfcheetah-medium-replay"
    return Experiment("vae_gan", "tab:vae_gan_comparison", about, tuple(runs.values()), table, bars="columns")


SUBSAMPLED = {
    "walker2d-medium-replay": (0.07, 0.15, 0.33, 0.66),
    "walker2d-medium": (0.02, 0.05, 0.1, 0.2),
    "walker2d-medium-expert": (0.01, 0.03, 0.05, 0.1),
}
"""The paper: from about 20K to 200K rows, 3 % of medium-expert and 15 % of medium-replay among them."""


def subsample() -> Experiment:
    arms = REAL_ARM | SYNTHETIC_ARM | ADDITIVE_ARM
    runs: list[OfflineRun] = []
    table: dict[str, dict[str, Cell]] = {}
    lines: list[Lines] = []
    for data, fractions in SUBSAMPLED.items():
        places = {f"{data} {100 * fraction:g} %": fraction for fraction in fractions}
        for algorithm in ("td3_bc", "iql"):
            own = [run_of(data, algorithm, arms, papers_recipe(data), fraction=fraction) for fraction in fractions]
            runs += own
            for row, run in zip(places, own, strict=True):
                table.setdefault(row, {}).update(cells_of(run))
            columns = tuple(f"{TITLES[algorithm]} {ARM_TITLES[arm]}" for arm in arms)
            lines.append(Lines(f"{data} {TITLES[algorithm]}", places, columns))
    return Experiment(
        "subsample",
        "fig:subsample",
        "shares of the walker2d sets: the real rows, SynthER's, additive noise",
        tuple(runs),
        table,
        contrasts=contrasts_of(("TD3+BC", "IQL")),
        lines=tuple(lines),
        remarks=("The paper draws these figures and prints none. The shares are ours, from about 20K to 200K rows.",),
    )


def barchart() -> Experiment:
    data = "walker2d-medium-replay"
    arms = REAL_ARM | SYNTHETIC_ARM | NOISE_ARMS
    run = run_of(data, "iql", arms, papers_recipe(data), "-noise", fraction=0.15)
    about = "15 % of walker2d-medium-replay with IQL: SynthER against three kinds of noise"
    remarks = ("The paper draws these figures and prints none.",)
    return Experiment(
        "barchart", "fig:offline_barchart", about, (run,), rows_by_arm([run]), bars="columns", remarks=remarks
    )


def _larger_runs() -> dict[str, OfflineRun]:
    arms = REAL_ARM | SYNTHETIC_ARM
    return {data: run_of(data, "td3_bc", arms, papers_recipe(data), "-larger", agent=LARGER_NETWORK) for data in LARGER}


def _larger_rows() -> dict[str, dict[str, Cell]]:
    full, runs = _full_runs(), _larger_runs()
    return {
        data: {
            "baseline": Cell(full[data, "td3_bc"].name, "real", Figure(*FULL_EVAL[data]["td3_bc"][0])),
            **cells_of(runs[data], *LARGER[data], title="larger"),
        }
        for data in LARGER
    }


_LARGER_CONTRASTS = (*contrasts_of(["larger"]), Contrast(f"larger {SYNTHER}", "baseline"))


def larger() -> Experiment:
    figures = (published.AVERAGES["locomotion average"]["td3_bc"][0], *published.LARGER_AVERAGE)
    columns = ("baseline", f"larger {ORIGINAL}", f"larger {SYNTHER}")
    average = {column: Figure(*pair) for column, pair in zip(columns, figures, strict=True)}
    full = _full_runs()
    return Experiment(
        "larger",
        "tab:td3bc_larger",
        "TD3+BC with three layers of 512 and batches of 1024",
        (*(full[data, "td3_bc"] for data in LARGER), *_larger_runs().values()),
        _larger_rows(),
        (Average("locomotion average", LOCOMOTION, average),),
        _LARGER_CONTRASTS,
    )


def upsample() -> Experiment:
    data, levels = "walker2d-medium-replay", 10
    counts = [round(50_000 * 100 ** (level / (levels - 1))) for level in range(levels)]
    sources = {f"{count:,} rows": papers_recipe(data, samples=count) for count in counts}
    run = run_of_all(f"{data}-td3_bc-samples", data, "td3_bc", sources)
    table = {name: {"TD3+BC": Cell(run.name, name)} for name in sources}
    return Experiment(
        "upsample",
        "fig:upsample_ablations",
        "how many rows are sampled: ten levels from 50K to 5M, walker2d-medium-replay",
        (run,),
        table,
        lines=(Lines("Rows sampled", dict(zip(sources, counts, strict=True)), ("TD3+BC",), "rows"),),
        remarks=("The paper draws these figures and prints none, and does not name the algorithm: here TD3+BC.",),
    )


def network() -> Experiment:
    data = "hopper-medium-expert"
    sources = {
        f"{kind} {depth}": Recipe(changes={"network": {"width": 2048, "kind": kind, "depth": depth}})
        for kind, depth in published.NETWORK
    }
    run = run_of_all(f"{data}-td3_bc-networks", data, "td3_bc", sources, seeds=4)
    table = {
        name: {"TD3+BC": Cell(run.name, name, Figure(*pair))}
        for name, pair in zip(sources, published.NETWORK.values(), strict=True)
    }
    about = "kind and depth of the denoiser, hopper-medium-expert"
    remarks = ("The paper does not name the algorithm: here TD3+BC.",)
    return Experiment("network", "tab:network_ablations", about, (run,), table, bars="columns", remarks=remarks)


def antmaze() -> Experiment:
    arms = REAL_ARM | SYNTHETIC_ARM
    runs = {data: run_of(data, "td3_bc", arms, papers_recipe(data), seeds=6) for data in published.ANTMAZE}
    table = {data: cells_of(runs[data], *figures) for data, figures in published.ANTMAZE.items()}
    return Experiment(
        "antmaze",
        "tab:antmaze_offline",
        "TD3+BC on AntMaze: original data against SynthER's",
        tuple(runs.values()),
        table,
        contrasts=contrasts_of(["TD3+BC"]),
        bars="rows",
    )


def mixture() -> Experiment:
    algorithms = ("td3_bc", "iql")
    full, table = _full_runs(), _full_rows(LOCOMOTION, algorithms)
    halves = {
        (data, algorithm): run_of(data, algorithm, HALF_ARM, papers_recipe(data), "-half")
        for algorithm in algorithms
        for data in LOCOMOTION
    }
    for (data, _), run in halves.items():
        table[data] |= cells_of(run)
    average = _published_average("locomotion average", algorithms)
    average |= {f"{TITLES[name]} {HALF}": Figure(*pair) for name, pair in published.HALF_AVERAGE.items()}
    columns = [f"{TITLES[name]} {kind}" for name in algorithms for kind in (ORIGINAL, SYNTHER, HALF)]
    return Experiment(
        "mixture",
        "tab:appendix_mixture",
        "as many synthetic rows as real ones, half of every batch each",
        (*(full[data, name] for name in algorithms for data in LOCOMOTION), *halves.values()),
        {data: {column: row[column] for column in columns} for data, row in table.items()},
        (Average("locomotion average", LOCOMOTION, average),),
        contrasts_of(("TD3+BC", "IQL"), HALF),
    )


def compression() -> Experiment:
    columns = {NUMBERS: "numbers in the data, M", PARAMETERS: "parameters, M", RATIO: "ratio"}
    jobs = tuple(Sizes(f"{data}-sizes", data, papers_recipe(data)) for data in published.COMPRESSION)
    table = {
        job.data: {
            title: Cell(job.name, arm, Figure(value))
            for (arm, title), value in zip(columns.items(), published.COMPRESSION[job.data], strict=True)
        }
        for job in jobs
    }
    about = "numbers in the walker2d sets against parameters of the denoiser; nothing is trained"
    return Experiment("compression", "tab:compression_statistics", about, jobs, table)


def rliable() -> Experiment:
    table = _full_rows(FULL_EVAL, TITLES)
    for data, row in _larger_rows().items():
        table[data] |= row
    runs = (*_full_runs().values(), *_larger_runs().values())
    return Experiment(
        "rliable",
        "fig:rliable",
        "full_eval and larger put together: probability of improvement, interquartile means",
        runs,
        table,
        contrasts=(*_LARGER_CONTRASTS, *contrasts_of(TITLES.values())),
        remarks=("The paper draws these figures and prints none; its offline part is that of larger networks.",),
    )
