"""An Adam step that reads and writes each weight once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adamw import adamw

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for CPUs comes without it
    triton = None

_BLOCK = 1024


def adam_step(
    weights: Tensor,
    working: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    step: Tensor,
    rate: Tensor,
    *,
    max_grad_norm: float | None,
    beta1: float,
    beta2: float,
    epsilon: float = 1e-8,
    decay: float = 0.0,
    follower: Tensor | None = None,
    tau: float = 0.0,
) -> None:
    """Clip the gradient's norm, take one Adam step (Kingma and Ba 2015, Algorithm 1), refresh the working copy.

    All tensors have the same shape, are contiguous and are updated in place. `weights`, `mean` and `square` are
    float32. `gradient` and `working` have the network's dtype, and `working` may be `weights` itself. `step` (from 1)
    and `rate` are scalars on the device. With a `max_grad_norm` of None the gradient is not clipped. Weights first
    shrink by the fraction `rate * decay`, as in AdamW. Then `follower`
    (such as the weights of a target network) moves by the fraction `tau` towards the new weights.
    """
    # Without clipping the norm is not used; `step` is a placeholder.
    norm = step if max_grad_norm is None else torch.linalg.vector_norm(gradient, dtype=weights.dtype)
    if triton is not None and weights.is_cuda:
        size = weights.numel()
        grid = (triton.cdiv(size, _BLOCK),)
        _adam_kernel[grid](
            weights, working, gradient, mean, square, norm, step, rate, weights if follower is None else follower,
            size, max_grad_norm or 0.0, beta1, beta2, epsilon, decay, tau,
            max_grad_norm is not None, follower is not None, _BLOCK,
        )  # fmt: skip
        return
    clipped = gradient.to(weights.dtype)
    if max_grad_norm is not None:
        clipped = clipped * (max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
    adamw(
        [weights], [clipped], [mean], [square], [], [step - 1], fused=True, amsgrad=False, maximize=False,
        beta1=beta1, beta2=beta2, lr=rate, weight_decay=decay, eps=epsilon,
    )  # fmt: skip
    if working.data_ptr() != weights.data_ptr():
        working.copy_(weights)
    if follower is not None:
        follower.lerp_(weights, tau)


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _adam_kernel(  # type: ignore[no-untyped-def]
        weights, working, gradient, mean, square, norm, step, rate, follower,
        size, max_grad_norm, beta1, beta2, epsilon, decay, tau,
        CLIP: tl.constexpr, FOLLOW: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < size
        count = tl.load(step)
        clipped = tl.load(gradient + at, inside).to(tl.float32)
        if CLIP:
            clipped *= tl.minimum(max_grad_norm / (tl.load(norm) + 1e-6), 1.0)
        m = tl.load(mean + at, inside)
        m += (clipped - m) * (1 - beta1)
        v = tl.load(square + at, inside)
        v += (clipped * clipped - v) * (1 - beta2)
        spread = tl.sqrt(v / (1 - tl.exp(count * tl.log(beta2)))) + epsilon
        w = tl.load(weights + at, inside)
        w *= 1 - tl.load(rate) * decay
        w -= m / spread * (tl.load(rate) / (1 - tl.exp(count * tl.log(beta1))))
        tl.store(mean + at, m, inside)
        tl.store(square + at, v, inside)
        tl.store(weights + at, w, inside)
        tl.store(working + at, w.to(working.dtype.element_ty), inside)
        if FOLLOW:
            behind = tl.load(follower + at, inside)
            tl.store(follower + at, behind + (w - behind) * tau, inside)
