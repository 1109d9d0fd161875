"""BM25 over arrays: scores equal those of a rebuild, and a file is complete or not read."""

from __future__ import annotations

import copy
import math
import os
import pickle
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llama_index_contextual.retrievers.bm25_index import Bm25Index, TermCollector
from llama_index_contextual.retrievers.terms import query_groups, terms_of
from llama_index_contextual.utils.errors import StorageError

WORDS = ("apple", "pear", "plum", "quince", "getUserName", "manzana")
QUERIES = ("pear", "apple plum", "quince pear quince name", "unknown", "manzana of the user")
FAR = 2**40  # rows of a database that is never renumbered


def search(engine, groups, top_k, among=None):
    """Return the best rows and their scores, among some rows if they are given."""
    return engine.search(groups, top_k, among)[-1]


def state(engine):
    """Return everything that an engine returns, for comparisons."""
    answers = [engine.rows.tolist(), len(engine)]
    for query in QUERIES:
        groups = query_groups(query)
        answers += [
            [part.tolist() for part in search(engine, groups, top_k)] for top_k in (1, 3, 1000)
        ]
        rows = [*engine.rows.tolist(), -1, 7 * FAR]
        terms, nearness = engine.term_scores(groups, rows), engine.nearness(groups, rows)
        answers += [terms.frequencies, terms.idfs, terms.scores.tolist(), nearness.tolist()]
        answers.append(engine.rows_with_all(groups).tolist())
    return answers


def with_texts(engine, rows, texts):
    """Return an engine with further rows."""
    terms = TermCollector()
    for text in texts:
        terms.add(text)
    return engine.with_terms(rows, terms)


def engine_of(texts, **options):
    """Return an engine that was built in one step."""
    rows = sorted(texts)
    return with_texts(Bm25Index(**options), rows, [texts[row] for row in rows])


texts = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
rows = st.one_of(st.integers(0, 12), st.integers(FAR, FAR + 12), st.integers(-(2**62), 2**62))
change = st.one_of(
    st.tuples(st.just("add"), st.lists(st.tuples(rows, texts), max_size=6)),
    st.tuples(st.just("delete"), st.lists(rows, max_size=6)),
    st.tuples(st.just("disk"), st.none()),
)


@given(history=st.lists(change, max_size=25))
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_results_after_any_history_equal_those_of_a_rebuild(history, tmp_path_factory):
    engine, truth, folder = Bm25Index(), {}, tmp_path_factory.mktemp("words")
    for action, what in history:
        if action == "add":
            ordered = dict(sorted(dict(what).items()))
            engine = with_texts(engine, [*ordered], ordered.values())
            truth |= dict(what)
        elif action == "delete":
            engine = engine.changed(what)
            truth = {row: text for row, text in truth.items() if row not in what}
        else:
            mapped = save(engine, folder, "a stamp")
            engine, stamp = load(folder)
            assert stamp == "a stamp"
            assert state(mapped) == state(engine)
    assert state(engine) == state(engine_of(truth))


def test_scores_are_those_of_the_formula():
    texts = {3: "plum pear plum", FAR: "pear", 5: "apple quince quince quince"}
    engine = engine_of(texts)
    lengths = {row: len(terms_of(text)) for row, text in texts.items()}
    average = sum(lengths.values()) / 3

    def score(count, frequency, row):
        norm = 1.2 * (1 - 0.75 + 0.75 * lengths[row] / average)
        return math.log(1 + (3 - frequency + 0.5) / (frequency + 0.5)) * count / (count + norm)

    rows, scores = search(engine, query_groups("plum pear"), 10)
    expected = {3: score(2, 1, 3) + score(1, 2, 3), FAR: score(1, 2, FAR)}
    assert dict(zip(rows.tolist(), scores.tolist(), strict=True)) == pytest.approx(expected)


def test_rows_that_tie_with_the_last_are_all_returned():
    engine = Bm25Index()
    for start in range(0, 60, 7):  # in several parts
        engine = with_texts(
            engine, range(start, min(60, start + 7)), ["plum pear"] * min(7, 60 - start)
        )
    engine = with_texts(engine, [100, 200], ["plum plum pear", "pear quince"])
    groups = query_groups("plum")
    assert search(engine, groups, 1)[0].tolist() == [100]
    assert search(engine, groups, 2)[0].tolist() == [100, *range(60)]
    assert search(engine, groups, 61)[0].tolist() == [100, *range(60)]
    assert search(engine, [], 5)[0].tolist() == []


def test_the_best_of_thousands_equal_those_of_a_full_sort():
    rng = random.Random(7)  # noqa: S311  no secret
    words = [f"word{number}" for number in range(60)]
    engine = engine_of(
        {row: " ".join(rng.choices(words, k=rng.randint(3, 40))) for row in range(3000)}
    )
    engine = engine.changed(range(0, 3000, 7))
    for query in ("word1 word2 word3", "word5", " ".join(words)):
        groups = query_groups(query)
        rows, scores = search(engine, groups, 3000)
        for top_k in (1, 10, 100):
            best, values = search(engine, groups, top_k)
            ties = int(np.count_nonzero(scores >= scores[top_k - 1]))
            assert best.tolist() == rows[:ties].tolist()
            assert values.tolist() == scores[:ties].tolist()


def test_a_search_among_some_rows_returns_only_them_with_unchanged_scores():
    engine = engine_of({row: "plum " * (1 + row % 3) for row in range(30)})
    groups = query_groups("plum")
    rows, scores = search(engine, groups, 100)
    among = np.array([4, 9, 29, 77])
    matching_rows, values = search(engine, groups, 100, among)
    assert set(matching_rows.tolist()) == {4, 9, 29}
    known = dict(zip(rows.tolist(), scores.tolist(), strict=True))
    assert values.tolist() == [known[row] for row in matching_rows.tolist()]
    assert search(engine, groups, 100, among[:0])[0].tolist() == []


def test_terms_at_the_end_of_a_row_are_not_near_those_of_the_next_row():
    index = engine_of({1: "apple plum", 2: "pear apple"})
    assert index.nearness(query_groups("plum pear"), [1, 2]).tolist() == [0, 0]


def test_terms_further_apart_than_eight_tokens_are_not_near():
    index = engine_of({1: f"plum {'apple ' * 7} pear", 2: f"plum {'apple ' * 8} pear"})
    assert index.nearness(query_groups("plum pear"), [1, 2]).tolist() == [1 / 8, 0]


def test_the_nearest_token_counts_on_either_side():
    index = engine_of({1: "pear plum apple apple pear", 2: "pear apple apple plum pear"})
    assert index.nearness(query_groups("plum pear"), [1, 2]).tolist() == [1, 1]


def test_an_alternative_of_both_terms_is_near():
    index = engine_of({1: "pear", 2: "plum quince quince pear"})
    groups = [("plum", "pear"), ("pear",)]
    assert index.nearness(groups, [1, 2]).tolist() == [1, 1]


def test_a_day_only_has_weight_if_the_index_contains_it():
    index = engine_of({1: "2026-04-09", 2: "2026"})
    groups = query_groups("2026-04-09")
    assert search(index, groups, 2)[0].tolist() == [1, 2]
    assert index.term_scores(groups, [1]).idfs[0] > 0
    assert index.changed([1]).term_scores(groups, [2]).idfs[0] == 0


def test_rows_without_a_text_are_rejected():
    with pytest.raises(ValueError, match="2 rows have 1 texts"):
        with_texts(Bm25Index(), [4, 5], ["plum"])


def test_an_index_is_immutable():
    first = engine_of({1: "plum", 2: "pear"})
    before = state(first)
    second = with_texts(first, [2, 3], ["apple", "plum quince"])
    second.changed([1])
    assert state(first) == before
    assert second.changed([77, -1]) is second
    assert with_texts(second, [], []) is second


def test_a_term_can_occur_more_than_255_times():
    texts = {1: "plum " * 300, 2: "plum " * 70_000, 3: "plum"}
    engine = engine_of(texts)
    merged = with_texts(engine_of({1: texts[1]}), [2, 3], [texts[2], texts[3]])
    merged = with_texts(merged, [4], ["x"])
    merged = with_texts(merged, [5], ["x"]).changed([4, 5])
    assert state(merged) == state(engine)
    assert search(engine, query_groups("plum"), 3)[0].tolist() == [2, 1, 3]


def test_there_are_at_most_two_parts_and_a_grown_small_one_is_merged():
    engine, sizes = Bm25Index(), set()
    for start in range(0, 1000, 4):
        engine = with_texts(
            engine, range(start, start + 4), [WORDS[row % 4] for row in range(start, start + 4)]
        )
        sizes.add(len(engine.parts))
        large, *small = [len(live) for _, live in engine.parts]
        assert 4 * sum(small) <= large
    assert sizes == {1, 2}
    assert state(engine) == state(engine_of({row: WORDS[row % 4] for row in range(1000)}))


@pytest.mark.parametrize(
    "way",
    [copy.copy, copy.deepcopy, lambda engine: pickle.loads(pickle.dumps(engine))],  # noqa: S301
)
def test_an_index_can_be_copied(way, tmp_path):
    engine = save(
        with_texts(engine_of({1: "plum", FAR: "pear"}), [3], ["quince"]), tmp_path, ""
    ).changed([3])
    assert state(way(engine)) == state(engine)


# On disk


def save(engine, folder, stamp):
    """Write an index, and return it."""
    engine.save(folder / "bm25.arrays", stamp)
    return engine


def load(folder):
    """Return the index in a folder and its stamp, or None if it is missing or damaged."""
    try:
        return Bm25Index().load(folder / "bm25.arrays")
    except Exception:  # noqa: BLE001  whatever is wrong
        return None


def saved(folder):
    """Save and return an index that had two parts, one of them with a deleted row."""
    rng = random.Random(3)  # noqa: S311  no secret
    every = {row * FAR: " ".join(rng.choices(WORDS, k=9)) for row in range(300)}
    engine = with_texts(engine_of(every), [400 * FAR, 401 * FAR], ["plum", "pear"]).changed(
        [401 * FAR, FAR]
    )
    return save(engine, folder, "first")


def test_an_empty_index_can_be_saved(tmp_path):
    save(Bm25Index(), tmp_path, "s")
    engine, stamp = load(tmp_path)
    assert (len(engine), stamp, engine.rows.dtype) == (0, "s", np.int64)
    assert state(engine) == state(Bm25Index())
    assert state(with_texts(engine, [1], ["plum"])) == state(engine_of({1: "plum"}))


def test_rows_without_terms_are_saved(tmp_path):
    save(with_texts(Bm25Index(), [2, 4], ["", "…"]), tmp_path, "s")
    engine, _ = load(tmp_path)
    assert engine.rows.tolist() == [2, 4]


def test_any_damage_is_detected_or_harmless(tmp_path):
    """A ZIP archive also has fields that do not affect the arrays, such as dates."""
    expected = state(saved(tmp_path))
    rng = random.Random(5)  # noqa: S311  no secret
    [path] = tmp_path.glob("*.arrays")
    content = path.read_bytes()
    noticed = 0
    for place in [*range(0, len(content), 97), *range(len(content) - 700, len(content), 3)]:
        changed = bytearray(content)
        changed[place] ^= rng.randrange(1, 256)
        path.write_bytes(changed)
        loaded = load(tmp_path)
        noticed += loaded is None
        assert loaded is None or state(loaded[0]) == expected
    assert noticed > 100
    for length in (0, 2, 8, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        assert load(tmp_path) is None
    path.unlink()
    assert load(tmp_path) is None
    path.write_bytes(content)
    assert state(load(tmp_path)[0]) == expected


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "null", '{"format": 4, "content": 1, "checksum": 2}', "[" * 99999]
)
def test_a_foreign_file_is_not_read_and_is_replaced(tmp_path, content):
    (tmp_path / "bm25.arrays").write_text(content)
    assert load(tmp_path) is None
    engine = save(engine_of({1: "plum"}), tmp_path, "")
    assert state(load(tmp_path)[0]) == state(engine)


@pytest.mark.kill
@pytest.mark.parametrize("step", range(12))
def test_a_process_that_is_killed_while_saving_leaves_the_old_file(tmp_path, step):
    """It is killed before each call in turn that opens, checks or replaces a file."""
    expected = state(saved(tmp_path))
    script = f"""
import os, zlib
from pathlib import Path
from test_bm25_index import load, save, with_texts, FAR
folder, left = Path({str(tmp_path)!r}), {step}
def counted(work):
    def step(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return work(*args, **kwargs)
    return step
engine, _ = load(folder)
engine = with_texts(engine, [600 * FAR, 601 * FAR], ["quince", "plum"]).changed([2 * FAR])
Path.open, Path.replace, zlib.crc32 = map(counted, (Path.open, Path.replace, zlib.crc32))
save(engine, folder, "second")
os._exit(0)
"""
    here = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])  # noqa: PTH120
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": here},
    )
    assert ended.returncode in (0, 9), ended.stderr
    engine, stamp = load(tmp_path)
    assert (state(engine) == expected) is (stamp == "first")
    assert {row in engine.rows for row in (600 * FAR, 601 * FAR)} == {stamp == "second"}
    saved_engine = save(with_texts(engine, [700 * FAR], ["pear"]), tmp_path, "third")
    assert state(load(tmp_path)[0]) == state(saved_engine)
    assert not list(tmp_path.glob("*.new"))


def test_several_processes_can_save_to_one_folder_at_once(tmp_path):
    def save_often(worker):
        for turn in range(10):
            save(engine_of({worker: f"plum number{turn}"}), tmp_path, str(worker))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save_often, range(4)))
    engine, stamp = load(tmp_path)
    assert engine.rows.tolist() == [int(stamp)]


def test_an_index_stays_readable_after_its_file_is_replaced(tmp_path):
    saved(tmp_path)
    engine = load(tmp_path)[0]
    expected = state(engine)
    save(engine_of({1: "plum"}), tmp_path, "other")
    assert state(engine) == expected
    save(engine, tmp_path, "again")
    assert state(load(tmp_path)[0]) == expected


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot be written .* Free space"):
        save(engine_of({1: "plum"}), tmp_path / "file" / "words", "")
