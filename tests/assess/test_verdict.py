from __future__ import annotations

from dataclasses import replace

import pytest

from synther.assess.assessment import Decision, Verdict
from synther.assess.figure import Figure
from synther.assess.metrics import METRICS, measure
from synther.assess.verdict import LIMITS, decide


def verdict(**figures: tuple) -> Verdict:
    return decide({name: measure(name, Figure(*figures.get(name, (None, None)))) for name in METRICS.names()})


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


@pytest.mark.parametrize(("more", "decision"), [(0.009, "use"), (0.05, "mix"), (0.07, "do not use")])
def test_next_observations_count_by_how_much_further_off_they_are_than_real_ones(more: float, decision: str) -> None:
    figures = {"outcome_score": (0.9, 0.9), "outcome_score_mixed": (0.9, 0.9)}
    assert verdict(**figures, dynamics_error=(0.2 + more, 0.2)).decision == decision


def test_copies_are_no_defect_but_add_nothing() -> None:
    figures = {"outcome_score": (0.9, 0.9), "outcome_score_mixed": (0.9, 0.9)}
    assert "add nothing" not in verdict(**figures, memorisation=(0.06, 0.05)).sentence
    copied = verdict(**figures, memorisation=(1.0, 0.05))
    assert copied.decision == "use"
    assert "100% of the rows nearly repeat a real row" in copied.sentence
    assert "add nothing" not in verdict(**figures, memorisation=(0.9, 0.8)).sentence  # real rows repeat, too


LEARNED = {"outcome_score": (0.9, 0.9), "outcome_score_mixed": (0.9, 0.9)}


@pytest.mark.parametrize(
    ("name", "figures", "decision"),
    [
        ("dynamics_error", (74.0, 73.0), "do not use"),
        ("dynamics_error", (74.0, 73.0, 2.0), "use"),  # chance explains it
        ("outcome_spread", (0.95, 1.0), "use"),
        ("outcome_spread", (0.8, 1.0), "mix"),
        ("outcome_spread", (0.8, 1.0, 0.1), "use"),  # chance explains it
        ("outcome_spread", (1.3, 1.0), "mix"),
        ("band_50", (0.53, 0.5), "use"),
        ("band_50", (0.6, 0.5), "mix"),
        ("band_90", (0.96, 0.9), "mix"),
        ("outcome_information", (0.08, 0.0), "use"),
        ("outcome_information", (0.8, 0.0), "mix"),
        ("auc", (0.99, 0.5), "mix"),
        ("coverage", (0.9, 0.97), "use"),
        ("coverage", (0.67, 0.97), "mix"),
        ("coverage", (0.4, 0.97), "do not use"),
        ("start_coverage", (0.8, 1.0), "use"),
        ("start_coverage", (0.0, 1.0), "mix"),
        ("worst_correlation", (0.08, 0.0), "mix"),
        ("worst_correlation", (0.08, 0.06), "use"),
        ("actions_outside", (0.005, 0.0), "use"),
        ("actions_outside", (0.5, 0.0), "do not use"),
        ("action_scale", (0.5, 1.0), "do not use"),
        ("known_observations", (0.98, 1.0), "use"),
        ("known_observations", (0.9, 1.0), "mix"),
        ("possible_transitions", (0.0, 1.0), "do not use"),
        ("frequency_error", (0.02, 0.0), "use"),
        ("frequency_error", (0.14, 0.0), "mix"),
        ("terminal_rate", (0.015, 0.01), "use"),
        ("terminal_rate", (0.0, 0.01), "mix"),
        ("terminal_rate", (0.0, 0.01, 0.02), "use"),  # too few rows to say so
        ("terminal_rate", (0.2, 0.01), "do not use"),
        ("terminal_recall", (0.85, 0.9), "use"),
        ("terminal_recall", (0.85, 1.0), "mix"),
        ("terminal_recall", (0.85, 1.0, 0.06), "use"),  # too few rows to say so
        ("terminal_recall", (0.04, 1.0), "do not use"),
        ("terminal_precision", (0.28, 1.0), "mix"),
        ("reward_error", (0.12, 0.1), "use"),
        ("reward_error", (0.14, 0.1), "mix"),
        ("reward_error", (0.14, 0.1, 0.02), "use"),  # too few rows to say so
        ("reward_error", (0.5, 0.1), "do not use"),
    ],
)
def test_every_measure_has_its_vote(name: str, figures: tuple[float, ...], decision: Decision) -> None:
    found = verdict(**LEARNED, **{name: figures})
    assert found.decision == decision
    assert (found.reasons[0].measure == name) == (decision != "use")


def test_next_observations_closer_to_their_mean_than_real_ones_are_no_gain() -> None:
    measures = {name: measure(name, Figure(*LEARNED.get(name, (None, None)))) for name in METRICS.names()}
    spread = measure("outcome_spread", Figure(1.0, 1.0))
    for better, decision in (("nearer", "mix"), ("lower", "use")):
        error = measure("dynamics_error", Figure(0.004, 0.01, better=better))
        assert decide({**measures, "dynamics_error": error, "outcome_spread": spread}).decision == decision
        assert decide({**measures, "dynamics_error": error}).decision == "use"  # nothing is random


def test_limits_can_be_replaced() -> None:
    measures = {
        name: measure(name, Figure(*{**LEARNED, "auc": (0.99, 0.5)}.get(name, (None, None))))
        for name in METRICS.names()
    }
    assert decide(measures).decision == "mix"
    assert decide(measures, replace(LIMITS, auc=(0.5, 0.5))).decision == "use"


def test_reasons_name_the_column_and_the_pair() -> None:
    figures = {"outcome_spread": (0.7, 1.0, 0.0, "next_observation[3]")}
    figures["worst_correlation"] = (0.08, 0.0, 0.0, "reward and terminal: -0.020, in real rows -0.100")
    texts = [reason.text for reason in verdict(**LEARNED, **figures).reasons]
    assert any("next_observation[3]" in text and "narrower" in text for text in texts)
    assert any("reward and terminal" in text for text in texts)


def test_without_learners_nothing_suffices_for_use() -> None:
    assert verdict().decision == "mix"
    assert verdict(marginal=(0.95, 0.95), correlation=(0.96, 0.95)).decision == "mix"
    assert verdict(marginal=(0.95, 0.95), dynamics_error=(0.0, 0.0)).decision == "mix"
    found = verdict(marginal=(0.95, 0.95), correlation=(0.7, 0.95))
    assert (found.decision, found.reasons[0].measure) == ("do not use", "correlation")


@pytest.mark.parametrize(
    ("name", "figure", "decision"),
    [
        ("payout_mean", (0.10, 0.11, 0.005), "use"),
        ("payout_mean", (0.06, 0.11, 0.06), "use"),  # chance explains it
        ("payout_mean", (0.05, 0.11, 0.01), "mix"),
        ("payout_mean", (0.0, 0.11, 0.01), "mix"),
        ("payout_mean", (0.11, -0.11, 0.01), "mix"),
        ("payout_place", (0.80, 0.97, 0.01), "use"),
        ("payout_place", (0.50, 0.97, 0.04), "mix"),
        ("payout_size", (0.04, 0.05, 0.01), "use"),
        ("payout_size", (0.04, 0.99, 0.1), "mix"),
    ],
)
def test_rows_that_lose_what_payouts_depend_on_are_to_be_mixed(name: str, figure: tuple, decision: Decision) -> None:
    figures = {"outcome_score": (0.9, 0.9), "outcome_score_mixed": (0.9, 0.9)}
    assert verdict(**figures, **{name: figure}).decision == decision
