"""``ContextualBM25Retriever`` in place of ``BM25Retriever``.

Some cases are those of LlamaIndex's integration.
"""

from __future__ import annotations

import asyncio
import tempfile

from llama_index.core.schema import Document, ImageNode, IndexNode, MediaResource, Node, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever
from notes import ids, names, notes, seen
from side_by_side import comparison, refusal

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


compared = comparison(BM25Retriever, ContextualBM25Retriever)


@compared()
def test_the_best_hit_is_the_one_with_the_rare_word(cls):
    return ids(cls(nodes=notes(), similarity_top_k=1).retrieve("sofa"))


@compared()
def test_hits_with_the_word_come_first(cls):
    return sorted(ids(cls(nodes=notes(), similarity_top_k=2).retrieve("carrots")))


@compared()
def test_async_gives_the_same(cls):
    return ids(asyncio.run(cls(nodes=notes(), similarity_top_k=1).aretrieve("sofa")))


@compared()
def test_a_word_in_another_form_is_found(cls):
    return ids(cls(nodes=notes(), similarity_top_k=1).retrieve("sleeping"))


@compared()
def test_views_and_hashes_of_hits(cls):
    return [hit[2:] for hit in seen(cls(nodes=notes(), similarity_top_k=1).retrieve("sofa"))]


@compared(stock=4, ours=2, differs="bm25-padding")
def test_as_many_nodes_as_requested(cls):
    return len(cls(nodes=notes(), similarity_top_k=4).retrieve("carrots"))


@compared(stock=[0.0, 0.0, 0.0], ours=[], differs="bm25-padding")
def test_a_query_without_a_match(cls):
    return [hit.score for hit in cls(nodes=notes(), similarity_top_k=3).retrieve("Hello World!")]


@compared(stock="ValueError", ours="[]", differs="bm25-empty")
def test_no_nodes(cls):
    return refusal(lambda: cls(nodes=[]).retrieve("x"))


@compared(stock=["dog", "freeze", "meeting"], ours=["dog"], differs="bm25-filters")
def test_filters_let_nothing_else_through(cls):
    return names(cls(nodes=notes(), similarity_top_k=3, filters=NET).retrieve("carrots"))


@compared(stock=[], ours=["def getUserName"], differs="bm25-identifiers")
def test_a_name_of_code_is_found_by_its_part(cls):
    return texts(
        hit
        for hit in cls(
            nodes=[TextNode(text="def getUserName"), TextNode(text="other")], similarity_top_k=2
        ).retrieve("user")
        if hit.score
    )


@compared(stock="1", ours="SettingError", differs="bm25-settings")
def test_settings_of_bm25s(cls):
    return refusal(
        lambda: len(
            cls.from_defaults(nodes=notes(), skip_stemming=True, similarity_top_k=1).retrieve(
                "sofa"
            )
        )
    )


@compared()
def test_from_defaults_takes_nodes(cls):
    return ids(cls.from_defaults(nodes=notes(), similarity_top_k=1).retrieve("sofa"))


@compared()
def test_from_defaults_takes_a_docstore(cls):
    return ids(cls.from_defaults(docstore=stored(notes()), similarity_top_k=1).retrieve("sofa"))


@compared()
def test_from_defaults_takes_one_source_only(cls):
    return "Error" in refusal(lambda: cls.from_defaults(nodes=notes(), docstore=stored(notes())))


@compared()
def test_it_can_be_persisted_to_a_folder(cls):
    return ids(kept(cls).retrieve("sofa"))[:1]


@compared()
def test_nodes_of_other_classes_are_found(cls):
    return names(cls(nodes=OTHERS, similarity_top_k=6).retrieve("alpha"))


@compared()
def test_an_image_keeps_its_path(cls):
    return sorted(
        hit.node.image_path
        for hit in cls(nodes=OTHERS[:2], similarity_top_k=2).retrieve("alpha")
        if isinstance(hit.node, ImageNode)
    )


@compared(stock=[None], ours=["s.png"], differs="bm25-images")
def test_an_image_of_a_custom_class_keeps_its_path(cls):
    return [
        getattr(hit.node, "image_path", None)
        for hit in cls(nodes=[Scan(text="alpha", image_path="s.png")], similarity_top_k=1).retrieve(
            "alpha"
        )
    ]


@compared(gives=["target"])
def test_an_object_of_an_indexnode_is_followed(cls):
    return ids(
        cls(
            nodes=[
                IndexNode(text="alpha chapter", index_id="x"),
                TextNode(id_="b", text="beta"),
            ],
            object_map={"x": TextNode(id_="target", text="all")},
            similarity_top_k=1,
        ).retrieve("chapter")
    )
