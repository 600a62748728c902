"""Pixel agents, in resumable runs: training on frames, encoding, upsampling, retraining of heads, evaluation."""
