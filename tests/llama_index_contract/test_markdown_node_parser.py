"""``HeadingAwareMarkdownNodeParser`` where ``MarkdownNodeParser`` stood. Many cases are LlamaIndex's own."""

from __future__ import annotations

import copy
import pickle

import pytest
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
from side_by_side import Case, compare, refusal

from llama_index_contextual import HeadingAwareMarkdownNodeParser

TITLES = "# Main Header\nContent\n## Sub-header\nContent\n### Sub-sub header\nContent\n"
REPEATED = "# Title\nText.\n\n" + "".join(
    f"## {name}\nContent.\n\n" for name in ("Intro", "Methods", "Intro", "Intro")
)
SLASH = "# Main Header\n\nHeader 1 content\n\n## FAQ\nFAQ content\n\n### 24/7 Support\nSupport content\n"
WRONG = (
    "# Header 1\n\n```txt\n# code\n```\n\n* Element\n\n    ```txt\n    # indented code\n    ```\n* Element\n\nText.\n\n"
    "#Not a header\nAlso # not a header\n    # Still not a header\n"
)
FENCE = "# Real\n\n~~~sh\n# comment\nmake\n~~~\n\nSetext\n------\n\nWords."


def nodes(parser, text=TITLES, **given):
    given = {"id_": "d", "metadata": {"file_path": "d/a.md", "author": "Ada"}, **given}
    return parser.get_nodes_from_documents([Document(text=text, **given)])


def texts(parser, text, **given):
    return [node.text for node in nodes(parser, text, **given)]


def slices(parser, text):
    """Whether each text is where it says it is, in order, and no two are at one place."""
    places = [(node.start_char_idx, node.end_char_idx) for node in nodes(parser, text)]
    held = [
        text[start:end] == node.text
        for (start, end), node in zip(places, nodes(parser, text), strict=True)
    ]
    return held, places == sorted(set(places))


def linked(parser):
    """Links as numbers of nodes."""
    made = nodes(parser)
    numbers = {node.node_id: number for number, node in enumerate(made)}
    sides = (NodeRelationship.PREVIOUS, NodeRelationship.NEXT)
    return [
        [numbers.get(node.relationships[s].node_id) for s in sides if s in node.relationships]
        for node in made
    ]


def again(parser):
    return [node.node_id for node in nodes(parser)] == [node.node_id for node in nodes(parser)]


def of_two(parser):
    """How many different ids the nodes of two documents with one text have, given one after the other."""
    made = [*nodes(parser, id_="a"), *nodes(parser, id_="b")]
    return len(made), len({node.node_id for node in made})


def numbered(parser):
    parser = copy.copy(parser)
    parser.id_func = lambda i, doc: f"{doc.id_}_{i}"
    return [node.node_id for node in nodes(parser)]


def stored(parser):
    store = SimpleDocumentStore()
    store.add_documents([*nodes(parser, id_="a"), *nodes(parser, id_="b")])
    return len(store.docs)


def without(parser, name):
    parser = parser.model_copy(update={name: False})
    return [
        ("author" in node.metadata, sorted(map(str, node.relationships))) for node in nodes(parser)
    ]


def chained(parser):
    first = TextNode(text=TITLES, metadata={"author": "Ada"}, id_="n")
    return [
        (node.text, node.metadata["author"]) for node in parser.get_nodes_from_documents([first])
    ]


def shown(parser, mode, key):
    document = {
        "excluded_embed_metadata_keys": ["author"],
        "excluded_llm_metadata_keys": ["file_path"],
    }
    return [key in node.get_content(mode) for node in nodes(parser, **document)]


CASES = [
    Case(
        "a text without a heading is one node",
        lambda parser: texts(parser, "Some words.\n\nMore words."),
    ),
    Case(
        "a heading and its text are one node",
        lambda parser: texts(parser, "# One\n\nText under it."),
    ),
    Case("an empty document has no node", lambda parser: texts(parser, ""), gives=[]),
    Case("white space is no node", lambda parser: texts(parser, " \n\n "), gives=[]),
    Case("each heading with text starts a node", lambda parser: texts(parser, TITLES)),
    Case(
        "a jump of levels starts a node",
        lambda parser: texts(parser, "# A\nText\n### B\nText\n### C\nText\n"),
    ),
    Case(
        "what stands above the first heading is a node",
        lambda parser: texts(parser, "\npre\n\n# A\nContent\n"),
    ),
    Case("a slash in a heading is text", lambda parser: texts(parser, SLASH)),
    Case("what looks like a heading is none", lambda parser: texts(parser, WRONG)),
    Case("seven marks are no heading", lambda parser: texts(parser, "####### seven\n\ntext")),
    Case(
        "texts are where they say, and each is somewhere else",
        lambda parser: slices(parser, REPEATED),
    ),
    Case("neighbours are linked", linked, gives=[[1], [0, 2], [1]]),
    Case(
        "nodes name their document",
        lambda parser: [node.ref_doc_id for node in nodes(parser)],
        gives=["d"] * 3,
    ),
    Case("documents with one text keep all their nodes", of_two, gives=(6, 6)),
    Case("a document store keeps them all", stored, gives=6),
    Case(
        "an id_func is called with the number and the document",
        numbered,
        stock=["d_0", "d_0", "d_0"],
        gives=["d_0", "d_1", "d_2"],
        differs="id-func",
    ),
    Case(
        "metadata are inherited", lambda parser: [node.metadata["author"] for node in nodes(parser)]
    ),
    Case(
        "include_metadata=False leaves them out", lambda parser: without(parser, "include_metadata")
    ),
    Case(
        "include_prev_next_rel=False leaves links out",
        lambda parser: without(parser, "include_prev_next_rel"),
    ),
    Case(
        "keys hidden from the embedding stay so",
        lambda parser: shown(parser, MetadataMode.EMBED, "Ada"),
        [False] * 3,
    ),
    Case(
        "keys hidden from the model stay so",
        lambda parser: shown(parser, MetadataMode.LLM, "a.md"),
        [False] * 3,
    ),
    Case(
        "other keys are embedded",
        lambda parser: shown(parser, MetadataMode.EMBED, "file_path: d/a.md"),
        [True] * 3,
    ),
    Case(
        "other keys are shown to the model",
        lambda parser: shown(parser, MetadataMode.LLM, "author: Ada"),
        [True] * 3,
    ),
    Case(
        "the text alone is displayed",
        lambda parser: [n.get_content(MetadataMode.NONE) for n in nodes(parser)],
    ),
    Case("a node is cut as a document is", chained),
    Case(
        "calling it parses, too",
        lambda parser: [node.text for node in parser([Document(text=TITLES)])],
    ),
    Case(
        "it comes back from pickle",
        lambda parser: texts(pickle.loads(pickle.dumps(parser)), TITLES),  # noqa: S301
    ),
    Case(
        "it comes back from a dict",
        lambda parser: refusal(lambda: type(parser).from_dict(parser.to_dict()).class_name()),
        stock="ValidationError",
        gives="'HeadingAwareMarkdownNodeParser'",
        differs="from-dict",
    ),
    Case(
        "a comment in a fence is no heading, and an underlined line is one",
        lambda parser: texts(parser, FENCE),
        stock=["# Real\n\n~~~sh", "# comment\nmake\n~~~\n\nSetext\n------\n\nWords."],
        gives=["# Real\n\n~~~sh\n# comment\nmake\n~~~", "Setext\n------\n\nWords."],
        differs="false-headings",
    ),
    Case(
        "a heading in a comment is none",
        lambda parser: texts(parser, "<!--\n# hidden\n-->\n\n# Seen\n\ntext"),
        stock=["<!--", "# hidden\n-->", "# Seen\n\ntext"],
        gives=["<!--\n# hidden\n-->\n\n# Seen\n\ntext"],
        differs="false-headings",
    ),
    Case(
        "front matter",
        lambda parser: [
            (n.text, n.metadata.get("title"))
            for n in nodes(parser, "---\ntitle: T\n---\n\n# A\n\nText")
        ],
        stock=[("---\ntitle: T\n---", None), ("# A\n\nText", None)],
        gives=[("# A\n\nText", "T")],
        differs="front-matter",
    ),
    Case(
        "the header path",
        lambda parser: [node.metadata.get("header_path") for node in nodes(parser)],
        stock=["/", "/Main Header/", "/Main Header/Sub-header/"],
        gives=[
            "Main Header",
            "Main Header > Sub-header",
            "Main Header > Sub-header > Sub-sub header",
        ],
        differs="header-path",
    ),
    Case(
        "a header path that the document brought",
        lambda parser: nodes(parser, "# A\n\nText", metadata={"header_path": "Space"})[0].metadata[
            "header_path"
        ],
        stock="/",
        gives="Space",
        differs="own-keys",
    ),
    Case(
        "a heading without text",
        lambda parser: texts(parser, "# Only\n\n## Headings\n\n### Here\n\nText."),
        stock=["# Only", "## Headings", "### Here\n\nText."],
        gives=["# Only\n\n## Headings\n\n### Here\n\nText."],
        differs="bare-headings",
    ),
    Case(
        "a long section",
        lambda parser: (
            max(map(len, texts(parser, "# A\n\n" + "Words, and more words. " * 1000))) > 10_000
        ),
        stock=True,
        gives=False,
        differs="size",
    ),
    Case(
        "a misspelt setting",
        lambda parser: refusal(lambda: type(parser)(preserve_header=True).include_metadata),
        stock="True",
        gives="SettingError",
        differs="setting-errors",
    ),
    Case("ids on a second run", again, stock=False, gives=True, differs="lasting-ids"),
    Case(
        "metadata in links",
        lambda parser: [
            len(node.relationships[NodeRelationship.SOURCE].metadata) for node in nodes(parser)
        ],
        stock=[2, 2, 2],
        gives=[0, 0, 0],
        differs="links",
    ),
    Case(
        "an image without text",
        lambda parser: [
            node.image for node in parser.get_nodes_from_documents([ImageDocument(image="aGk=")])
        ],
        stock=[],
        gives=["aGk="],
        differs="other-kinds",
    ),
    Case(
        "a node that stands for something else",
        lambda parser: [
            type(node).__name__
            for node in parser([IndexNode(text="# A\n\nText", index_id="there")])
        ],
        stock=["TextNode"],
        gives=["IndexNode"],
        differs="other-kinds",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_markdown_node_parser(case):
    compare(case, MarkdownNodeParser(), HeadingAwareMarkdownNodeParser(min_chunk_size=0))
