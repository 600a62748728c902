"""Networks so small that a fit takes no time; each setting is poorer than the one before, and sooner done."""

from __future__ import annotations

TINY = {
    "network": {"width": 32, "depth": 2, "embedding": 16},
    "fit": {"steps": 300, "evaluate_every": 50, "checkpoint_every": 50},
    "sampler": {"steps": 16},
}
SHORT = {
    **TINY,
    "fit": {"steps": 20, "evaluate_every": 10, "checkpoint_every": 10},
    "sampler": {"steps": 4},
}
QUICK = {**SHORT, "sampler": {"steps": 2}}
