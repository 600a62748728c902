"""Online runs of agents that see: they act, learn, and upsample the latents of what they have seen."""

from synther.experiments.online_pixels.plan import LatentUpsampling, PixelPlan
from synther.experiments.online_pixels.training import train_to

__all__ = ["LatentUpsampling", "PixelPlan", "train_to"]
