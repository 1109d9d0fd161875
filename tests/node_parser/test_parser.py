"""The parser from a LlamaIndex user's view: its settings, its nodes, and metadata of documents."""

import inspect
import itertools
import pickle
import threading

import pytest
from llama_index.core import Document
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.schema import (
    ImageDocument,
    ImageNode,
    IndexNode,
    MediaResource,
    MetadataMode,
    Node,
    NodeRelationship,
)

from llama_index_contextual import ContextualNodePostprocessor
from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser
from llama_index_contextual.utils.errors import ContextualWarning, SettingError
from llama_index_contextual.utils.metadata import citation_of
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


def note(**fields):
    return Document(text=NOTE, metadata={"path": "memory/note.md"}, **fields)


@pytest.fixture
def nodes():
    return HeadingAwareMarkdownNodeParser().get_nodes_from_documents([note()])


# The nodes of a note


def test_text_is_a_slice_and_its_lines_can_be_cited(nodes):
    lines = NOTE.splitlines()
    for node in nodes:
        assert NOTE[node.start_char_idx : node.end_char_idx] == node.text
        cited = lines[node.metadata["start_line"] - 1 : node.metadata["end_line"]]
        assert "\n".join(cited) == node.text


def test_header_paths_and_dates(nodes):
    assert [(node.metadata["header_path"], node.metadata["date"]) for node in nodes] == [
        ("Notes", "2026-02-03"),
        ("Notes > 2026-01-31", "2026-01-31"),
        ("Notes > Later", "2026-02-03"),
    ]
    assert nodes[1].metadata["date_ts"] == 1769817600


def test_front_matter_is_metadata_and_not_text(nodes):
    assert nodes[0].text.startswith("# Notes")
    assert nodes[0].metadata["title"] == "Field notes"
    assert nodes[0].metadata["tags"] == "dogs, food"


def test_counts_and_lines_are_not_embedded(nodes):
    embedded = nodes[0].get_content(metadata_mode=MetadataMode.EMBED)
    assert "header_path: Notes" in embedded
    for key in ("start_line", "token_count", "date_ts"):
        assert key in nodes[0].metadata
        assert key not in embedded


def test_links_name_neighbours_and_carry_no_metadata(nodes):
    for node, following in itertools.pairwise(nodes):
        assert node.next_node.node_id == following.node_id
        assert following.prev_node.node_id == node.node_id
        assert node.next_node.metadata == {}
    assert NodeRelationship.PREVIOUS not in nodes[0].relationships
    assert NodeRelationship.NEXT not in nodes[-1].relationships


def test_the_stock_parser_invents_headings_in_fences_and_ours_does_not():
    text = "# Real\n\n~~~sh\n# comment\nmake\n~~~\n\nSetext\n------\n\nWords.\n"
    stock = MarkdownNodeParser().get_nodes_from_documents([Document(text=text)])
    assert any(node.text.startswith("# comment") for node in stock)
    ours = HeadingAwareMarkdownNodeParser().get_nodes_from_documents([Document(text=text)])
    assert [node.metadata["header_path"] for node in ours] == ["Real", "Real > Setext"]


def test_a_table_above_the_size_of_a_chunk_has_its_header_row_in_the_context():
    """It is embedded in windows, and the later ones do not contain the row."""
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


# Settings


def split_words(text):
    return text.split()


def number_in_document(number, document):
    return f"{document.metadata['path']}#{number}"


def test_settings_survive_to_dict_and_pickle():
    parser = HeadingAwareMarkdownNodeParser(chunk_size=123, chunk_overlap=0, tokenizer="minilm")
    pickled = pickle.loads(pickle.dumps(parser))  # noqa: S301  our own bytes
    for copy in (HeadingAwareMarkdownNodeParser.from_dict(parser.to_dict()), pickled):
        assert copy.to_dict() == parser.to_dict()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("chunk_size", 0),
        ("chunk_overlap", 400),
        ("min_chunk_size", 401),
        ("min_section_size", -1),
        ("tokenizer", "gpt"),
    ],
)
def test_a_wrong_setting_is_named(setting, value):
    with pytest.raises(SettingError, match=setting):
        HeadingAwareMarkdownNodeParser(**{setting: value})


def test_a_setting_that_does_not_exist_is_named():
    with pytest.raises(SettingError, match=r"does not take chunk_sise\. It takes .*chunk_size"):
        HeadingAwareMarkdownNodeParser(chunk_sise=100)


def test_a_suffix_without_its_dot_is_refused():
    with pytest.raises(SettingError, match="begin with a dot"):
        HeadingAwareMarkdownNodeParser(markdown_suffixes=("md",))


@pytest.mark.parametrize(
    ("settings", "overlap", "minimum"),
    [
        ({}, 80, 50),
        ({"chunk_size": 64}, 12, 8),
        ({"chunk_size": 25, "chunk_overlap": 0}, 0, 3),
        ({"chunk_size": 1000}, 80, 50),
        ({"chunk_size": 1}, 0, 0),
        ({"chunk_size": 64, "min_chunk_size": 20}, 12, 20),
    ],
)
def test_defaults_shrink_with_the_size_of_a_chunk(settings, overlap, minimum):
    parser = HeadingAwareMarkdownNodeParser(**settings)
    assert (parser.chunk_overlap, parser.min_chunk_size) == (overlap, minimum)


@pytest.mark.parametrize(
    "create", [HeadingAwareMarkdownNodeParser, HeadingAwareMarkdownNodeParser.from_defaults]
)
def test_the_settings_are_in_the_signature(create):
    parameters = inspect.signature(create).parameters
    assert set(parameters) - {"kwargs"} == set(HeadingAwareMarkdownNodeParser.model_fields)
    assert parameters["chunk_size"].default == 400
    assert all(parameter.annotation for parameter in parameters.values())


def test_from_defaults_passes_on_every_setting():
    settings = {
        "chunk_size": 99,
        "chunk_overlap": 9,
        "min_chunk_size": 8,
        "min_section_size": 7,
        "tokenizer": "minilm",
        "keep_blocks": True,
        "semantic": False,
        "preserve_headers": False,
        "markdown_suffixes": (".md",),
        "include_metadata": False,
        "include_prev_next_rel": False,
        "id_func": number_in_document,
    }
    parser = HeadingAwareMarkdownNodeParser.from_defaults(**settings)
    assert {name: getattr(parser, name) for name in settings} == settings
    defaults = HeadingAwareMarkdownNodeParser.from_defaults()
    assert defaults.to_dict() == HeadingAwareMarkdownNodeParser().to_dict()


def test_a_subclass_can_add_a_setting():
    class Mine(HeadingAwareMarkdownNodeParser):
        team: str = "net"

    assert Mine().team == "net"
    assert Mine(team="db").team == "db"
    assert Mine.from_defaults(team="db").team == "db"
    assert Mine(chunk_size=64).chunk_overlap == 12


def test_a_custom_id_func_is_called_as_in_llama_index():
    parser = HeadingAwareMarkdownNodeParser(id_func=number_in_document)
    nodes = parser.get_nodes_from_documents([note()])
    assert [node.node_id for node in nodes] == [f"memory/note.md#{n}" for n in range(3)]


def test_a_callable_tokenizer_counts_chunks_and_cannot_be_restored():
    parser = HeadingAwareMarkdownNodeParser(
        chunk_size=12, chunk_overlap=0, min_chunk_size=0, tokenizer=split_words
    )
    for node in parser.get_nodes_from_documents([Document(text=NOTE)]):
        assert node.metadata["token_count"] == len(node.text.split())
    with pytest.raises(SettingError, match="was a callable"):
        HeadingAwareMarkdownNodeParser.from_dict(parser.to_dict())


def test_a_tokenizer_that_returns_a_mapping_is_refused():
    """Tokenizers of Hugging Face do so when they are called.

    The mapping has two or three entries, however long the text is.
    """
    parser = HeadingAwareMarkdownNodeParser(
        tokenizer=lambda text: {"input_ids": text.split(), "attention_mask": []}
    )
    with pytest.raises(SettingError, match="it returned dict"):
        parser([Document(text="Many words. " * 1000)])


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
    parser = HeadingAwareMarkdownNodeParser(include_metadata=False, include_prev_next_rel=False)
    nodes = parser.get_nodes_from_documents([note()])
    assert [node.metadata for node in nodes] == [{}, {}, {}]
    assert all(list(node.relationships) == [NodeRelationship.SOURCE] for node in nodes)


def test_without_headers_only_the_document_is_named():
    parser = HeadingAwareMarkdownNodeParser(preserve_headers=False)
    nodes = parser.get_nodes_from_documents([Document(text=NOTE)])
    assert {node.metadata["header_path"] for node in nodes} == {""}


@pytest.mark.parametrize(
    ("suffixes", "name", "expected"),
    [
        ((".md",), "a.py", ""),
        ((".md",), "a.MD", "A"),
        ((".md",), "", "A"),
        ((".md",), "Release 2.0", "A"),
        ((".md",), ".profile", "A"),
        ((".md", ".pdf"), "d/report.pdf", "A"),
        ((), "a.md", ""),
        ((), "", ""),
    ],
)
def test_a_setting_says_which_files_are_markdown(suffixes, name, expected):
    parser = HeadingAwareMarkdownNodeParser(markdown_suffixes=suffixes)
    [node] = parser([Document(text="# A\n\nWords.\n", metadata={"path": name})])
    assert node.metadata["header_path"] == expected


# Calls


@pytest.mark.parametrize("call", ["acall", "aget_nodes_from_documents"])
async def test_async_parsing_gives_the_same_nodes_off_the_event_loop(call):
    threads = []

    def count_words(text):
        threads.append(threading.current_thread())
        return len(text.split())

    parser = HeadingAwareMarkdownNodeParser(tokenizer=count_words)
    document = note()
    nodes = await getattr(parser, call)([document])
    assert threads
    assert threading.current_thread() not in threads
    assert nodes == parser([document])


@pytest.mark.parametrize(
    ("documents", "class_name"),
    [
        (["# A text"], "str"),
        ("# A text", "str"),
        ([note(), None], "NoneType"),
        (note(), "Document"),
        (None, "NoneType"),
    ],
    ids=["a list of strings", "a string", "a missing document", "no list", "nothing"],
)
@pytest.mark.parametrize("call", ["get_nodes_from_documents", "__call__"])
def test_an_argument_that_is_not_a_list_of_documents_is_named(call, documents, class_name):
    message = rf"`documents` must be a list of .* \(got {class_name}\)\. Wrap a text in Document\("
    with pytest.raises(SettingError, match=message):
        getattr(HeadingAwareMarkdownNodeParser(), call)(documents)


async def test_an_argument_that_is_not_a_list_of_documents_is_named_asynchronously():
    with pytest.raises(SettingError, match="must be a list of"):
        await HeadingAwareMarkdownNodeParser().aget_nodes_from_documents(["# A text"])


def test_documents_can_come_from_a_generator():
    assert len(HeadingAwareMarkdownNodeParser()(note() for _ in range(2))) == 6


# Ids


def ids(parser, *documents):
    return [node.node_id for node in parser.get_nodes_from_documents(list(documents))]


def test_ids_are_stable_if_the_documents_id_is():
    parser = HeadingAwareMarkdownNodeParser()
    of_one_tenant = ids(parser, note(id_="a"))
    assert of_one_tenant == ids(parser, note(id_="a"))
    assert not set(of_one_tenant) & set(ids(parser, note(id_="b")))
    assert not set(ids(parser, note())) & set(ids(parser, note()))  # LlamaIndex's ids are random


def test_ids_of_chunks_of_chunks_are_stable_if_the_documents_id_is():
    def chain(doc_id):
        splitter = SentenceSplitter(chunk_size=40, chunk_overlap=0)
        chunks = splitter([Document(text=NOTE * 2, id_=doc_id)])
        return ids(HeadingAwareMarkdownNodeParser(), *chunks)

    assert chain("a") == chain("a")
    assert len(set(chain("a"))) == len(chain("a"))
    assert not set(chain("a")) & set(chain("b"))


def test_equal_chunks_keep_their_own_offsets_and_ids():
    text = "# A\n\n" + "Same words here. " * 30 + "\n\n# A\n\n" + "Same words here. " * 30
    first, second = HeadingAwareMarkdownNodeParser().get_nodes_from_documents([Document(text=text)])
    assert first.text.strip() == second.text.strip()
    assert first.start_char_idx != second.start_char_idx
    assert first.node_id != second.node_id


def test_equal_pages_and_equal_documents_have_different_ids():
    """The pages of a PDF are documents with the same path.

    Two documents may have the same text and no path at all.
    """
    pages = [
        Document(text="Left blank.", metadata={"file_path": "a.pdf", "page_label": page})
        for page in "12"
    ]
    documents = [*pages, Document(text="Hello."), Document(text="Hello.")]
    together = ids(HeadingAwareMarkdownNodeParser(), *documents)
    assert len(set(together)) == 4
    assert together == [ids(HeadingAwareMarkdownNodeParser(), page)[0] for page in documents]


# The metadata of documents


@pytest.mark.parametrize(
    "name", ["/d/report.pdf", "a.docx", "a.html", "a.txt", "Release 2.0", "a.md", ""]
)
def test_text_with_the_markdown_type_is_markdown_under_any_file_name(name):
    """A converter (LlamaParse, docling, MarkItDown, kreuzberg) writes Markdown and names the file
    that it read.
    """
    text = "# A\n\n## B\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    [node] = HeadingAwareMarkdownNodeParser()([Document(text=text, metadata={"file_path": name})])
    assert (node.metadata["header_path"], node.metadata["content_type"]) == ("A > B", "table")


@pytest.mark.parametrize(
    ("brought", "path"),
    [
        ({"file_path": "notes\\a.md"}, "notes/a.md"),
        ({"file_name": "a.pdf"}, "a.pdf"),
        ({"path": "b.md", "file_path": "/x/b.md"}, "b.md"),
        ({}, None),
    ],
)
def test_a_path_is_stored_if_the_document_has_one_and_not_shown(brought, path):
    [node] = HeadingAwareMarkdownNodeParser()([Document(text="Text.", metadata=brought)])
    assert node.metadata.get("path") == path
    if "path" not in brought:
        for mode in (MetadataMode.EMBED, MetadataMode.LLM):
            assert "\npath: " not in f"\n{node.get_content(mode)}"


def test_lone_surrogates_are_replaced_with_a_warning():
    document = Document(text="a \ud800 b", metadata={"path": "n.md"})
    with pytest.warns(ContextualWarning, match="n.md contains lone surrogates"):
        [node] = HeadingAwareMarkdownNodeParser()([document])
    assert node.text == "a \ufffd b"


def test_a_file_name_that_is_not_unicode_is_replaced_with_a_warning():
    """Linux allows such names, and Python returns them with lone surrogates."""
    document = Document(text="# Menu", metadata={"file_path": "caf\udce9.md"})
    with pytest.warns(ContextualWarning, match="file_path.* contains lone surrogates"):
        [node] = HeadingAwareMarkdownNodeParser()([document])
    assert node.metadata["file_path"] == "caf\ufffd.md"
    assert document.metadata["file_path"] == "caf\udce9.md"


BROUGHT = {
    "content_type": "application/pdf",
    "date": "2026-01-02T10:11:12",
    "title": "t" * 300,
    "tags": "",
    "header_path": "Space/Page",
    "start_line": 40,
    "heading_level": 1,
    "token_count": "many",
    "front_matter": 7,
}


@pytest.fixture
def nodes_with_brought_metadata():
    document = Document(text=NOTE, id_="a", metadata=BROUGHT)
    return HeadingAwareMarkdownNodeParser()([document])


def test_metadata_of_a_document_is_kept(nodes_with_brought_metadata):
    assert all(BROUGHT.items() <= node.metadata.items() for node in nodes_with_brought_metadata)


def test_our_metadata_gets_other_names_if_the_names_are_taken(nodes_with_brought_metadata):
    metadata = nodes_with_brought_metadata[1].metadata
    expected = {
        "contextual_header_path": "Notes > 2026-01-31",
        "contextual_start_line": 10,
        "end_line": 12,
        "contextual_content_type": "text",
        "contextual_date": "2026-01-31",
        "date_ts": 1769817600,
        "contextual_tags": "dogs, food",
        "contextual_heading_level": 2,
    }
    assert expected.items() <= metadata.items()
    assert citation_of({**metadata, "path": "a.md"}) == "a.md#L10-L12"


def test_our_metadata_that_equals_brought_metadata_is_not_repeated(nodes_with_brought_metadata):
    metadata = nodes_with_brought_metadata[0].metadata
    assert "contextual_date" not in metadata  # its own date says the same day
    assert "contextual_heading_level" not in metadata


def test_metadata_of_a_document_is_embedded_and_ours_is_not(nodes_with_brought_metadata):
    embedded = nodes_with_brought_metadata[1].get_content(metadata_mode=MetadataMode.EMBED)
    assert "content_type: application/pdf" in embedded
    assert "contextual_content_type" not in embedded


@pytest.mark.parametrize(
    "brought",
    [{key: BROUGHT[key] for key in ("content_type", "date", "title")}, {"path": "n.md"}],
    ids=["names like ours", "a path"],
)
def test_nodes_that_are_split_again_keep_their_metadata(brought):
    nodes = HeadingAwareMarkdownNodeParser()([Document(text=NOTE, id_="a", metadata=brought)])
    cut_again = HeadingAwareMarkdownNodeParser(min_chunk_size=5)(nodes)
    assert [node.metadata for node in cut_again] == [node.metadata for node in nodes]


def test_an_image_keeps_its_text_and_stays_an_image():
    image = ImageDocument(image="aGk=", text="# A\n\nA photo.", id_="i")
    [node] = HeadingAwareMarkdownNodeParser()([image])
    assert (type(node), node.image, node.metadata["header_path"]) == (ImageNode, "aGk=", "A")
    [cut_again] = HeadingAwareMarkdownNodeParser()([node])
    assert (type(cut_again), cut_again.image) == (ImageNode, "aGk=")


def test_an_image_without_text_is_a_node():
    [node] = HeadingAwareMarkdownNodeParser()([ImageDocument(image="aGk=", id_="i")])
    assert (type(node), node.image, node.text, node.ref_doc_id) == (ImageNode, "aGk=", "", "i")


@pytest.mark.parametrize(
    "node",
    [
        IndexNode(text="# A\n\nSee there.", index_id="there"),
        Document(audio_resource=MediaResource(data=b"aGk=")),
        Node(image_resource=MediaResource(data=b"aGk=")),
    ],
    ids=["an index node", "a sound", "a picture"],
)
def test_other_kinds_of_nodes_are_returned_unchanged(node):
    assert HeadingAwareMarkdownNodeParser()([node]) == [node]


def test_a_text_in_a_node_of_another_class_is_split():
    text = "# A\n\nOf another class."
    [node] = HeadingAwareMarkdownNodeParser()([Node(text_resource=MediaResource(text=text))])
    assert (node.text, node.metadata["header_path"]) == (text, "A")


@pytest.mark.parametrize(("words", "is_overflow"), [(10, False), (11, True)])
def test_only_a_chunk_of_more_tokens_than_the_chunk_size_is_marked(words, is_overflow):
    parser = HeadingAwareMarkdownNodeParser(chunk_size=10, tokenizer=str.split)
    [node] = parser([Document(text="word " * words)])
    assert node.metadata["token_count"] == words
    assert ("overflow" in node.metadata) == is_overflow
