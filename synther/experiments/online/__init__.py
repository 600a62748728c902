"""Online runs: agents that act, learn, and upsample what they have seen."""

from synther.experiments.online.plan import Plan, Upsampling
from synther.experiments.online.training import train_to

__all__ = ["Plan", "Upsampling", "train_to"]
