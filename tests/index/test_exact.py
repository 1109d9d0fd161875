"""Up to a limit an index compares a question with every vector: nothing near is lost."""

from __future__ import annotations

import chromadb
import numpy as np
import pytest
from llama_index.core.schema import QueryBundle
from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.app.settings.embeddings import model_id
from llama_index_contextual.matrix import Matrix

QUESTIONS = ("carrots for a pet", "when is the release?", "why is the cache slow?", "choose a version")


NOTES = {
    "allergies.md": ("Tomasz is allergic to cashews and pistachios.", "nuts intolerance of a colleague"),
    "birthday.md": ("Mum would like the blue teapot from the shop in Harbour Street.", "gift idea for my mother"),
    "boiler.md": ("Below one bar, open the left valve slowly.", "what do I do if the heating loses water?"),
    "drone.md": ("It is 249 grams with the small battery.", "how heavy is the quadcopter?"),
    "knee.md": ("The physiotherapist says: no running for three weeks.", "what sport may I do with my injury?"),
    "party.md": ("Andrea does not drink.", "what do I offer somebody who avoids alcohol?"),
    "train.md": ("The night train to Vienna has no dining car.", "is there food on the sleeper?"),
    "wine.md": ("The white one was a Furmint from Tokaj.", "what was the Hungarian bottle called?"),
}


def brute(index, embedding, question, top_k=10, admitted=lambda _: True):
    """Ids and cosines by every vector of the database."""
    with index.settings.database.reading() as snapshot:
        nodes = {node.row: node for node in snapshot.nodes()}
        pages = list(snapshot.vectors(model_id(embedding)))
    asked = np.array(embedding.get_query_embedding(question))
    pairs = [
        (nodes[row].node_id, float(vector @ asked / np.linalg.norm(vector) / np.linalg.norm(asked)))
        for rows, vectors in pages
        for row, vector in zip(rows.tolist(), vectors.astype(np.float64), strict=True)
        if admitted(nodes[row].metadata["path"])
    ]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:top_k]


def asked(index, question, filters=None, top_k=10):
    vector, _ = index.as_retriever(filters=filters).retrievers
    return [(one.node_id, one.score) for one in vector.candidates(QueryBundle(question), top_k)]


def assert_exact(index, embedding):
    for question in QUESTIONS:
        answer, wanted = asked(index, question), brute(index, embedding, question)
        assert [node_id for node_id, _ in answer] == [node_id for node_id, _ in wanted]
        assert [score for _, score in answer] == pytest.approx([score for _, score in wanted], abs=1e-6)


def copy_of(index):
    return index.settings.layout.root / "matrix"


def test_every_question_is_compared_with_every_vector_that_a_filter_admits(opened, embedding):
    index = opened()
    index.refresh()
    assert_exact(index, embedding)
    filters = MetadataFilters(filters=[MetadataFilter(key="path", value="memory/", operator=FilterOperator.CONTAINS)])
    wanted = brute(index, embedding, QUESTIONS[0], admitted=lambda path: path.startswith("memory/"))
    assert len(wanted) == 2
    assert [node_id for node_id, _ in asked(index, QUESTIONS[0], filters)] == [node_id for node_id, _ in wanted]


def test_changes_are_followed_by_the_writer_and_by_others(opened, folder, embedding):
    writer, reader = opened(), opened()
    writer.refresh()
    assert_exact(reader, embedding)
    (folder / "faq.md").write_text("# FAQ\n\nThe cache is warm by now. A new version is out.\n", "utf-8")
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
        killed.setattr(Matrix, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            writer.refresh()
    for index in (reader, opened()):
        assert_exact(index, embedding)
    writer.refresh()
    assert_exact(opened(), embedding)


@pytest.mark.parametrize("harm", ["gone", "cut", "changed", "foreign", "stale"])
def test_a_copy_that_cannot_be_used_is_derived_again_and_a_question_writes_nothing(opened, folder, embedding, harm):
    index = opened()
    index.refresh()
    matrix = copy_of(index)
    before = {path.name: path.read_bytes() for path in matrix.iterdir()}
    index.close()
    [vectors] = matrix.glob("*.vectors")
    if harm == "gone":
        for path in matrix.iterdir():
            path.unlink()
        matrix.rmdir()
    elif harm in ("cut", "changed"):
        data = bytearray(vectors.read_bytes())
        data[100] ^= 1
        vectors.write_bytes(data if harm == "changed" else data[:-1])
    elif harm == "foreign":  # of another index
        Matrix().with_rows([1], [[1.0] * 384]).save(matrix, '["another", 0, 1]')
    else:
        (folder / "new.md").write_text("# Pets\n\nThe hamster eats carrots, too.\n", "utf-8")
        opened().refresh()
        for name, data in before.items():
            (matrix / name).write_bytes(data)
    there = {path.name: path.read_bytes() for path in matrix.glob("*")}
    assert_exact(opened(), embedding)
    assert {path.name: path.read_bytes() for path in matrix.glob("*")} == there
    (folder / "more.md").write_text("# More\n\nA rabbit eats carrots as well.\n", "utf-8")
    opened().refresh()
    assert Matrix.load(matrix) is not None
    assert_exact(opened(), embedding)


def test_an_index_without_vectors_has_no_matrix(opened):
    index = opened(embed_model="none")
    index.refresh()
    assert index.verify().ok
    assert not copy_of(index).exists()


@pytest.mark.long
def test_notes_beside_a_large_document_are_found_as_by_comparing_all(opened, embedding, data, tmp_path):
    """Real vectors: eight notes of a sentence, and pages of documentation in one file."""
    beside = tmp_path / "beside"
    beside.mkdir()
    for name, (text, _) in NOTES.items():
        (beside / name).write_text(f"# {name[:-3].title()}\n\n{text}\n", "utf-8")
    pages = sorted((data("kubernetes-docs") / "corpus").glob("concepts_*.md"))[:12]
    (beside / "handbook.md").write_text("\n\n".join(page.read_text("utf-8") for page in pages), "utf-8")
    index = opened(beside)
    index.refresh()
    assert len(index.nodes()) > 150
    for name, (_, question) in NOTES.items():
        answer, wanted = asked(index, question), brute(index, embedding, question)
        assert [node_id for node_id, _ in answer] == [node_id for node_id, _ in wanted]
        paths = {node.node_id: node.metadata["path"] for node in index.nodes()}
        assert name in [paths[node_id] for node_id, _ in answer][:5], question


@pytest.mark.long
def test_made_vectors_apart_from_a_crowd_are_found_where_a_graph_loses_them(tmp_path):
    """60 vectors apart, then 6,000 around one centre, are written together."""
    rng = np.random.default_rng(3)
    crowd = rng.standard_normal(384) + 0.3 * rng.standard_normal((6000, 384))
    apart = rng.standard_normal((60, 384))
    vectors = np.concatenate([apart, crowd]).astype(np.float32)
    ids = [str(number) for number in range(len(vectors))]
    client = chromadb.PersistentClient(str(tmp_path))
    graph = client.create_collection("graph", embedding_function=None, configuration={"hnsw": {"space": "cosine"}})
    for start in range(0, len(ids), 3030):
        graph.add(ids=ids[start : start + 3030], embeddings=vectors[start : start + 3030])
    matrix = Matrix().with_rows(np.arange(len(vectors)), vectors)
    questions = apart + 0.3 * rng.standard_normal(apart.shape)
    assert [int(matrix.nearest(question, 1)[0][0]) for question in questions] == list(range(60))
    answers = graph.query(query_embeddings=questions.tolist(), n_results=10, include=[])["ids"]
    assert sum(node_id in answer for node_id, answer in zip(ids, answers, strict=False)) < 60, "graphs are exact by now"
