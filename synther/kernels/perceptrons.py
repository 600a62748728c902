"""Whole passes of many small perceptrons at once: all layers in one kernel, and a step of regression in two.

An update of small networks is a chain of many small kernels, and each waits for the one before. Here a program takes a
few rows through all layers of a network, so the chain is short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for CPUs comes without it
    triton = None

_WIDTHS = (64, 128, 256)
_MOST_OUTPUTS = 64
_MOST_ROWS = 80 * 256
"""Largest number of networks times rows. Above it, separate products of all networks are as fast."""
_GRADIENT_TILE: dict[str, Any] = {"HIGH": 32, "WIDE": 64, "CHUNK": 64, "num_warps": 4, "num_stages": 3}
_PROCESSORS = 132
"""Number of multiprocessors of a Hopper GPU."""


def fits(weights: Tensor, x: Tensor, sizes: Sequence[int]) -> bool:
    """Return whether these kernels can run networks with the layer sizes `sizes`, and are the fastest way."""
    _, *hidden, outputs = sizes
    same = bool(hidden) and hidden[0] in _WIDTHS and set(hidden) == {hidden[0]}
    plain = weights.is_contiguous() and x.stride(-1) == 1 and x.dtype == weights.dtype == torch.float32
    few = len(weights) * x.shape[1] <= _MOST_ROWS and outputs <= _MOST_OUTPUTS
    return triton is not None and x.is_cuda and plain and same and few


def perceptrons(weights: Tensor, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the outputs (N, B, out) of networks with ReLU between layers, for weights (N, P) and inputs x (S, B, in).

    Each x is shared by N / S consecutive networks. A row of weights is `matrices, biases, other numbers`.
    """
    out = x.new_empty(len(weights), x.shape[1], sizes[-1])
    _pass(weights, x, sizes, out)
    return out


class Regression(NamedTuple):
    """What networks with one output learn: the values of x (S, B, in), each shared by N / S consecutive networks.

    The target is `reward + discount * (1 - terminal) * next_value`, with `reward` and `terminal` (S, B). The next value
    is the smallest over M of `next_values` (S, M, B). The loss of a network is `weight` times its mean squared error.
    """

    x: Tensor
    reward: Tensor
    terminal: Tensor
    next_values: Tensor
    discount: float
    weight: float = 1.0


def regression_step(
    weights: Tensor,
    sizes: Sequence[int],
    problem: Regression,
    mean: Tensor,
    square: Tensor,
    step: Tensor,
    rate: Tensor,
    *,
    beta1: float,
    beta2: float,
    epsilon: float = 1e-8,
    decay: float = 0.0,
    follower: Tensor | None = None,
    tau: float = 0.0,
) -> Tensor:
    """Increase `step` by 1, and take one Adam step on the losses of `perceptrons`. Return the losses (N,) before it.

    For Adam and `follower` see `adam_step`. All tensors of its state have the shape of the weights (N, P).
    """
    x = problem.x
    networks, rows = len(weights), x.shape[1]
    scale = 2 * problem.weight / rows
    delta, losses = x.new_empty(networks, rows, 1), x.new_empty(networks)
    hidden, deltas = _pass(weights, x, sizes, delta, scale, problem, step)
    layers, width = len(sizes) - 2, sizes[1]
    tile = _GRADIENT_TILE
    down, across = -(-width // tile["HIGH"]), -(-width // tile["WIDE"])
    tiles = (-(-sizes[0] // tile["HIGH"]) + (layers - 1) * down) * across + down  # of the first, middle and last layers
    _gradient_kernel[(tiles, networks)](
        weights, mean, square, weights if follower is None else follower, x, hidden, deltas, delta, losses, step, rate,
        scale, rows, sizes[0], weights.shape[1], x.stride(0), x.stride(1), networks // len(x),
        beta1, beta2, epsilon, decay, tau, follower is not None, layers, width, _precision(), **tile,
    )  # fmt: skip
    return losses


def _pass(
    weights: Tensor,
    x: Tensor,
    sizes: Sequence[int],
    out: Tensor,
    scale: float = 1.0,
    problem: Regression | None = None,
    step: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run all layers forwards, and with a `problem` backwards. Return hidden outputs and deltas (N, layers, B, width).

    `out` receives the outputs, or with a problem `scale` times their differences from the target: the delta of the last
    layer.
    """
    (networks, rows, outputs), layers, width = out.shape, len(sizes) - 2, sizes[1]
    hidden = x.new_empty(networks, layers, rows, width)
    deltas = hidden if problem is None else torch.empty_like(hidden)
    # The kernel needs a tensor for each argument: unused ones get `out` as a placeholder.
    _, reward, terminal, values, discount, _ = problem or (x, out, out, out, 0.0, 1.0)
    high = 16 if networks * triton.cdiv(rows, 16) <= _PROCESSORS else 32
    _pass_kernel[(triton.cdiv(rows, high), networks)](
        weights, x, reward, terminal, values, hidden, deltas, out, out if step is None else step, discount, scale,
        rows, sizes[0], outputs, weights.shape[1], x.stride(0), x.stride(1),
        *reward.stride()[:2], *terminal.stride()[:2], *values.stride()[:2], networks // len(x),
        problem is not None, values.shape[1], layers, width, max(16, triton.next_power_of_2(outputs)), _precision(),
        high, CHUNK=32, num_warps=4, num_stages=3,
    )  # fmt: skip
    return hidden, deltas


def _precision() -> str:
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


if triton is not None:
    from synther.kernels.adam import adam_element

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _product(  # type: ignore[no-untyped-def]
        left, left_row, right, right_depth, right_column, row, in_row, depth, columns,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """Return the rows `row` of left @ right."""
        column = tl.arange(0, COLUMNS)
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for start in range(0, depth, CHUNK):
            k = start + tl.arange(0, CHUNK)
            known = k < depth
            a = tl.load(left + row[:, None] * left_row + k[None, :], in_row[:, None] & known[None, :], 0.0)
            place = k[:, None] * right_depth + column[None, :] * right_column
            b = tl.load(right + place, known[:, None] & (column < columns)[None, :], 0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
        return total

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _pass_kernel(  # type: ignore[no-untyped-def]
        weights, x, reward, terminal, values, hidden, deltas, out, step, discount, scale, rows, inputs, outputs,
        weights_network, x_network, x_row, reward_network, reward_row, terminal_network, terminal_row,
        values_network, values_critic, sharing,
        LEARN: tl.constexpr, VALUES: tl.constexpr, LAYERS: tl.constexpr, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr,
        PRECISION: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    ):  # fmt: skip
        network = tl.program_id(1).to(tl.int64)
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        in_row = row < rows
        column = tl.arange(0, WIDTH)
        inside = in_row[:, None] & (column < WIDTH)[None, :]
        place = row[:, None] * WIDTH + column[None, :]
        size = rows * WIDTH  # of the outputs of a layer
        matrix = weights + network * weights_network
        bias = matrix + inputs * WIDTH + (LAYERS - 1) * WIDTH * WIDTH + WIDTH * outputs
        hidden += network * LAYERS * size
        member = network // sharing
        seen = x + member * x_network
        y = _product(seen, x_row, matrix, WIDTH, 1, row, in_row, inputs, WIDTH, ROWS, WIDTH, CHUNK, PRECISION)
        y = tl.maximum(y + tl.load(bias + column)[None, :], 0.0)
        tl.store(hidden + place, y, inside)
        matrix += inputs * WIDTH
        for _layer in tl.static_range(1, LAYERS):
            tl.debug_barrier()  # what other threads have stored is visible now
            y = _product(hidden, WIDTH, matrix, WIDTH, 1, row, in_row, WIDTH, WIDTH, ROWS, WIDTH, CHUNK, PRECISION)
            hidden += size
            bias += WIDTH
            matrix += WIDTH * WIDTH
            y = tl.maximum(y + tl.load(bias + column)[None, :], 0.0)
            tl.store(hidden + place, y, inside)
        bias += WIDTH
        if LEARN:
            last = tl.load(matrix + column)
            value = tl.sum(y * last[None, :], 1) + tl.load(bias)
            lowest = tl.load(values + member * values_network + row, in_row, 0.0)
            for critic in tl.static_range(1, VALUES):
                other = tl.load(values + member * values_network + critic * values_critic + row, in_row, 0.0)
                lowest = tl.minimum(lowest, other, tl.PropagateNan.ALL)
            over = tl.load(terminal + member * terminal_network + row * terminal_row, in_row, 0.0)
            target = tl.load(reward + member * reward_network + row * reward_row, in_row, 0.0)
            delta = scale * (value - (target + discount * (1 - over) * lowest))
            if (network == 0) & (tl.program_id(0) == 0):
                tl.store(step, tl.load(step) + 1)
            tl.store(out + network * rows + row, delta, in_row)
            deltas += (network + 1) * LAYERS * size - size
            y = tl.where(y > 0, delta[:, None] * last[None, :], 0.0)
            tl.store(deltas + place, y, inside)
            for _layer in tl.static_range(1, LAYERS):
                tl.debug_barrier()
                matrix -= WIDTH * WIDTH
                hidden -= size
                y = _product(deltas, WIDTH, matrix, 1, WIDTH, row, in_row, WIDTH, WIDTH, ROWS, WIDTH, CHUNK, PRECISION)
                deltas -= size
                y = tl.where(tl.load(hidden + place, inside, 0.0) > 0, y, 0.0)
                tl.store(deltas + place, y, inside)
        else:
            tl.debug_barrier()
            output = tl.arange(0, OUTPUTS)
            z = _product(
                hidden, WIDTH, matrix, outputs, 1, row, in_row, WIDTH, outputs, ROWS, OUTPUTS, CHUNK, PRECISION
            )
            z += tl.load(bias + output, output < outputs, 0.0)[None, :]
            known = in_row[:, None] & (output < outputs)[None, :]
            tl.store(out + network * rows * outputs + row[:, None] * outputs + output[None, :], z, known)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _range(start, COUNT: tl.constexpr, end):  # type: ignore[no-untyped-def]
        """Return the numbers from `start` on, and which of them are below `end`."""
        numbers = start + tl.arange(0, COUNT)
        return numbers, numbers < end

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _gradient_kernel(  # type: ignore[no-untyped-def]
        weights, mean, square, follower, x, hidden, deltas, delta, losses, step, rate,
        scale, rows, inputs, weights_network, x_network, x_row, sharing, beta1, beta2, epsilon, decay, tau,
        FOLLOW: tl.constexpr, LAYERS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
        HIGH: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr,
    ):  # fmt: skip
        """Compute a tile of the gradient of a matrix, and take the step of its weights. Biases go with the first row of
        tiles. The gradient of a matrix is (input of the layer)^T (delta of the layer)."""
        network = tl.program_id(1).to(tl.int64)
        tile = tl.program_id(0)
        count, speed = tl.load(step), tl.load(rate)
        first_weight = network * weights_network
        first_bias = first_weight + inputs * WIDTH + (LAYERS - 1) * WIDTH * WIDTH + WIDTH
        for layer in tl.static_range(LAYERS + 1):
            if layer == 0:
                ins, left, left_row = inputs, x + (network // sharing) * x_network, x_row
            else:
                ins, left, left_row = WIDTH, hidden + (network * LAYERS + layer - 1) * rows * WIDTH, WIDTH
            if layer == LAYERS:
                outs, right = 1, delta + network * rows
            else:
                outs, right = WIDTH, deltas + (network * LAYERS + layer) * rows * WIDTH
            tiles = tl.cdiv(ins, HIGH) * tl.cdiv(outs, WIDE)
            if (tile >= 0) & (tile < tiles):
                across = tl.cdiv(outs, WIDE)
                i, in_i = _range((tile // across) * HIGH, HIGH, ins)
                if layer < LAYERS:
                    j, in_j = _range((tile % across) * WIDE, WIDE, outs)
                    total = tl.zeros((HIGH, WIDE), dtype=tl.float32)
                    gathered = tl.zeros((CHUNK, WIDE), dtype=tl.float32)
                    for start in range(0, rows, CHUNK):
                        k, known = _range(start, CHUNK, rows)
                        a = tl.load(left + k[None, :] * left_row + i[:, None], known[None, :] & in_i[:, None], 0.0)
                        b = tl.load(right + k[:, None] * WIDTH + j[None, :], known[:, None] & in_j[None, :], 0.0)
                        total = tl.dot(a, b, total, input_precision=PRECISION)
                        gathered += b
                    at = first_weight + i[:, None] * WIDTH + j[None, :]
                    adam_element(
                        weights, weights, mean, square, follower, at, in_i[:, None] & in_j[None, :], total, count,
                        speed, beta1, beta2, epsilon, decay, tau, FOLLOW,
                    )  # fmt: skip
                    if tile < across:
                        adam_element(
                            weights, weights, mean, square, follower, first_bias + j, in_j, tl.sum(gathered, 0), count,
                            speed, beta1, beta2, epsilon, decay, tau, FOLLOW,
                        )  # fmt: skip
                else:
                    products = tl.zeros((CHUNK, HIGH), dtype=tl.float32)
                    gathered = tl.zeros((CHUNK,), dtype=tl.float32)
                    squares = tl.zeros((CHUNK,), dtype=tl.float32)
                    for start in range(0, rows, CHUNK):
                        k, known = _range(start, CHUNK, rows)
                        a = tl.load(left + k[:, None] * WIDTH + i[None, :], known[:, None] & in_i[None, :], 0.0)
                        b = tl.load(right + k, known, 0.0)
                        products += a * b[:, None]
                        gathered += b
                        squares += b * b
                    adam_element(
                        weights, weights, mean, square, follower, first_weight + i, in_i, tl.sum(products, 0), count,
                        speed, beta1, beta2, epsilon, decay, tau, FOLLOW,
                    )  # fmt: skip
                    if tile == 0:
                        one = tl.arange(0, 1)
                        slope = tl.sum(gathered, 0) + tl.zeros((1,), dtype=tl.float32)
                        adam_element(
                            weights, weights, mean, square, follower, first_bias + one, one < 1, slope, count,
                            speed, beta1, beta2, epsilon, decay, tau, FOLLOW,
                        )  # fmt: skip
                        tl.store(losses + network, tl.sum(squares, 0) / (2 * scale))
            tile -= tiles
            first_weight += ins * outs
            first_bias += outs
