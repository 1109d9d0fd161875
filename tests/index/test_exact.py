"""An index compares a question with every vector: nothing near is lost, whatever happens to the copy of its vectors."""

from __future__ import annotations

import chromadb
import numpy as np
import pytest
from llama_index.core.schema import QueryBundle
from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters
from llama_index_contextual.index._old_matrix import Matrix
from llama_index_contextual.index.reader import arms_over

from llama_index_contextual.local_embedding import LocalEmbedding
from llama_index_contextual.retrievers.chroma import ChromaDense

LIMIT = "LLAMA_INDEX_CONTEXTUAL_STORE__EXACT_LIMIT"
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


class Three(LocalEmbedding):
    """Vectors of three numbers."""

    def _get_text_embeddings(self, texts):
        return [[1.0, float(len(text)), 3.0] for text in texts]

    def _get_query_embedding(self, query):
        return [float(len(query)), 2.0, 3.0]


@pytest.fixture
def no_graph(monkeypatch):
    """No question reaches the graph of Chroma."""
    monkeypatch.setattr(ChromaDense, "dense_query", lambda *_: pytest.fail("the graph was asked"))


def brute(index, embedding, question, top_k=10, admitted=lambda _: True):
    """Ids and cosines by every vector of the store."""
    pages = index._storage.reader.ask(lambda view: list(view.store.vectors()))
    paths = {node.node_id: node.metadata["path"] for node in index.nodes()}
    asked = np.array(embedding.get_query_embedding(question))
    pairs = [
        (id_, float(vector @ asked / np.linalg.norm(vector) / np.linalg.norm(asked)))
        for ids, vectors in pages
        for id_, vector in zip(ids, vectors.astype(np.float64), strict=True)
        if admitted(paths[id_])
    ]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:top_k]


def asked(index, embedding, question, filters=None, top_k=10):
    dense, _ = arms_over(index._storage.reader, embedding, filters)
    return [(one.node_id, one.score) for one in dense.candidates(QueryBundle(question), top_k)]


def assert_exact(index, embedding):
    for question in QUESTIONS:
        found, wanted = asked(index, embedding, question), brute(index, embedding, question)
        assert [id_ for id_, _ in found] == [id_ for id_, _ in wanted]
        assert [score for _, score in found] == pytest.approx([score for _, score in wanted], abs=1e-6)


def copies(index):
    return sorted(path.name for path in index.settings.layout.matrix.glob("*.vectors"))


def test_every_question_is_compared_with_every_vector(opened, embedding, no_graph):
    index = opened()
    index.refresh()
    assert_exact(index, embedding)
    assert len(copies(index)) == 1


def test_a_filtered_question_is_exact_too(opened, embedding, no_graph):
    index = opened()
    index.refresh()
    filters = MetadataFilters(filters=[MetadataFilter(key="path", value="memory/", operator=FilterOperator.CONTAINS)])
    wanted = brute(index, embedding, QUESTIONS[0], admitted=lambda path: path.startswith("memory/"))
    assert len(wanted) == 2
    assert [id_ for id_, _ in asked(index, embedding, QUESTIONS[0], filters)] == [id_ for id_, _ in wanted]


def test_changes_are_followed_by_the_writer_and_by_others(opened, folder, embedding, no_graph):
    writer, reader = opened(), opened()
    writer.refresh()
    assert_exact(reader, embedding)
    [copy] = copies(writer)
    (folder / "faq.md").write_text("# FAQ\n\nThe cache is warm by now. A new version is out.\n", "utf-8")
    (folder / "guide.md").unlink()
    (folder / "new.md").write_text("# Pets\n\nThe hamster eats carrots, too.\n", "utf-8")
    writer.refresh()
    for index in (writer, reader, opened()):
        assert_exact(index, embedding)
    assert copies(writer) == [copy]
    writer.delete("new.md")
    for index in (writer, reader, opened()):
        assert_exact(index, embedding)


def test_a_reader_follows_a_refresh_that_is_killed(opened, folder, embedding, no_graph, monkeypatch):
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
def test_a_copy_that_cannot_be_used_is_derived_again_and_a_question_writes_nothing(
    opened, folder, embedding, no_graph, harm, tmp_path
):
    index = opened()
    index.refresh()
    matrix = index.settings.layout.matrix
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
    elif harm == "foreign":  # of another index, with the same stamp
        stamp = f"{index.settings.layout.generation.read_bytes()} contextual"
        assert Matrix.load(matrix, stamp) is not None
        Matrix().with_rows(["other"], [[1.0] * 384]).save(matrix, stamp)
    else:
        (folder / "new.md").write_text("# Pets\n\nThe hamster eats carrots, too.\n", "utf-8")
        opened().refresh()
        for name, data in before.items():
            (matrix / name).write_bytes(data)
    there = sorted(path.name for path in matrix.glob("*"))
    assert_exact(opened(), embedding)
    assert sorted(path.name for path in matrix.glob("*")) == there
    (folder / "more.md").write_text("# More\n\nA rabbit eats carrots as well.\n", "utf-8")
    again = opened()
    again.refresh()
    assert len(copies(again)) == 1
    assert_exact(opened(), embedding)


def test_beyond_the_limit_the_graph_answers_and_nothing_is_kept(opened, folder, embedding, monkeypatch):
    index = opened()
    index.refresh()
    chunks = len(index.nodes())
    monkeypatch.setenv(LIMIT, str(chunks))
    (folder / "new.md").write_text("# Pets\n\nThe hamster eats carrots, too.\n", "utf-8")
    larger = opened()
    larger.refresh()
    assert copies(larger) == []
    graph = []
    plain = ChromaDense.dense_query
    monkeypatch.setattr(ChromaDense, "dense_query", lambda *given: graph.append(1) or plain(*given))
    assert_exact(larger, embedding)  # a graph of so few loses nothing
    assert len(graph) == len(QUESTIONS)
    (folder / "new.md").unlink()
    larger.refresh()
    assert len(copies(larger)) == 1
    assert_exact(larger, embedding)
    assert len(graph) == len(QUESTIONS)


def test_another_embedding_brings_another_matrix(opened, embedding, no_graph):
    index = opened()
    index.refresh()
    three = Three(threads=1, model_name="three")
    replaced = opened(embed_model=three, reindex="all")
    replaced.refresh()
    for question in QUESTIONS:
        found, wanted = asked(replaced, three, question), brute(replaced, three, question)
        assert [score for _, score in found] == pytest.approx([score for _, score in wanted], abs=1e-6)


def test_verify_measures_what_is_found(opened, embedding, monkeypatch):
    index = opened()
    index.refresh()
    found = index.verify()
    assert (found.ok, found.recall, found.to_dict()["recall"]) == (True, 1.0, 1.0)
    assert "100.0% of the ten nearest chunks are found" in str(found)
    index.close()
    plain = ChromaDense.dense_query
    monkeypatch.setenv(LIMIT, "0")
    monkeypatch.setattr(ChromaDense, "dense_query", lambda *given: plain(*given)[1:])
    lossy = opened().verify()
    assert (lossy.ok, lossy.problems, lossy.files) == (False, [], [])
    assert lossy.recall == pytest.approx(1 - 1 / len(index.nodes()))
    assert str(lossy).startswith("Only 75.0% of the ten nearest chunks are found")
    assert "Cure: [store] exact_limit = 4 or more" in str(lossy)
    assert "reindex" not in str(lossy)


def test_verify_finds_a_copy_that_holds_other_vectors(opened, embedding):
    index = opened()
    index.refresh()
    ids, vectors = index._storage.reader.ask(lambda view: next(view.store.vectors()))
    stamp = f"{index.settings.layout.generation.read_bytes()} contextual"
    many = [f"none-{number}" for number in range(20)]
    index.close()
    noise = np.random.default_rng(0).standard_normal((25, vectors.shape[1]))
    foreign = Matrix().with_rows([*many, *ids], noise).without(many)
    foreign.save(index.settings.layout.matrix, stamp)
    seen = opened()
    with pytest.MonkeyPatch.context() as few:  # all of so few chunks are among the ten nearest
        few.setattr("llama_index_contextual.index.inspection.TOP", 2)
        few.setattr("llama_index_contextual.retrievers.recall.TOP", 2)
        assert not seen.verify().ok


def test_an_index_without_vectors_measures_nothing(opened):
    index = opened(embed_model="none")
    index.refresh()
    assert index.verify().recall is None
    assert not index.settings.layout.matrix.exists()


def test_qdrant_is_asked_to_compare_every_vector_up_to_the_limit(opened, embedding, monkeypatch):
    qdrant_client = pytest.importorskip("qdrant_client", reason="the extra 'qdrant' is not installed")
    client, asked_for = qdrant_client.QdrantClient(":memory:"), []
    index = opened(vector_store=client)
    index.refresh()
    plain = qdrant_client.QdrantClient.query_points

    def noted(self, *given, **options):
        if options.get("search_params") is not None:
            asked_for.append(options["search_params"].exact)
        return plain(self, *given, **options)

    monkeypatch.setattr(qdrant_client.QdrantClient, "query_points", noted)
    assert_exact(index, embedding)
    assert asked_for == [True] * len(QUESTIONS)
    assert index.verify().recall == 1.0
    asked_for.clear()
    monkeypatch.setenv(LIMIT, "2")
    asked(opened(vector_store=client), embedding, QUESTIONS[0])
    assert asked_for == [False]


@pytest.mark.long
def test_notes_beside_a_large_document_are_found_as_by_comparing_all(opened, embedding, data, tmp_path, no_graph):
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
        found, wanted = asked(index, embedding, question), brute(index, embedding, question)
        assert [id_ for id_, _ in found] == [id_ for id_, _ in wanted]
        paths = {node.node_id: node.metadata["path"] for node in index.nodes()}
        assert name in [paths[id_] for id_, _ in found][:5], question
    assert index.verify().recall == 1.0


@pytest.mark.long
def test_made_vectors_apart_from_a_crowd_are_found_where_a_graph_loses_them(tmp_path):
    """60 vectors apart, then 6,000 around one centre, are written together."""
    rng = np.random.default_rng(3)
    crowd = rng.standard_normal(384) + 0.3 * rng.standard_normal((6000, 384))
    apart = rng.standard_normal((60, 384))
    vectors = np.concatenate([apart, crowd]).astype(np.float32)
    ids = [f"{number:05}" for number in range(len(vectors))]
    client = chromadb.PersistentClient(str(tmp_path))
    graph = client.create_collection("graph", embedding_function=None, configuration={"hnsw": {"space": "cosine"}})
    for start in range(0, len(ids), 3030):
        graph.add(ids=ids[start : start + 3030], embeddings=vectors[start : start + 3030])
    matrix = Matrix().with_rows(ids, vectors)
    questions = apart + 0.3 * rng.standard_normal(apart.shape)
    assert [matrix.nearest(question, 1)[0][0] for question in questions] == ids[:60]
    answers = graph.query(query_embeddings=questions.tolist(), n_results=10, include=[])["ids"]
    assert sum(id_ in answer for id_, answer in zip(ids, answers, strict=False)) < 60, "graphs are exact by now"
