"""The chunk sizes of an index, by the input limit of its embedding."""

import pytest
from hashed_words import HashedWords

from llama_index_contextual.app.index import chunking
from llama_index_contextual.app.index.chunking import FolderParser, default_parser
from llama_index_contextual.app.settings.embeddings import NoEmbedding


def tokenizer(text):
    return text.split()


@pytest.fixture
def parser_for(monkeypatch):
    """Return a function that returns the parser for an embedding with an input limit."""

    def parser(limit, embedding=None, **chosen):
        monkeypatch.setattr(chunking, "embedding_limit", lambda _: (tokenizer, limit))
        return default_parser(embedding or HashedWords(model_name="hashed"), chosen)

    return parser


@pytest.mark.parametrize(
    ("limit", "size"),
    [
        (256, 192),  # 64 tokens are reserved for the context
        (464, 400),
        (8192, 400),  # smaller chunks found more
        (128, 64),
        (100, 50),  # at least half of the limit is left for the text
    ],
)
def test_a_chunk_and_its_context_fit_the_input_limit(parser_for, limit, size):
    assert parser_for(limit).chunk_size == size


def test_overlap_and_minimum_follow_the_chunk_size(parser_for):
    parser = parser_for(8192)
    assert (parser.chunk_overlap, parser.min_chunk_size) == (80, 50)


def test_sizes_that_are_chosen_stay(parser_for):
    parser = parser_for(256, chunk_size=100, chunk_overlap=3)
    assert (parser.chunk_size, parser.chunk_overlap, parser.min_chunk_size) == (100, 3, 12)
    assert parser.code_chunk_size == 0


def test_only_an_embedding_that_averages_windows_gets_larger_chunks_of_code(parser_for):
    assert parser_for(256).code_chunk_size == 0
    assert parser_for(256, NoEmbedding()).code_chunk_size == 400
    assert parser_for(256, NoEmbedding(), chunk_overlap=3).code_chunk_size == 0


def test_tokens_of_another_tokenizer_are_not_compared_with_the_limit(parser_for):
    default = FolderParser().chunk_size
    assert parser_for(100, tokenizer=str.split).chunk_size == default


def test_source_code_has_its_own_chunk_size(parser_for):
    from llama_index.core import Document

    parser = parser_for(100, NoEmbedding())
    lines = "\n".join(f"value_{number} = {number}" for number in range(60))
    documents = [Document(text=lines, metadata={"path": path}) for path in ("a.py", "a.txt")]
    chunks = [len(parser([document])) for document in documents]
    assert chunks[0] == 1
    assert chunks[1] > 2


def test_numbers_of_front_matter_are_numbers():
    from llama_index.core import Document

    text = "---\nrating: 4\n---\n# Tea\n\nIt is green.\n"
    [node] = FolderParser()([Document(text=text, metadata={"path": "tea.md"})])
    assert node.metadata["rating"] == 4
