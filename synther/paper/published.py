"""The figures that the paper prints (Lu et al. 2023), by table: mean and standard deviation of the final score.

The data sets have the names of D4RL. The paper's "mixed" is medium-replay, and its "medexp" is medium-expert.
"""

from __future__ import annotations

Pair = tuple[float, float]
"""Mean and standard deviation."""

Printed = dict[str, dict[str, tuple[Pair, Pair]]]
"""By row and algorithm: the figures of original data and of SynthER."""


def _parsed(columns: str, text: str) -> Printed:
    """Parse a table. A line has the name of the row, and for each column the figures of original data and SynthER."""
    table: Printed = {}
    for name, *cells in (line.replace("|", " ").split() for line in text.strip().splitlines()):
        pairs = [tuple(map(float, cell.split("±"))) if cell != "-" else None for cell in cells]
        found = zip(columns.split(), pairs[::2], pairs[1::2], strict=True)
        table[name] = {column: (one, other) for column, one, other in found if one and other}  # type: ignore[misc]
    return table


_TABLE = _parsed(
    "td3_bc iql edac larger",
    """
halfcheetah-random         11.3±0.8   12.2±1.1  |  15.2±1.2   17.2±3.4  |     -          -      |  11.0±0.7   12.8±0.8
halfcheetah-medium-replay  44.8±0.7   45.9±0.9  |  43.5±0.4   46.6±0.2  |  62.1±1.3   63.0±1.3  |  44.8±1.1   48.0±0.5
halfcheetah-medium         48.1±0.2   49.9±1.2  |  48.3±0.1   49.6±0.3  |  67.7±1.2   65.1±1.3  |  50.2±1.8   53.3±0.4
halfcheetah-medium-expert  90.8±7.0   87.2±11.1 |  94.6±0.2   93.3±2.6  | 104.8±0.7   94.1±10.1 |  95.5±5.4  100.1±2.7
walker2d-random             0.6±0.3    2.3±1.9  |   4.1±0.8    4.2±0.3  |     -          -      |   2.6±2.1    4.3±1.7
walker2d-medium-replay     85.6±4.6   90.5±4.3  |  82.6±8.0   83.3±5.9  |  87.1±3.2   89.8±1.5  |  76.4±9.9   93.6±3.6
walker2d-medium            82.7±5.5   84.8±1.4  |  84.0±5.4   84.7±5.5  |  93.4±1.6   93.4±2.4  |  84.5±1.7   87.2±1.2
walker2d-medium-expert    110.0±0.4  110.2±0.5  | 111.7±0.6  111.4±0.7  | 114.8±0.9  114.7±1.2  | 110.3±0.5  110.2±0.3
hopper-random               8.6±0.3   14.6±9.4  |   7.2±0.2    7.7±0.1  |     -          -      |  10.3±5.6   19.5±11.2
hopper-medium-replay       64.4±24.8  53.4±15.5 |  84.6±13.5 103.2±0.4  |  99.7±0.9  101.4±0.8  |  62.4±21.6  86.8±12.8
hopper-medium              60.4±4.0   63.4±4.2  |  62.8±6.0   72.0±4.5  | 101.7±0.3  102.4±0.5  |  61.9±5.9   65.1±4.7
hopper-medium-expert      101.1±10.5 105.4±9.7  | 106.2±6.1   90.8±17.9 | 105.2±11.6 109.7±0.2  | 104.6±9.4  109.7±4.1
maze2d-umaze               29.4±14.2  37.6±14.4 |  37.7±2.0   41.0±0.7  |  95.3±7.4   99.1±18.6 |     -          -
maze2d-medium              59.5±41.9  65.2±36.1 |  35.5±1.0   35.1±2.6  |  57.0±4.0   66.4±10.9 |     -          -
maze2d-large               97.1±29.3  92.5±38.5 |  49.6±22.0  60.8±5.3  |  95.6±26.5 143.3±21.7 |     -          -
locomotion-average         59.0±4.9   60.0±5.1  |  62.1±3.5   63.7±3.5  |  92.9±2.4   92.6±2.1  |  59.5±5.5   65.9±3.7
maze-average               62.0±28.2  65.1±29.7 |  40.9±8.3   45.6±2.9  |  82.6±12.6 102.9±17.1 |     -          -
    """,
)
"""tab:full_eval, and in the last two columns tab:td3bc_larger (TD3+BC with the larger network)."""

FULL_EVAL = {name: row for name, row in _TABLE.items() if not name.endswith("-average")}
AVERAGES = {name.replace("-", " "): row for name, row in _TABLE.items() if name.endswith("-average")}
LARGER = {name: row.pop("larger") for name, row in FULL_EVAL.items() if "larger" in row}
LARGER_AVERAGE = AVERAGES["locomotion average"].pop("larger")
LOCOMOTION = tuple(LARGER)
MAZES = tuple(name for name in FULL_EVAL if name not in LARGER)

VAE_GAN: dict[str, dict[str, Pair]] = {
    "diffusion": {"td3_bc": (45.9, 0.9), "iql": (46.6, 0.2)},
    "tvae": {"td3_bc": (27.1, 2.1), "iql": (15.2, 2.2)},
    "ctgan": {"td3_bc": (24.3, 1.9), "iql": (15.9, 2.4)},
}
"""tab:vae_gan_comparison, the right half."""

NETWORK: dict[tuple[str, int], Pair] = {
    ("mlp", 2): (86.8, 18.7),
    ("mlp", 4): (89.9, 17.9),
    ("mlp", 6): (100.4, 6.9),
    ("residual", 2): (78.5, 11.3),
    ("residual", 4): (99.3, 14.7),
    ("residual", 6): (101.1, 10.5),
}
"""tab:network_ablations: kind and depth of the denoiser."""

ANTMAZE: dict[str, tuple[Pair, Pair]] = {
    "antmaze-umaze": ((70.8, 39.2), (88.9, 4.4)),
    "antmaze-medium-play": ((0.3, 0.4), (0.5, 0.7)),
    "antmaze-large-play": ((0.0, 0.0), (0.0, 0.0)),
}
"""tab:antmaze_offline: original data, SynthER."""

HALF_AVERAGE: dict[str, Pair] = {"td3_bc": (59.2, 3.7), "iql": (62.7, 5.1)}
"""tab:appendix_mixture: the locomotion average with half real and half synthetic rows."""

COMPRESSION: dict[str, tuple[float, float, float]] = {
    "walker2d-medium-replay": (12.6, 6.5, 1.9),
    "walker2d-medium": (42.0, 6.5, 6.5),
    "walker2d-medium-expert": (84.0, 6.5, 12.9),
}
"""tab:compression_statistics: millions of numbers in the data, millions of parameters of the denoiser, their ratio."""

HOURS: dict[str, float] = {"SAC (SynthER)": 21.1, "REDQ": 22.7, "SAC": 2.0}
"""Hours of an online run of 200,000 steps in the dm_control suite on a V100. SynthER's hours are 4.3 of fitting, 5 of
sampling and 11.8 of learning."""

NEIGHBOURS: dict[str, dict[str, int]] = {
    "quadruped-walk": {"REDQ": 497, "SynthER": 727, "PGR": 928, "MR.Q (UTD 1)": 884, "SimBa-SAC (UTD 2)": 666},
    "cheetah-run": {"REDQ": 607, "SynthER": 729, "PGR": 817, "MR.Q (UTD 1)": 648, "SimBa-SAC (UTD 2)": 559},
    "reacher-hard": {"REDQ": 734, "SynthER": 839, "PGR": 915, "MR.Q (UTD 1)": 806, "SimBa-SAC (UTD 2)": 939},
}
"""Online returns after 100,000 frames that other papers print. The SynthER paper prints none."""

VD4RL = _parsed(
    "drq_bc bc",
    """
walker-walk-mixed          28.7±6.9   32.3±7.6  |  16.5±4.3   12.3±3.6
walker-walk-medium         46.8±2.3   44.0±2.9  |  40.9±3.1   40.3±3.0
walker-walk-medium-expert  86.4±5.6   83.4±6.3  |  47.7±3.9   45.2±4.5
walker-walk-expert         68.4±7.5   83.6±7.5  |  91.5±3.9   92.0±4.2
cheetah-run-mixed          44.8±3.6   43.8±2.7  |  25.0±3.6   27.9±3.4
cheetah-run-medium         53.0±3.0   56.0±1.2  |  51.6±1.4   52.2±1.2
cheetah-run-medium-expert  50.6±8.2   56.9±8.1  |  57.5±6.3   69.9±9.5
cheetah-run-expert         34.5±8.3   52.3±7.0  |  67.4±6.8   85.4±3.1
average                    51.7±5.7   56.5±5.4  |  49.8±4.2   53.2±4.1
    """,
)
"""tab:vd4rl_results: pixel agents on original data, and agents with heads that are retrained on SynthER's latents."""

VD4RL_AVERAGE = VD4RL.pop("average")

REPRESENTATION: dict[str, Pair] = {"both": (52.3, 7.0), "actor": (43.5, 7.3), "critic": (16.0, 2.8)}
"""tab:representation_ablation: DrQ+BC on cheetah-run-expert, by the trunk that computes the latents."""
