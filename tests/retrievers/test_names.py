"""Queries that are the name of a document or of a heading in it."""

from __future__ import annotations

import pytest
from llama_index.core.schema import Document, QueryBundle, TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    ContextualVectorRetriever,
    HeadingAwareMarkdownNodeParser,
)
from llama_index_contextual.retrievers.chunk_info import describe_chunk
from llama_index_contextual.retrievers.names import NameIndex, document_names, folded_name

NOTES = {
    "notes/GIL.md": (
        "# Global interpreter lock\n\nOne thread at a time runs.\n\n## Release\n\nC code may "
        "release it."
    ),
    "notes/threads.md": (
        "# Threads\n\nThe GIL, the GIL and again the GIL: the GIL keeps threads apart. GIL GIL GIL."
    ),
    "notes/Deadlock Prevention.md": "---\naliases: [avoid deadlocks, lock order]\n---\nTake locks in one order.",  # noqa: E501
    "notes/locks.md": (
        "# Locks\n\nDeadlock prevention, prevention of a deadlock.\n\n## Spin lock\n\nIt waits."
    ),
    "notes/Café-Kasse.md": "The till is beside the door.",
    "notes/shopping.md": "# Groceries\n\nBread, butter and coffee from the cafe, Kasse.",
    "archive/2024.md": "Plans of a year.",
    "What is DNS?.md": "Addresses of names.",
    "Drei Fragen – und Antworten.md": "Hier.",
    "Проект «Байкал».md": "Зимой здесь лёд.",
    "озеро.md": "# Озеро\n\n– Байкал, Байкал и проект Байкал: проект, проект и Байкал.",
}


@pytest.fixture(scope="module")
def vault(embedding_of_words):
    documents = [
        Document(text=text, id_=path, metadata={"path": path}) for path, text in NOTES.items()
    ]
    nodes = ContextualNodePostprocessor()(HeadingAwareMarkdownNodeParser()(documents))
    index = embedding_of_words(nodes)
    return ContextualFusionRetriever(
        [ContextualVectorRetriever(index), ContextualBM25Retriever(nodes)]
    )


@pytest.fixture(scope="module")
def embedding_of_words():
    from hashed_words import HashedWords
    from llama_index.core import VectorStoreIndex

    return lambda nodes: VectorStoreIndex(nodes, embed_model=HashedWords())


# With "mmr", scores are not cosines, so only nodes that match the filter are candidates.
@pytest.mark.parametrize("mode", ["default", "mmr"])
def test_the_matching_chunk_of_a_named_note_comes_first(embedding_of_words, mode):
    parts = [("a.md", "Python is a language.", 1), ("a.md", "It has a lock.", 2)]
    parts += [(f"b{n}.md", f"The lock of Python and {n} other locks.", 2) for n in range(20)]
    nodes = [
        TextNode(id_=str(number), text=text, metadata={"path": path, "title": title, "part": part})
        for number, (path, text, part) in enumerate(parts)
        for title in ["Python" if path == "a.md" else path]
    ]
    for node in nodes:
        node.excluded_embed_metadata_keys = list(node.metadata)
    vectors = ContextualVectorRetriever(embedding_of_words(nodes), vector_store_query_mode=mode)
    fusion = ContextualFusionRetriever([vectors, ContextualBM25Retriever(nodes)])
    assert fusion.retrieve("Python")[0].node.node_id == "0"
    second = MetadataFilters(filters=[MetadataFilter(key="part", value=2)])
    explanation = fusion.with_filters(second).explain("Python")
    assert explanation.hits[0].node_id == "1"
    assert {credit.name: credit.value for credit in explanation.hits[0].credits}["names"] == 1


@pytest.mark.parametrize(
    ("question", "path"),
    [
        ("GIL", "notes/GIL.md"),
        ("gil.md", "notes/GIL.md"),
        ("[[GIL]]", "notes/GIL.md"),
        ("[[GIL#Release|the lock]]", "notes/GIL.md"),
        ("notes/GIL", "notes/GIL.md"),
        ("global interpreter lock", "notes/GIL.md"),
        ("deadlock prevention", "notes/Deadlock Prevention.md"),
        ("deadlock-prevention.md", "notes/Deadlock Prevention.md"),
        ("Lock order", "notes/Deadlock Prevention.md"),
        ("cafe kasse", "notes/Café-Kasse.md"),
        ("2024", "archive/2024.md"),
        ("what is DNS", "What is DNS?.md"),
        ("GIL?", "notes/GIL.md"),
        ("Drei Fragen - und Antworten", "Drei Fragen – und Antworten.md"),
        ("Deadlock%20Prevention.md", "notes/Deadlock Prevention.md"),
        ("[[Проект «Байкал»]]", "Проект «Байкал».md"),
        ("GIL.md#L1-L3", "notes/GIL.md"),
        ("(GIL)", "notes/GIL.md"),
    ],
)
def test_the_exact_name_of_a_note_comes_first(vault, question, path):
    explanation = vault.explain(question)
    assert explanation.hits[0].node.node.metadata["path"] == path
    assert explanation.relevance >= 0.95
    assert "names" in {credit.name for credit in explanation.hits[0].credits}


@pytest.mark.parametrize("question", ["Named slots", "Slots"])
def test_the_chunk_with_the_heading_comes_before_the_rest_of_its_section(question):
    title, body = ("# Slots\n\nA part has places.", "Slots and slots and slots of it.")
    named, more = (
        (
            "## Named slots\n\nEach has a label, by which a part is passed to it from "
            "outside, whatever it is."
        ),
        "Named slots, named slots and again named slots.",
    )
    paths = ("Slots", "Slots", "Slots > Named slots", "Slots > Named slots")
    nodes = [
        TextNode(id_=str(number), text=text, metadata={"path": "slots.md", "header_path": path})
        for number, (text, path) in enumerate(zip((title, body, named, more), paths, strict=True))
    ]
    for node in nodes:
        node.excluded_embed_metadata_keys = list(node.metadata)
    hits = ContextualFusionRetriever([ContextualBM25Retriever(nodes)], mode="learned").retrieve(
        question
    )
    assert hits[0].node_id == ("2" if question == "Named slots" else "0")


def test_only_the_best_chunk_of_a_named_document_is_lifted(vault):
    named = [
        hit
        for hit in vault.explain("GIL").hits
        if "names" in {credit.name for credit in hit.credits}
    ]
    assert len(named) == 1


def test_a_question_that_is_not_a_name_names_nothing(vault):
    for question in ("how does the GIL work?", "release the GIL lock of threads", ""):
        assert not any(
            credit.name == "names" for hit in vault.explain(question).hits for credit in hit.credits
        )


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("Straße_und-Weg.md", "strasse und weg md"),
        (" “Łódź” ", "lodz"),
        ("[[Проект «Байкал»]]", "проект баикал"),
        ("Проект «Байкал».md", "проект баикал md"),
        ("[[“Quoted” notes]]", "quoted notes"),
        ("「企画」メモ", "企画 メモ"),
        ("[[a/B c|d]]", "a b c"),
        ("C++", "c++"),
        ("[[C#|d]]", "c#"),
        ("Kubernetes (k8s)", "kubernetes k8s"),
        ("**S3**", "s3"),
        ("plan.md#L3-L9", "plan md"),
        ("[[v1.2#Fixes]]", "v1 2"),
    ],
)
def test_names_are_folded(text, folded):
    assert folded_name(text) == folded


def test_the_names_of_a_path():
    for path, names in (("a/B.md", {"a b md", "b md", "a b", "b"}), (".env", {"env"})):
        assert {name for name in document_names(path, "") if name} == names


def test_all_headings_in_a_chunk_are_names():
    text = (
        "#seed\n###### upstream: [[Paths|Path]]\n\n### Why so?\n\n```\n# no heading\n```\n\n"
        "Underlined\n---\nText."
    )
    record = describe_chunk({"path": "a.md", "header_path": ""}, text)
    assert record.names.keys() - {""} == {"upstream path", "why so", "underlined"}
    assert not describe_chunk({"path": "a.py"}, "# Comment\nx = 1").names.keys() - {""}


def test_a_name_without_a_path_is_a_title():
    nodes = [
        TextNode(id_="x", text="kite kite kite"),
        TextNode(id_="y", text="wind", metadata={"title": "Kite"}),
    ]
    words = ContextualBM25Retriever(nodes)
    assert ContextualFusionRetriever([words], mode="learned").explain("kite").hits[0].node_id == "y"


@pytest.mark.parametrize(
    ("question", "path"), [("hammer", "tools.md"), ("nails", "nails.md"), ("sharp saw", "saws.md")]
)
def test_a_name_counts_more_than_a_first_heading_and_that_more_than_others(question, path):
    texts = {
        "tools.md": "# Hammer\n\nIt drives them.\n\n## Care\n\nOil it.",
        "chest.md": (
            "# Chest\n\n## Hammer\n\nHammer, hammer and hammers.\n\n## Sharp saw\n\nA sharp "
            "saw, a saw."
        ),
        "nails.md": "They are in a box.",
        "box.md": "# Nails\n\nNails, nails, nails and nails.",
        "saws.md": "---\ntitle: Sharp saw\n---\n# Teeth\n\nFive.",
    }
    documents = [
        Document(text=text, id_=path, metadata={"path": path}) for path, text in texts.items()
    ]
    words = ContextualBM25Retriever(HeadingAwareMarkdownNodeParser(chunk_size=20)(documents))
    hits = ContextualFusionRetriever([words], mode="learned").retrieve(question)
    assert hits[0].node.metadata["path"] == path


@pytest.mark.parametrize("name", ["Python", "About", "_about_", "Who am I", "Now"])
def test_a_file_is_found_by_its_name_even_among_stop_words(embedding_of_words, name):
    texts = {
        f"tip {number}.md": f"Python tip {number}: Python, Python and Python."
        for number in range(130)
    }
    texts[f"{name}.md"] = "Bread, " * 40
    documents = [
        Document(text=text, id_=path, metadata={"path": path}) for path, text in texts.items()
    ]
    nodes = ContextualNodePostprocessor()(HeadingAwareMarkdownNodeParser()(documents))
    keywords = ContextualBM25Retriever(nodes)
    fusion = ContextualFusionRetriever(
        [ContextualVectorRetriever(embedding_of_words(nodes)), keywords]
    )
    for question in (name, f"[[{name}]]", name.lower()):
        assert fusion.retrieve(question)[0].node.metadata["path"] == f"{name}.md"
    other = MetadataFilters(filters=[MetadataFilter(key="path", value="tip 3.md")])
    assert {hit.node.metadata["path"] for hit in fusion.with_filters(other).retrieve(name)} == {
        "tip 3.md"
    }


@pytest.mark.parametrize("key", ["path", "source"])
@pytest.mark.parametrize(
    "question", ["ML", "Machine learning", "machine-learning", "[[ml]]", "About"]
)
def test_a_document_is_found_by_its_title_and_aliases_whatever_else_has_these_words(
    embedding_of_words, question, key
):
    texts = {
        f"tip {number}.md": f"Machine learning (ML) tip {number}: ML, about ML."
        for number in range(130)
    }
    texts["m1.md"] = "---\ntitle: Machine Learning\naliases: [ML, About]\n---\n" + "Bread, " * 40
    documents = [
        Document(text=text, id_=path, metadata={key: path}) for path, text in texts.items()
    ]
    nodes = ContextualNodePostprocessor()(HeadingAwareMarkdownNodeParser()(documents))
    keywords = ContextualBM25Retriever(nodes)
    fusion = ContextualFusionRetriever(
        [ContextualVectorRetriever(embedding_of_words(nodes)), keywords]
    )
    assert fusion.retrieve(question)[0].node.metadata[key] == "m1.md"


@pytest.mark.parametrize("top_k", [1, 2, 3, 5, 30])
def test_documents_with_the_same_name_are_candidates_up_to_top_k(top_k):
    paths = [
        *(f"{number}/Kites.md" for number in range(4)),
        *(f"{number}/Wind.md" for number in range(30)),
    ]
    texts = [
        f"Text {number}." if "Kites" in path else f"Kites {number}, kites."
        for number, path in enumerate(paths)
    ]
    documents = [
        Document(text=text, id_=path, metadata={"path": path})
        for text, path in zip(texts, paths, strict=True)
    ]
    nodes = HeadingAwareMarkdownNodeParser()(documents)
    [candidates] = ContextualBM25Retriever(nodes).candidates([QueryBundle("kites")], top_k)
    assert len({candidate.node_id for candidate in candidates}) == len(candidates) == top_k
    assert [candidate.score for candidate in candidates] == sorted(
        (candidate.score for candidate in candidates), reverse=True
    )
    paths_of = {node.node_id: node.metadata["path"] for node in nodes}
    assert sum("Kites" in paths_of[candidate.node_id] for candidate in candidates) == min(top_k, 4)


def test_documents_with_a_name_come_before_those_with_such_a_heading():
    documents = [("a.md", {"header_path": "Tea"}), ("tea.md", {}), ("b/tea.md", {})]
    index = NameIndex().with_documents([2, 5, 4], documents)
    assert index.find_named("Tea") == [(4, 1.0), (5, 1.0), (2, 0.75)]
