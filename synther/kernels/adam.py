"""An Adam step in one kernel, which reads and writes each weight once."""

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
_SUMS = 256  # number of programs that sum the squares of a gradient; each writes one partial sum


def adam_step(
    weights: Tensor,
    working: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    step: Tensor,
    rate: Tensor,
    *,
    beta1: float,
    beta2: float,
    max_grad_norm: float | None = None,
    epsilon: float = 1e-8,
    decay: float = 0.0,
    follower: Tensor | None = None,
    tau: float = 0.0,
) -> None:
    """Clip the norm of the gradient, take one Adam step (Kingma and Ba 2015, Algorithm 1), and update the working copy.

    All tensors have the same shape and are contiguous. They are updated in place. `weights`, `mean` and `square` are
    float32. `gradient` and `working` have the dtype of the network, and `working` may be `weights` itself. `step` (from
    1) and `rate` are scalars on the device. If `max_grad_norm` is given, the norm of the gradient is clipped; for
    gradients (S, P), that of each row. Before the step, weights shrink by the fraction `rate * decay`, as in AdamW.
    After it, `follower` (for example the weights of a target network) moves by the fraction `tau` towards the new
    weights.
    """
    if triton is not None and weights.is_cuda:
        clips = max_grad_norm is not None
        members = gradient.numel() // gradient.shape[-1] if clips else 1
        size = weights.numel() // members
        squares = step  # a placeholder if nothing is clipped
        if clips:
            squares = step.new_empty(members, _SUMS, dtype=torch.float32)
            _squares_kernel[(_SUMS, members)](gradient, squares, size, _SUMS, 2048, num_warps=8)
        _adam_kernel[(triton.cdiv(size, _BLOCK), members)](
            weights, working, gradient, mean, square, squares, step, rate, weights if follower is None else follower,
            size, max_grad_norm or 0.0, beta1, beta2, epsilon, decay, tau,
            clips, follower is not None, _BLOCK, _SUMS,
        )  # fmt: skip
        return
    clipped = gradient.to(weights.dtype)
    if max_grad_norm is not None:
        norm = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True, dtype=weights.dtype)
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
    def _squares_kernel(gradient, sums, size, SUMS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        start = gradient + tl.program_id(1).to(tl.int64) * size
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        for first in range(tl.program_id(0) * BLOCK, size, SUMS * BLOCK):
            at = first + tl.arange(0, BLOCK)
            value = tl.load(start + at, at < size, 0.0).to(tl.float32)
            total += value * value
        tl.store(sums + tl.program_id(1) * SUMS + tl.program_id(0), tl.sum(total, 0))

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def adam_element(  # type: ignore[no-untyped-def]
        weights, working, mean, square, follower, at, inside, gradient, count, rate,
        beta1, beta2, epsilon, decay, tau, FOLLOW: tl.constexpr,
    ):  # fmt: skip
        """Take the Adam step of the weights at the places `at`, where `inside` is true."""
        m = tl.load(mean + at, inside)
        m += (gradient - m) * (1 - beta1)
        v = tl.load(square + at, inside)
        v += (gradient * gradient - v) * (1 - beta2)
        spread = tl.sqrt(v / (1 - tl.exp(count * tl.log(beta2)))) + epsilon
        w = tl.load(weights + at, inside)
        w *= 1 - rate * decay
        w -= m / spread * (rate / (1 - tl.exp(count * tl.log(beta1))))
        tl.store(mean + at, m, inside)
        tl.store(square + at, v, inside)
        tl.store(weights + at, w, inside)
        tl.store(working + at, w.to(working.dtype.element_ty), inside)
        if FOLLOW:
            behind = tl.load(follower + at, inside)
            tl.store(follower + at, behind + (w - behind) * tau, inside)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _adam_kernel(  # type: ignore[no-untyped-def]
        weights, working, gradient, mean, square, squares, step, rate, follower,
        size, max_grad_norm, beta1, beta2, epsilon, decay, tau,
        CLIP: tl.constexpr, FOLLOW: tl.constexpr, BLOCK: tl.constexpr, SUMS: tl.constexpr,
    ):  # fmt: skip
        member, place = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside, at = place < size, member.to(tl.int64) * size + place
        count = tl.load(step)
        clipped = tl.load(gradient + at, inside).to(tl.float32)
        if CLIP:
            norm = tl.sqrt(tl.sum(tl.load(squares + member * SUMS + tl.arange(0, SUMS)), 0))
            clipped *= tl.minimum(max_grad_norm / (norm + 1e-6), 1.0)
        adam_element(
            weights, working, mean, square, follower, at, inside, clipped, count, tl.load(rate),
            beta1, beta2, epsilon, decay, tau, FOLLOW,
        )  # fmt: skip
