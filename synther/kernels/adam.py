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
_SUMS = 256  # programs that sum the squares of a gradient


def sums_of_squares(gradient: Tensor) -> Tensor:
    """Sums (S, K) of the squares of S gradients (S, P): the squared norm of each is the sum of its K."""
    if triton is None or not gradient.is_cuda:
        precise = torch.promote_types(gradient.dtype, torch.float32)
        norm: Tensor = torch.linalg.vector_norm(gradient, dim=1, keepdim=True, dtype=precise)
        return norm.square()
    members, size = gradient.shape
    sums = gradient.new_empty(members, _SUMS, dtype=torch.float32)
    _squares_kernel[(_SUMS, members)](gradient, sums, size, _SUMS, 2048, num_warps=8)
    return sums


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
    squares: Tensor | None = None,
    epsilon: float = 1e-8,
    decay: float = 0.0,
    follower: Tensor | None = None,
    tau: float = 0.0,
) -> None:
    """Clip the gradient's norm, take one Adam step (Kingma and Ba 2015, Algorithm 1), refresh the working copy.

    All tensors have the same shape, are contiguous and are updated in place. `weights`, `mean` and `square` are
    float32. `gradient` and `working` have the network's dtype, and `working` may be `weights` itself. `step` (from 1)
    and `rate` are scalars on the device. With a `max_grad_norm`, the tensors are (S, P), and `squares` are the
    `sums_of_squares` of the gradient: the norm of each row is clipped. Weights first shrink by the fraction
    `rate * decay`, as in AdamW. Then `follower` (such as the weights of a target network) moves by the fraction `tau`
    towards the new weights.
    """
    if triton is not None and weights.is_cuda:
        members, sums = (1, 1) if squares is None else squares.shape
        size = weights.numel() // members
        # Without clipping no sums are read; `step` is a placeholder.
        _adam_kernel[(triton.cdiv(size, _BLOCK), members)](
            weights, working, gradient, mean, square, step if squares is None else squares, step, rate,
            weights if follower is None else follower, size, max_grad_norm or 0.0, beta1, beta2, epsilon, decay, tau,
            squares is not None, follower is not None, _BLOCK, sums,
        )  # fmt: skip
        return
    clipped = gradient.to(weights.dtype)
    if squares is not None and max_grad_norm is not None:
        norm = squares.sum(1, keepdim=True).sqrt()
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
