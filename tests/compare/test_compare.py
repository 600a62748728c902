"""Generators side by side in a folder: measured once, taken up after any interruption, joined by others later."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synther import Synthesizer, Transitions, read
from synther.assess.fidelity import compare
from synther.assess.neighbours import novelty
from synther.baselines.augmentation import Augmentation
from synther.baselines.mbpo import MBPO
from synther.baselines.tabular import Tabular
from synther.compare import generators
from synther.compare import run as module
from synther.compare.generators import Maker, Plan, TrialScore
from synther.compare.run import Row, compare_generators, measured, names_of
from synther.data.spaces import Box
from synther.envs.simulator import simulate
from synther.errors import ConfigError, DataError, MissingExtra

from ..support import small_job
from ..support.short import short_ensembles
from ..support.small_job import model
from ..support.watch import Stopped, Watch

PLAN = Plan(
    model().settings, samples=150, trials=1, epochs=2, trial_epochs=1, trial_rows=60, jobs=1, device="cpu", seed=0
)
NAMES = "diffusion,tvae,additive"


def made(count: int = 300, shift: float = 0.0) -> Transitions:
    """With one observation: TVAE fits a mixture to each column, which takes longer than all else."""
    rows = small_job.made(count, shift)
    return replace(rows, observation=rows.observation[:, :1], next_observation=rows.next_observation[:, :1])


def run(folder: Path, names: str = NAMES, plan: Plan = PLAN, rows: Transitions | None = None, progress=False):
    rows = made() if rows is None else rows
    return compare_generators(rows, folder, names_of(names), plan, command="synther compare mine", progress=progress)


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def figures(table: tuple[Row, ...]) -> list[Row]:
    """Without the time, which is never the same."""
    return [replace(row, seconds=None) for row in table]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("compare") / "new" / "run"


@pytest.fixture(scope="module")
def done(folder) -> tuple[Row, ...]:
    return run(folder)


@pytest.fixture
def copy(done, folder, tmp_path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_the_figures_are_those_of_the_rows(done, folder):
    real, diffusion, tvae, additive = done
    assert [row.name for row in done] == ["real", "diffusion", "tvae", "additive"]
    assert (real.seconds, real.parameters, additive.seconds, additive.parameters) == (None, None, 0.0, 0)
    assert min(diffusion.seconds, tvae.seconds, diffusion.parameters, tvae.parameters) > 0
    assert all(row.dynamics is None for row in done)  # nobody simulates Made-v0
    fake = {name: read(folder / name / "synthetic.npz") for name in ("diffusion", "tvae")}
    fake["additive"] = Augmentation("additive").fit(made()).sample(150, seed=0)
    for row in done[1:]:
        found = compare(made(), fake[row.name])
        assert len(fake[row.name]) == 150
        same = (found.marginal, found.correlation, found.worst_column)
        assert (row.marginal, row.correlation, row.worst_column) == same
        assert row.novelty == novelty(made(), fake[row.name])
        assert row.terminal_rate == fake[row.name].terminal.mean()
    model = Synthesizer.load(folder / "diffusion" / "model.safetensors")
    assert fake["diffusion"].equals(model.sample(150, seed=0, progress=False))
    settings = json.loads((folder / "tvae" / "fit.json").read_text())["settings"]
    best = json.loads((folder / "tvae" / "search.json").read_text())["best"]["config"]
    assert settings == {**best, "epochs": 2}
    assert best["epochs"] == 1


def test_real_is_one_half_against_the_other(done, tmp_path):
    assert 0.85 < done[0].marginal < 1
    assert done[0].novelty > 0
    copies = Transitions.concatenate([made(), made()])
    (alone,) = compare_generators(copies, tmp_path / "copies", (), PLAN, command="", progress=False)
    assert 0 <= alone.novelty < done[0].novelty


def test_the_table_is_kept(done, folder):
    kept = json.loads((folder / "comparison.json").read_text())
    assert tuple(Row(**entry) for entry in kept["generators"]) == done
    text = (folder / "comparison.md").read_text()
    assert "    command:   synther compare mine\n" in text
    assert "    simulator: none\n" in text
    assert "machine: " in text
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert [cell.strip() for cell in table[0].strip("|").split("|")] == list(done[0].cells())
    assert [line.split()[1] for line in table[1:]] == ["real", "diffusion", "tvae", "additive"]
    assert len({len(line) for line in table}) == 1
    assert "- tvae: layers " in text


def test_others_join_the_table(done, copy):
    before = files(copy)
    table = run(copy, "noise")
    assert [row.name for row in table] == ["real", "diffusion", "tvae", "additive", "multiplicative", "dynamics"]
    assert table[:4] == done
    after = files(copy)
    assert {name for name in before if before[name] != after[name]} == {"comparison.json", "comparison.md"}


def test_an_ensemble_joins_the_table(copy, monkeypatch):
    short_ensembles(monkeypatch)
    row = run(copy, "mbpo")[3]
    assert row.name == "mbpo"
    assert min(row.seconds, row.parameters) > 0
    assert len(read(copy / "mbpo" / "synthetic.npz")) == 150
    monkeypatch.setattr(MBPO, "fit", None)
    assert run(copy, "mbpo")[3] == row


def test_what_is_done_is_never_done_again(done, copy, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Maker, "rows", None)
        patched.setattr(module, "measured", None)
        assert run(copy) == done
    assert run(copy, "diffusion,additive", replace(PLAN, trials=5, epochs=9)) == done  # options of others
    for name in ("diffusion", "tvae"):
        (copy / name / "figures.json").unlink()
    monkeypatch.setattr(Tabular, "fit", None)
    monkeypatch.setattr(Synthesizer, "fit", None)
    assert run(copy) == done


@pytest.mark.parametrize(
    ("name", "phases"), [("diffusion", ("fit", "sample")), ("tvae", ("search tvae", "fit tvae"))], ids=str
)
def test_stopped_anywhere_it_goes_on(done, name, phases, tmp_path):
    for phase in phases:
        with pytest.raises(Stopped):
            run(tmp_path, name, progress=Watch((phase, 0)))
        assert not (tmp_path / "comparison.md").exists()
    assert figures(run(tmp_path, name)) == figures(tuple(row for row in done if row.name in ("real", name)))


@pytest.mark.parametrize(
    ("change", "where", "named"),
    [
        ({"rows": made(299)}, "copy", "data"),
        ({"plan": replace(PLAN, samples=151)}, "copy", "samples"),
        ({"plan": replace(PLAN, seed=1)}, "copy", "seed"),
        ({"plan": replace(PLAN, trials=2)}, "tvae", "trials"),
        ({"plan": replace(PLAN, trial_rows=50, epochs=3)}, "tvae", "epochs .*, trial_rows"),
        ({"plan": replace(PLAN, settings=PLAN.settings.changed(fit={"steps": 61}))}, "diffusion", "settings"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_options_are_refused(copy, change, where, named):
    before = files(copy)
    with pytest.raises(ConfigError, match=f"{where} .*other options: {named}.*--out"):
        run(copy, **change)
    assert files(copy) == before


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rows": made(1)}, "1 row"),
        ({"plan": replace(PLAN, env_id="Made-v0")}, "'Made-v0'"),
        ({"plan": replace(PLAN, env_id="Pendulum-v1")}, "observation"),
    ],
)
def test_what_cannot_succeed_does_not_begin(change, text, tmp_path):
    with pytest.raises(DataError, match=text):
        run(tmp_path / "run", **change)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="contains files that do not belong to this run"):
        run(tmp_path)
    assert files(tmp_path) == {"thesis.tex": b"mine"}


def swings(rows: int = 200) -> Transitions:
    draw = np.random.default_rng(0)
    angle, speed = draw.uniform(-3, 3, rows), draw.uniform(-1, 1, rows)
    observation = np.stack([np.cos(angle), np.sin(angle), speed], 1)
    action = draw.uniform(-2, 2, (rows, 1))
    following, reward, terminal = simulate("Pendulum-v1", observation, action)
    return Transitions(
        observation, action, reward, following, terminal, action_space=(Box.uniform(-2, 2, 1),), env_id="Pendulum-v1"
    )


def test_a_simulator_judges_where_there_is_one(tmp_path, monkeypatch):
    real, additive, dynamics = run(tmp_path / "a", "additive,dynamics", rows=swings())
    assert real.dynamics < 1e-10 < dynamics.dynamics < additive.dynamics
    assert "simulator: Pendulum-v1" in (tmp_path / "a" / "comparison.md").read_text()
    with pytest.raises(ConfigError, match="other options: simulator"):
        run(tmp_path / "a", "additive", replace(PLAN, simulator=False), rows=swings())
    nobody = run(tmp_path / "b", "additive", replace(PLAN, simulator=False), rows=swings())
    assert [row.dynamics for row in nobody] == [None, None]

    def missing(*args, **options):
        raise MissingExtra("gymnasium", "gym", "running Pendulum-v1")

    odd = replace(swings(), observation=swings().observation[:, :2], next_observation=swings().next_observation[:, :2])
    assert run(tmp_path / "odd", "additive", rows=odd)[0].dynamics is None  # its simulator knows no such states
    monkeypatch.setattr("synther.envs.simulator.simulate", missing)
    assert run(tmp_path / "c", "additive", rows=swings())[0].dynamics is None
    with pytest.raises(MissingExtra, match="gymnasium"):
        run(tmp_path / "d", "additive", replace(PLAN, env_id="Pendulum-v1"), rows=swings())


def test_names():
    assert names_of("noise") == ("additive", "multiplicative", "dynamics")
    assert names_of("noise, tvae,diffusion,tvae,additive") == (
        "diffusion", "tvae", "additive", "multiplicative", "dynamics",
    )  # fmt: skip
    for text, name in (("diffusion,gan", "gan"), ("", ""), ("tvae,", "")):
        with pytest.raises(ConfigError, match=f"{name!r}.*diffusion, tvae, ctgan"):
            names_of(text)


def test_the_dynamics_error_is_in_stds_of_real_rows():
    real, fake = made(), made(200, shift=1.0)
    fake = replace(fake, next_observation=3 * fake.next_observation)
    off = (fake.next_observation - fake.observation - fake.action) / real.next_observation.std(axis=0)
    found = measured("fake", real, fake, lambda here, action: (here + action,), 0).dynamics
    assert found == pytest.approx(np.median((off**2).mean(axis=1)))


def test_a_trial_is_worth_the_mean_of_marginal_and_correlation(monkeypatch):
    real, draw = made(), np.random.default_rng(1)
    fake = replace(real, observation=draw.permutation(real.observation), reward=real.reward + 9)

    class Permuting:
        def __init__(self, config, **how) -> None: ...

        def fit(self, table, progress):
            return self

        def sample(self, count, seed):
            return fake[:count]

    monkeypatch.setattr(generators, "Tabular", Permuting)
    found = compare(real, fake[:250])
    score = TrialScore(None, real, 250, "cpu", 0)(None)
    assert score == pytest.approx((found.marginal + found.correlation) / 2)
    assert abs(found.marginal - found.correlation) > 0.05


def test_figures_stand_under_their_headings():
    row = Row("tvae", 0.1, 0.2, "reward", 0.3, 0.4, 0.5, 0.06, 7.0, 8_000)
    assert row.cells() == {
        "generator": "tvae", "marginal": "0.1000", "worst column": "0.200 reward", "correlation": "0.3000",
        "dynamics error": "0.40000", "novelty": "0.50", "terminals": "6.00%", "seconds to fit": "7.0",
        "parameters": "8,000",
    }  # fmt: skip
    assert row.short_cells() == {
        "generator": "tvae", "marginal": "0.1000", "worst": "0.200", "corr.": "0.3000", "dynamics": "0.40000",
        "novelty": "0.50", "ends": "6.00%",
    }  # fmt: skip
