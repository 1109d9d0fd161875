"""The parser as a LlamaIndex user meets it."""

import itertools
import pickle

import pytest
from llama_index.core import Document
from llama_index.core.schema import MetadataMode, NodeRelationship

from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.node_parser import HeadingAwareMarkdownNodeParser

NOTE = """---
title: Field notes
date: 2026-02-03
tags: [dogs, food]
---
# Notes

Intro to a note that is long enough to stand alone, because a section this short would otherwise join the next one.

## 2026-01-31

Cookie loves carrots, and hates the vacuum cleaner, which is why it stays in the cupboard until the walk at ten.

## Later

```sh
# no heading
feed cookie --carrots 3
```
"""


@pytest.fixture
def nodes():
    parser = HeadingAwareMarkdownNodeParser(min_chunk_size=10)
    return parser.get_nodes_from_documents([Document(text=NOTE, metadata={"path": "memory/note.md"})])


def test_text_is_a_slice_and_lines_open_the_right_place(nodes):
    lines = NOTE.splitlines()
    for node in nodes:
        assert NOTE[node.start_char_idx : node.end_char_idx] == node.text
        cited = lines[node.metadata["start_line"] - 1 : node.metadata["end_line"]]
        assert "\n".join(cited) == node.text


def test_header_paths_and_dates(nodes):
    assert [(n.metadata["header_path"], n.metadata["date"]) for n in nodes] == [
        ("Notes", "2026-02-03"),
        ("Notes > 2026-01-31", "2026-01-31"),
        ("Notes > Later", "2026-02-03"),
    ]
    assert nodes[1].metadata["date_ts"] == 1769817600


def test_front_matter_is_metadata_and_not_text(nodes):
    assert nodes[0].text.startswith("# Notes")
    assert nodes[0].metadata["title"] == "Field notes"
    assert nodes[0].metadata["tags"] == "dogs, food"


def test_counts_and_hashes_are_not_embedded(nodes):
    shown = nodes[0].get_content(metadata_mode=MetadataMode.EMBED)
    assert "header_path: Notes" in shown
    for key in ("start_line", "token_count", "chunk_hash", "date_ts"):
        assert key in nodes[0].metadata
        assert key not in shown


def test_links_name_neighbours_and_carry_no_metadata(nodes):
    for before, after in itertools.pairwise(nodes):
        assert before.next_node.node_id == after.node_id
        assert after.prev_node.node_id == before.node_id
        assert before.next_node.metadata == {}
    assert NodeRelationship.NEXT not in nodes[-1].relationships


def test_ids_do_not_depend_on_random_document_ids(nodes):
    again = HeadingAwareMarkdownNodeParser(min_chunk_size=10).get_nodes_from_documents(
        [Document(text=NOTE, metadata={"path": "memory/note.md"})]
    )
    assert [n.node_id for n in again] == [n.node_id for n in nodes]


def test_lone_surrogates_are_replaced_with_a_warning():
    with pytest.warns(ContextualWarning, match="n.md holds lone surrogates"):
        [node] = HeadingAwareMarkdownNodeParser()([Document(text="a \ud800 b", metadata={"path": "n.md"})])
    assert node.text == "a \ufffd b"


def test_settings_survive_to_dict_and_pickle():
    parser = HeadingAwareMarkdownNodeParser(chunk_size=123, chunk_overlap=0, tokenizer="estimate")
    pickled = pickle.loads(pickle.dumps(parser))  # noqa: S301  our own bytes
    for copy in (HeadingAwareMarkdownNodeParser.from_dict(parser.to_dict()), pickled):
        assert copy.to_dict() == parser.to_dict()


@pytest.mark.parametrize(
    ("setting", "value"),
    [("chunk_size", 0), ("chunk_overlap", 400), ("min_chunk_size", 401), ("max_chunk_size", 399), ("tokenizer", "gpt")],
)
def test_a_wrong_setting_is_named(setting, value):
    with pytest.raises(SettingError, match=setting):
        HeadingAwareMarkdownNodeParser(**{setting: value})
