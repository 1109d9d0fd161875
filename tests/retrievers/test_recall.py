"""The share of the true nearest vectors that an answer holds."""

from __future__ import annotations

import numpy as np
import pytest

from llama_index_contextual.retrieval.chroma import TOP, found_share, made_questions

CROWD, APART = 3000, 60


@pytest.fixture(scope="module")
def vectors():
    """60 vectors apart from one another, then 3,000 around one centre."""
    rng = np.random.default_rng(3)
    crowd = rng.standard_normal(384) + 0.3 * rng.standard_normal((CROWD, 384))
    return np.concatenate([rng.standard_normal((APART, 384)), crowd]).astype(np.float32)


def test_the_share_that_is_found_counts_equals_and_nothing_else(vectors):
    twins = np.concatenate([vectors[:200], vectors[:1], vectors[:1]])
    ids = [str(number) for number in range(len(twins))]
    pages = [(ids[:90], twins[:90]), (ids[90:], twins[90:])]
    questions = made_questions(vectors[:5])
    units = twins / np.linalg.norm(twins, axis=1, keepdims=True)
    true = [[ids[row] for row in np.argsort(-(units @ question))[:TOP]] for question in questions]
    assert found_share(pages, questions, true) == 1.0
    assert found_share(pages, questions, [answer[:-1] for answer in true]) == pytest.approx(0.9)
    assert found_share(pages, questions, [["nothing", *answer[1:]] for answer in true]) == pytest.approx(0.9)
    assert found_share(pages, questions[:1], [["0", "0", "0", *true[0][3:]]]) == pytest.approx(0.8)
    assert found_share([], questions, [[]] * len(questions)) == 1.0
    assert found_share([(ids[:3], twins[:3])], questions, [["0", "1", "2"]] * len(questions)) == 1.0
