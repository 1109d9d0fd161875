"""The part of a document that a model sees."""

from __future__ import annotations

import base64
import random

import pytest
from llama_index.core import Document
from llama_index.core.schema import TextNode

from llama_index_contextual import HeadingAwareMarkdownNodeParser
from llama_index_contextual.context.base import SourceDocument
from llama_index_contextual.context.documents import group_by_document, position
from llama_index_contextual.context.prompts import shown_document as shown


def words(text):
    return len(text.split())


@pytest.fixture(autouse=True, scope="module")
def _words_are_tokens():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llama_index_contextual.context.prompts.count_tokens", words)
        yield


def cut(paragraphs):
    """Return a document and its chunks, one per paragraph."""
    nodes, text = [], ""
    for number, paragraph in enumerate(paragraphs):
        start = len(text)
        text += paragraph
        node = TextNode(
            text=paragraph, start_char_idx=start, end_char_idx=len(text), id_=str(number)
        )
        node.metadata["header_path"] = f"Title > Part {number // 3}"
        nodes.append(node)
        text += "\n\n"
    return SourceDocument(id="1", path="a.md", text=text), nodes


PARAGRAPHS = [f"Paragraph {number} says a few words about thing {number}." for number in range(60)]


def test_a_document_that_fits_is_shown_whole():
    document, nodes = cut(PARAGRAPHS)
    window = 10_000
    assert shown(nodes[:3], document, nodes, window) == document.text.strip()


def test_a_document_that_does_not_fit_is_shown_by_its_outline_and_an_excerpt():
    document, nodes = cut(PARAGRAPHS)
    window = 120
    text = shown(nodes[30:32], document, nodes, window)
    assert text.startswith(
        "(The document is longer than what is shown here.)\n\nIts outline:\nTitle"
    )
    assert PARAGRAPHS[30] in text
    assert PARAGRAPHS[29] in text
    assert PARAGRAPHS[32] in text
    assert PARAGRAPHS[0] not in text
    assert text.count("[…]") >= 2
    assert words(text) < 160


def test_one_chunk_over_the_window_is_shown_by_its_ends():
    document, nodes = cut(["word " * 3000, "end"])
    text = shown(nodes[:1], document, nodes, 100)
    assert words(text) < 150
    assert "[…]" in text


def test_a_chunk_is_found_by_its_text_if_its_offsets_are_wrong():
    document, nodes = cut(PARAGRAPHS)
    nodes[5].start_char_idx = 3
    assert document.text[slice(*position(nodes[5], document))] == PARAGRAPHS[5]
    assert position(TextNode(text="elsewhere"), document) == (0, 0)


def test_a_document_of_exactly_the_window_fits():
    document, nodes = cut(PARAGRAPHS)
    size = words(document.text)
    assert shown(nodes[:1], document, nodes, size) == document.text.strip()
    assert shown(nodes[:1], document, nodes, size - 1).startswith("(The document is longer")


def test_the_outline_gets_at_most_a_fourth_of_the_window():
    document, nodes = cut(PARAGRAPHS)
    for number, node in enumerate(nodes):
        node.metadata["header_path"] = f"Heading number {number}"
    window = 120
    text = shown(nodes[30:32], document, nodes, window)
    outline = text.partition("Its outline:\n")[2].partition("\n\n[…]")[0]
    most_characters = window * len(document.text) // words(document.text)
    assert outline.startswith("Heading number 0\nHeading number 1\n")
    assert len(outline) == pytest.approx(most_characters / 4, abs=2)


def test_as_much_text_is_shown_before_the_chunks_as_after_them():
    document, nodes = cut(PARAGRAPHS)
    text = shown(nodes[30:32], document, [], 120)
    assert "outline" not in text
    excerpt = text.split("[…]")[1]
    before, _, rest = excerpt.partition(PARAGRAPHS[30])
    after = rest.partition(PARAGRAPHS[31])[2]
    assert len(before) == pytest.approx(len(after), abs=3)
    assert len(before) > 100


def test_the_excerpt_around_the_first_chunk_begins_with_the_document():
    document, nodes = cut(PARAGRAPHS)
    excerpt = shown(nodes[:1], document, [], 120).split("[…]")[1]
    assert excerpt.startswith(f"\n{PARAGRAPHS[0]}")


@pytest.mark.parametrize("tokens", [40, 80, 200])
def test_the_shown_document_grows_with_the_window_and_fits_into_it(tokens):
    document, nodes = cut(PARAGRAPHS)
    for first in range(0, len(nodes), 8):
        group = nodes[first : first + 8]
        text = shown(group, document, nodes, tokens)
        assert (
            words(text) <= tokens * 1.3 + 12
        )  # the marks, and characters per token are an estimate


def test_a_picture_in_the_document_is_in_no_prompt():
    picture = base64.b64encode(random.Random(1).randbytes(30_000)).decode()  # noqa: S311
    text = (
        f"# Report\n\nPumps.\n\n![chart](data:image/png;base64,{picture})\n\n"
        + "The pump is red. " * 400
    )
    document = Document(text=text, id_="a", metadata={"path": "a.md"})
    nodes = HeadingAwareMarkdownNodeParser()([document])
    [group] = group_by_document(nodes, documents=[document])
    for window in (200, 100_000):
        assert picture[:40] not in shown(nodes[:1], group.document, nodes, window)
        assert "![chart](…)" in shown(nodes[:1], group.document, nodes, window)
