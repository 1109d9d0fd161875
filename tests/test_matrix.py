"""The matrix: every nearest vector is found, changes are followed, and what lies on disk is never trusted unread."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from llama_index_contextual.errors import FingerprintError, StorageError
from llama_index_contextual.matrix import Matrix

DIMENSIONS = 32


@pytest.fixture(scope="module")
def made():
    """12,000 vectors around one centre and 60 apart, which come first, as ids and vectors."""
    rng = np.random.default_rng(7)
    crowd = rng.standard_normal((12_000, DIMENSIONS)) * 0.15 + rng.standard_normal(DIMENSIONS)
    apart = rng.standard_normal((60, DIMENSIONS))
    vectors = np.concatenate([apart, crowd]).astype(np.float32)
    return [f"id-{number:05}" for number in range(len(vectors))], vectors


def brute(ids, vectors, question, top_k):
    """Ids by cosine in float64, ties by id."""
    wide = np.asarray(vectors, np.float64)
    scores = wide @ question / (np.linalg.norm(wide, axis=1) * np.linalg.norm(question))
    order = sorted(zip(ids, scores.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))
    return order[:top_k]


def files(folder):
    return sorted((path.suffix, path.stat().st_size) for path in folder.glob("*.*") if path.suffix != ".lock")


def test_every_nearest_vector_is_found_among_a_crowd_and_apart(made):
    ids, vectors = made
    matrix = Matrix().with_rows(ids, vectors)
    rng = np.random.default_rng(8)
    for row in [*range(60), *range(60, 12_000, 400)]:
        question = vectors[row] + rng.standard_normal(DIMENSIONS) * 0.05
        found = matrix.nearest(question, 10)
        wanted = brute(ids, vectors, question, 10)
        assert [id_ for id_, _ in found] == [id_ for id_, _ in wanted]
        assert [score for _, score in found] == pytest.approx([score for _, score in wanted], abs=1e-6)


def test_equal_vectors_have_equal_scores_wherever_they_stand_and_come_by_id(made):
    _, vectors = made
    twins = np.tile(vectors[:1], (500, 1)) * np.linspace(0.1, 9, 500)[:, None]
    ids = [f"{number * 7919 % 500:03}" for number in range(500)]
    matrix = Matrix()
    for start in range(0, 500, 37):  # of many pieces
        matrix = matrix.with_rows(ids[start : start + 37], twins[start : start + 37])
    found = matrix.nearest(vectors[3], 20)
    assert [id_ for id_, _ in found] == sorted(ids)[:20]
    assert len({score for _, score in found}) == 1


def test_a_question_among_some_is_answered_as_if_there_were_no_others(made):
    ids, vectors = made
    matrix = Matrix().with_rows(ids, vectors)
    some = [f"id-{number:05}" for number in range(5, 12_000, 997)]
    held = [ids.index(id_) for id_ in some]
    found = matrix.nearest(vectors[5], 7, [*some, "nothing", some[0]])
    assert [id_ for id_, _ in found] == [id_ for id_, _ in brute(some, vectors[held], vectors[5], 7)]
    assert matrix.nearest(vectors[5], 7, []) == matrix.nearest(vectors[5], 0) == Matrix().nearest(vectors[5], 7) == []


def test_changes_make_another_matrix_and_leave_the_former(made):
    ids, vectors = made
    first = Matrix().with_rows(ids[:300], vectors[:300])
    second = first.with_rows(["id-00007", "new", "new"], vectors[[400, 401, 402]]).without(["id-00008", "nothing"])
    assert (len(first), len(second)) == (300, 300)
    assert first.nearest(vectors[7], 1)[0][0] == "id-00007"
    assert [second.nearest(vectors[row], 1)[0][0] for row in (400, 402)] == ["id-00007", "new"]
    everything = {id_ for id_, _ in second.nearest(vectors[8], 300)}
    assert everything == {*ids[:300], "new"} - {"id-00008"}
    assert len(second.without(ids)) == 1


def test_any_history_of_changes_answers_as_a_new_matrix_of_the_same_vectors(made, tmp_path):
    ids, vectors = made
    rng = np.random.default_rng(9)
    held, matrix = {}, Matrix()
    for turn in range(60):
        chosen = rng.permutation(900)[: int(rng.integers(1, 80))]
        if rng.random() < 0.4:
            gone = [ids[row] for row in chosen]
            matrix = matrix.without(gone)
            held = {id_: row for id_, row in held.items() if id_ not in set(gone)}
        else:
            rows = rng.integers(0, 12_000, len(chosen))
            matrix = matrix.with_rows([ids[row] for row in chosen], vectors[rows])
            held |= {ids[one]: int(row) for one, row in zip(chosen, rows, strict=True)}
        if turn % 5 == 0:
            matrix.save(tmp_path, f"{turn}")
            matrix = Matrix.load(tmp_path, f"{turn}") if turn % 10 else matrix.save(tmp_path, f"{turn}")
        assert len(matrix) == len(held)
    question = rng.standard_normal(DIMENSIONS)
    new = Matrix().with_rows(list(held), vectors[list(held.values())])
    assert matrix.nearest(question, 50) == new.nearest(question, 50)
    assert len(list(tmp_path.glob("*.vectors"))) == len(list(tmp_path.glob("*.ids"))) == 1


def test_a_vector_without_a_direction_is_last_and_harms_no_other(made):
    ids, vectors = made
    strange = np.array([[0.0] * DIMENSIONS, [np.nan] * DIMENSIONS, [np.inf] + [0.0] * (DIMENSIONS - 1)])
    matrix = Matrix().with_rows([*ids[:20], "zero", "nan", "inf"], np.concatenate([vectors[:20], strange]))
    found = dict(matrix.nearest(vectors[3], 23))
    assert found["zero"] == found["nan"] == found["inf"] == 0.0
    assert matrix.nearest(vectors[3], 1)[0][0] == "id-00003"


def test_other_dimensions_are_refused(made):
    ids, vectors = made
    matrix = Matrix().with_rows(ids[:3], vectors[:3])
    with pytest.raises(FingerprintError, match=r"3 dimensions.*Cure"):
        matrix.nearest([1.0, 2.0, 3.0], 1)
    with pytest.raises(FingerprintError, match=r"3 dimensions.*Cure"):
        matrix.with_rows(["x"], [[1.0, 2.0, 3.0]])


def test_it_comes_back_from_disk_with_its_stamp_and_no_other(made, tmp_path):
    ids, vectors = made
    strange = ["line\nbreak", "nul\0", "lone \ud800", "ü", '"', "\u2028"]
    matrix = Matrix().with_rows([*strange, *ids[:500]], vectors[:506]).without(["ü"])
    matrix.save(tmp_path, "one")
    loaded = Matrix.load(tmp_path, "one")
    assert loaded.nearest(vectors[1], 505) == matrix.nearest(vectors[1], 505)
    assert Matrix.load(tmp_path, "two") is None
    assert Matrix.load(tmp_path / "nothing", "one") is None
    Matrix().save(tmp_path, "none")
    assert Matrix.load(tmp_path, "none").nearest(vectors[1], 5) == []


def test_an_edit_writes_what_is_new_and_nothing_else(made, tmp_path):
    ids, vectors = made
    matrix = Matrix().with_rows(ids[:5000], vectors[:5000]).save(tmp_path, "one")
    [before] = tmp_path.glob("*.vectors")
    head = before.read_bytes()
    matrix = matrix.with_rows(ids[5000:5010], vectors[5000:5010]).without(ids[:10]).save(tmp_path, "two")
    [after] = tmp_path.glob("*.vectors")
    assert after == before
    assert after.read_bytes()[: len(head)] == head
    assert after.stat().st_size == 5010 * DIMENSIONS * 4
    matrix.without(ids[:2000]).save(tmp_path, "three")
    [smaller] = tmp_path.glob("*.vectors")
    assert smaller.stat().st_size == 3010 * DIMENSIONS * 4
    assert len(Matrix.load(tmp_path, "three")) == 3010


def test_what_a_killed_process_left_behind_the_end_does_no_harm(made, tmp_path):
    ids, vectors = made
    matrix = Matrix().with_rows(ids[:100], vectors[:100]).save(tmp_path, "one")
    for path in [*tmp_path.glob("*.vectors"), *tmp_path.glob("*.ids")]:
        with path.open("ab") as file:
            file.write(b"half a row" * 999)
    assert Matrix.load(tmp_path, "one").nearest(vectors[3], 9) == matrix.nearest(vectors[3], 9)
    matrix.with_rows(ids[100:110], vectors[100:110]).save(tmp_path, "two")
    assert Matrix.load(tmp_path, "two").nearest(vectors[105], 1)[0][0] == ids[105]


def test_two_that_save_in_turn_do_not_mix(made, tmp_path):
    ids, vectors = made
    first = Matrix().with_rows(ids[:100], vectors[:100]).save(tmp_path, "one")
    second = Matrix.load(tmp_path, "one")
    first.with_rows(["a"], vectors[200:201]).save(tmp_path, "first")
    second.with_rows(["b"], vectors[300:301]).save(tmp_path, "second")
    loaded = Matrix.load(tmp_path, "second")
    assert [loaded.nearest(vectors[300], 1)[0][0], len(loaded)] == ["b", 101]
    assert Matrix.load(tmp_path, "first") is None


@pytest.mark.parametrize("suffix", [".vectors", ".ids", ".json"])
@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "gone", "foreign"])
def test_a_damaged_file_is_noticed(made, tmp_path, suffix, harm):
    ids, vectors = made
    Matrix().with_rows(ids[:200], vectors[:200]).save(tmp_path, "one")
    [path] = tmp_path.glob(f"*{suffix}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    harmed = {"cut": data[: len(data) // 2], "flip": data, "empty": b"", "foreign": b'{"format": 1, "content": {}}'}
    path.unlink()
    if harm != "gone":
        path.write_bytes(bytes(harmed[harm]))
    assert Matrix.load(tmp_path, "one") is None
    Matrix().with_rows(ids[:9], vectors[:9]).save(tmp_path, "two")
    assert len(Matrix.load(tmp_path, "two")) == 9


def test_a_manifest_leads_to_no_other_folder(made, tmp_path):
    ids, vectors = made
    Matrix().with_rows(ids[:5], vectors[:5]).save(tmp_path / "theirs", "one")
    [other] = (tmp_path / "theirs").glob("*.vectors")
    folder = tmp_path / "mine"
    Matrix().with_rows(ids[:5], vectors[:5]).save(folder, "one")
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["content"]["kept"][0] = f"../theirs/{other.stem}"
    manifest["checksum"] = zlib.crc32(json.dumps(manifest["content"], sort_keys=True).encode())
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    assert Matrix.load(folder, "one") is None


def test_a_folder_that_cannot_be_made_is_named(made, tmp_path):
    ids, vectors = made
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(StorageError, match=r"file.*Cure"):
        Matrix().with_rows(ids[:5], vectors[:5]).save(tmp_path / "file" / "matrix", "one")
