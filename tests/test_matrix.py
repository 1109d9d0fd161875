"""The matrix: every nearest vector is found, changes are followed, and what lies on disk is never trusted unread."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from llama_index_contextual import matrix as matrix_module
from llama_index_contextual.app import LocalEmbedding
from llama_index_contextual.durable import checksum_of
from llama_index_contextual.errors import FingerprintError, StorageError
from llama_index_contextual.matrix import Matrix

DIMENSIONS = 33  # odd, so that a vector ends within a word of its file's checksum
FIRST = 5  # row number of the first vector


@pytest.fixture(params=["simsimd", "numpy"])
def multiplied(request, monkeypatch):
    """Bytes are multiplied by the library, and where there is none."""
    if request.param == "numpy":
        monkeypatch.setattr(matrix_module, "simsimd", None)
    elif matrix_module.simsimd is None:
        pytest.skip("simsimd is not installed")


@pytest.fixture(scope="module")
def vectors():
    """12,000 vectors around one centre and 60 apart, which come first."""
    rng = np.random.default_rng(7)
    crowd = rng.standard_normal((12_000, DIMENSIONS)) * 0.15 + rng.standard_normal(DIMENSIONS)
    apart = rng.standard_normal((60, DIMENSIONS))
    return np.concatenate([apart, crowd]).astype(np.float32)


def rows_of(vectors):
    return np.arange(FIRST, FIRST + len(vectors))


def of(vectors):
    return Matrix().with_rows(rows_of(vectors), vectors)


def brute(rows, vectors, question, top_k):
    """Rows by cosine in float64, ties by row."""
    wide = np.asarray(vectors, np.float64)
    scores = wide @ question / (np.linalg.norm(wide, axis=1) * np.linalg.norm(question))
    order = np.lexsort((rows, -scores))[:top_k]
    return rows[order].tolist(), scores[order].tolist()


def answer(matrix, *question):
    rows, scores = matrix.nearest(*question)
    assert rows.dtype == np.int64
    return rows.tolist(), scores.tolist()


def first_of(matrix, question):
    return answer(matrix, question, 1)[0][0]


def test_every_nearest_vector_is_found_among_a_crowd_and_apart(vectors):
    matrix = of(vectors)
    rng = np.random.default_rng(8)
    for row in [*range(60), *range(60, 12_000, 400)]:
        question = vectors[row] + rng.standard_normal(DIMENSIONS) * 0.05
        rows, scores = answer(matrix, question, 10)
        wanted, cosines = brute(rows_of(vectors), vectors, question, 10)
        assert rows == wanted
        assert scores == pytest.approx(cosines, abs=1e-6)


def test_all_that_tie_with_the_last_come_too_wherever_they_stand(vectors):
    twins = np.tile(vectors[:1], (2000, 1)) * np.linspace(0.1, 9, 2000)[:, None]
    matrix = Matrix().with_rows([9_999], vectors[3:4])
    for start in range(0, 2000, 137):  # of many pieces
        some = np.arange(start, min(start + 137, 2000))
        matrix = matrix.with_rows(some * 7919 % 2000, twins[some])
    rows, scores = answer(matrix, vectors[3], 20)
    assert rows == [9_999, *range(2000)]
    assert len(set(scores)) == 2
    assert answer(matrix, vectors[3], 1)[0] == [9_999]


def test_a_question_among_some_is_answered_as_if_there_were_no_others(vectors):
    matrix = of(vectors)
    for step in (997, 3):
        some = np.arange(7, 12_000, step)
        among = np.concatenate([some[::-1], [999_999, some[0]]])
        assert answer(matrix, vectors[5], 7, among)[0] == brute(some, vectors[some - FIRST], vectors[5], 7)[0]
    nothing = np.empty(0, np.int64)
    assert answer(matrix, vectors[5], 7, nothing) == answer(matrix, vectors[5], 0) == ([], [])
    assert answer(Matrix(), vectors[5], 7) == ([], [])


def test_changes_make_another_matrix_and_leave_the_former(vectors):
    first = of(vectors[:300])
    second = first.with_rows([12, 800, 800], vectors[[400, 401, 402]]).without([13, 999_999])
    assert (len(first), len(second)) == (300, 300)
    assert first_of(first, vectors[7]) == 12
    assert [first_of(second, vectors[row]) for row in (400, 402)] == [12, 800]
    assert second.rows.tolist() == sorted({*first.rows.tolist(), 800} - {13})
    assert len(second.without(first.rows)) == 1


def test_any_history_of_changes_answers_as_a_new_matrix_of_the_same_vectors(vectors, tmp_path):
    rng = np.random.default_rng(9)
    held, matrix = {}, Matrix()
    for turn in range(60):
        chosen = rng.permutation(900)[: int(rng.integers(1, 80))]
        if rng.random() < 0.4:
            matrix = matrix.without(chosen)
            held = {row: place for row, place in held.items() if row not in set(chosen.tolist())}
        else:
            places = rng.integers(0, 12_000, len(chosen))
            matrix = matrix.with_rows(chosen, vectors[places])
            held |= dict(zip(chosen.tolist(), places.tolist(), strict=True))
        if turn % 5 == 0:
            saved = matrix.save(tmp_path, f"{turn}")
            matrix, stamp = Matrix.load(tmp_path) if turn % 10 else (saved, f"{turn}")
            assert stamp == f"{turn}"
        assert matrix.rows.tolist() == sorted(held)
    question = rng.standard_normal(DIMENSIONS)
    new = Matrix().with_rows(list(held), vectors[list(held.values())])
    assert answer(matrix, question, 50) == answer(new, question, 50)
    assert len(list(tmp_path.glob("*.vectors"))) <= 10  # each larger than the next, up to 1,000 vectors


def test_a_vector_without_a_direction_is_last_and_harms_no_other(vectors):
    strange = np.array([[0.0] * DIMENSIONS, [np.nan] * DIMENSIONS, [np.inf] + [0.0] * (DIMENSIONS - 1)])
    matrix = Matrix().with_rows(range(23), np.concatenate([vectors[:20], strange]))
    scores = dict(zip(*answer(matrix, vectors[3], 23), strict=True))
    assert scores[20] == scores[21] == scores[22] == 0.0
    assert first_of(matrix, vectors[3]) == 3


def test_other_dimensions_are_refused(vectors):
    matrix = of(vectors[:3])
    with pytest.raises(FingerprintError, match=r"3 dimensions.*Cure"):
        matrix.nearest([1.0, 2.0, 3.0], 1)
    with pytest.raises(FingerprintError, match=r"3 dimensions.*Cure"):
        matrix.with_rows([99], [[1.0, 2.0, 3.0]])
    assert len(matrix.without(matrix.rows).with_rows([99], [[1.0, 2.0, 3.0]])) == 1


def test_it_comes_back_from_disk_with_its_stamp(vectors, tmp_path):
    matrix = of(vectors[:506]).without([9])
    matrix.save(tmp_path, '{"any": "ü"}')
    loaded, stamp = Matrix.load(tmp_path)
    assert stamp == '{"any": "ü"}'
    assert answer(loaded, vectors[1], 505) == answer(matrix, vectors[1], 505)
    assert Matrix.load(tmp_path / "nothing") is None
    Matrix().save(tmp_path, "none")
    loaded, stamp = Matrix.load(tmp_path)
    assert (len(loaded), stamp) == (0, "none")
    assert len(loaded.with_rows([1], vectors[:1]).save(tmp_path, "one")) == len(Matrix.load(tmp_path)[0]) == 1


def test_an_edit_writes_what_is_new_and_nothing_else(vectors, tmp_path):
    matrix = of(vectors[:5000]).save(tmp_path, "one")
    [before] = tmp_path.glob("*.vectors")
    content, status = before.read_bytes(), before.stat()
    matrix = matrix.with_rows(rows_of(vectors)[5000:5011], vectors[5000:5011]).without(range(10)).save(tmp_path, "two")
    [new] = set(tmp_path.glob("*.vectors")) - {before}
    assert (before.read_bytes(), before.stat().st_mtime_ns) == (content, status.st_mtime_ns)
    assert new.stat().st_size - 11 * (16 + DIMENSIONS * 3) < 32
    matrix.without(range(FIRST + 2000)).save(tmp_path, "three")
    assert new.exists()  # of a piece that is mostly alive nothing is written again
    assert not before.exists()
    assert sum(file.stat().st_size for file in tmp_path.glob("*.vectors")) - 3011 * (16 + DIMENSIONS * 3) < 64
    assert len(Matrix.load(tmp_path)[0]) == 3011


def test_pieces_are_merged_up_to_a_size_so_that_a_large_matrix_is_never_in_memory_twice(vectors, monkeypatch):
    monkeypatch.setattr(matrix_module, "_LARGEST", 1001 * (16 + DIMENSIONS * 3))
    matrix = Matrix()
    for start in range(0, 5000, 100):
        matrix = matrix.with_rows(rows_of(vectors)[start : start + 100], vectors[start : start + 100])
    assert max(map(len, matrix.pieces)) <= 1000
    assert len(matrix.pieces) < 12
    assert answer(matrix, vectors[7], 50) == answer(of(vectors[:5000]), vectors[7], 50)


def test_what_a_killed_process_left_does_no_harm(vectors, tmp_path):
    matrix = of(vectors[:101]).save(tmp_path, "one")
    left = tmp_path / f"{'0' * 32}.vectors"
    left.write_bytes(b"half a piece" * 999)
    assert answer(Matrix.load(tmp_path)[0], vectors[3], 9) == answer(matrix, vectors[3], 9)
    matrix.with_rows(rows_of(vectors)[101:110], vectors[101:110]).save(tmp_path, "two")
    assert first_of(Matrix.load(tmp_path)[0], vectors[105]) == FIRST + 105
    assert not left.exists()


def test_two_that_save_in_turn_do_not_mix(vectors, tmp_path):
    first = of(vectors[:100]).save(tmp_path, "one")
    second, _ = Matrix.load(tmp_path)
    first.with_rows([500], vectors[200:201]).save(tmp_path, "first")
    second.with_rows([600], vectors[300:301]).save(tmp_path, "second")
    loaded, stamp = Matrix.load(tmp_path)
    assert (first_of(loaded, vectors[300]), len(loaded), stamp) == (600, 101, "second")


@pytest.mark.parametrize("suffix", [".vectors", ".json"])
@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "gone", "foreign"])
def test_a_damaged_file_is_noticed(vectors, tmp_path, suffix, harm):
    of(vectors[:201]).save(tmp_path, "one")
    [path] = tmp_path.glob(f"*{suffix}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    harmed = {"cut": data[: len(data) // 2], "flip": data, "empty": b"", "foreign": b'{"format": 1, "content": {}}'}
    path.unlink()
    if harm != "gone":
        path.write_bytes(bytes(harmed[harm]))
    assert Matrix.load(tmp_path) is None
    of(vectors[:9]).save(tmp_path, "two")
    assert len(Matrix.load(tmp_path)[0]) == 9


@pytest.mark.parametrize("harm", [1, 0x80, 0xFF])
def test_any_one_damaged_byte_is_noticed(vectors, tmp_path, harm):
    matrix = of(vectors[:3]).save(tmp_path, "one")
    matrix.with_rows([50, 51], vectors[3:5]).save(tmp_path, "two")
    for path in tmp_path.glob("*.vectors"):
        data = path.read_bytes()
        for place in range(len(data)):
            path.write_bytes(data[:place] + bytes([data[place] ^ harm]) + data[place + 1 :])
            assert Matrix.load(tmp_path) is None, place
        path.write_bytes(data)
    assert len(Matrix.load(tmp_path)[0]) == 5


def another(folder, **changes):
    """A stranger's manifest: like ours, with a true checksum."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["content"]["segments"][0] |= changes
    manifest["checksum"] = zlib.crc32(json.dumps(manifest["content"], sort_keys=True).encode())
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")


def test_a_manifest_leads_to_no_other_folder(vectors, tmp_path):
    of(vectors[:5]).save(tmp_path / "theirs", "one")
    [other] = (tmp_path / "theirs").glob("*.vectors")
    of(vectors[:5]).save(tmp_path / "mine", "one")
    another(tmp_path / "mine", key=f"../theirs/{other.stem}")
    assert Matrix.load(tmp_path / "mine") is None


@pytest.mark.parametrize(
    ("rows", "dimensions"), [(1 << 60, 33), (-5, 33), (0, 33), (5, 1 << 60), (5, 0), (5, 32), (6, 33)]
)
def test_a_file_asks_for_no_more_than_there_is(vectors, tmp_path, rows, dimensions):
    of(vectors[:5]).save(tmp_path, "one")
    [path] = tmp_path.glob("*.vectors")
    data = np.concatenate([np.array([rows, dimensions], "<i8").view(np.uint8), np.fromfile(path, np.uint8)[16:]])
    path.write_bytes(data.tobytes())
    another(tmp_path, checksum=checksum_of(data))
    assert Matrix.load(tmp_path) is None


def test_rows_twice_and_vectors_of_other_dimensions_are_none(vectors, tmp_path):
    of(vectors[:5]).save(tmp_path, "one")
    for rows, some in ([FIRST], vectors[:1]), ([99], vectors[:1, :9]):
        of_another = Matrix().with_rows(rows, some).save(tmp_path / "other", "two").pieces[0].data
        (tmp_path / f"{'0' * 32}.vectors").write_bytes(of_another.tobytes())
        manifest = json.loads((tmp_path / "manifest.json").read_bytes())
        entry = {"key": "0" * 32, "checksum": checksum_of(of_another), "live": None}
        manifest["content"]["segments"][1:] = [entry]
        (tmp_path / "manifest.json").write_text(json.dumps(manifest), "utf-8")
        another(tmp_path)
        assert Matrix.load(tmp_path) is None
    another(tmp_path, live="AAAA")
    assert Matrix.load(tmp_path) is None


def test_a_folder_that_cannot_be_made_is_named(vectors, tmp_path):
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(StorageError, match=r"file.*Cure"):
        of(vectors[:5]).save(tmp_path / "file" / "matrix", "one")


@pytest.mark.parametrize("among", [None, np.arange(7, 12_000, 997), np.arange(6, 12_000, 3)])
@pytest.mark.parametrize("count", [2, 7, 40])
def test_questions_asked_together_are_answered_as_each_alone(vectors, count, among):
    matrix = of(vectors).without(np.arange(FIRST + 30, FIRST + 40)).with_rows([20_000], vectors[:1])
    rng = np.random.default_rng(9)
    questions = vectors[:count] + rng.standard_normal((count, DIMENSIONS)) * 0.3
    together = matrix.nearest_to_each(questions, 100, among)
    for one, (rows, scores) in zip(questions, together, strict=True):
        assert (rows.tolist(), scores.tolist()) == answer(matrix, one, 100, among)


# Coarse bytes, which are compared first


def hostile(kind, rng, count=4000):
    """Unit vectors, or zeros, of which some are the nearest by very little."""
    made = rng.standard_normal((count, DIMENSIONS))
    if kind == "equal":
        made = np.repeat(made[: count // 40], 40, axis=0)
    elif kind == "one number each":
        made = np.eye(DIMENSIONS)[rng.integers(0, DIMENSIONS, count)]
    elif kind == "near a centre":
        made = made * 1e-3 + rng.standard_normal(DIMENSIONS)
    elif kind == "halfway between two codes":
        made = rng.integers(-126, 126, (count, DIMENSIONS)) + 0.5
        made[:, 0] = 127
        made *= rng.choice([1e-30, 1.0, 1e30], (count, 1))
    elif kind == "zeros":
        made[::3] = 0
    elif kind == "huge and tiny":
        made *= 10.0 ** rng.integers(-150, 150, (count, 1))
    elif kind == "one large number":
        made[:, 3] *= 10.0 ** rng.integers(0, 6, count)
    return made


KINDS = (
    *("plain", "equal", "one number each", "near a centre", "halfway between two codes", "zeros", "huge and tiny"),
    "one large number",
)


def in_full(vectors, question, top_k):
    """Rows and scores by every vector in float64."""
    scales, _, fine, coarse = matrix_module._in_bytes(matrix_module.units_of(vectors))
    asked = matrix_module.units_of(question[None])[0].astype(np.float64)
    scores = np.einsum("ij,j->i", coarse + fine / 65536, asked) * scales
    order = np.lexsort((rows_of(vectors), -scores))
    order = order[scores[order] >= scores[order[top_k - 1]]]
    return rows_of(vectors)[order].tolist(), scores[order].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_no_product_is_further_off_than_what_coarse_bytes_leave_out(kind):
    units = matrix_module.units_of(hostile(kind, np.random.default_rng(3), 600))
    scales, rests, fine, coarse = matrix_module._in_bytes(units)
    steps = scales[:, None].astype(np.float64)
    copies, whole = coarse * steps, (coarse + fine / 65536) * steps
    wide = units.astype(np.float64)
    assert np.all(np.abs(whole - wide) <= steps / 65536 * 0.51)
    off = np.abs(wide @ wide.T - copies @ copies.T)
    assert np.all(off <= np.add.outer(rests, rests) + np.outer(rests, rests) + matrix_module._SLACK)
    assert np.all(rests <= np.abs(units).max(axis=1) / 127 * np.sqrt(DIMENSIONS) / 2 + 1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top_k", [1, 10, 100])
def test_the_answer_is_bit_by_bit_that_of_comparing_all_in_full(kind, top_k, multiplied):
    rng = np.random.default_rng(5)
    vectors = hostile(kind, rng)
    matrix = of(vectors)
    zeros = np.zeros(DIMENSIONS)
    questions = (
        vectors[1],
        vectors[7] + rng.standard_normal(DIMENSIONS) * 1e-3,
        -vectors[9],
        hostile(kind, rng)[0],
        zeros,
    )
    for question in questions:
        assert answer(matrix, question, top_k) == in_full(vectors, question, top_k)


def test_the_answer_among_some_is_bit_by_bit_that_of_a_matrix_of_these(multiplied):
    rng = np.random.default_rng(6)
    vectors = hostile("plain", rng, 9000)
    matrix = of(vectors).without(rows_of(vectors)[::7])
    for own in (slice(100, 4000), slice(0, 9000, 3), slice(8000, 9000), slice(50, 60), slice(3, 4)):
        among = rows_of(vectors)[own]
        left = among[(among - FIRST) % 7 > 0]
        alone = Matrix().with_rows(left, vectors[left - FIRST])
        for question in rng.standard_normal((5, DIMENSIONS)):
            assert answer(matrix, question, 100, among) == answer(alone, question, 100)


def test_of_texts_the_coarse_bytes_leave_few_to_be_compared_in_full(multiplied):
    embedding = LocalEmbedding()
    subjects = ("the boiler", "a night train", "the release", "a cashew allergy", "the cache", "a blue teapot")
    deeds = ("was repaired", "is late", "costs too much", "was forgotten", "works again", "has a new owner")
    texts = [f"{subject} {deed} {when}" for subject in subjects for deed in deeds for when in range(20)]
    vectors = np.array(embedding.get_text_embedding_batch(texts))
    matrix = of(vectors)
    for question in ("what about the heating?", "is there food on the sleeper?", "a blue teapot is late 3"):
        asked = np.array(embedding.get_query_embedding(question))
        assert answer(matrix, asked, 10) == in_full(vectors, asked, 10)
        [near] = matrix._perhaps_near(matrix_module.units_of(asked[None]), matrix._places, 10)
        assert 10 <= len(near) < len(texts) / 4
