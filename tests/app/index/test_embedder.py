"""Which texts are embedded, in which batches, and which answers of a model are refused."""

import numpy as np
import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field
from llama_index.core.schema import TextNode

from llama_index_contextual.app.index.content_cache import ContentCache
from llama_index_contextual.app.index.embedder import Embedder, chunks_of, embed_texts
from llama_index_contextual.utils.errors import EmbeddingError


class Answering(BaseEmbedding):
    """An embedding that records its texts; a text with "bad" gets a vector of zeros."""

    texts: list[str] = Field(default_factory=list)
    spare: int = 0

    def _get_text_embedding(self, text):
        self.texts.append(text)
        return [0.0, 0.0] if "bad" in text else [1.0, float(len(text))]

    def get_text_embedding_batch(self, texts, **_):
        return [self._get_text_embedding(text) for text in [*texts, *["more"] * self.spare]]

    def _get_query_embedding(self, query):
        return [1.0, 1.0]

    async def _aget_query_embedding(self, query):
        return [1.0, 1.0]


@pytest.fixture
def cache(tmp_path):
    cache = ContentCache(tmp_path / "content.sqlite3")
    yield cache
    cache.close()


def chunks(*texts):
    return chunks_of([TextNode(text=text) for text in texts])


def embed(cache, *texts, **options):
    """Return the result for texts, and the texts that a model was sent."""
    model = Answering(**{"model_name": "answering", **options})
    result = Embedder(model, cache, None).embed(chunks(*texts), [])
    return result, model.texts


def test_equal_texts_are_embedded_once(cache):
    result, sent = embed(cache, "tea", "tea", "coffee")
    assert sent == ["tea", "coffee"]
    assert (result.sent, len(result.vectors)) == (2, 2)


def test_a_text_is_embedded_once_in_all_folders(cache):
    embed(cache, "tea")
    result, sent = embed(cache, "tea", "coffee")
    assert sent == ["length", "coffee"]  # a text that tells the length of the model's vectors
    assert result.sent == 1
    assert len(result.vectors) == 2


def test_the_length_of_vectors_is_asked_for_once(cache):
    embed(cache, "tea")
    model = Answering(model_name="answering")
    embedder = Embedder(model, cache, None)
    for text in ("tea", "coffee", "tea"):
        embedder.embed(chunks(text), [])
    assert model.texts == ["length", "coffee"]


def test_a_model_without_a_name_is_not_taken_for_another(cache):
    embed(cache, "tea", model_name="unknown")
    _, sent = embed(cache, "tea", model_name="unknown")
    assert sent == ["tea"]


def test_an_interruption_costs_at_most_64_texts(cache, monkeypatch):
    sizes = []
    monkeypatch.setattr(cache, "put_vectors", lambda _, vectors: sizes.append(len(vectors)))
    embed(cache, *(f"text {number}" for number in range(130)))
    assert sizes == [64, 64, 2]


@pytest.mark.parametrize(("count", "is_broken"), [(7, False), (8, True)])
def test_a_model_without_a_usable_vector_for_eight_texts_is_broken(cache, count, is_broken):
    texts = [f"bad {number}" for number in range(count)]
    embed(cache, "tea")  # the length of a usable vector is known
    if is_broken:
        with pytest.raises(EmbeddingError, match="no usable vector for any of 8 texts"):
            embed(cache, *texts)
    else:
        result, _ = embed(cache, *texts)
        assert len(result.problems) == 7
        assert result.vectors == {}


def test_a_problem_names_the_first_60_characters_of_the_text(cache):
    text = "bad " + "x" * 200
    result, _ = embed(cache, "tea", "coffee", text)
    [problem] = result.problems.values()
    assert problem.startswith(f"the vector of its text {text[:60]!r} cannot be used: ")


@pytest.mark.parametrize("spare", [1, 3])
def test_too_many_vectors_are_refused(spare):
    model = Answering(model_name="answering", spare=spare)
    with pytest.raises(EmbeddingError, match=rf"gave {spare + 2} vectors for 2 texts"):
        embed_texts(model, ["tea", "coffee"])


def test_a_ruled_line_is_shortened_before_it_is_sent():
    model = Answering(model_name="answering")
    embed_texts(model, ["tea " + "-" * 500])
    assert model.texts[0].startswith("tea --")
    assert len(model.texts[0]) < 50


def test_encoded_bytes_are_not_embedded():
    text = "A picture: data:image/png;base64," + "iVBORw0KGgo" * 100
    [chunk] = chunks(text)
    assert len(chunk.text) < 100
    assert chunk.row.text == text


def test_chunks_keep_the_order_of_their_nodes_and_empty_the_list():
    nodes = [TextNode(text=text) for text in ("one", "two", "three")]
    assert [chunk.text for chunk in chunks_of(nodes)] == ["one", "two", "three"]
    assert nodes == []


@pytest.mark.parametrize(
    ("value", "is_vector"),
    [
        (np.array([1, 2], "<f4").tobytes(), True),
        (np.array([1, 2], "<f4").tobytes()[:-1], False),
        (np.zeros(2, "<f4").tobytes(), False),
        (np.array([np.inf, 1], "<f4").tobytes(), False),
        (np.array([np.nan, 1], "<f4").tobytes(), False),
        ("text", False),
    ],
)
def test_a_stored_value_that_cannot_be_a_vector_counts_as_absent(cache, value, is_vector):
    cache.put_vectors("model", {"key": np.array([3, 4], np.float32)})
    [(collection,)] = cache.rows("SELECT collection FROM kept")
    cache.put_rows(collection, [("key", value)])
    assert bool(cache.vectors("model", ["key"])) == is_vector


def test_the_cache_counts_vectors_of_all_models_and_contexts(cache):
    for model in ("a", "b"):
        cache.put_vectors(model, {"key": np.array([3, 4], np.float32)})
    cache.put("c", {"n": 1}, "contexts")
    assert cache.contents() == {"contexts": (1, 1 + len('{"n": 1}')), "vectors": (2, 2 * (3 + 8))}
    assert list(cache.contents()) == ["contexts", "vectors"]


def test_pruning_counts_all_deleted_entries(cache):
    cache.put_rows("vectors:a", [(str(number), b"1") for number in range(2500)])
    assert cache.prune(0) == 2500
    assert cache.prune(0) == 0
