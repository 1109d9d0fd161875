"""The parser as a LlamaIndex user meets it."""

import inspect
import itertools
import pickle
import threading

import pytest
from llama_index.core import Document
from llama_index.core.node_parser import MarkdownNodeParser
from llama_index.core.schema import (
    MetadataMode,
    NodeRelationship,
)

from llama_index_contextual import ContextualNodePostprocessor
from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser
from llama_index_contextual.utils.errors import ContextualWarning, SettingError
from llama_index_contextual.utils.tokens import count_word_pieces

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
"""  # noqa: E501


@pytest.fixture
def nodes():
    parser = HeadingAwareMarkdownNodeParser(min_chunk_size=10)
    return parser.get_nodes_from_documents(
        [Document(text=NOTE, metadata={"path": "memory/note.md"})]
    )


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


def test_lone_surrogates_are_replaced_with_a_warning():
    with pytest.warns(ContextualWarning, match="n.md holds lone surrogates"):
        [node] = HeadingAwareMarkdownNodeParser()(
            [Document(text="a \ud800 b", metadata={"path": "n.md"})]
        )
    assert node.text == "a \ufffd b"


def test_settings_survive_to_dict_and_pickle():
    parser = HeadingAwareMarkdownNodeParser(chunk_size=123, chunk_overlap=0, tokenizer="minilm")
    pickled = pickle.loads(pickle.dumps(parser))  # noqa: S301  our own bytes
    for copy in (HeadingAwareMarkdownNodeParser.from_dict(parser.to_dict()), pickled):
        assert copy.to_dict() == parser.to_dict()


@pytest.mark.parametrize(
    ("setting", "value"),
    [("chunk_size", 0), ("chunk_overlap", 400), ("min_chunk_size", 401), ("tokenizer", "gpt")],
)
def test_a_wrong_setting_is_named(setting, value):
    with pytest.raises(SettingError, match=setting):
        HeadingAwareMarkdownNodeParser(**{setting: value})


def words(text):
    return text.split()


def number_in_document(i, doc):
    return f"{doc.metadata['path']}#{i}"


def test_a_custom_id_func_is_called_as_llama_index_calls_it():
    parser = HeadingAwareMarkdownNodeParser(min_chunk_size=10, id_func=number_in_document)
    nodes = parser.get_nodes_from_documents([Document(text=NOTE, metadata={"path": "n.md"})])
    assert [node.node_id for node in nodes] == ["n.md#0", "n.md#1", "n.md#2"]


def test_a_callable_tokenizer_counts_chunks_and_cannot_be_read_back():
    parser = HeadingAwareMarkdownNodeParser(
        chunk_size=12, chunk_overlap=0, min_chunk_size=0, tokenizer=words
    )
    for node in parser.get_nodes_from_documents([Document(text=NOTE)]):
        assert node.metadata["token_count"] == len(node.text.split())
    with pytest.raises(SettingError, match="was a callable"):
        HeadingAwareMarkdownNodeParser.from_dict(parser.to_dict())


def test_the_budget_is_exact_in_the_embeddings_own_word_pieces():
    pytest.importorskip("tokenizers")
    parser = HeadingAwareMarkdownNodeParser(
        chunk_size=40, chunk_overlap=10, min_chunk_size=5, tokenizer="minilm"
    )
    nodes = parser.get_nodes_from_documents([Document(text=NOTE * 3)])
    assert [node.metadata["token_count"] for node in nodes] == [
        count_word_pieces(node.text) for node in nodes
    ]
    assert all(node.metadata["token_count"] <= 40 or node.metadata["overflow"] for node in nodes)


def test_metadata_and_links_can_be_switched_off():
    parser = HeadingAwareMarkdownNodeParser(
        include_metadata=False, include_prev_next_rel=False, min_chunk_size=10
    )
    nodes = parser.get_nodes_from_documents([Document(text=NOTE, metadata={"path": "n.md"})])
    assert [node.metadata for node in nodes] == [{}, {}, {}]
    assert all(list(node.relationships) == [NodeRelationship.SOURCE] for node in nodes)


def test_without_headers_only_the_document_is_named():
    parser = HeadingAwareMarkdownNodeParser(preserve_headers=False)
    nodes = parser.get_nodes_from_documents([Document(text=NOTE)])
    assert {node.metadata["header_path"] for node in nodes} == {""}


@pytest.mark.parametrize(
    ("given", "overlap", "least"),
    [
        ({}, 80, 50),
        ({"chunk_size": 64}, 12, 8),
        ({"chunk_size": 25, "chunk_overlap": 0}, 0, 3),
        ({"chunk_size": 1000}, 80, 50),
        ({"chunk_size": 1}, 0, 0),
        ({"chunk_size": 64, "min_chunk_size": 20}, 12, 20),
    ],
)
def test_defaults_shrink_with_what_is_given(given, overlap, least):
    parser = HeadingAwareMarkdownNodeParser(**given)
    assert (parser.chunk_overlap, parser.min_chunk_size) == (overlap, least)
    assert HeadingAwareMarkdownNodeParser.from_defaults(**given).to_dict() == parser.to_dict()


def test_the_settings_are_in_the_signature():
    parameters = inspect.signature(HeadingAwareMarkdownNodeParser).parameters
    assert set(parameters) == set(HeadingAwareMarkdownNodeParser.model_fields)
    assert parameters["chunk_size"].default == 400


def test_a_subclass_may_add_a_setting():
    class Mine(HeadingAwareMarkdownNodeParser):
        team: str = "net"

    assert (Mine(team="db").team, Mine().team, Mine(chunk_size=64).chunk_overlap) == (
        "db",
        "net",
        12,
    )


def test_small_sections_that_share_no_heading_have_none_above_them():
    text = "## Synopsis\n\nDeletes it.\n\n## Examples\n\nNone.\n\n### One\n\nNone here.\n"
    [node] = HeadingAwareMarkdownNodeParser(min_section_size=50)([Document(text=text)])
    assert node.metadata["header_path"] == ""
    assert node.metadata["heading_level"] == 0


def test_the_stock_parser_invents_headings_in_fences_and_ours_does_not():
    text = "# Real\n\n~~~sh\n# comment\nmake\n~~~\n\nSetext\n------\n\nWords.\n"
    stock = MarkdownNodeParser().get_nodes_from_documents([Document(text=text)])
    assert any(node.text.startswith("# comment") for node in stock)
    ours = HeadingAwareMarkdownNodeParser(min_chunk_size=0).get_nodes_from_documents(
        [Document(text=text)]
    )
    assert [node.metadata["header_path"] for node in ours] == ["Real", "Real > Setext"]


def test_equal_chunks_keep_their_own_offsets_and_ids():
    text = "# A\n\n" + "Same words here. " * 30 + "\n\n# A\n\n" + "Same words here. " * 30
    first, second = HeadingAwareMarkdownNodeParser().get_nodes_from_documents([Document(text=text)])
    assert first.text.strip() == second.text.strip()
    assert first.start_char_idx != second.start_char_idx
    assert first.node_id != second.node_id


def test_a_file_name_that_is_no_unicode_is_replaced_with_a_warning():
    """Linux has such names, and Python hands them out with lone surrogates."""
    document = Document(text="# Menu", metadata={"file_path": "caf\udce9.md"})
    with pytest.warns(ContextualWarning, match="file_path.* holds lone surrogates"):
        [node] = HeadingAwareMarkdownNodeParser()([document])
    assert node.metadata["file_path"] == "caf\ufffd.md"
    assert document.metadata["file_path"] == "caf\udce9.md"


@pytest.mark.parametrize("call", ["acall", "aget_nodes_from_documents"])
async def test_asynchronously_it_parses_off_the_event_loop_and_gives_the_same(call):
    threads = []

    def words(text):
        threads.append(threading.current_thread())
        return len(text.split())

    parser = HeadingAwareMarkdownNodeParser(min_chunk_size=10, tokenizer=words)
    document = Document(text=NOTE, metadata={"path": "memory/note.md"})
    found = await getattr(parser, call)([document])
    assert threads
    assert threading.current_thread() not in threads
    assert found == parser([document])


def test_a_setting_that_does_not_exist_is_named():
    with pytest.raises(SettingError, match=r"does not take chunk_sise\. It takes .*chunk_size"):
        HeadingAwareMarkdownNodeParser(chunk_sise=100)


def test_a_tokenizer_that_returns_a_mapping_is_refused():
    """As Hugging Face's tokenizers do when they are called.

    It has two or three entries, however long the text.
    """
    parser = HeadingAwareMarkdownNodeParser(
        tokenizer=lambda text: {"input_ids": text.split(), "attention_mask": []}
    )
    with pytest.raises(SettingError, match="it returned dict"):
        parser([Document(text="Many words. " * 1000)])


def test_a_table_above_the_size_of_a_chunk_has_its_header_row_in_the_context():
    """It is embedded in windows, and the later ones do not hold the row."""
    rows = "".join(f"| Berth {n} | {n * 3} | {n * 7} |\n" for n in range(60))
    text = f"# Fees\n\nPaid monthly.\n\n| Berth | Length | Fee |\n| --- | --- | --- |\n{rows}"
    document = Document(text=text, id_="fees.md", metadata={"path": "fees.md"})
    parser = HeadingAwareMarkdownNodeParser(chunk_size=200, keep_blocks=True)
    nodes = ContextualNodePostprocessor()(parser.get_nodes_from_documents([document]))
    [long] = [node for node in nodes if node.metadata.get("overflow")]
    assert "| Berth | Length | Fee |" in long.metadata["context"]
    assert long.text == text[long.start_char_idx : long.end_char_idx]
    short = Document(text=text[:120], id_="short.md", metadata={"path": "short.md"})
    [node] = ContextualNodePostprocessor()(parser.get_nodes_from_documents([short]))
    assert "Length" not in node.metadata["context"]
