"""Every experiment is well-formed, and the paper's figures are those of the paper as far as they check themselves."""

from __future__ import annotations

import json

import numpy as np
import pytest

from synther.agents.agent import ALGORITHMS
from synther.errors import ConfigError
from synther.experiments.specs import STAGE_ONE, OfflineRun, OnlineRun, PixelRun
from synther.paper import EXPERIMENTS, find, published
from synther.paper.experiment import STOPPED, Experiment
from synther.presets import PRESETS

ALL = pytest.mark.parametrize("wanted", EXPERIMENTS.values(), ids=list(EXPERIMENTS))


@ALL
def test_runs_are_plain_data_whose_arms_have_their_sources(wanted: Experiment):
    assert wanted.jobs
    assert len({job.name for job in wanted.jobs}) == len(wanted.jobs)
    for job in wanted.jobs:
        plain = json.loads(json.dumps(job.to_json()))
        assert plain == job.to_json()
        assert type(job).from_json(plain) == job
        if isinstance(job, PixelRun):
            assert job.config
            assert job.algorithm == "drq_bc" or {arm.features for arm in job.arms.values()} == {"actor"}
        if not isinstance(job, OfflineRun):
            continue
        asked = {source for shares in job.arms.values() for source in shares}
        assert asked - {"real"} == job.sources.keys()
        assert all(sum(shares.values()) == 1 for shares in job.arms.values())
        assert job.algorithm in ALGORITHMS
        for recipe in job.sources.values():
            recipe.settings()


@ALL
def test_the_table_shows_arms_that_are_trained_and_all_else_names_what_it_has(wanted: Experiment):
    arms = {job.name: set(job.arms) for job in wanted.jobs if isinstance(job, OfflineRun)}
    arms |= {job.name: {job.arm} for job in wanted.jobs if isinstance(job, OnlineRun)}
    arms |= {job.name: {STAGE_ONE, *job.arms} for job in wanted.jobs if isinstance(job, PixelRun)}
    arms = {name: set.intersection(*map(arms.pop, runs)) for name, runs in wanted.pools.items()} | arms
    sizes = {job.name: {"numbers", "parameters", "ratio"} for job in wanted.jobs if not hasattr(job, "seeds")}
    for row in wanted.table.values():
        for cell in row.values():
            assert cell.arm.removesuffix(STOPPED) in (arms | sizes)[cell.run]
    held_out = {job.name for job in wanted.jobs if isinstance(job, OfflineRun) and job.holdout}
    stopped = {cell.run for row in wanted.table.values() for cell in row.values() if cell.arm.endswith(STOPPED)}
    assert {run for name in stopped for run in wanted.pools.get(name, (name,))} == held_out
    shown = {(cell.run, cell.arm) for row in wanted.table.values() for cell in row.values()}
    assert {run for run, _ in shown} == arms.keys() | sizes.keys()
    columns = set(wanted.columns)
    for line in wanted.averages:
        assert set(line.rows) <= wanted.table.keys()
        assert line.paper.keys() <= columns
    for contrast in wanted.contrasts:
        assert set(contrast) <= columns
    for lines in wanted.lines:
        assert lines.places.keys() <= wanted.table.keys()
        assert set(lines.columns) <= columns
    groups, arms = (wanted.table, columns) if wanted.bars == "rows" else (columns, wanted.table)
    assert wanted.bars is None or (len(groups) <= 8 and len(arms) <= 8)


def test_runs_of_one_name_are_one_run():
    runs = {}
    for wanted in EXPERIMENTS.values():
        for job in wanted.jobs:
            assert runs.setdefault(job.name, job) == job


@pytest.mark.parametrize(
    ("name", "figures"),
    [("full_eval", 84), ("vae_gan", 6), ("larger", 36), ("network", 6), ("antmaze", 6), ("mixture", 48),
     ("compression", 9), ("agents", 6), ("mixed-eval", 24), ("mixed-larger", 12), ("subsample", 0), ("upsample", 0),
     ("online", 0), ("online-100k", 0), ("vd4rl", 32), ("representation", 3), ("pixels", 0)],
)  # fmt: skip
def test_every_figure_of_the_paper_has_its_cell(name, figures):
    cells = [cell for row in EXPERIMENTS[name].table.values() for cell in row.values()]
    assert sum(cell.paper is not None for cell in cells) == figures


def test_the_papers_averages_are_those_of_its_figures():
    """To the digit they are printed with; one std of its maze averages is 0.27 off in print."""
    groups = {"locomotion average": published.LOCOMOTION, "maze average": published.MAZES}
    for name, averages in published.AVERAGES.items():
        for algorithm, printed in averages.items():
            found = [published.FULL_EVAL[data].get(algorithm) for data in groups[name]]
            means = np.mean([pairs for pairs in found if pairs is not None], axis=0)
            off = np.abs(means - printed)
            assert off[:, 0].max() < 0.051
            assert off[:, 1].max() < (0.28 if (name, algorithm) == ("maze average", "td3_bc") else 0.051)
    for algorithm, printed in published.VD4RL_AVERAGE.items():
        found = np.mean([pairs[algorithm] for pairs in published.VD4RL.values()], axis=0)
        np.testing.assert_allclose(found, printed, atol=0.051)
    larger = np.mean(list(published.LARGER.values()), axis=0)
    np.testing.assert_allclose(larger, published.LARGER_AVERAGE, atol=0.051)


def test_the_papers_hyperparameters():
    runs = {job.name: job for wanted in EXPERIMENTS.values() for job in wanted.jobs}
    wide = {
        run.data
        for run in EXPERIMENTS["full_eval"].jobs
        if isinstance(run, OfflineRun) and run.sources["synthetic"].settings().network.width == 2048
    }
    assert wide == {"halfcheetah-medium-expert", "hopper-medium", "hopper-medium-expert"}
    assert runs["hopper-medium-edac"].updates == 3_000_000
    assert runs["hopper-medium-iql"].updates == 1_000_000
    assert runs["hopper-medium-iql"].sources["synthetic"].samples == 5_000_000
    assert runs["hopper-medium-td3_bc-larger"].agent == {"width": 512, "depth": 3, "batch_size": 1024}
    assert runs["walker2d-medium-iql-half"].arms == {"half": {"as_many": 0.5, "real": 0.5}}
    assert runs["walker2d-medium-iql-half"].sources["as_many"].samples is None
    assert (runs["antmaze-umaze-td3_bc"].seeds, runs["hopper-medium-expert-td3_bc-networks"].seeds) == (6, 4)
    samples = [recipe.samples for recipe in runs["walker2d-medium-replay-td3_bc-samples"].sources.values()]
    assert (len(samples), samples[0], samples[-1]) == (10, 50_000, 5_000_000)
    np.testing.assert_allclose(np.diff(np.log(samples)), np.log(100) / 9, rtol=1e-4)
    assert list(runs["walker2d-mixed-15pct-td3_bc-ours"].arms) == [
        "real", "synthetic", "additive", "multiplicative", "dynamics"
    ]  # fmt: skip
    assert runs["walker2d-mixed-15pct-td3_bc-ours"].fraction == 0.15


def test_the_papers_online_settings():
    runs = {job.name: job for job in find("online").jobs if isinstance(job, OnlineRun)}
    assert len(runs) == 18
    assert all(run.steps == (200_000 if "dm_control" in run.env_id else 100_000) for run in runs.values())
    assert {(run.seeds, run.learning_starts) for run in runs.values()} == {(6, 5_000)}
    assert {(run.arm, run.utd) for run in runs.values()} == {("sac", 1), ("redq", 20), ("sac_synther", 20)}
    made = runs["halfcheetah-100k-synther-utd20-paper"].synthetic
    assert made is not None
    assert (made.samples, made.refresh_every, made.ratio, made.refit) == (1_000_000, 10_000, 0.5, "scratch")
    network, sampler = made.settings().network, made.settings().sampler
    assert (network.width, network.depth, network.embedding, sampler.kind, sampler.steps) == (1024, 6, 256, "sde", 128)


def test_the_papers_pixels():
    runs = {job.name: job for job in find("vd4rl").jobs if isinstance(job, PixelRun)}
    assert len(runs) == 16
    assert {(run.seeds, run.updates, run.episodes) for run in runs.values()} == {(6, 550_000, 10)}
    assert {run.data_set for run in runs.values()} == published.VD4RL.keys()
    for run in runs.values():
        assert list(run.arms) == ["synthetic"]
        recipe = run.arms["synthetic"].recipe
        assert recipe is not None
        assert (recipe.samples, recipe.settings()) == (5_000_000, PRESETS["paper"])
    (ablation,) = find("representation").jobs
    assert isinstance(ablation, PixelRun)
    assert (ablation.data_set, ablation.algorithm, ablation.seeds) == ("cheetah-run-expert", "drq_bc", 4)
    assert {arm.features for arm in ablation.arms.values()} == {"both", "actor", "critic"}
    assert published.REPRESENTATION["both"] == published.VD4RL["cheetah-run-expert"]["drq_bc"][1]


def test_choosing_runs_and_experiments():
    block = find("mixed-eval")
    assert [job.name for job in block.chosen(["walker2d-mixed-td3", "hopper-mixed-td3"])] == [
        "walker2d-mixed-td3_bc-ours", "hopper-mixed-td3_bc-ours"
    ]  # fmt: skip
    assert len(block.chosen([])) == 18
    assert block.chosen(["ant"]) == []
    with pytest.raises(ConfigError, match="'tables'"):
        find("tables")
