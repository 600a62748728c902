"""Codes of discrete values: how wide they are, and what is nearest to what a network makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from synther.data.codes import code_width, decode_index, encode_index
from synther.data.kinds import Categorical, OneHot
from synther.errors import DataError


@pytest.mark.parametrize("size", [2, 3, 5, 6, 8, 11, 13, 64, 100])
def test_bits_decode_to_the_nearest_valid_code(size: int):
    book = encode_index(np.arange(size), size, "bits")
    assert book.shape == (size, code_width(size, "bits"))
    assert np.array_equal(decode_index(book, size, "bits"), np.arange(size))
    values = np.random.default_rng(size).normal(size=(2000, book.shape[1]))
    assert np.array_equal(decode_index(values, size, "bits"), (values @ book.T).argmax(1))


@pytest.mark.parametrize("kind", [Categorical, OneHot])
def test_codes_have_at_least_two_values_and_a_known_coding(kind: Any):
    with pytest.raises(DataError, match="size 1"):
        kind(1)
    with pytest.raises(DataError, match="got 'gray'"):
        kind(3, coding="gray")
