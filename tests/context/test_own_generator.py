"""A user's own context generator, which returns texts that the postprocessor writes into nodes."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest
from llama_index.core import Document
from llama_index.core.node_parser import HierarchicalNodeParser, SentenceSplitter
from llama_index.core.schema import MetadataMode, NodeRelationship, TextNode

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.context import ChunkContext, ContextGenerator
from llama_index_contextual.context.base import in_words
from llama_index_contextual.context.documents import group_by_document
from llama_index_contextual.utils.errors import SettingError


class Summary(ContextGenerator):
    """A generator that is not free and returns texts."""

    name = "summary"
    version = "2"
    free = False

    def __init__(self, language="en"):
        self.language = language
        self.asked = 0

    def generate(self, nodes, document):
        self.asked += len(nodes)
        return [f"A summary of {document.path} in {self.language}." for _ in nodes]


class Mixed(ContextGenerator):
    """A generator that returns a text, a context with words for keyword search, and None."""

    name = "mixed"

    def generate(self, nodes, document):
        return ["A text.", ChunkContext("Embedded.", lexical="searched"), None]


def chunks(number=3):
    text = " ".join(f"Sentence {index} is here." for index in range(number))
    document = Document(text=text, id_="1", metadata={"path": "a.md"})
    return SentenceSplitter(chunk_size=10, chunk_overlap=0)([document])


def test_contexts_record_name_and_version_and_are_not_paid_for_again():
    nodes = chunks()
    generator = Summary()
    for _ in range(2):
        ContextualNodePostprocessor(generator)(nodes)
    assert generator.asked == len(nodes) == 3
    assert nodes[0].metadata["context"] == "A summary of a.md in en."
    assert nodes[0].metadata["context_source"] == "summary"
    assert nodes[0].metadata["context_version"] == "2"


def test_a_new_version_is_paid_for_again():
    nodes = chunks()
    generator = Summary()
    ContextualNodePostprocessor(generator)(nodes)
    generator.version = "3"
    ContextualNodePostprocessor(generator)(nodes)
    assert generator.asked == 6
    assert nodes[0].metadata["context_version"] == "3"


def test_an_index_pays_for_a_chunk_once(tmp_path):
    (tmp_path / "a.md").write_text("# A\n\nOne.\n")
    generator = Summary()
    for text in ("# B\n\nTwo.\n", "# B\n\nThree.\n"):
        (tmp_path / "b.md").write_text(text)
        with ContextualIndex.open(tmp_path, context=generator, embed_model="none") as index:
            index.refresh(confirm=True)
    assert generator.asked == 3


def test_a_generator_can_return_texts_contexts_and_none():
    nodes = chunks()
    with pytest.raises(Exception, match="1 of 3 chunks got no context from mixed"):
        ContextualNodePostprocessor(Mixed())(nodes)
    assert [node.metadata.get("context") for node in nodes] == ["A text.", "Embedded.", None]
    assert nodes[1].metadata["lexical_context"] == "searched"
    assert nodes[1].metadata["context_version"] == "1"


def test_it_is_restored_from_plain_data_with_its_arguments():
    step = ContextualNodePostprocessor(Summary(language="de"), show_context_to_llm=True)
    for copy in (
        ContextualNodePostprocessor.from_dict(step.to_dict()),
        ContextualNodePostprocessor.from_json(step.to_json()),
        ContextualNodePostprocessor.model_validate(step.model_dump()),
        pickle.loads(pickle.dumps(step)),  # noqa: S301
    ):
        assert isinstance(copy.generator, Summary)
        assert copy.generator.language == "de"
        assert copy.show_context_to_llm
        assert copy.fingerprint == step.fingerprint


def test_progress_counts_the_chunks_of_all_documents():
    groups = group_by_document(
        [TextNode(text=text, metadata={"path": path}) for text, path in ("1a", "2a", "3b")]
    )
    counts = []
    generator = Summary()
    assert generator.generate_all(groups, counts.append) == [
        ["A summary of a in en."] * 2,
        ["A summary of b in en."],
    ]
    assert counts == [(2, 3), (3, 3)]
    assert generator.estimate(groups).chunks == 3


def test_the_most_frequent_reason_is_named_first():
    assert in_words(Counter({"empty": 1, "timeout": 3})) == "3 timeout, 1 empty"


def test_a_class_that_the_program_has_not_defined_is_an_error():
    data = ContextualNodePostprocessor(Summary()).to_dict()
    data["generator"]["spec"] = "summary-of-another-program"
    with pytest.raises(SettingError, match="summary-of-another-program"):
        ContextualNodePostprocessor.from_dict(data)


@pytest.mark.parametrize("context", ["off", "headings", "pattern"])
def test_every_kind_survives_a_validation_of_its_dump(context):
    step = ContextualNodePostprocessor(context, descriptions={"api": "REST"})
    copy = ContextualNodePostprocessor.model_validate(step.model_dump())
    assert copy.to_dict() == step.to_dict()


def test_every_excluded_key_is_in_the_metadata():
    text = "---\ntitle: Gateway\n---\n# Gateway\n\nIt waits.\n"
    parser = HeadingAwareMarkdownNodeParser()
    [node] = parser([Document(text=text, metadata={"path": "gateway.md"})])
    before = set(node.excluded_embed_metadata_keys)
    for step in (
        ContextualNodePostprocessor(),
        ContextualNodePostprocessor("pattern", show_context_to_llm=True),
        ContextualNodePostprocessor(Summary()),
    ):
        step([node])
        added = set(node.excluded_embed_metadata_keys) - before
        assert added <= set(node.metadata)
        assert set(node.metadata) - added - before == {"context"}


@pytest.mark.parametrize("first", ["off", "headings", "pattern"])
@pytest.mark.parametrize("second", ["off", "headings", "pattern"])
@pytest.mark.parametrize("show", [True, False])
def test_a_second_setting_gives_the_views_that_it_gives_alone(first, second, show):
    text = "---\ndate: 2026-01-28\n---\n# Gateway\n\nIt waits.\n\n## Limit\n\nOf 60.\n"
    document = Document(text=text, id_="1", metadata={"path": "gateway.md", "author": "Ana"})
    parser = HeadingAwareMarkdownNodeParser(min_chunk_size=0)
    alone = ContextualNodePostprocessor(second)(parser([document]))
    nodes = ContextualNodePostprocessor(first, show_context_to_llm=show)(parser([document]))
    nodes = ContextualNodePostprocessor(second)(nodes)
    for mode in MetadataMode:
        views = [node.get_content(mode) for node in nodes]
        assert views == [node.get_content(mode) for node in alone]


def links_of(nodes):
    return [
        node.relationships[relationship]
        for node in nodes
        for relationship in (NodeRelationship.PREVIOUS, NodeRelationship.NEXT)
        if relationship in node.relationships
    ]


def test_a_hash_in_a_link_is_that_of_the_neighbour_with_its_context():
    nodes = SentenceSplitter(chunk_size=12, chunk_overlap=0)(
        [Document(text="Cookie loves carrots. " * 12, metadata={"path": "a.md"})]
    )
    for step in (ContextualNodePostprocessor(), ContextualNodePostprocessor("off")):
        step(nodes)
        by_id = {node.node_id: node for node in nodes}
        assert len(links_of(nodes)) > 3
        assert all(link.hash == by_id[link.node_id].hash for link in links_of(nodes))


def test_links_to_parents_and_children_are_updated_too():
    parser = HierarchicalNodeParser.from_defaults(chunk_sizes=[128, 64], chunk_overlap=0)
    text = "Cookie loves carrots. " * 60
    nodes = parser.get_nodes_from_documents([Document(text=text, metadata={"path": "a.md"})])
    ContextualNodePostprocessor()(nodes)
    by_id = {node.node_id: node for node in nodes}
    children = [child for node in nodes for child in node.child_nodes or ()]
    parents = [node.parent_node for node in nodes if node.parent_node]
    assert len(children) == len(parents) > 3
    assert all(link.hash == by_id[link.node_id].hash for link in [*children, *parents])


def test_a_link_without_a_hash_stays_without_one():
    text = "# A\n\nOne.\n\n# B\n\nTwo.\n\n# C\n\nThree.\n"
    nodes = ContextualNodePostprocessor()(HeadingAwareMarkdownNodeParser()([Document(text=text)]))
    assert [link.hash for link in links_of(nodes)] == [None] * 4
