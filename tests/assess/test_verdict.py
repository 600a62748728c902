from __future__ import annotations

import pytest

from synther.assess.assessment import Decision, Verdict
from synther.assess.catalogue import KINDS, measure
from synther.assess.verdict import decide


def verdict(**figures: tuple[float | None, float | None]) -> Verdict:
    return decide({name: measure(name, *figures.get(name, (None, None))) for name in KINDS})


def learned(outcome: float, mixed: float, policy: float, error: float) -> Verdict:
    return verdict(
        outcome_score=(outcome, 0.9),
        outcome_score_mixed=(mixed, 0.9),
        policy_score=(policy, 0.6),
        policy_score_mixed=((policy + 0.6) / 2, 0.6),
        dynamics_error=(error, 0.001),
    )


@pytest.mark.parametrize(
    ("outcome", "mixed", "policy", "error", "decision", "first"),
    [
        (0.90, 0.90, 0.60, 0.001, "use", "outcome_score"),
        (0.95, 0.95, 0.70, 0.000, "use", "outcome_score"),
        (0.88, 0.90, 0.60, 0.001, "use", "outcome_score"),  # 1.17 times the error
        (0.80, 0.88, 0.60, 0.005, "mix", "outcome_score"),
        (0.80, 0.86, 0.60, 0.005, "mix", "outcome_score"),  # half and half 1.33 times the error
        (0.80, 0.82, 0.60, 0.005, "do not use", "outcome_score"),  # 1.67 times
        (0.90, 0.90, 0.45, 0.005, "mix", "policy_score"),
        (0.90, 0.90, 0.60, 0.050, "mix", "dynamics_error"),
        (-0.6, 0.20, 0.58, 0.005, "do not use", "outcome_score"),
        (0.90, 0.90, 0.60, 0.300, "do not use", "dynamics_error"),
    ],
)
def test_the_worst_measure_decides_and_comes_first(
    outcome: float, mixed: float, policy: float, error: float, decision: Decision, first: str
) -> None:
    found = learned(outcome, mixed, policy, error)
    assert found.decision == decision
    assert (found.reasons[0].measure, found.reasons[0].says) == (first, decision)
    assert len(found.reasons) == 3
    assert f"{outcome:.3f}" in next(reason.text for reason in found.reasons if reason.measure == "outcome_score")


def test_where_real_rows_teach_everything_a_hundredth_is_no_loss() -> None:
    figures = {"outcome_score": (0.999, 1.0), "outcome_score_mixed": (1.0, 1.0)}
    assert verdict(**figures).decision == "use"
    assert verdict(**{**figures, "outcome_score": (0.9, 1.0)}).decision == "mix"


@pytest.mark.parametrize(("more", "decision"), [(0.009, "use"), (0.09, "mix"), (0.11, "do not use")])
def test_next_observations_count_by_how_much_further_off_they_are_than_real_ones(more: float, decision: str) -> None:
    figures = {"outcome_score": (0.9, 0.9), "outcome_score_mixed": (0.9, 0.9)}
    assert verdict(**figures, dynamics_error=(0.2 + more, 0.2)).decision == decision


def test_copies_are_no_defect_but_add_nothing() -> None:
    figures = {"outcome_score": (0.9, 0.9), "outcome_score_mixed": (0.9, 0.9)}
    assert "add nothing" not in verdict(**figures, memorisation=(0.06, 0.05)).sentence
    copied = verdict(**figures, memorisation=(1.0, 0.05))
    assert copied.decision == "use"
    assert "100% of the rows nearly repeat a real one" in copied.sentence
    assert "add nothing" not in verdict(**figures, memorisation=(0.9, 0.8)).sentence  # real rows repeat, too


def test_ends_that_are_not_flagged_are_told() -> None:
    figures = {"outcome_score": (0.9, 0.9), "outcome_score_mixed": (0.9, 0.9)}
    warned = verdict(**figures, terminal_recall=(0.28, 1.0))
    assert warned.decision == "use"
    assert warned.sentence.endswith("But only 28% of the rows that end an episode say so (100% of the real ones).")
    assert verdict(**figures, terminal_recall=(0.5, 0.9)).sentence == verdict(**figures).sentence


def test_without_learners_nothing_suffices_for_use() -> None:
    assert verdict().decision == "mix"
    assert verdict(marginal=(0.95, 0.95), correlation=(0.96, 0.95)).decision == "mix"
    assert verdict(marginal=(0.95, 0.95), dynamics_error=(0.0, 0.0)).decision == "mix"
    found = verdict(marginal=(0.95, 0.95), correlation=(0.7, 0.95))
    assert (found.decision, found.reasons[0].measure) == ("do not use", "correlation")
