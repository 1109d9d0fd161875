"""``ContextualBM25Retriever`` where ``BM25Retriever`` stood. Some cases are those of LlamaIndex's integration."""

from __future__ import annotations

import asyncio
import tempfile

import pytest
from llama_index.core.schema import Document, ImageNode, IndexNode, MediaResource, Node, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever
from notes import ids, names, notes, seen
from side_by_side import Case, compare, refusal

from llama_index_contextual import ContextualBM25Retriever

NET = MetadataFilters(filters=[MetadataFilter(key="team", value="net")])


def texts(hits):
    return [hit.node.get_content() for hit in hits]


def stored(nodes):
    store = SimpleDocumentStore()
    store.add_documents(nodes)
    return store


def kept(cls):
    with tempfile.TemporaryDirectory() as folder:
        cls(nodes=notes(), similarity_top_k=2).persist(folder)
        return cls.from_persist_dir(folder)


class Own(TextNode):
    @classmethod
    def class_name(cls):
        return "Own"


class Scan(ImageNode):
    @classmethod
    def class_name(cls):
        return "Scan"


OTHERS = [
    ImageNode(id_="image", text="alpha", image_path="a.png"),
    ImageNode(id_="bare", image_path="b.png", metadata={"about": "alpha"}),
    Node(
        id_="media",
        text_resource=MediaResource(text="alpha"),
        image_resource=MediaResource(path="c.png"),
    ),
    Document(id_="document", text="alpha"),
    Own(id_="own", text="alpha"),
    IndexNode(id_="link", text="alpha", index_id="x"),
]


CASES = [
    Case(
        "the best hit is the one with the rare word",
        lambda cls: ids(cls(nodes=notes(), similarity_top_k=1).retrieve("sofa")),
    ),
    Case(
        "hits with the word come first",
        lambda cls: sorted(ids(cls(nodes=notes(), similarity_top_k=2).retrieve("carrots"))),
    ),
    Case(
        "async gives the same",
        lambda cls: ids(asyncio.run(cls(nodes=notes(), similarity_top_k=1).aretrieve("sofa"))),
    ),
    Case(
        "a word in another form is found",
        lambda cls: ids(cls(nodes=notes(), similarity_top_k=1).retrieve("sleeping")),
    ),
    Case(
        "views and hashes of hits",
        lambda cls: [
            one[2:] for one in seen(cls(nodes=notes(), similarity_top_k=1).retrieve("sofa"))
        ],
    ),
    Case(
        "as many nodes as were asked for",
        lambda cls: len(cls(nodes=notes(), similarity_top_k=4).retrieve("carrots")),
        stock=4,
        gives=2,
        differs="bm25-padding",
    ),
    Case(
        "a query without a match",
        lambda cls: [
            hit.score for hit in cls(nodes=notes(), similarity_top_k=3).retrieve("Hello World!")
        ],
        stock=[0.0, 0.0, 0.0],
        gives=[],
        differs="bm25-padding",
    ),
    Case(
        "no nodes",
        lambda cls: refusal(lambda: cls(nodes=[]).retrieve("x")),
        stock="ValueError",
        gives="[]",
        differs="bm25-empty",
    ),
    Case(
        "filters let nothing else through",
        lambda cls: names(cls(nodes=notes(), similarity_top_k=3, filters=NET).retrieve("carrots")),
        stock=["dog", "freeze", "meeting"],
        gives=["dog"],
        differs="bm25-filters",
    ),
    Case(
        "a name of code is found by its part",
        lambda cls: texts(
            hit
            for hit in cls(
                nodes=[TextNode(text="def getUserName"), TextNode(text="other")], similarity_top_k=2
            ).retrieve("user")
            if hit.score
        ),
        stock=[],
        gives=["def getUserName"],
        differs="bm25-identifiers",
    ),
    Case(
        "settings of bm25s",
        lambda cls: refusal(
            lambda: len(
                cls.from_defaults(nodes=notes(), skip_stemming=True, similarity_top_k=1).retrieve(
                    "sofa"
                )
            )
        ),
        stock="1",
        gives="SettingError",
        differs="bm25-settings",
    ),
    Case(
        "from_defaults takes nodes",
        lambda cls: ids(cls.from_defaults(nodes=notes(), similarity_top_k=1).retrieve("sofa")),
    ),
    Case(
        "from_defaults takes a docstore",
        lambda cls: ids(
            cls.from_defaults(docstore=stored(notes()), similarity_top_k=1).retrieve("sofa")
        ),
    ),
    Case(
        "from_defaults takes one source only",
        lambda cls: (
            "Error" in refusal(lambda: cls.from_defaults(nodes=notes(), docstore=stored(notes())))
        ),
    ),
    Case("it is kept in a folder", lambda cls: ids(kept(cls).retrieve("sofa"))[:1]),
    Case(
        "nodes of other classes are found",
        lambda cls: names(cls(nodes=OTHERS, similarity_top_k=6).retrieve("alpha")),
    ),
    Case(
        "an image keeps its path",
        lambda cls: sorted(
            hit.node.image_path
            for hit in cls(nodes=OTHERS[:2], similarity_top_k=2).retrieve("alpha")
            if isinstance(hit.node, ImageNode)
        ),
    ),
    Case(
        "an image of a class of one's own keeps its path",
        lambda cls: [
            getattr(hit.node, "image_path", None)
            for hit in cls(
                nodes=[Scan(text="alpha", image_path="s.png")], similarity_top_k=1
            ).retrieve("alpha")
        ],
        stock=[None],
        gives=["s.png"],
        differs="bm25-images",
    ),
    Case(
        "an object of an IndexNode is followed",
        lambda cls: ids(
            cls(
                nodes=[
                    IndexNode(text="alpha chapter", index_id="x"),
                    TextNode(id_="b", text="beta"),
                ],
                object_map={"x": TextNode(id_="target", text="all")},
                similarity_top_k=1,
            ).retrieve("chapter")
        ),
        gives=["target"],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bm25_retriever(case):
    compare(case, BM25Retriever, ContextualBM25Retriever)
