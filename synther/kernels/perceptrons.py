"""Whole passes of many small perceptrons at once: all layers in one kernel, and a step of TD learning in two.

An update of small networks is a chain of many small kernels, and each waits for the one before. Here a program takes a
few rows through all layers of a network, so the chain is short. `agents.critics.td_step` has the same step in plain
PyTorch, which the tests compare with these kernels. Read `Perceptron`, then `_pass_kernel`.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from synther.kernels.layer_norm import EPS

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for CPUs comes without it
    triton = None

_WIDTHS = (64, 128, 256)
_MOST_OUTPUTS = 64
_MOST_ROWS = 80 * 256
"""Largest number of networks times rows. Above it, separate products of all networks are as fast."""
_PASS: dict[str, Any] = {"CHUNK": 32, "num_warps": 4, "num_stages": 3}
_GRADIENT: dict[str, Any] = {"HIGH": 32, "WIDE": 64, "CHUNK": 64, "num_warps": 4, "num_stages": 3}
_PROCESSORS = 132
"""Number of multiprocessors of a Hopper GPU."""


class Perceptron(NamedTuple):
    """A network of linear layers with ReLU between them, and where its parameters are in a row of weights.

    Without layer norm, the row is all matrices (in, out), then all biases. With layer norm, each hidden layer has its
    matrix (out, in), bias, scale and shift one after the other, then the last layer follows with matrix and bias. Other
    numbers may follow.
    """

    sizes: tuple[int, ...]
    """Numbers of inputs, of units of each hidden layer, and of outputs."""
    norm: Literal["none", "before", "after"] = "none"
    """Whether hidden layers have layer norm, and whether it comes before or after the ReLU."""

    def fits(self, weights: Tensor, x: Tensor) -> bool:
        """Return whether these kernels can run such networks, and are the fastest way."""
        _, *hidden, outputs = self.sizes
        same = bool(hidden) and hidden[0] in _WIDTHS and set(hidden) == {hidden[0]}
        plain = weights.is_contiguous() and x.stride(-1) == 1 and x.dtype == weights.dtype == torch.float32
        few = len(weights) * x.shape[1] <= _MOST_ROWS and outputs <= _MOST_OUTPUTS
        return triton is not None and x.is_cuda and plain and same and few


def outputs(kind: Perceptron, weights: Tensor, x: Tensor) -> Tensor:
    """Return the outputs (N, B, out) of networks with the weights (N, P), for inputs x (S, B, in).

    Each x is shared by N / S consecutive networks.
    """
    out = x.new_empty(len(weights), x.shape[1], kind.sizes[-1])
    _pass(kind, weights, x, out)
    return out


class Problem(NamedTuple):
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


def td_step(
    kind: Perceptron,
    weights: Tensor,
    problem: Problem,
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
    """Increase `step` by 1, and take one Adam step on the losses of all networks. Return the losses (N,) before it.

    For Adam and `follower` see `adam_step`. All tensors of its state have the shape of the weights (N, P).
    """
    x = problem.x
    networks, rows = len(weights), x.shape[1]
    scale = 2 * problem.weight / rows
    delta, losses = x.new_empty(networks, rows, 1), x.new_empty(networks)
    hidden, made, statistics, towards, deltas = _pass(kind, weights, x, delta, scale, problem, step)
    inputs, width, layers = kind.sizes[0], kind.sizes[1], len(kind.sizes) - 2
    down, across = -(-width // _GRADIENT["HIGH"]), -(-width // _GRADIENT["WIDE"])
    # Tiles of the matrices of the first, the middle and the last layers.
    tiles = (-(-inputs // _GRADIENT["HIGH"]) + (layers - 1) * down) * across + down
    _gradient_kernel[(tiles, networks)](
        weights, mean, square, weights if follower is None else follower, x, hidden, made, statistics, towards, deltas,
        delta, losses, step, rate, scale, rows, inputs, weights.shape[1], x.stride(0), x.stride(1), networks // len(x),
        beta1, beta2, epsilon, decay, tau, follower is not None, _NORMS[kind.norm], layers, width, _precision(),
        **_GRADIENT,
    )  # fmt: skip
    return losses


def _pass(
    kind: Perceptron,
    weights: Tensor,
    x: Tensor,
    out: Tensor,
    scale: float = 1.0,
    problem: Problem | None = None,
    step: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Run all layers forwards, and with a `problem` backwards. Return what each hidden layer computed, as far as it was
    needed: its outputs, the inputs of its norm and their mean and 1 / std, and the gradients of the loss with respect
    to the outputs of its norm and to those of its matrix. They are (N, layers, B, width), the mean (N, layers, 2, B).

    `out` receives the outputs, or with a problem `scale` times their differences from the target.
    """
    (networks, rows, count), layers, width = out.shape, len(kind.sizes) - 2, kind.sizes[1]
    hidden = x.new_empty(networks, layers, rows, width)
    # The kernel needs a tensor for each argument: unused ones get another one as a placeholder.
    made = statistics = towards = deltas = hidden
    if problem is not None:
        deltas = torch.empty_like(hidden)
        if kind.norm != "none":
            made, towards = torch.empty_like(hidden), torch.empty_like(hidden)
            statistics = x.new_empty(networks, layers, 2, rows)
    _, reward, terminal, values, discount, _ = problem or (x, out, out, out, 0.0, 1.0)
    high = 16 if networks * -(-rows // 16) <= _PROCESSORS else 32
    _pass_kernel[(-(-rows // high), networks)](
        weights, x, reward, terminal, values, hidden, made, statistics, towards, deltas, out,
        out if step is None else step, discount, scale, rows, kind.sizes[0], count, weights.shape[1],
        x.stride(0), x.stride(1), *reward.stride()[:2], *terminal.stride()[:2], *values.stride()[:2],
        networks // len(x), problem is not None, _NORMS[kind.norm], values.shape[1], layers, width,
        max(16, triton.next_power_of_2(count)), _precision(), high, **_PASS,
    )  # fmt: skip
    return hidden, made, statistics, towards, deltas


_NORMS = {"none": 0, "before": 1, "after": 2}


def _precision() -> str:
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


if triton is not None:
    from synther.kernels.adam import adam_element

    _EPS: tl.constexpr = tl.constexpr(EPS)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _range(start, COUNT: tl.constexpr, end):  # type: ignore[no-untyped-def]
        """Return the numbers from `start` on, and which of them are below `end`."""
        numbers = start + tl.arange(0, COUNT)
        return numbers, numbers < end

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _product(  # type: ignore[no-untyped-def]
        left, left_row, right, right_depth, right_column, row, in_row, depth, columns,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """Return the rows `row` of left @ right."""
        column = tl.arange(0, COLUMNS)
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for start in range(0, depth, CHUNK):
            k, known = _range(start, CHUNK, depth)
            a = tl.load(left + row[:, None] * left_row + k[None, :], in_row[:, None] & known[None, :], 0.0)
            place = k[:, None] * right_depth + column[None, :] * right_column
            b = tl.load(right + place, known[:, None] & (column < columns)[None, :], 0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
        return total

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _normal(made, statistics, place, inside, row, in_row, rows):  # type: ignore[no-untyped-def]
        """Return inputs of a norm, what they are with mean 0 and std 1, and 1 / std."""
        y = tl.load(made + place, inside, 0.0)
        mean = tl.load(statistics + row, in_row, 0.0)
        factor = tl.load(statistics + rows + row, in_row, 0.0)
        return y, (y - mean[:, None]) * factor[:, None], factor

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _pass_kernel(  # type: ignore[no-untyped-def]
        weights, x, reward, terminal, values, hidden, made, statistics, towards, deltas, out, step, discount, scale,
        rows, inputs, outputs, weights_network, x_network, x_row, reward_network, reward_row, terminal_network,
        terminal_row, values_network, values_critic, sharing,
        LEARN: tl.constexpr, NORM: tl.constexpr, VALUES: tl.constexpr, LAYERS: tl.constexpr, WIDTH: tl.constexpr,
        OUTPUTS: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    ):  # fmt: skip
        network = tl.program_id(1).to(tl.int64)
        member = network // sharing
        row, in_row = _range(tl.program_id(0) * ROWS, ROWS, rows)
        column = tl.arange(0, WIDTH)
        inside = in_row[:, None] & (column < WIDTH)[None, :]
        place = row[:, None] * WIDTH + column[None, :]
        size = rows * WIDTH  # of the outputs of a layer
        hidden += network * LAYERS * size
        made += network * LAYERS * size
        statistics += network * LAYERS * 2 * rows
        matrix = weights + network * weights_network
        bias = matrix + inputs * WIDTH + (LAYERS - 1) * WIDTH * WIDTH + WIDTH * outputs
        left, left_row, depth = x + member * x_network, x_row, inputs
        for layer in tl.static_range(LAYERS):
            if layer:
                tl.debug_barrier()  # what other threads have stored is visible now
                left, left_row, depth = hidden, WIDTH, WIDTH
            down, across = (1, depth) if NORM else (WIDTH, 1)  # strides of the matrix (in, out)
            if NORM:
                bias = matrix + depth * WIDTH
            y = _product(left, left_row, matrix, down, across, row, in_row, depth, WIDTH, ROWS, WIDTH, CHUNK, PRECISION)
            y += tl.load(bias + column)[None, :]
            if NORM != 1:
                y = tl.maximum(y, 0.0)
            if NORM:
                mean = tl.sum(y, 1) / WIDTH
                away = y - mean[:, None]
                factor = 1 / tl.sqrt(tl.sum(away * away, 1) / WIDTH + _EPS)
                if LEARN:
                    tl.store(made + place, y, inside)
                    tl.store(statistics + row, mean, in_row)
                    tl.store(statistics + rows + row, factor, in_row)
                    made += size
                    statistics += 2 * rows
                y = away * factor[:, None] * tl.load(bias + WIDTH + column)[None, :]
                y += tl.load(bias + 2 * WIDTH + column)[None, :]
                if NORM == 1:
                    y = tl.maximum(y, 0.0)
            if layer:
                hidden += size
            tl.store(hidden + place, y, inside)
            matrix += depth * WIDTH
            if NORM:
                matrix += 3 * WIDTH
            bias += WIDTH
        if NORM:
            bias = matrix + WIDTH * outputs
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
            towards += (network + 1) * LAYERS * size
            deltas += (network + 1) * LAYERS * size
            z = delta[:, None] * last[None, :]
            tl.debug_barrier()
            for layer in tl.static_range(LAYERS):
                if layer:
                    tl.debug_barrier()
                    matrix -= WIDTH * WIDTH
                    if NORM:
                        matrix -= 3 * WIDTH
                    down, across = (WIDTH, 1) if NORM else (1, WIDTH)  # strides of the transposed matrix
                    z = _product(
                        deltas, WIDTH, matrix, down, across, row, in_row, WIDTH, WIDTH, ROWS, WIDTH, CHUNK, PRECISION
                    )
                    hidden -= size
                deltas -= size
                if NORM != 2:
                    z = tl.where(tl.load(hidden + place, inside, 0.0) > 0, z, 0.0)
                if NORM:
                    towards -= size
                    made -= size
                    statistics -= 2 * rows
                    tl.store(towards + place, z, inside)
                    y, normal, factor = _normal(made, statistics, place, inside, row, in_row, rows)
                    z *= tl.load(matrix - 2 * WIDTH + column)[None, :]
                    mean, along = tl.sum(z, 1) / WIDTH, tl.sum(z * normal, 1) / WIDTH
                    z = (z - mean[:, None] - normal * along[:, None]) * factor[:, None]
                    if NORM == 2:
                        z = tl.where(y > 0, z, 0.0)
                tl.store(deltas + place, z, inside)
        else:
            tl.debug_barrier()
            output = tl.arange(0, OUTPUTS)
            down, across = (1, WIDTH) if NORM else (outputs, 1)
            z = _product(
                hidden, WIDTH, matrix, down, across, row, in_row, WIDTH, outputs, ROWS, OUTPUTS, CHUNK, PRECISION
            )
            z += tl.load(bias + output, output < outputs, 0.0)[None, :]
            known = in_row[:, None] & (output < outputs)[None, :]
            tl.store(out + network * rows * outputs + row[:, None] * outputs + output[None, :], z, known)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _gradient_kernel(  # type: ignore[no-untyped-def]
        weights, mean, square, follower, x, hidden, made, statistics, towards, deltas, delta, losses, step, rate,
        scale, rows, inputs, weights_network, x_network, x_row, sharing, beta1, beta2, epsilon, decay, tau,
        FOLLOW: tl.constexpr, NORM: tl.constexpr, LAYERS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
        HIGH: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr,
    ):  # fmt: skip
        """Compute a tile of the gradient of a matrix, and take the step of its weights. Vectors of a layer go with its
        first row of tiles. The gradient of a matrix is (input of the layer)^T (delta of the layer)."""
        network = tl.program_id(1).to(tl.int64)
        tile = tl.program_id(0)
        count, speed = tl.load(step), tl.load(rate)
        matrix = network * weights_network
        bias = matrix + inputs * WIDTH + (LAYERS - 1) * WIDTH * WIDTH + WIDTH
        across: tl.constexpr = (WIDTH + WIDE - 1) // WIDE
        for layer in tl.static_range(LAYERS):
            if layer == 0:
                ins, left, left_row = inputs, x + (network // sharing) * x_network, x_row
            else:
                ins, left, left_row = WIDTH, hidden + (network * LAYERS + layer - 1) * rows * WIDTH, WIDTH
            if NORM:
                bias = matrix + ins * WIDTH
            tiles = tl.cdiv(ins, HIGH) * across
            if (tile >= 0) & (tile < tiles):
                begin = (network * LAYERS + layer) * rows * WIDTH
                i, in_i = _range((tile // across) * HIGH, HIGH, ins)
                j, in_j = _range((tile % across) * WIDE, WIDE, WIDTH)
                total = tl.zeros((HIGH, WIDE), dtype=tl.float32)
                gathered = tl.zeros((CHUNK, WIDE), dtype=tl.float32)
                for start in range(0, rows, CHUNK):
                    k, known = _range(start, CHUNK, rows)
                    a = tl.load(left + k[None, :] * left_row + i[:, None], known[None, :] & in_i[:, None], 0.0)
                    place = begin + k[:, None] * WIDTH + j[None, :]
                    b = tl.load(deltas + place, known[:, None] & in_j[None, :], 0.0)
                    total = tl.dot(a, b, total, input_precision=PRECISION)
                    gathered += b
                down, right = (1, ins) if NORM else (WIDTH, 1)
                at = matrix + i[:, None] * down + j[None, :] * right
                adam_element(
                    weights, weights, mean, square, follower, at, in_i[:, None] & in_j[None, :], total, count, speed,
                    beta1, beta2, epsilon, decay, tau, FOLLOW,
                )  # fmt: skip
                if tile < across:
                    adam_element(
                        weights, weights, mean, square, follower, bias + j, in_j, tl.sum(gathered, 0), count, speed,
                        beta1, beta2, epsilon, decay, tau, FOLLOW,
                    )  # fmt: skip
                    if NORM:
                        of_scale = tl.zeros((CHUNK, WIDE), dtype=tl.float32)
                        of_shift = tl.zeros((CHUNK, WIDE), dtype=tl.float32)
                        its = statistics + (network * LAYERS + layer) * 2 * rows
                        for start in range(0, rows, CHUNK):
                            k, known = _range(start, CHUNK, rows)
                            inside = known[:, None] & in_j[None, :]
                            place = begin + k[:, None] * WIDTH + j[None, :]
                            _, normal, _ = _normal(made, its, place, inside, k, known, rows)
                            b = tl.load(towards + place, inside, 0.0)
                            of_scale += b * normal
                            of_shift += b
                        adam_element(
                            weights, weights, mean, square, follower, bias + WIDTH + j, in_j, tl.sum(of_scale, 0),
                            count, speed, beta1, beta2, epsilon, decay, tau, FOLLOW,
                        )  # fmt: skip
                        adam_element(
                            weights, weights, mean, square, follower, bias + 2 * WIDTH + j, in_j, tl.sum(of_shift, 0),
                            count, speed, beta1, beta2, epsilon, decay, tau, FOLLOW,
                        )  # fmt: skip
            tile -= tiles
            matrix += ins * WIDTH
            if NORM:
                matrix += 3 * WIDTH
            bias += WIDTH
        if NORM:
            bias = matrix + WIDTH
        if tile >= 0:
            left = hidden + (network * LAYERS + LAYERS - 1) * rows * WIDTH
            i, in_i = _range(tile * HIGH, HIGH, WIDTH)
            products = tl.zeros((CHUNK, HIGH), dtype=tl.float32)
            slopes = tl.zeros((CHUNK,), dtype=tl.float32)
            squares = tl.zeros((CHUNK,), dtype=tl.float32)
            for start in range(0, rows, CHUNK):
                k, known = _range(start, CHUNK, rows)
                a = tl.load(left + k[:, None] * WIDTH + i[None, :], known[:, None] & in_i[None, :], 0.0)
                b = tl.load(delta + network * rows + k, known, 0.0)
                products += a * b[:, None]
                slopes += b
                squares += b * b
            adam_element(
                weights, weights, mean, square, follower, matrix + i, in_i, tl.sum(products, 0), count, speed,
                beta1, beta2, epsilon, decay, tau, FOLLOW,
            )  # fmt: skip
            if tile == 0:
                one = tl.arange(0, 1)
                slope = tl.sum(slopes, 0) + tl.zeros((1,), dtype=tl.float32)
                adam_element(
                    weights, weights, mean, square, follower, bias + one, one < 1, slope, count, speed,
                    beta1, beta2, epsilon, decay, tau, FOLLOW,
                )  # fmt: skip
                tl.store(losses + network, tl.sum(squares, 0) / (2 * scale))
