"""Up to a limit an index compares a question with every vector: nothing near is lost."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from llama_index.core.schema import QueryBundle
from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.app.index import vectors
from llama_index_contextual.app.index.caches import Caches, UnitVectors, VectorIndex, unit_vectors
from llama_index_contextual.utils.errors import FingerprintError

QUESTIONS = (
    "carrots for a pet",
    "when is the release?",
    "why is the cache slow?",
    "choose a version",
)


NOTES = {
    "allergies.md": (
        "Tomasz is allergic to cashews and pistachios.",
        "nuts intolerance of a colleague",
    ),
    "birthday.md": (
        "Mum would like the blue teapot from the shop in Harbour Street.",
        "gift idea for my mother",
    ),
    "boiler.md": (
        "Below one bar, open the left valve slowly.",
        "what do I do if the heating loses water?",
    ),
    "drone.md": ("It is 249 grams with the small battery.", "how heavy is the quadcopter?"),
    "knee.md": (
        "The physiotherapist says: no running for three weeks.",
        "what sport may I do with my injury?",
    ),
    "party.md": ("Andrea does not drink.", "what do I offer somebody who avoids alcohol?"),
    "train.md": ("The night train to Vienna has no dining car.", "is there food on the sleeper?"),
    "wine.md": ("The white one was a Furmint from Tokaj.", "what was the Hungarian bottle called?"),
}


def brute(index, embedding, question, top_k=10, admitted=lambda _: True):
    """Ids and cosines by every vector of the database."""
    with index.settings.database.reading() as snapshot:
        rows = snapshot.rows()
        nodes = list(snapshot.node_rows(rows))
        vectors = snapshot.vectors(rows)
    asked = np.array(embedding.get_query_embedding(question))
    pairs = [
        (node.node_id, float(vector @ asked / np.linalg.norm(vector) / np.linalg.norm(asked)))
        for node, vector in zip(nodes, np.float64(vectors), strict=True)
        if admitted(json.loads(node.metadata)["path"])
    ]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:top_k]


def asked(index, question, filters=None, top_k=10):
    vector, _ = index.as_retriever(filters=filters).retrievers
    [candidates] = vector.candidates([QueryBundle(question)], top_k)
    return [(candidate.node_id, candidate.score) for candidate in candidates]


def assert_exact(index, embedding):
    for question in QUESTIONS:
        answer, expected = asked(index, question), brute(index, embedding, question)
        assert [node_id for node_id, _ in answer] == [node_id for node_id, _ in expected]
        assert [score for _, score in answer] == pytest.approx(
            [score for _, score in expected], abs=1e-6
        )


def copy_of(index):
    return index.settings.layout.cache


def test_every_question_is_compared_with_every_vector_that_a_filter_admits(opened, embedding):
    index = opened()
    index.refresh()
    assert_exact(index, embedding)
    filters = MetadataFilters(
        filters=[MetadataFilter(key="path", value="memory/", operator=FilterOperator.CONTAINS)]
    )
    expected = brute(
        index, embedding, QUESTIONS[0], admitted=lambda path: path.startswith("memory/")
    )
    assert len(expected) == 2
    assert [node_id for node_id, _ in asked(index, QUESTIONS[0], filters)] == [
        node_id for node_id, _ in expected
    ]


def test_changes_are_followed_by_the_writer_and_by_others(opened, folder, embedding):
    writer, reader = opened(), opened()
    writer.refresh()
    assert_exact(reader, embedding)
    (folder / "faq.md").write_text(
        "# FAQ\n\nThe cache is warm by now. A new version is out.\n", "utf-8"
    )
    (folder / "guide.md").unlink()
    (folder / "new.md").write_text("# Pets\n\nThe hamster eats carrots, too.\n", "utf-8")
    writer.refresh()
    for index in (writer, reader, opened()):
        assert_exact(index, embedding)
    writer.delete("new.md")
    for index in (writer, reader, opened()):
        assert_exact(index, embedding)


def test_a_reader_follows_a_refresh_that_is_killed(opened, folder, embedding, monkeypatch):
    writer, reader = opened(), opened()
    writer.refresh()
    assert_exact(reader, embedding)
    (folder / "new.md").write_text("# Pets\n\nThe hamster eats carrots, too.\n", "utf-8")
    (folder / "faq.md").unlink()
    with monkeypatch.context() as killed:
        killed.setattr(Caches, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            writer.refresh()
    for index in (reader, opened()):
        assert_exact(index, embedding)
    writer.refresh()
    assert_exact(opened(), embedding)


@pytest.mark.parametrize("harm", ["gone", "cut", "changed", "stale"])
def test_a_copy_that_cannot_be_used_is_derived_again_and_a_question_writes_nothing(
    opened, folder, embedding, harm
):
    index = opened()
    index.refresh()
    cache = copy_of(index)
    before = {path.name: path.read_bytes() for path in cache.iterdir()}
    index.close()
    vectors = cache / "vectors.arrays"
    if harm == "gone":
        shutil.rmtree(cache)
    elif harm in ("cut", "changed"):
        data = bytearray(vectors.read_bytes())
        data[300] ^= 1
        vectors.write_bytes(data if harm == "changed" else data[:-1])
    else:
        (folder / "new.md").write_text("# Pets\n\nThe hamster eats carrots, too.\n", "utf-8")
        opened().refresh()
        shutil.rmtree(cache)
        cache.mkdir()
        for name, data in before.items():
            (cache / name).write_bytes(data)
    there = {path.name: path.read_bytes() for path in cache.glob("*")}
    assert_exact(opened(), embedding)
    assert {path.name: path.read_bytes() for path in cache.glob("*")} == there
    (folder / "more.md").write_text("# More\n\nA rabbit eats carrots as well.\n", "utf-8")
    opened().refresh()
    assert len(VectorIndex().load(cache / "vectors.arrays")[0]) >= 5
    assert_exact(opened(), embedding)


def test_an_index_without_vectors_has_no_copy_of_them(opened):
    index = opened(embed_model="none")
    index.refresh()
    assert index.status(check=True).ok
    assert not list(copy_of(index).glob("vectors*"))


@pytest.mark.long
def test_notes_beside_a_large_document_are_found_as_by_an_exhaustive_search(
    opened, embedding, data, tmp_path
):
    """Real vectors: eight notes of a sentence, and pages of documentation in one file."""
    beside = tmp_path / "beside"
    beside.mkdir()
    for name, (text, _) in NOTES.items():
        (beside / name).write_text(f"# {name[:-3].title()}\n\n{text}\n", "utf-8")
    pages = sorted((data("kubernetes-docs") / "corpus").glob("concepts_*.md"))[:12]
    (beside / "handbook.md").write_text(
        "\n\n".join(page.read_text("utf-8") for page in pages), "utf-8"
    )
    index = opened(beside)
    index.refresh()
    assert len(index.nodes()) > 150
    for name, (_, question) in NOTES.items():
        answer, expected = asked(index, question), brute(index, embedding, question)
        assert [node_id for node_id, _ in answer] == [node_id for node_id, _ in expected]
        paths = {node.node_id: node.metadata["path"] for node in index.nodes()}
        assert name in [paths[node_id] for node_id, _ in answer][:5], question


def clustered(rng, rows, dimensions):
    """Vectors around a few centres, many of them nearly the same, and some twice."""
    centres = rng.standard_normal((5, dimensions))
    made = centres[rng.integers(0, 5, rows)] + 1e-4 * rng.standard_normal((rows, dimensions))
    made[rows // 2 : rows // 2 + rows // 10] = made[: rows // 10]
    return made.astype(np.float32)


MADE = {
    "apart": lambda rng, rows: rng.standard_normal((rows, 384)).astype(np.float32),
    "around one centre": lambda rng, rows: (
        rng.standard_normal(384) + 0.3 * rng.standard_normal((rows, 384))
    ).astype(np.float32),
    "nearly the same": lambda rng, rows: clustered(rng, rows, 384),
    "of large and small numbers": lambda rng, rows: (
        rng.standard_normal((rows, 64)) * 10.0 ** rng.integers(-12, 12, (rows, 1))
    ).astype(np.float32),
    "of one dimension": lambda rng, rows: rng.standard_normal((rows, 1)).astype(np.float32),
}


@pytest.fixture(params=["with 8-bit codes", "without simsimd"])
def kernel(request, monkeypatch):
    """Vectors are compared with and without the package that compares their codes."""
    if request.param == "without simsimd":
        monkeypatch.setattr(vectors, "simsimd", None)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_the_ten_nearest_are_found_for_any_vectors_and_equal_vectors_tie(made):
    rng = np.random.default_rng(3)
    vectors = made(rng, 3000)
    rows = np.arange(10, 3010)
    index = VectorIndex().changed((), UnitVectors.of(rows[:2000], unit_vectors(vectors[:2000])))
    index = index.changed((), UnitVectors.of(rows[2000:], unit_vectors(vectors[2000:]))).changed(
        rows[::7]
    )
    kept = np.setdiff1d(rows, rows[::7])
    units = vectors.astype(np.float64) / np.linalg.norm(
        vectors.astype(np.float64), axis=1, keepdims=True
    )
    units = units.astype(np.float32).astype(np.float64)
    questions = [*vectors[:20], *made(rng, 20)[:20]]
    for question, [(nearest_rows, scores)] in zip(
        questions, index.nearest([*map(list, questions)], 10), strict=True
    ):
        asked = question.astype(np.float64) / np.linalg.norm(question.astype(np.float64))
        true = units[kept - 10] @ asked
        least = np.sort(true)[-10]
        assert len(nearest_rows) >= 10
        assert set(kept[true > least + 1e-6].tolist()) <= set(nearest_rows.tolist())
        assert (true[np.searchsorted(kept, nearest_rows)] >= least - 1e-6).all()
        assert scores == pytest.approx(true[np.searchsorted(kept, nearest_rows)], abs=1e-6)
        same = dict(zip(nearest_rows.tolist(), scores.tolist(), strict=True))
        if made is MADE["nearly the same"]:
            assert all(
                same[row] == same[row + 1500] for row in same if row < 310 and row + 1500 in same
            )
    among = kept[:50]
    assert set(index.nearest([vectors[0].tolist()], 100, among)[0][-1][0].tolist()) == set(
        among.tolist()
    )
    assert len(index.nearest([vectors[0].tolist()], 5, among[:0])[0][-1][0]) == 0
    with pytest.raises(FingerprintError, match="dimensions"):
        index.nearest([[1.0] * 7], 5)


def test_codes_leave_few_rows_to_compare(monkeypatch):
    """The first look decides what the others cost; without a bound it would keep all rows."""
    rng = np.random.default_rng(5)
    units = unit_vectors(rng.standard_normal((5000, 384)))
    index = VectorIndex().changed((), UnitVectors.of(np.arange(5000), units))
    compared = []
    cosines = VectorIndex._cosines

    def counting(self, query, places):
        compared.append(len(places))
        return cosines(self, query, places)

    monkeypatch.setattr(VectorIndex, "_cosines", counting)
    index.nearest([units[7].tolist()], 10)
    [few] = compared  # few enough to be compared with the exact vectors at once
    assert 10 <= few < 512
    index.nearest([units[7].tolist()], 600)
    _, many, fewer = compared
    assert 600 <= many < 2000
    assert 600 <= fewer < 620


def test_an_error_of_a_code_is_at_most_what_is_stored():
    rng = np.random.default_rng(6)
    units = unit_vectors(rng.standard_normal((300, 96)) ** 3)
    coded = UnitVectors.of(np.arange(300), units)
    exact = units.astype(np.float64)
    difference = exact - coded.codes * coded.scales[:, None].astype(np.float64)
    assert np.linalg.norm(difference, axis=1) == pytest.approx(coded.errors, abs=1e-6)
    assert coded.errors.max() < 0.05


@pytest.mark.parametrize(
    "change",
    [
        {"ids": np.arange(2)},
        {"scales": np.ones(2, np.float32)},
        {"codes": np.zeros((3, 5), np.int8)},
        {"codes": np.zeros((3, 4), np.int16)},
    ],
    ids=["fewer ids", "fewer scales", "other codes", "larger codes"],
)
def test_arrays_that_do_not_fit_together_are_refused(change):
    coded = UnitVectors.of(np.arange(3), unit_vectors(np.ones((3, 4))))
    coded.check()
    with pytest.raises(ValueError):  # noqa: PT011  the caller derives the arrays again
        replace(coded, **change).check()
