"""``HeadingAwareMarkdownNodeParser`` in place of ``MarkdownNodeParser``.

Many cases are LlamaIndex's own.
"""

from __future__ import annotations

import copy
import pickle

from llama_index.core import Document
from llama_index.core.node_parser import MarkdownNodeParser
from llama_index.core.schema import (
    ImageDocument,
    IndexNode,
    MetadataMode,
    NodeRelationship,
    TextNode,
)
from llama_index.core.storage.docstore import SimpleDocumentStore
from side_by_side import comparison, refusal

from llama_index_contextual import HeadingAwareMarkdownNodeParser

TITLES = "# Main Header\nContent\n## Sub-header\nContent\n### Sub-sub header\nContent\n"
REPEATED = "# Title\nText.\n\n" + "".join(
    f"## {name}\nContent.\n\n" for name in ("Intro", "Methods", "Intro", "Intro")
)
SLASH = (
    "# Main Header\n\nHeader 1 content\n\n## FAQ\nFAQ content\n\n### 24/7 Support\nSupport "
    "content\n"
)
WRONG = (
    "# Header 1\n\n```txt\n# code\n```\n\n* Element\n\n    ```txt\n    # indented code\n "
    "   ```\n* Element\n\nText.\n\n"
    "#Not a header\nAlso # not a header\n    # Still not a header\n"
)
FENCE = "# Real\n\n~~~sh\n# comment\nmake\n~~~\n\nSetext\n------\n\nWords."


def nodes(parser, text=TITLES, **given):
    given = {"id_": "d", "metadata": {"file_path": "d/a.md", "author": "Ada"}, **given}
    return parser.get_nodes_from_documents([Document(text=text, **given)])


def texts(parser, text, **given):
    return [node.text for node in nodes(parser, text, **given)]


def slices(parser, text):
    """Return whether each text is at its offsets, and whether offsets are ordered and unique."""
    places = [(node.start_char_idx, node.end_char_idx) for node in nodes(parser, text)]
    held = [
        text[start:end] == node.text
        for (start, end), node in zip(places, nodes(parser, text), strict=True)
    ]
    return held, places == sorted(set(places))


def linked(parser):
    """Return the links of each node as numbers of nodes."""
    made = nodes(parser)
    numbers = {node.node_id: number for number, node in enumerate(made)}
    sides = (NodeRelationship.PREVIOUS, NodeRelationship.NEXT)
    return [
        [numbers.get(node.relationships[s].node_id) for s in sides if s in node.relationships]
        for node in made
    ]


def without(parser, name):
    parser = parser.model_copy(update={name: False})
    return [
        ("author" in node.metadata, sorted(map(str, node.relationships))) for node in nodes(parser)
    ]


def shown(parser, mode, key):
    document = {
        "excluded_embed_metadata_keys": ["author"],
        "excluded_llm_metadata_keys": ["file_path"],
    }
    return [key in node.get_content(mode) for node in nodes(parser, **document)]


compared = comparison(MarkdownNodeParser(), HeadingAwareMarkdownNodeParser(min_chunk_size=0))


@compared()
def test_a_text_without_a_heading_is_one_node(parser):
    return texts(parser, "Some words.\n\nMore words.")


@compared()
def test_a_heading_and_its_text_are_one_node(parser):
    return texts(parser, "# One\n\nText under it.")


@compared(gives=[])
def test_an_empty_document_has_no_node(parser):
    return texts(parser, "")


@compared(gives=[])
def test_white_space_is_not_a_node(parser):
    return texts(parser, " \n\n ")


@compared()
def test_each_heading_with_text_starts_a_node(parser):
    return texts(parser, TITLES)


@compared()
def test_a_jump_of_levels_starts_a_node(parser):
    return texts(parser, "# A\nText\n### B\nText\n### C\nText\n")


@compared()
def test_text_above_the_first_heading_is_a_node(parser):
    return texts(parser, "\npre\n\n# A\nContent\n")


@compared()
def test_a_slash_in_a_heading_is_text(parser):
    return texts(parser, SLASH)


@compared()
def test_text_that_looks_like_a_heading_is_not_one(parser):
    return texts(parser, WRONG)


@compared()
def test_seven_marks_are_not_a_heading(parser):
    return texts(parser, "####### seven\n\ntext")


@compared()
def test_texts_are_at_their_offsets_which_are_unique(parser):
    return slices(parser, REPEATED)


@compared(gives=[[1], [0, 2], [1]])
def test_neighbours_are_linked(kind):
    return linked(kind)


@compared(gives=["d"] * 3)
def test_nodes_name_their_document(parser):
    return [node.ref_doc_id for node in nodes(parser)]


@compared(gives=(6, 6))
def test_documents_with_the_same_text_keep_all_their_nodes(parser):
    """Return how many different ids the nodes of two documents with the same text have."""
    made = [*nodes(parser, id_="a"), *nodes(parser, id_="b")]
    return len(made), len({node.node_id for node in made})


@compared(gives=6)
def test_a_document_store_keeps_them_all(parser):
    store = SimpleDocumentStore()
    store.add_documents([*nodes(parser, id_="a"), *nodes(parser, id_="b")])
    return len(store.docs)


@compared(stock=["d_0", "d_0", "d_0"], ours=["d_0", "d_1", "d_2"], differs="id-func")
def test_an_id_func_is_called_with_the_number_and_the_document(parser):
    parser = copy.copy(parser)
    parser.id_func = lambda i, doc: f"{doc.id_}_{i}"
    return [node.node_id for node in nodes(parser)]


@compared()
def test_metadata_are_inherited(parser):
    return [node.metadata["author"] for node in nodes(parser)]


@compared()
def test_include_metadata_false_leaves_them_out(parser):
    return without(parser, "include_metadata")


@compared()
def test_include_prev_next_rel_false_leaves_links_out(parser):
    return without(parser, "include_prev_next_rel")


@compared(gives=[False] * 3)
def test_keys_hidden_from_the_embedding_stay_so(parser):
    return shown(parser, MetadataMode.EMBED, "Ada")


@compared(gives=[False] * 3)
def test_keys_hidden_from_the_model_stay_so(parser):
    return shown(parser, MetadataMode.LLM, "a.md")


@compared(gives=[True] * 3)
def test_other_keys_are_embedded(parser):
    return shown(parser, MetadataMode.EMBED, "file_path: d/a.md")


@compared(gives=[True] * 3)
def test_other_keys_are_shown_to_the_model(parser):
    return shown(parser, MetadataMode.LLM, "author: Ada")


@compared()
def test_the_text_alone_is_displayed(parser):
    return [n.get_content(MetadataMode.NONE) for n in nodes(parser)]


@compared()
def test_a_node_is_split_like_a_document(parser):
    first = TextNode(text=TITLES, metadata={"author": "Ada"}, id_="n")
    return [
        (node.text, node.metadata["author"]) for node in parser.get_nodes_from_documents([first])
    ]


@compared()
def test_a_call_parses_too(parser):
    return [node.text for node in parser([Document(text=TITLES)])]


@compared()
def test_it_can_be_unpickled(parser):
    return texts(pickle.loads(pickle.dumps(parser)), TITLES)  # noqa: S301


@compared(stock="ValidationError", ours="'HeadingAwareMarkdownNodeParser'", differs="from-dict")
def test_it_can_be_restored_from_a_dict(parser):
    return refusal(lambda: type(parser).from_dict(parser.to_dict()).class_name())


@compared(
    stock=["# Real\n\n~~~sh", "# comment\nmake\n~~~\n\nSetext\n------\n\nWords."],
    ours=["# Real\n\n~~~sh\n# comment\nmake\n~~~", "Setext\n------\n\nWords."],
    differs="false-headings",
)
def test_a_comment_in_a_fence_is_not_a_heading_and_an_underlined_line_is(parser):
    return texts(parser, FENCE)


@compared(
    stock=["<!--", "# hidden\n-->", "# Seen\n\ntext"],
    ours=["<!--\n# hidden\n-->\n\n# Seen\n\ntext"],
    differs="false-headings",
)
def test_a_heading_in_a_comment_is_ignored(parser):
    return texts(parser, "<!--\n# hidden\n-->\n\n# Seen\n\ntext")


@compared(
    stock=[("---\ntitle: T\n---", None), ("# A\n\nText", None)],
    ours=[("# A\n\nText", "T")],
    differs="front-matter",
)
def test_front_matter(parser):
    return [
        (n.text, n.metadata.get("title"))
        for n in nodes(parser, "---\ntitle: T\n---\n\n# A\n\nText")
    ]


@compared(
    stock=["/", "/Main Header/", "/Main Header/Sub-header/"],
    ours=[
        "Main Header",
        "Main Header > Sub-header",
        "Main Header > Sub-header > Sub-sub header",
    ],
    differs="header-path",
)
def test_the_header_path(parser):
    return [node.metadata.get("header_path") for node in nodes(parser)]


@compared(stock="/", ours="Space", differs="own-keys")
def test_a_header_path_in_the_metadata_of_the_document(parser):
    return nodes(parser, "# A\n\nText", metadata={"header_path": "Space"})[0].metadata[
        "header_path"
    ]


@compared(
    stock=["# Only", "## Headings", "### Here\n\nText."],
    ours=["# Only\n\n## Headings\n\n### Here\n\nText."],
    differs="bare-headings",
)
def test_a_heading_without_text(parser):
    return texts(parser, "# Only\n\n## Headings\n\n### Here\n\nText.")


@compared(stock=True, ours=False, differs="size")
def test_a_long_section(parser):
    return max(map(len, texts(parser, "# A\n\n" + "Words, and more words. " * 1000))) > 10_000


@compared(stock="True", ours="SettingError", differs="setting-errors")
def test_a_misspelt_setting(parser):
    return refusal(lambda: type(parser)(preserve_header=True).include_metadata)


@compared(stock=False, ours=True, differs="lasting-ids")
def test_ids_on_a_second_run(parser):
    return [node.node_id for node in nodes(parser)] == [node.node_id for node in nodes(parser)]


@compared(stock=[2, 2, 2], ours=[0, 0, 0], differs="links")
def test_metadata_in_links(parser):
    return [len(node.relationships[NodeRelationship.SOURCE].metadata) for node in nodes(parser)]


@compared(stock=[], ours=["aGk="], differs="other-kinds")
def test_an_image_without_text(parser):
    return [node.image for node in parser.get_nodes_from_documents([ImageDocument(image="aGk=")])]


@compared(stock=["TextNode"], ours=["IndexNode"], differs="other-kinds")
def test_a_node_that_represents_another_object(parser):
    return [
        type(node).__name__ for node in parser([IndexNode(text="# A\n\nText", index_id="there")])
    ]
