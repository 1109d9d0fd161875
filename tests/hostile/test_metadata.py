"""The metadata of documents are bounded where they enter the package.

The bounds cover size, number, depth and cycles.
"""

import pytest
from llama_index.core import Document
from llama_index.core.schema import MetadataMode

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.utils.errors import ContextualWarning
from llama_index_contextual.utils.metadata import MOST_CHARS, MOST_KEYS, MOST_VALUE, bounded


def nested(levels):
    value = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def wide(levels):
    """Return nested lists with ten to the power of ``levels`` items, in a few bytes."""
    value = ["a"] * 10
    for _ in range(levels):
        value = [value] * 10
    return value


CYCLE = {"name": "me"}
CYCLE["me"] = CYCLE


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (nested(5000), "nested more than 100 levels deep"),
        (CYCLE, "nested more than 100 levels deep"),
        (wide(12), "larger than 2,000 characters"),
        ({"k" * 3000: 1}, "larger than 2,000 characters"),
    ],
)
def test_values_that_are_too_large_or_too_deep_are_left_out_and_named(value, fault):
    document = Document(text="# A\n\nText.\n", id_="a")
    document.metadata |= {"path": "a.md", "odd": value, "list": ["x", {"y": 1}]}
    with pytest.warns(
        ContextualWarning, match=f"The metadata of a.md: 'odd' is {fault} and is left out"
    ):
        [node] = HeadingAwareMarkdownNodeParser()([document])
    assert "odd" not in node.metadata
    assert node.metadata["list"] == ["x", {"y": 1}]
    assert document.metadata["odd"] is value
    [node] = ContextualNodePostprocessor(documents=[document])([node])
    assert node.metadata["context"] == "Document: a.md > A"


def test_long_values_and_many_keys_are_cut_and_counted():
    brought = {"path": "m.eml", "title": "t" * 400_000, "subject": "s" * 400_000}
    brought |= {f"key{number}": number for number in range(500)}
    with pytest.warns(
        ContextualWarning,
        match="m.eml: 'title' has 400,000 characters, of which 300 are kept; 'subject' has "
        "400,000 characters, of "
        "which 2,000 are kept; 503 keys, of which the first 200 are kept",
    ):
        nodes = HeadingAwareMarkdownNodeParser()(
            [Document(text="Words stand here. " * 2000, metadata=brought)]
        )
    for node in nodes:
        assert (len(node.metadata["title"]), len(node.metadata["subject"])) == (
            MOST_CHARS,
            MOST_VALUE,
        )
        assert len(node.metadata) < MOST_KEYS + 20
        assert len(node.get_content(MetadataMode.EMBED)) < 10_000


def test_values_within_the_bounds_are_unchanged():
    brought = {"a": "x" * MOST_VALUE, "b": 1.5, "c": None, "d": [1, [2, [3]]], "e": nested(90)}
    assert bounded(brought) == (brought, [])


@pytest.mark.parametrize("value", [nested(5000), CYCLE], ids=["deep", "cyclic"])
def test_a_bad_document_does_not_end_the_batch(value, tmp_path):
    odd = Document(text="# A\n\nText about zebras.\n", id_="odd")
    odd.metadata["v"] = value
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        report = index.refresh([odd, Document(text="Text about tigers.", id_="good")])
        assert report.failed == []
        assert [problem.reason for problem in report.repaired] == [
            "metadata 'v' is nested more than 100 levels deep and is left out"
        ]
        document_ids = {
            index.as_retriever().retrieve(word)[0].node.ref_doc_id for word in ("zebras", "tigers")
        }
        assert document_ids == {"odd", "good"}


class Foreign(dict):
    def items(self):
        raise KeyError("items")

    def __str__(self):
        raise RuntimeError("no text")


class Object:
    def __str__(self):
        raise OSError("no text")


@pytest.mark.parametrize("value", [Foreign(a=1), Object()], ids=["mapping", "object"])
def test_an_error_in_a_foreign_value_only_affects_its_document(value, tmp_path):
    odd = Document(text="Text about zebras.", id_="odd")
    odd.metadata["v"] = value
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        [problem] = index.refresh([odd, Document(text="Text about tigers.", id_="good")]).failed
        assert (problem.path, [*index.documents()]) == ("odd", ["good"])
        assert problem.reason.startswith("its metadata is not plain data (")


def test_a_key_of_a_million_characters_is_left_out():
    values, [note] = bounded({"k" * 1_000_000: 1, "path": "a.md"})
    assert values == {"path": "a.md"}
    assert note.endswith("is a key of 1,000,000 characters and is left out")
