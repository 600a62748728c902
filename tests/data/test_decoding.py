"""Rows from what a network makes: on any device the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from synther import compute
from synther.data import decoding
from synther.data.decoding import Decoder
from synther.data.end_rewards import EndRewards
from synther.data.formulas import Formula, Input, Term
from synther.data.identities import Identity, Parent
from synther.data.layout import Layout
from synther.data.numbers import Logarithmic, Spiked, Wrapped
from synther.data.preparing import Prepared, prepare
from synther.data.surfaces import Surface
from synther.data.termination import LEAF, SURFACE, TerminationTree
from synther.data.transitions import Transitions
from synther.data.values import Derived
from synther.errors import DataError

CPU = torch.device("cpu")
ENDING = TerminationTree(
    (1, -1, 11, -1, -1), (0.5, 0, 0.2, 0, 0), (1, -1, 3, -1, -1), (2, -1, 4, -1, -1), (0, 0, 0, 0, 1)
)
"""Whether the second observation is above 0.5 and the next first one above 0.2."""
FAR = TerminationTree(
    (SURFACE, LEAF, LEAF),
    (1.0, 0, 0),
    (1, -1, -1),
    (2, -1, -1),
    (False, False, True),
    Surface((0, 11, 13), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0)),
)
"""Whether the first observation and the next one are further than 1 from where both are 0."""
UNUSUAL = TerminationTree((0, -1, -1), (0.0, 0, 0), (1, -1, -1), (2, -1, -1), (False, False, True))


def rows(count: int = 12_000, dtype: type = np.float32) -> Transitions:
    """All that any device decodes. Numbers: smooth, clipped at both ends or one, with a spike inside their range,
    constant, an angle, cosine and sine of another, in proportion to what they were. And a flag, and a reward that is a
    curve in the next observation."""
    random = np.random.default_rng(0)
    smooth, clipped, spiked = random.normal(size=(3, count))
    spiked = np.where(random.random(count) < 0.2, 0.0, np.maximum(spiked, -1))
    action = random.uniform(-1, 1, (count, 2)).clip(-0.9, 1)
    first, second = random.uniform(-np.pi, np.pi, (2, count))
    price = np.exp(2 * random.normal(size=count))

    def seen(step: np.ndarray, noise: np.ndarray) -> np.ndarray:
        angle = (first + step + np.pi) % (2 * np.pi) - np.pi
        limited = (clipped + 10 * step).clip(-1, 1)
        ring = np.cos(second + step), np.sin(second + step)
        made = (smooth + step, limited, spiked, np.full(count, 2.5), angle, price * np.exp(0.05 * noise), *ring)
        return np.stack(made, 1).astype(dtype)

    reward = np.sin(2 * (smooth + 0.1 * action[:, 0])) + 0.1 * random.normal(size=count)
    here, there = seen(np.zeros(count), np.zeros(count)), seen(0.1 * action[:, 0], random.normal(size=count))
    made = (here, action.astype(dtype), reward, there, random.random(count) < 0.1)
    return Transitions(*made, extra={"discount": random.choice([0.0, 0.99], count)})


def prepared(scaling: str = "quantile", residuals: str = "bent", dtype: type = np.float32) -> Prepared:
    return prepare(rows(dtype=dtype), scaling, "onehot", True, residuals=residuals)


def noisy(found: Prepared, noise: float = 0.5) -> torch.Tensor:
    """What a poor network might make."""
    eps = np.random.default_rng(1).normal(size=found.matrix.shape)
    return torch.from_numpy((found.matrix + noise * eps).astype(np.float32))


def test_rows_are_the_same_however_many_are_decoded_at_a_time(monkeypatch):
    found = prepared()
    decoder = Decoder(found.layout, found.scaler, ENDING, UNUSUAL)
    matrix = noisy(found)
    whole = decoder(matrix)
    monkeypatch.setattr(decoding, "CHUNK", 1_000)
    pieces = [decoder(part) for part in matrix.split(1_500)]
    # A matrix product may add in another order for fewer rows, which the last digit of a float64 reward shows.
    joined = Transitions.concatenate([piece.rows for piece in pieces])
    assert joined.reward.dtype == np.float64
    assert np.allclose(joined.reward, whole.rows.reward, rtol=1e-13, atol=1e-15)
    assert replace(joined, reward=whole.rows.reward).equals(whole.rows)
    assert np.array_equal(np.concatenate([piece.unusual for piece in pieces]), whole.unusual)


def test_trees_are_asked_about_rows_as_they_come_out():
    found = prepared()
    made = Decoder(found.layout, found.scaler, ENDING, UNUSUAL)(noisy(found))
    here, there = made.rows.observation, made.rows.next_observation
    kinds = Counter(type(kind) for kind in found.layout.kinds)
    assert kinds[Spiked] >= 4
    assert kinds[Derived] == 1
    assert kinds[Logarithmic] == kinds[Wrapped] == 2
    assert len(found.layout.spheres) == len(found.layout.turns) == len(found.scaler.residuals.shapes) == 1
    assert np.array_equal(made.rows.terminal, (here[:, 1] > 0.5) & (there[:, 0] > 0.2))
    assert np.array_equal(made.unusual, here[:, 0] > 0)
    assert Decoder(found.layout, found.scaler)(noisy(found)).unusual is None
    far = Decoder(found.layout, found.scaler, FAR)(noisy(found)).rows
    distance = np.hypot(far.observation[:, 0].astype(np.float64), far.next_observation[:, 0].astype(np.float64))
    assert np.array_equal(far.terminal, distance > 1)


@pytest.mark.parametrize("noise", [0.02, 0.5])
def test_outcomes_follow_from_rows_as_they_come_out(noise):
    """And not from numbers that are not clipped, not on a spike, or not on a circle yet."""
    real = rows()
    random = np.random.default_rng(2)
    paid = real.observation[:, [1, 2, 4, 6]].sum(1) + real.action.sum(1) + 0.1 * random.normal(size=len(real))
    found = prepare(replace(real, reward=paid), "quantile", "onehot", True, residuals="bent", order=("reward",))
    matrix, column = noisy(found, noise), found.layout.names.index("reward")
    again = found.scaler.transform(found.layout.pack(Decoder(found.layout, found.scaler)(matrix).rows))
    np.testing.assert_allclose(again[:, column], matrix[:, column], atol=1e-3)


def test_rewards_follow_what_is_decided_about_terminals():
    """Where no tree decides about terminals, the network does, and rewards follow it."""
    found, matrix = prepared(), noisy(prepared())
    costly = replace(found.layout, terminal_reward=-3.0)
    for ending in (ENDING, None):
        before, after = (Decoder(layout, found.scaler, ending)(matrix).rows for layout in (found.layout, costly))
        assert 0 < before.terminal.mean() < 1
        assert after.equals(replace(before, reward=before.reward - 3 * before.terminal))


def test_two_rewards_are_where_the_tree_says():
    real = rows()
    real = replace(real, reward=np.where(real.observation[:, 0] > 0, 0.1, -1.0))
    found = prepare(real, "standard", "onehot", True)
    made = Decoder(found.layout, found.scaler, None, UNUSUAL)(noisy(found)).rows
    assert np.array_equal(made.reward, np.where(made.observation[:, 0] > 0, 0.1, -1.0))


def test_rows_with_tables_of_values_are_decoded_in_main_memory():
    elsewhere = torch.device("meta")
    real = rows()
    for action, place in (
        (real.action, "meta"),
        (np.arange(len(real)) % 5, "cpu"),
        (real.terminal[:, None] * 1, "cpu"),
    ):
        found = prepare(
            Transitions(real.observation, action, real.reward, real.next_observation), "standard", "onehot", True
        )
        assert Decoder(found.layout, found.scaler, device=elsewhere).device.type == place


class Captured(TorchFunctionMode):
    """Refuses what a GPU cannot do while work is captured: to take numbers from main memory."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        indexed = args[1] if getattr(function, "__name__", "") in ("__getitem__", "__setitem__") else ()
        parts = indexed if isinstance(indexed, tuple) else (indexed,)
        if function in (torch.tensor, torch.as_tensor, torch.from_numpy) or any(isinstance(x, list) for x in parts):
            raise AssertionError(f"{function} takes numbers from main memory")
        return function(*args, **(kwargs or {}))


def telling(layout: Layout) -> Layout:
    """The same, with a reward that follows from the rest of a row, and columns that follow from others."""
    inputs = Input("observation", 0), Input("next_observation", 0), Input("action", 0), Input("action", 0, 0.5)
    names = ("column", "product", "length", "distance", "angle")
    terms = tuple(Term(name, (0, 2)[: 1 + (name not in ("column", "length"))], ()) for name in names)
    formula = Formula(inputs, (0.1, 0.1, 0.2, 0.5), (*terms, Term("product", (3, 1), (3, 0))), (1.0,) * 6, 0.5)
    sums = Identity("observation", 1, (Parent("observation", 0, 2.0), Parent("action", 0, -1.0)), 0.3)
    names_of = Identity(
        "observation", 3, (Parent("observation", 0, 0.0),), values=((-1.0, 5.0), (0.0, 2.0), (1.0, 7.0))
    )
    identities = sums, names_of, Identity("next_observation", 1, (Parent("observation", 1, 1.0),)), *layout.identities
    at_end = EndRewards((-3.0, 2.0), (0.4, 1.0), (-1.0, 0.0, 1.0))
    return replace(layout, terminal_reward=-3.0, formula=formula, identities=identities, at_end=at_end)


@pytest.mark.parametrize("ending", [ENDING, FAR, None])
def test_nothing_comes_from_main_memory_or_goes_there_while_rows_are_decoded(ending):
    """Tensors of `meta` have no values that could be looked at."""
    found = prepared()
    here, elsewhere = (
        Decoder(telling(found.layout), found.scaler, ending, UNUSUAL, torch.device(x)) for x in ("cpu", "meta")
    )
    matrix = noisy(found)
    expected, given = here.packed(matrix).shape, matrix.to("meta")
    with Captured():
        assert elsewhere.packed(given).shape == expected


@pytest.mark.parametrize("ending", [ENDING, FAR, None])
def test_every_number_of_a_row_is_written(ending, monkeypatch):
    """Memory that nobody has written is 0 or not, as it happens: here it is NaN in every field of numbers."""
    found, empty = prepared(), torch.empty
    decoder = Decoder(telling(found.layout), found.scaler, ending, UNUSUAL)
    monkeypatch.setattr(torch, "empty", lambda *shape, **how: empty(*shape, **how).fill_(255))
    fields = decoder._fields(decoder.packed(noisy(found)), len(noisy(found)))
    assert {name for name, each in fields.items() if each.isnan().any()} == set()
    assert all(fields[name].view(torch.uint8).max() <= 1 for name in ("terminal", "unusual"))


@pytest.mark.cuda
@pytest.mark.parametrize("ending", [ENDING, FAR, None])
def test_decoding_can_be_captured(ending):
    found, device = prepared(), torch.device("cuda")
    decoder, matrix = Decoder(telling(found.layout), found.scaler, ending, UNUSUAL, device), noisy(found).cuda()
    expected, made = decoder.packed(matrix), decoder.packed(torch.zeros_like(matrix))
    run = compute.capture(lambda: made.copy_(decoder.packed(matrix)), device, [made])  # type: ignore[arg-type]
    run()
    got, wanted = (decoder.rows(each.cpu().numpy(), len(matrix)) for each in (made, expected))
    assert got.rows.equals(wanted.rows)
    assert np.array_equal(got.unusual, wanted.unusual)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("scaling", "residuals"), [("quantile", "bent"), ("blend", "linear"), ("standard", "none"), ("minmax", "none")]
)
def test_a_gpu_decodes_as_a_cpu(scaling, residuals, dtype):
    found = prepared(scaling, residuals, dtype)
    cpu, gpu = (Decoder(found.layout, found.scaler, ENDING, UNUSUAL, torch.device(name)) for name in ("cpu", "cuda"))
    assert gpu.device.type == "cuda"
    for noise in (0.0, 0.5, 5.0):
        matrix = noisy(found, noise)
        expected, made = cpu(matrix), gpu(matrix)
        for name, array in expected.rows.arrays().items():
            other = made.rows.arrays()[name]
            assert other.dtype == array.dtype
            rounding = max(1e-10, 2 * np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0
            np.testing.assert_allclose(other, array, rtol=rounding, atol=rounding)
        assert np.array_equal(expected.unusual, made.unusual)
        flags = [decoder.flags(decoder.raw(matrix)).cpu() for decoder in (cpu, gpu)]
        torch.testing.assert_close(*flags, rtol=1e-9, atol=1e-9)


@pytest.mark.cuda
def test_what_is_no_number_is_refused_and_leaves_the_gpu_working():
    found = prepared()
    decoder, matrix = Decoder(found.layout, found.scaler, device=torch.device("cuda")), noisy(found)
    for wrong in (np.nan, np.inf, -np.inf):
        broken = matrix.clone()
        broken[7, 3] = wrong
        with pytest.raises(DataError, match="diverged"):
            decoder(broken)
    assert decoder(matrix).rows.equals(decoder(matrix).rows)
