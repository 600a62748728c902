"""Brief fits of the small networks inside the package, for tests that do not depend on how well these learn."""

from __future__ import annotations

import pytest

from synther.assess import learners
from synther.relevance import conditional


def short_ensembles(patch: pytest.MonkeyPatch, steps: int = 5) -> None:
    """Each ensemble of dynamics models takes so many steps."""
    for name in ("FEWEST_STEPS", "MOST_STEPS"):
        patch.setattr(conditional, name, steps)


def short_learners(patch: pytest.MonkeyPatch, steps: int = 3, width: int = 32) -> None:
    """Each network that judges rows is so narrow and takes so many steps."""
    for name, value in (("FEWEST_STEPS", steps), ("MOST_STEPS", steps), ("WIDTH", width)):
        patch.setattr(learners, name, value)
