"""The keyword engine: scores as of a rebuild, and a copy on disk that is whole or none."""

from __future__ import annotations

import base64
import copy
import json
import math
import pickle
import random
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llama_index_contextual.durable import checksum_of
from llama_index_contextual.errors import SettingError, StorageError
from llama_index_contextual.keyword import Analyzer, engine, segments
from llama_index_contextual.keyword.engine import KeywordEngine

WORDS = ("apple", "pear", "plum", "quince", "getUserName", "manzana")
QUERIES = ("pear", "apple plum", "quince pear quince name", "unknown", "manzana of the user")
FAR = 2**40  # rows of a database that is never renumbered


def state(one):
    """All that an engine says."""
    answers = [one.rows.tolist(), len(one)]
    for query in QUERIES:
        groups = one.analyzer.query_groups(query)
        answers += [[part.tolist() for part in one.search(groups, top_k)] for top_k in (1, 3, 1000)]
        rows = [*one.rows.tolist(), -1, 7 * FAR]
        terms, near = one.term_scores(groups, rows), one.nearness(groups, rows)
        answers += [terms.frequencies, terms.idfs, terms.scores.tolist(), near.weight, near.shares.tolist()]
        answers.append(one.holding(groups).tolist())
    return answers


def of(texts, **options):
    """An engine that was made at once."""
    rows = sorted(texts)
    return KeywordEngine(**options).with_texts(rows, [texts[row] for row in rows])


texts = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
rows = st.one_of(st.integers(0, 12), st.integers(FAR, FAR + 12), st.integers(-(2**62), 2**62))
change = st.one_of(
    st.tuples(st.just("add"), st.lists(st.tuples(rows, texts), max_size=6)),
    st.tuples(st.just("delete"), st.lists(rows, max_size=6)),
    st.tuples(st.just("disk"), st.none()),
)


@given(history=st.lists(change, max_size=25))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_after_any_history_it_says_what_a_rebuild_says(history, tmp_path_factory):
    one, truth, folder = KeywordEngine(), {}, tmp_path_factory.mktemp("words")
    for action, what in history:
        if action == "add":
            one = one.with_texts([*dict(what)], dict(what).values())
            truth |= dict(what)
        elif action == "delete":
            one = one.without(what)
            truth = {row: text for row, text in truth.items() if row not in what}
        else:
            mapped = one.save(folder, "a stamp")
            one, stamp = KeywordEngine.load(folder)
            assert stamp == "a stamp"
            assert state(mapped) == state(one)
    assert state(one) == state(of(truth))


def test_scores_are_those_of_the_formula():
    texts = {3: "plum pear plum", FAR: "pear", 5: "apple quince quince quince"}
    one, analyzer = of(texts, k1=1.7, b=0.4), Analyzer()
    lengths = {row: len(analyzer.tokens(text)) for row, text in texts.items()}
    average = sum(lengths.values()) / 3

    def score(count, frequency, row):
        norm = 1.7 * (1 - 0.4 + 0.4 * lengths[row] / average)
        return math.log(1 + (3 - frequency + 0.5) / (frequency + 0.5)) * count / (count + norm)

    rows, scores = one.search(analyzer.query_groups("plum pear"), 10)
    expected = {3: score(2, 1, 3) + score(1, 2, 3), FAR: score(1, 2, FAR)}
    assert dict(zip(rows.tolist(), scores.tolist(), strict=True)) == pytest.approx(expected)


@pytest.mark.parametrize("wrong", [{"k1": 0}, {"b": 2}])
def test_a_wrong_setting_is_an_error(wrong):
    with pytest.raises(SettingError):
        KeywordEngine(**wrong)


def test_rows_that_tie_with_the_last_are_all_returned():
    one = KeywordEngine()
    for start in range(0, 60, 7):  # in several segments
        one = one.with_texts(range(start, min(60, start + 7)), ["plum pear"] * min(7, 60 - start))
    one = one.with_texts([100, 200], ["plum plum pear", "pear quince"])
    groups = one.analyzer.query_groups("plum")
    assert one.search(groups, 1)[0].tolist() == [100]
    assert one.search(groups, 2)[0].tolist() == [100, *range(60)]
    assert one.search(groups, 61)[0].tolist() == [100, *range(60)]
    assert one.search(groups, 0)[0].tolist() == one.search([], 5)[0].tolist() == []


def test_of_thousands_the_best_are_those_of_sorting_all():
    rng = random.Random(7)  # noqa: S311  no secret
    words = [f"word{number}" for number in range(60)]
    one = of({row: " ".join(rng.choices(words, k=rng.randint(3, 40))) for row in range(3000)})
    one = one.without(range(0, 3000, 7))
    for query in ("word1 word2 word3", "word5", " ".join(words)):
        groups = one.analyzer.query_groups(query)
        rows, scores = one.search(groups, 3000)
        for top_k in (1, 10, 100):
            best, values = one.search(groups, top_k)
            ties = int(np.count_nonzero(scores >= scores[top_k - 1]))
            assert best.tolist() == rows[:ties].tolist()
            assert values.tolist() == scores[:ties].tolist()


def test_a_search_among_some_rows_sees_no_other_and_weighs_by_all():
    one = of({row: "plum " * (1 + row % 3) for row in range(30)})
    groups = one.analyzer.query_groups("plum")
    rows, scores = one.search(groups, 100)
    among = np.array([4, 9, 29, 77])
    found, values = one.search(groups, 100, among)
    assert set(found.tolist()) == {4, 9, 29}
    known = dict(zip(rows.tolist(), scores.tolist(), strict=True))
    assert values.tolist() == [known[row] for row in found.tolist()]
    assert one.search(groups, 100, among[:0])[0].tolist() == []


def test_rows_without_a_text_are_refused():
    with pytest.raises(ValueError, match="no text"):
        KeywordEngine().with_texts([4, 5], ["plum"])


def test_an_engine_does_not_change():
    first = of({1: "plum", 2: "pear"})
    before = state(first)
    second = first.with_texts([3, 2], ["plum quince", "apple"])
    second.without([1])
    assert state(first) == before
    assert second.without([77, -1]) is second
    assert second.with_texts([], []) is second


def test_terms_are_given_by_their_beginning():
    one = of({1: "plum plumber pear", 2: "quince"}).with_texts([3], ["plumage 日本語 \ud800x"])
    assert (
        {*one.terms("pl")} == {term for term in one.terms() if term.startswith("pl")} == {"plum", "plumber", "plumag"}
    )
    assert {"日本", "本語"} <= {*one.terms()}
    assert list(one.terms("zzz")) == []


def test_a_term_may_be_held_more_often_than_a_byte_counts():
    texts = {1: "plum " * 300, 2: "plum " * 70_000, 3: "plum"}
    one = of(texts)
    merged = of({1: texts[1]}).with_texts([2, 3], [texts[2], texts[3]]).with_texts([4], ["x"]).with_texts([5], ["x"])
    merged = merged.without([4, 5])
    assert state(merged) == state(one)
    assert one.search(one.analyzer.query_groups("plum"), 3)[0].tolist() == [2, 1, 3]


def test_segments_are_few_and_none_is_too_large(monkeypatch):
    monkeypatch.setattr(engine, "_SMALLEST", 4)
    monkeypatch.setattr(engine, "MOST_ROWS", 64)
    monkeypatch.setattr(segments, "MOST_ROWS", 64)
    one = KeywordEngine()
    for start in range(0, 1000, 4):
        one = one.with_texts(range(start, start + 4), [WORDS[row % 4] for row in range(start, start + 4)])
    sizes = [len(segment) for segment in one.segments]
    assert sum(sizes) == 1000
    assert max(sizes) <= 64
    assert len(sizes) <= 2 * 1000 / 64 + 3 * 3
    at_once = of({row: WORDS[row % 4] for row in range(1000)})
    assert [len(segment) for segment in at_once.segments][:15] == [64] * 15
    assert state(one) == state(at_once)
    monkeypatch.setattr(segments, "MOST_CODES", 100)
    monkeypatch.setattr(engine, "MOST_CODES", 100)
    long = of(dict.fromkeys(range(10), "plum pear " * 20))
    assert [segment.length for segment in long.segments] == [120, 120, 120, 40]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])  # noqa: S301
def test_it_is_copied(way, tmp_path):
    one = of({1: "plum", FAR: "pear"}).with_texts([3], ["quince"]).save(tmp_path, "").without([3])
    assert state(way(one)) == state(one)


# On disk


def saved(folder):
    """An engine on disk, of two segments, one with a deleted row."""
    rng = random.Random(3)  # noqa: S311  no secret
    every = {row * FAR: " ".join(rng.choices(WORDS, k=9)) for row in range(300)}
    one = of(every).with_texts([1, 2, 3], ["plum", "pear", "apple"]).without([2, FAR])
    return one.save(folder, "first")


def test_an_empty_one_is_kept(tmp_path):
    KeywordEngine().save(tmp_path, "s")
    one, stamp = KeywordEngine.load(tmp_path)
    assert (len(one), stamp, one.rows.dtype) == (0, "s", np.int64)
    assert state(one) == state(KeywordEngine())
    assert state(one.with_texts([1], ["plum"])) == state(of({1: "plum"}))


def test_rows_without_terms_are_kept(tmp_path):
    KeywordEngine().with_texts([4, 2], ["", "…"]).save(tmp_path, "s")
    one, _ = KeywordEngine.load(tmp_path)
    assert one.rows.tolist() == [2, 4]


def test_what_is_opened_is_mapped_and_not_read(tmp_path):
    saved(tmp_path)
    for one in KeywordEngine.load(tmp_path)[0].segments:
        for array in (one.rows, one.codes, one.places, one.counts, one.letters):
            assert not array.flags.owndata
            assert not array.flags.writeable


def test_saving_an_edit_writes_little_that_is_old(tmp_path):
    one = saved(tmp_path)
    old = {path.stat().st_size: (path.name, path.stat().st_mtime_ns) for path in tmp_path.glob("*.words")}
    again = one.with_texts([9], ["quince"]).without([5 * FAR])
    again = again.save(tmp_path, "second")
    new = {path.stat().st_size: (path.name, path.stat().st_mtime_ns) for path in tmp_path.glob("*.words")}
    assert new[max(new)] == old[max(old)]
    assert [one.count for one in again.segments] == [298, 3]  # the new row went to the two of the small segment
    assert state(KeywordEngine.load(tmp_path)[0]) == state(again)


def test_another_analyzer_or_format_is_none_of_ours(tmp_path, monkeypatch):
    saved(tmp_path)
    assert KeywordEngine.load(tmp_path, Analyzer(stem=False)) is None
    assert KeywordEngine.load(tmp_path / "nowhere") is None
    monkeypatch.setattr(segments, "FORMAT", 99)
    assert KeywordEngine.load(tmp_path) is None


def test_any_damage_is_noticed(tmp_path):
    expected = state(saved(tmp_path))
    rng = random.Random(5)  # noqa: S311  no secret
    for path in [*tmp_path.glob("*.words"), tmp_path / "manifest.json"]:
        content = path.read_bytes()
        places = [*range(min(len(content), 64)), *rng.choices(range(len(content)), k=60)]
        for place in places:
            changed = bytearray(content)
            changed[place] ^= rng.randrange(1, 256)
            path.write_bytes(changed)
            found = KeywordEngine.load(tmp_path)
            assert found is None or state(found[0]) == expected
        for length in (0, 8, len(content) // 2, len(content) - 8, len(content) - 1):
            path.write_bytes(content[:length])
            assert KeywordEngine.load(tmp_path) is None
        path.write_bytes(content + b"\0" * 8)
        assert KeywordEngine.load(tmp_path) is None
        path.unlink()
        assert KeywordEngine.load(tmp_path) is None
        path.write_bytes(content)
    assert state(KeywordEngine.load(tmp_path)[0]) == expected


def test_pages_in_another_order_are_noticed(tmp_path):
    of({row: f"plum number{row} part{row % 7}" for row in range(2000)}).save(tmp_path, "")
    (path,) = tmp_path.glob("*.words")
    content = bytearray(path.read_bytes())
    content[4096:8192], content[8192:12288] = content[8192:12288], content[4096:8192]
    path.write_bytes(content)
    assert KeywordEngine.load(tmp_path) is None


def forged(folder, change):
    """Change the manifest and give it a checksum that fits."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest["content"])
    manifest["checksum"] = zlib.crc32(json.dumps(manifest["content"], sort_keys=True).encode())
    path.write_text(json.dumps(manifest))


NUMBERS = [0, -1, 1, 2**16, 2**31, 2**63 - 1, -(2**63)]


@given(data=st.data())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_strangers_segment_with_a_checksum_that_fits_harms_nobody(data, tmp_path_factory):
    """Whatever numbers it holds, it is refused, or answers with rows that it has; numpy never reads beyond it."""
    folder = tmp_path_factory.mktemp("words")
    of({1: "plum pear plum", 2: "quince", FAR: "plum getUserName"}).save(folder, "")
    (path,) = folder.glob("*.words")
    content = np.frombuffer(path.read_bytes(), dtype="<i8").copy()
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(["<i8", "<u4", "<u2", "u1"]))
        numbers = content.view(kind)
        place = data.draw(st.integers(0, len(numbers) - 1))
        numbers[place] = np.array([data.draw(st.sampled_from(NUMBERS))], dtype="<i8").view(kind)[0]
    path.write_bytes(content.tobytes())
    checksum = int(checksum_of(content.view(np.uint8)))
    forged(folder, lambda manifest: manifest["segments"][0].update(checksum=checksum))
    found = KeywordEngine.load(folder)
    if found is not None:
        one = found[0]
        for query in QUERIES:
            groups = one.analyzer.query_groups(query)
            assert {*one.search(groups, 5)[0].tolist()} <= {*one.rows.tolist()}
            one.term_scores(groups, one.rows)
            one.nearness(groups, one.rows)
        list(one.terms())
        one.with_texts([5], ["plum"]).without(one.rows[:1])


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["segments"][0].update(key="../" + content["segments"][0]["key"]),
        lambda content: content["segments"][0].update(key=7),
        lambda content: content["segments"][0].update(live=base64.b64encode(b"x").decode()),
        lambda content: content["segments"][0].update(live="?"),
        lambda content: content["segments"].append(content["segments"][0]),
        lambda content: content["segments"].append(None),
        lambda content: content.update(segments=5),
        lambda content: content.update(stamp=["x"]),
        lambda content: content.pop("stamp"),
    ],
)
def test_a_strangers_manifest_is_none(tmp_path, change):
    saved(tmp_path)
    forged(tmp_path, change)
    assert KeywordEngine.load(tmp_path) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", "null", '{"format": 4, "content": 1, "checksum": 2}', "[" * 99999])
def test_a_file_that_is_no_manifest_is_none_and_is_replaced(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    assert KeywordEngine.load(tmp_path) is None
    one = of({1: "plum"})
    one.save(tmp_path, "")
    assert state(KeywordEngine.load(tmp_path)[0]) == state(one)


@pytest.mark.kill
@pytest.mark.parametrize("at", range(8))
def test_a_process_that_is_killed_while_it_saves_leaves_the_former_copy(tmp_path, monkeypatch, at):
    """It is killed at each step in turn: before and after files are written, synced, replaced and removed."""
    expected = state(saved(tmp_path))
    script = f"""
import os
from pathlib import Path
from llama_index_contextual import durable
from llama_index_contextual.keyword.engine import KeywordEngine
folder, left = Path({str(tmp_path)!r}), {at}
def counted(work):
    def step(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return work(*args, **kwargs)
    return step
one, _ = KeywordEngine.load(folder)
one = one.with_texts([9, 10], ["quince", "plum"]).without([1])
durable.os.fsync, Path.replace, Path.unlink, durable.map_file = map(
    counted, (durable.os.fsync, Path.replace, Path.unlink, durable.map_file))
one.save(folder, "second")
os._exit(0)
"""
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)  # noqa: S603
    assert ended.returncode in (0, 9), ended.stderr
    one, stamp = KeywordEngine.load(tmp_path)
    assert (state(one) == expected) is (stamp == "first")
    assert {row in one.rows for row in (9, 10)} == {stamp == "second"}
    again = one.with_texts([11], ["pear"]).save(tmp_path, "third")
    assert state(KeywordEngine.load(tmp_path)[0]) == state(again)
    assert {path.name for path in tmp_path.iterdir()} == {
        "manifest.json", "write.lock", *(f"{segment.key}.words" for segment in again.segments)
    }  # fmt: skip


def test_several_may_save_to_one_folder_at_once(tmp_path):
    def save_often(worker):
        for turn in range(10):
            of({worker: f"plum number{turn}"}).save(tmp_path, str(worker))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save_often, range(4)))
    one, stamp = KeywordEngine.load(tmp_path)
    assert one.rows.tolist() == [int(stamp)]
    assert len(list(tmp_path.glob("*.words"))) == 1


def test_what_is_mapped_stays_readable_when_another_has_replaced_it(tmp_path):
    one = saved(tmp_path)
    expected = state(one)
    of({1: "plum"}).save(tmp_path, "other")
    assert state(one) == expected
    one.save(tmp_path, "again")
    assert state(KeywordEngine.load(tmp_path)[0]) == expected


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StorageError, match=r"taken cannot be written .* Cure"):
        KeywordEngine().save(tmp_path / "taken", "")
