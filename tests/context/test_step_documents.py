"""The whole documents of a step: who passes them, before embedding and at query time."""

from __future__ import annotations

import pytest
from llama_index.core import Document
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore

from llama_index_contextual.context.base import ContextGenerator
from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor


class Whole(ContextGenerator):
    """A generator whose contexts are the path and the text of the document."""

    name = "whole"

    def generate(self, nodes, document):
        return [f"{document.path}: {document.text}" for _ in nodes]


DOCUMENT = Document(text="One. Two.", id_="a")
EDITED = Document(text="Zero. Two.", id_="a")


def chunk(**metadata):
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="a")}
    return TextNode(text="Two.", relationships=source, metadata=metadata)


def before_embedding(step):
    [node] = step([chunk()])
    return node.metadata["context"]


def at_query_time(step):
    [hit] = step.postprocess_nodes([NodeWithScore(node=chunk())])
    return hit.node.metadata["context"]


@pytest.mark.parametrize("context_of", [before_embedding, at_query_time])
def test_the_documents_of_the_constructor_are_used(context_of):
    assert context_of(ContextualNodePostprocessor(Whole(), documents=[DOCUMENT])) == ": One. Two."


@pytest.mark.parametrize("context_of", [before_embedding, at_query_time])
def test_documents_are_looked_up_in_the_docstore(context_of):
    docstore = SimpleDocumentStore()
    docstore.add_documents([DOCUMENT])
    assert context_of(ContextualNodePostprocessor(Whole(), docstore=docstore)) == ": One. Two."


@pytest.mark.parametrize("context_of", [before_embedding, at_query_time])
def test_passed_documents_come_before_those_of_the_docstore(context_of):
    docstore = SimpleDocumentStore()
    docstore.add_documents([EDITED])
    step = ContextualNodePostprocessor(Whole(), documents=[DOCUMENT], docstore=docstore)
    assert context_of(step) == ": One. Two."


def test_documents_of_a_call_replace_those_of_the_constructor():
    step = ContextualNodePostprocessor(Whole(), documents=[DOCUMENT])
    [node] = step([chunk()], [EDITED])
    assert node.metadata["context"] == ": Zero. Two."


def test_at_query_time_paths_are_relative_to_the_root_too():
    step = ContextualNodePostprocessor(Whole(), root="/srv")
    hit = NodeWithScore(node=chunk(file_path="/srv/notes/2026/plan.md"))
    [written] = step.postprocess_nodes([hit])
    assert written.node.metadata["context"] == "notes/2026/plan.md: Two."
