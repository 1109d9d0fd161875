"""The functions that all indexes of rows share."""

from __future__ import annotations

import numpy as np
import pytest

from llama_index_contextual.retrievers.arrays import kth_largest


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1000, 50_000])
@pytest.mark.parametrize("k", [1, 2, 100])
def test_the_kth_largest_equals_that_of_sorted_values(size, k):
    generator = np.random.default_rng(size)
    for values in (
        generator.normal(size=size),
        generator.integers(0, 3, size).astype(np.float32),
        np.arange(size, dtype=np.float64),
    ):
        if k <= size:
            assert kth_largest(values, k) == np.sort(values)[-k]


def test_nan_counts_as_the_largest_value():
    values = np.arange(10_000.0)
    values[::100] = np.nan
    assert np.isnan(kth_largest(values, 100))
    assert kth_largest(values, 101) == 9999.0
