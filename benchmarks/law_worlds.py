"""Worlds with a distribution that is known in closed form, and the laws that rows of each world obey.

A world is a function of (rows, seed) that returns `Transitions`. A law measures one number on rows of that world, real
or generated. If the law has no limits, the number must be close to the number of the training rows. If it has limits,
the number must not exceed them. Several laws share a world, each with its own columns, because a fit costs more time
than a measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synther import Transitions

Array = NDArray[Any]
Measure = Callable[[Transitions], float]

IMPOSSIBLE = (0.005, 0.03)
"""Largest allowed share of rows that the world cannot produce: (most presets, preset `laptop`)."""
DETERMINISTIC = (0.05, 0.10)
"""Largest allowed error of a column without noise, in stds of the column: (most presets, preset `laptop`)."""

SMALL, LARGE, TAILS, FORK, REWARD = 0.05, 0.5, 0.1, 0.1, 0.2
"""Scales of the noise that `noise` adds to its columns. The columns themselves have a std of about 1."""
UP, RANDOM_END = 0.3, 0.005
"""In `noise`: probability of the upper branch of the fork, and probability that a row is terminal."""
LIMIT = float(np.float32(1.645))
"""Value at which the clipped columns of `special` are clipped. 5 % of a normal distribution is above it."""
PAID, ENDED = 1.814, -2.776
"""In `special`: a reward is paid if the next position is above PAID (3 % of the rows), and the episode ends if it is
below ENDED (0.2 % of the rows)."""
SLIP = 0.2
"""Probability that an action moves in the opposite direction."""
TENTH, FINE = 0.1, 0.008
"""Distances between neighbouring lattice values in two columns of `lattice`."""
STEPS, CHAIN, SIDE = 20, 20, 5
"""Highest position of the walker of `lattice`, number of states of the chain, and cells per side of the grid."""
FIVE = np.array([0.40, 0.30, 0.15, 0.10, 0.05])
"""Probabilities of the five categories of `lattice`."""
TWELVE = np.arange(1, 13) / 78
"""Probabilities of the twelve categories of `lattice`."""
EPISODE, REST, LANDED, LANDING = 1250, 0.05, 0.0015, 100.0
"""In `rare`: largest number of steps of an episode, std of the columns of a body at rest, share of rows that land, and
reward for a landing."""
LOW, FAST, FALL, PAY, TURN = -2.0, 2.5, 2.0, 0.1, 0.1
"""In `falls`: a body falls below the height LOW or above the speed FAST. A fall costs FALL. PAY is the std of the noise
of the reward, and TURN the std of the noise of the angle."""
MIXED = np.linalg.qr(np.random.default_rng(3).normal(size=(8, 8)))[0]
"""Orthogonal matrix that mixes the columns of `rare`."""
CELLS = np.random.default_rng(7).permutation(SIDE * SIDE)
"""Number of each cell of the grid in the observations. The numbers of neighbouring cells are unrelated."""
GOAL = SIDE * SIDE - 1
MOVES = np.array([(0, -1), (0, 1), (-1, 0), (1, 0)])
"""Change of (row, column) in the grid, for each of the four actions."""


@dataclass(frozen=True)
class Law:
    """One number that generated rows of a world must reproduce."""

    name: str
    figure: str
    measure: Measure
    limits: tuple[float, float] | None = None
    """Largest allowed figure: (most presets, preset `laptop`). None compares the figure with the training rows'."""


def noise(rows: int, seed: int) -> Transitions:
    """Generate rows with seven observation columns with different kinds of noise, and with random terminals.

    Columns 0 to 3 (small, large, hetero, tails): s' = 0.9 s + 0.3 a + noise. Column 4 (fork): s' = 0.5 s + 1 or
    0.5 s - 1, plus noise. Column 5 (mixture): s has three modes. Column 6 (sine): s' = sin(3 s) + a / 2, without noise.
    """
    draw = np.random.default_rng(seed)
    s = draw.normal(size=(rows, 7))
    mode = draw.choice(3, rows, p=(0.1, 0.6, 0.3))
    s[:, 5] = np.array((-3.0, 0.0, 3.0))[mode] + np.array((0.1, 0.5, 0.2))[mode] * draw.normal(size=rows)
    a = draw.uniform(-1, 1, (rows, 1))
    s, a = s.astype(np.float32), a.astype(np.float32)
    following = np.empty((rows, 7))
    eta = draw.normal(size=(rows, 4))
    eta[:, 3] = draw.standard_t(3, rows)
    following[:, :4] = _mean(s[:, :4], a) + eta * np.stack(
        [np.full(rows, SMALL), np.full(rows, LARGE), _hetero(s[:, 2]), np.full(rows, TAILS)], 1
    )
    following[:, 4] = 0.5 * s[:, 4] + np.where(draw.random(rows) < UP, 1, -1) + FORK * draw.normal(size=rows)
    following[:, 5] = s[:, 5] + 0.05 * draw.normal(size=rows)
    following[:, 6] = np.sin(3 * s[:, 6].astype(np.float64)) + 0.5 * a[:, 0]
    reward = s[:, 0] - 0.5 * a[:, 0] ** 2 + REWARD * draw.normal(size=rows)
    ended = draw.random(rows) < RANDOM_END
    return Transitions(s, a, reward.astype(np.float32), following.astype(np.float32), ended)


def special(rows: int, seed: int) -> Transitions:
    """Generate rows with special values.

    Columns: three with 0.3 %, 1 % and 5 % exact zeros, one that is clipped on both sides, one that is clipped below,
    and a position. The next position determines reward and terminal.
    """
    draw = np.random.default_rng(seed)
    s, a = draw.normal(size=(rows, 6)), draw.uniform(-1, 1, (rows, 1)).astype(np.float32)
    following = 0.9 * s + 0.3 * a + 0.3 * draw.normal(size=(rows, 6))
    for column, zeros in enumerate((0.003, 0.01, 0.05)):
        for values in (s, following):
            values[draw.random(rows) < zeros, column] = 0
    s, following = s.astype(np.float32), following.astype(np.float32)
    for values in (s, following):
        values[:, 3] = values[:, 3].clip(-LIMIT, LIMIT)
        values[:, 4] = values[:, 4].clip(-LIMIT)
    reward = np.where(following[:, 5] > PAID, 1 + 0.3 * draw.normal(size=rows), 0)
    return Transitions(s, a, reward.astype(np.float32), following, following[:, 5] < ENDED)


def lattice(rows: int, seed: int) -> Transitions:
    """Generate rows of lattice values and categories.

    Columns: multiples of 0.1 (tenth), multiples of 0.008 (fine), whole numbers (count), a walker on multiples of 0.1,
    and one-hot columns of 5 and 12 categories. The reward is the walker's next position.
    """
    draw = np.random.default_rng(seed)
    a = draw.integers(0, 2, rows)
    tenth = draw.binomial(10, 0.4, (2, rows))
    tenth[1] = np.where(draw.random(rows) < 0.5, tenth[0], tenth[1])
    fine = np.rint(draw.normal(0, 4 / FINE, rows))
    fine = np.stack([fine, np.rint(0.9 * fine + draw.normal(0, 0.5 / FINE, rows))]).clip(-16 / FINE, 16 / FINE)
    count = draw.poisson(40, rows)
    count = np.stack([count, np.maximum(count + np.rint(draw.normal(0, 3, rows)).astype(int), 0)])
    way = np.where((draw.random(rows) < SLIP) == (a == 1), -1, 1)
    walker = draw.integers(0, STEPS + 1, rows)
    walker = np.stack([walker, (walker + way).clip(0, STEPS)])
    five = draw.choice(5, rows, p=FIVE)
    five = np.stack([five, (five + ((a == 1) & (draw.random(rows) < 1 - SLIP))) % 5])
    twelve = draw.choice(12, rows, p=TWELVE)
    sides = [
        np.column_stack(
            [tenth[i] / 10, fine[i] * FINE, count[i], walker[i] / 10, np.eye(5)[five[i]], np.eye(12)[twelve]]
        )
        for i in range(2)
    ]
    s, following = (side.astype(np.float32) for side in sides)
    return Transitions(s, a, following[:, 3].copy(), following)


def slippery(rows: int, seed: int) -> Transitions:
    """Generate rows with two integer columns: the cell of a grid (see `CELLS`) and the state of a chain.

    An action moves in the opposite direction with probability 0.2.
    """
    draw = np.random.default_rng(seed)
    a, cell = draw.integers(0, 4, rows), draw.integers(0, GOAL, rows)
    reached = _step(cell, np.where(draw.random(rows) < SLIP, a ^ 1, a))
    chain = draw.integers(0, CHAIN, rows)
    ahead = np.where((draw.random(rows) < SLIP) == (a % 2 == 1), -1, 1)
    following = np.column_stack([CELLS[reached], (chain + ahead).clip(0, CHAIN - 1)])
    return Transitions(np.column_stack([CELLS[cell], chain]), a, reached == GOAL, following, reached == GOAL)


def rare(rows: int, seed: int) -> Transitions:
    """Generate episodes of a body with 8 columns that starts at rest (0.2 % of the rows) and can land (0.15 %).

    A landing pays 100 and is terminal. The columns are mixtures of four waves with advancing phases. So the rows fill a
    curved surface, like the rows of a walking body. An episode ends with a landing, or after 1,250 steps.
    """
    draw = np.random.default_rng(seed)
    bodies = max(rows // EPISODE, 1)
    phase = draw.uniform(0, 2 * np.pi, (bodies, 4))
    s, age = REST * draw.normal(size=(bodies, 8)), np.zeros(bodies, int)
    steps: list[tuple[Array, ...]] = []
    for _ in range(-(-rows // bodies)):
        a = np.tanh(s[:, :2] + 0.5 * draw.normal(size=(bodies, 2)))
        a = np.where(age[:, None] == 0, (0.8, -0.6) + 0.05 * draw.normal(size=(bodies, 2)), a)
        phase += 0.3 + 0.2 * draw.normal(size=(bodies, 4))
        size = 1 + 0.25 * np.tile(a, 2) + 0.25 * draw.uniform(-1, 1, (bodies, 4))
        following = np.hstack([size * np.sin(phase), size * np.cos(phase)]) @ MIXED
        age += 1
        landed = (following[:, 0] > 0) & (draw.random(bodies) < 2 * LANDED)
        late = (age == EPISODE) & ~landed
        steps.append((s, a, following[:, 1] + LANDING * landed, following, landed, late))
        over = landed | late
        s = np.where(over[:, None], REST * draw.normal(size=(bodies, 8)), following)
        age[over] = 0
    # Arrange the rows by body, so that the rows of an episode are consecutive.
    columns = [np.stack(each, axis=1).reshape(-1, *each[0].shape[1:])[:rows] for each in zip(*steps, strict=True)]
    observation, action, reward, then = (column.astype(np.float32) for column in columns[:4])
    return Transitions(observation, action, reward, then, columns[4], timeout=columns[5])


def falls(rows: int, seed: int) -> Transitions:
    """Generate rows of a body with 6 columns. Column 0 is its height, column 1 its speed, and column 5 an angle.

    The reward is the next speed minus the cost of the action. If the body is too low or too fast, it falls. A fall ends
    the episode and costs 2.
    """
    draw = np.random.default_rng(seed)
    s, a = draw.normal(size=(rows, 6)), draw.uniform(-1, 1, (rows, 2))
    following = 0.9 * s + 0.3 * a.sum(1, keepdims=True) * np.linspace(-1, 1, 6) + 0.1 * draw.normal(size=(rows, 6))
    s[:, 5] = draw.uniform(-np.pi, np.pi, rows)
    following[:, 5] = on_circle(s[:, 5] + 0.3 * a[:, 0] + TURN * draw.normal(size=rows))
    s, a, following = s.astype(np.float32), a.astype(np.float32), following.astype(np.float32)
    made = Transitions(s, a, np.zeros(rows, np.float32), following, _fallen(following))
    reward = _earned(made) - FALL * made.terminal + PAY * draw.normal(size=rows)
    return replace(made, reward=reward.astype(np.float32))


def on_circle(values: Array) -> Array:
    """Return the same angles between -pi and pi."""
    return np.asarray((values + np.pi) % (2 * np.pi) - np.pi)


def _fallen(following: Array) -> Array:
    return np.asarray((following[:, 0] < LOW) | (np.abs(following[:, 1]) > FAST))


def _earned(rows: Transitions) -> Array:
    """Return the expected reward of steps without a fall."""
    speed = rows.next_observation[:, 1].astype(np.float64)
    return np.asarray(speed + 0.3 * np.sin(2 * speed) - 0.2 * np.square(rows.action).sum(1))


def _mean(s: Array, a: Array) -> Array:
    """Return the expected next value of the linear columns of `noise`."""
    return np.asarray(0.9 * s.astype(np.float64) + 0.3 * a.astype(np.float64))


def _hetero(s: Array) -> Array:
    """Return the std of the noise of the column `hetero`. It grows with the state from 0.1 to 0.5."""
    return np.asarray(0.1 + 0.4 / (1 + np.exp(-3 * s.astype(np.float64))))


def _step(cell: Array, action: Array) -> Array:
    """Return the cell that an action leads to. A step into a wall does not move."""
    place = (np.stack([cell // SIDE, cell % SIDE], 1) + MOVES[action]).clip(0, SIDE - 1)
    return np.asarray(place[:, 0] * SIDE + place[:, 1])


def share(marked: Array, among: Array | None = None) -> float:
    """Return the share of `marked` rows among all rows, or among the rows marked in `among`. NaN if there are none."""
    if among is not None:
        marked = marked[among]
    return float(marked.mean()) if len(marked) else float("nan")


def _spread(values: Array) -> float:
    return float(values.std()) if len(values) > 1 else float("nan")


def _both(rows: Transitions, column: int) -> Array:
    """Return the values of a column in the observations and next observations, (2 N,)."""
    return np.concatenate([rows.observation[:, column], rows.next_observation[:, column]])


def _eta(column: int, rows: Transitions) -> Array:
    """Return the noise in a linear column of `noise`: the next value minus its expectation."""
    mean = _mean(rows.observation[:, column], rows.action[:, 0])
    return np.asarray(rows.next_observation[:, column] - mean)


def _hetero_spread(low: bool, rows: Transitions) -> float:
    s = rows.observation[:, 2]
    third = s < -0.43 if low else s > 0.43
    return _spread((_eta(2, rows) / _hetero(s))[third])


def _tail(level: float, true: float, rows: Transitions) -> float:
    """Return a quantile of the heavy-tailed noise, relative to its true value."""
    return float(np.quantile(_eta(3, rows), level) / TAILS / true)


def _action_effect(rows: Transitions) -> float:
    rest = rows.next_observation[:, 1] - 0.9 * rows.observation[:, 1].astype(np.float64)
    return float(np.cov(rest, rows.action[:, 0])[0, 1] / rows.action[:, 0].var())


def _reward_spread(rows: Transitions) -> float:
    return _spread(rows.reward - rows.observation[:, 0] + 0.5 * rows.action[:, 0] ** 2) / REWARD


def _branches(rows: Transitions) -> tuple[Array, Array]:
    """Return the signed distances from the middle between the branches of the fork, and from the nearer branch."""
    middle = rows.next_observation[:, 4] - 0.5 * rows.observation[:, 4].astype(np.float64)
    return middle, middle - np.where(middle > 0, 1, -1)


def _within_branch(rows: Transitions) -> float:
    off = _branches(rows)[1]
    return _spread(off[np.abs(off) < 5 * FORK]) / FORK


def _in_mode(low: float, high: float, rows: Transitions) -> Array:
    s = rows.observation[:, 5]
    return np.asarray((s > low) & (s < high))


def _sine_error(rows: Transitions) -> float:
    expected = np.sin(3 * rows.observation[:, 6].astype(np.float64)) + 0.5 * rows.action[:, 0]
    return float(np.sqrt(np.mean((rows.next_observation[:, 6] - expected) ** 2)) / 0.76)


NOISE = (
    Law("Gaussian noise, 0.05 of a deviation", "spread given (s, a) / true", lambda r: _spread(_eta(0, r)) / SMALL),
    Law("Gaussian noise, 0.5 of a deviation", "spread given (s, a) / true", lambda r: _spread(_eta(1, r)) / LARGE),
    Law("Gaussian noise, 0.5 of a deviation", "effect of the action", _action_effect),
    Law("noise that grows with the state", "spread, low third / true", partial(_hetero_spread, True)),
    Law("noise that grows with the state", "spread, high third / true", partial(_hetero_spread, False)),
    *(
        Law("heavy-tailed noise (t, 3 degrees)", f"{level:.0%} quantile / true", partial(_tail, level, true))
        for level, true in ((0.01, -4.5407), (0.05, -2.3534), (0.95, 2.3534), (0.99, 4.5407))
    ),
    Law("two outcomes of one action", "share of the upper outcome", lambda r: share(_branches(r)[0] > 0)),
    Law("two outcomes of one action", "spread of an outcome / true", _within_branch),
    Law("two outcomes of one action", "share of neither", lambda r: share(abs(_branches(r)[1]) > 5 * FORK), IMPOSSIBLE),
    Law("mixture of three modes", "share of the narrow mode", lambda r: share(_in_mode(-3.5, -2.5, r))),
    Law("mixture of three modes", "share of the right mode", lambda r: share(_in_mode(2, 4, r))),
    Law(
        "mixture of three modes",
        "spread of the narrow mode / true",
        lambda r: _spread(r.observation[_in_mode(-3.5, -2.5, r), 5]) / 0.1,
    ),
    Law("next = sin(3 s) + a / 2, no noise", "error / deviation", _sine_error, DETERMINISTIC),
    Law("noisy reward", "spread given (s, a) / true", _reward_spread),
    Law("normal column", "deviation", lambda r: _spread(r.observation[:, 0])),
    Law("normal column", "0.1% quantile / true", lambda r: float(np.quantile(r.observation[:, 0], 0.001) / -3.0902)),
    Law("normal column", "99.9% quantile / true", lambda r: float(np.quantile(r.observation[:, 0], 0.999) / 3.0902)),
    Law("normal column", "share beyond 2.5", lambda r: share(np.abs(r.observation[:, 0]) > 2.5)),
    Law("terminals at random, 0.5%", "share", lambda r: share(r.terminal)),
    Law("terminals at random, 0.5%", "share where s > 0", lambda r: share(r.terminal, r.observation[:, 0] > 0)),
)


def _zeros(column: int, rows: Transitions) -> float:
    return share(_both(rows, column) == 0)


def _beside_zero(column: int, rows: Transitions) -> float:
    values = _both(rows, column)
    return share((values != 0) & (np.abs(values) < 0.25))


def _at(column: int, value: float, rows: Transitions) -> float:
    return share(_both(rows, column) == value)


def _inside(column: int, rows: Transitions) -> float:
    """Return the share of values that are less than 0.25 above the lower limit, without the limit itself."""
    values = _both(rows, column)
    return share((values > -LIMIT) & (values < -LIMIT + 0.25))


def _stays_clipped(rows: Transitions) -> float:
    return share(rows.next_observation[:, 3] == LIMIT, rows.observation[:, 3] == LIMIT)


def _paid(rows: Transitions) -> Array:
    return np.asarray(rows.reward != 0)


def _mean_paid(rows: Transitions) -> float:
    paid = rows.reward[_paid(rows)]
    return float(paid.mean()) if len(paid) else float("nan")


def _past(rows: Transitions) -> Array:
    """Mark the rows with a next position at which the reward is paid."""
    return np.asarray(rows.next_observation[:, 5] > PAID)


def _out(rows: Transitions) -> Array:
    """Mark the rows with a next position at which the episode ends."""
    return np.asarray(rows.next_observation[:, 5] < ENDED)


SPECIAL = (
    *(
        Law(f"exact zeros, {zeros}", figure, partial(measure, column))
        for column, zeros in enumerate(("0.3%", "1%", "5%"))
        for figure, measure in (("share", _zeros), ("share of other values within 0.25", _beside_zero))
    ),
    Law("clipped on both sides", "share at the lower limit", partial(_at, 3, -LIMIT)),
    Law("clipped on both sides", "share at the upper limit", partial(_at, 3, LIMIT)),
    Law("clipped on both sides", "share within 0.25 of the lower limit", partial(_inside, 3)),
    Law("clipped on both sides", "share that stays at the upper limit", _stays_clipped),
    Law("clipped below", "share at the limit", partial(_at, 4, -LIMIT)),
    Law("clipped below", "share within 0.25 of the limit", partial(_inside, 4)),
    Law("sparse reward, 3%", "share", lambda r: share(_paid(r))),
    Law("sparse reward, 3%", "mean where paid", _mean_paid),
    Law("sparse reward, 3%", "spread where paid / true", lambda r: _spread(r.reward[_paid(r)]) / 0.3),
    Law("sparse reward, 3%", "rewards paid beyond the line", lambda r: share(_past(r), _paid(r))),
    Law("sparse reward, 3%", "rows beyond the line that are paid", lambda r: share(_paid(r), _past(r))),
    Law("rare terminals, 0.2%", "share", lambda r: share(r.terminal)),
    Law("rare terminals, 0.2%", "terminals beyond the line", lambda r: share(_out(r), r.terminal)),
    Law("rare terminals, 0.2%", "rows beyond the line that end", lambda r: share(r.terminal, _out(r))),
    Law("rare terminals, 0.2%", "share of rows beyond the line", lambda r: share(_out(r))),
)  # fmt: skip


def _off_lattice(column: int, step: float, rows: Transitions) -> float:
    values = _both(rows, column).astype(np.float64)
    return share(np.abs(values - step * np.rint(values / step)) > 1e-3 * step + 1e-6 * np.abs(values))


def _tenths(values: Array) -> Array:
    return np.asarray(np.rint(10 * values), int)


def _walk(rows: Transitions) -> tuple[Array, Array]:
    return _tenths(rows.observation[:, 3]), _tenths(rows.next_observation[:, 3])


def _wrong_walk(rows: Transitions) -> float:
    before, after = _walk(rows)
    possible = np.stack([(before + way).clip(0, STEPS) for way in (-1, 1)])
    return share((after != possible).all(0))


def _walk_slip(action: int, rows: Transitions) -> float:
    before, after = _walk(rows)
    moved = (rows.action == action) & (before > 0) & (before < STEPS) & (np.abs(after - before) == 1)
    return share(after - before == (-1 if action else 1), moved)


def _not_one_hot(columns: slice, rows: Transitions) -> float:
    wrong = np.zeros(len(rows), bool)
    for side in (rows.observation[:, columns], rows.next_observation[:, columns]):
        wrong |= ((side == 1).sum(1) != 1) | ((side != 0).sum(1) != 1)
    return share(wrong)


def _class(columns: slice, rows: Transitions) -> tuple[Array, Array]:
    return rows.observation[:, columns].argmax(1), rows.next_observation[:, columns].argmax(1)


_FIVE, _TWELVE = slice(4, 9), slice(9, 21)


def _wrong_turn(rows: Transitions) -> float:
    before, after = _class(_FIVE, rows)
    turned = (after - before) % 5
    return share((turned > 1) | ((turned == 1) & (rows.action == 0)))


def _turns(rows: Transitions) -> float:
    before, after = _class(_FIVE, rows)
    return share((after - before) % 5 == 1, rows.action == 1)


def _changed(rows: Transitions) -> float:
    before, after = _class(_TWELVE, rows)
    return share(before != after)


def _moved(column: int, rows: Transitions) -> Array:
    """Return the next value of a column of `lattice` minus the part that the observation determines."""
    kept = 0.9 if column == 1 else 1.0
    return np.asarray(rows.next_observation[:, column] - kept * rows.observation[:, column].astype(np.float64))


def _tenth_stays(rows: Transitions) -> float:
    return share(_tenths(rows.observation[:, 0]) == _tenths(rows.next_observation[:, 0]))


def _wrong_reward(rows: Transitions) -> float:
    return share(np.abs(rows.reward - rows.next_observation[:, 3]) > TENTH / 10)


LATTICE = (
    Law("steps of 0.1, 11 values", "share off the lattice", partial(_off_lattice, 0, TENTH), IMPOSSIBLE),
    Law("steps of 0.1, 11 values", "share at 0.5", lambda r: share(_tenths(_both(r, 0)) == 5)),
    Law("steps of 0.1, 11 values", "share at 0.8 and above", lambda r: share(_tenths(_both(r, 0)) >= 8)),
    Law("steps of 0.1, 11 values", "share that stays", _tenth_stays),
    Law("steps of 0.008, 4,000 values", "share off the lattice", partial(_off_lattice, 1, FINE), IMPOSSIBLE),
    Law("steps of 0.008, 4,000 values", "spread given s / true", lambda r: _spread(_moved(1, r)) / 0.5),
    Law("whole numbers, more than 32", "share off the lattice", partial(_off_lattice, 2, 1), IMPOSSIBLE),
    Law("whole numbers, more than 32", "spread of the change", lambda r: _spread(_moved(2, r))),
    Law("walker on steps of 0.1", "share off the lattice", partial(_off_lattice, 3, TENTH), IMPOSSIBLE),
    Law("walker on steps of 0.1", "share of impossible steps", _wrong_walk, IMPOSSIBLE),
    Law("walker on steps of 0.1", "slips when sent right", partial(_walk_slip, 1)),
    Law("walker on steps of 0.1", "slips when sent left", partial(_walk_slip, 0)),
    Law("walker on steps of 0.1", "reward is not the next place", _wrong_reward, IMPOSSIBLE),
    Law("one-hot, 5 wide", "share not one-hot", partial(_not_one_hot, _FIVE), IMPOSSIBLE),
    Law("one-hot, 5 wide", "share of impossible steps", _wrong_turn, IMPOSSIBLE),
    Law("one-hot, 5 wide", "steps when asked to", _turns),
    Law("one-hot, 5 wide", "share of the rarest class", lambda r: share(_class(_FIVE, r)[0] == 4)),
    Law("one-hot, 12 wide", "share not one-hot", partial(_not_one_hot, _TWELVE), IMPOSSIBLE),
    Law("one-hot, 12 wide", "share that changes", _changed, IMPOSSIBLE),
    Law("one-hot, 12 wide", "share of the rarest class", lambda r: share(_class(_TWELVE, r)[0] == 0)),
)


def _cells(rows: Transitions) -> tuple[Array, Array]:
    """Return the places in the grid of both cells of each row. The place is -1 for a number that no cell has."""
    place = np.full(SIDE * SIDE + 1, -1)
    place[CELLS] = np.arange(SIDE * SIDE)
    before, after = (
        np.rint(side[:, 0]).astype(int).clip(-1, SIDE * SIDE) for side in (rows.observation, rows.next_observation)
    )
    return place[before], place[after]


def _wrong_step(rows: Transitions) -> float:
    before, after = _cells(rows)
    ways = [_step(before.clip(0), action) for action in (rows.action, rows.action ^ 1)]
    return share((before < 0) | (before == GOAL) | ((after != ways[0]) & (after != ways[1])))


def _grid_slip(rows: Transitions) -> float:
    before, after = _cells(rows)
    ahead, back = (_step(before.clip(0), action) for action in (rows.action, rows.action ^ 1))
    return share(after == back, (before >= 0) & (ahead != back) & ((after == ahead) | (after == back)))


def _wrong_end(rows: Transitions) -> float:
    arrived = _cells(rows)[1] == GOAL
    return share((np.abs(rows.reward - arrived) > 1e-3) | (rows.terminal != arrived))


def _wrong_chain(rows: Transitions) -> float:
    before, after = rows.observation[:, 1], rows.next_observation[:, 1]
    return share((after != (before - 1).clip(0)) & (after != (before + 1).clip(max=CHAIN - 1)))


def _chain_slip(action: int, rows: Transitions) -> float:
    before, after = rows.observation[:, 1], rows.next_observation[:, 1]
    moved = (rows.action % 2 == action) & (before > 0) & (before < CHAIN - 1) & (np.abs(after - before) == 1)
    return share(after - before == (-1 if action else 1), moved)


SLIPPERY = (
    Law("5 x 5 cells, numbers in no order", "share of impossible steps", _wrong_step, IMPOSSIBLE),
    Law("5 x 5 cells, numbers in no order", "slips", _grid_slip),
    Law("5 x 5 cells, numbers in no order", "share of one cell", lambda r: share(_cells(r)[0] == 12)),
    Law("5 x 5 cells, sparse reward at the goal", "share of rows at the goal", lambda r: share(_cells(r)[1] == GOAL)),
    Law("5 x 5 cells, sparse reward at the goal", "wrong reward or terminal", _wrong_end, IMPOSSIBLE),
    Law("5 x 5 cells, sparse reward at the goal", "share of terminals", lambda r: share(r.terminal)),
    Law("chain of 20 integers", "share of impossible steps", _wrong_chain, IMPOSSIBLE),
    Law("chain of 20 integers", "slips when sent right", partial(_chain_slip, 1)),
    Law("chain of 20 integers", "slips when sent left", partial(_chain_slip, 0)),
)


def _at_rest(rows: Transitions) -> Array:
    return np.asarray(np.abs(rows.observation).max(1) < 6 * REST)


def _landed(rows: Transitions) -> Array:
    return np.asarray(rows.reward > LANDING / 2)


def _landing_error(rows: Transitions) -> float:
    error = np.abs(rows.reward - rows.next_observation[:, 1] - LANDING)[_landed(rows)]
    return float(np.median(error)) if len(error) else float("nan")


RARE = (
    Law("starts at rest, 0.2%", "share", lambda r: share(_at_rest(r))),
    Law("starts at rest, 0.2%", "spread / true", lambda r: _spread(r.observation[_at_rest(r)]) / REST),
    Law("starts at rest, 0.2%", "spread of the action / true", lambda r: _spread(r.action[_at_rest(r), 0]) / 0.05),
    Law("landings, +100, 0.15%", "share of rewards above 50", lambda r: share(_landed(r))),
    Law("landings, +100, 0.15%", "share of terminals", lambda r: share(r.terminal)),
    Law("landings, +100, 0.15%", "landings that end", lambda r: share(r.terminal, _landed(r))),
    Law("landings, +100, 0.15%", "ends that are paid", lambda r: share(_landed(r), r.terminal)),
    Law("landings, +100, 0.15%", "error of what is paid", _landing_error, (1.0, 3.0)),
)


def _lost(rows: Transitions) -> Array:
    """Return the reward minus the expected reward of a step without a fall."""
    return np.asarray(rows.reward - _earned(rows))


def _turned(rows: Transitions) -> Array:
    """Return the change of the angle minus the part that the action causes."""
    before, after = rows.observation[:, 5].astype(np.float64), rows.next_observation[:, 5]
    return on_circle(after - before - 0.3 * rows.action[:, 0])


def _round(rows: Transitions) -> Array:
    """Mark the rows with a step from one end of the angles' range to the other."""
    return np.asarray(np.abs(rows.next_observation[:, 5] - rows.observation[:, 5]) > np.pi)


FALLS = (
    Law("falls, -2, 3%", "share of terminals", lambda r: share(r.terminal)),
    Law("falls, -2, 3%", "falls that end", lambda r: share(r.terminal, _fallen(r.next_observation))),
    Law("falls, -2, 3%", "ends that are falls", lambda r: share(_fallen(r.next_observation), r.terminal)),
    Law("falls, -2, 3%", "mean loss in terminal rows", lambda r: float(_lost(r)[r.terminal].mean())),
    Law("falls, -2, 3%", "spread of the loss / true", lambda r: _spread(_lost(r)[r.terminal]) / PAY),
    Law("falls, -2, 3%", "correlation with the reward", lambda r: float(np.corrcoef(r.terminal, r.reward)[0, 1])),
    Law("falls, -2, 3%", "wrong reward", lambda r: share(np.abs(_lost(r) + FALL * r.terminal) > FALL / 2), IMPOSSIBLE),
    Law("angle", "steps across the end", lambda r: share(_round(r))),
    Law("angle", "spread of turns / true", lambda r: _spread(_turned(r)) / TURN),
    Law("angle", "spread of turns across the end / true", lambda r: _spread(_turned(r)[_round(r)]) / TURN),
    Law("angle", "impossible turns", lambda r: share(np.abs(_turned(r)) > 6 * TURN), IMPOSSIBLE),
    Law("angle", "beyond the circle", lambda r: share(np.abs(_both(r, 5)) > np.float32(np.pi)), IMPOSSIBLE),
)
