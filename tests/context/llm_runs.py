"""Helpers for tests of contexts from a language model: chunks of a document, and a checked run."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from fake_model import MODEL
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.utils.errors import ContextualWarning

PAID = f"llm:{MODEL}+pattern"


def make_nodes(count: int, document: str = "book.md") -> list[TextNode]:
    """Return chunks of one document that cover it without gaps."""
    nodes, start = [], 0
    for number in range(count):
        text = f"Paragraph {number} of {document} tells something. " * 3
        nodes.append(
            TextNode(
                text=text,
                id_=f"{document}#{number}",
                start_char_idx=start,
                end_char_idx=start + len(text),
                metadata={"path": document, "header_path": f"Part {number // 4}"},
                relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=document)},
            )
        )
        start += len(text)
    return nodes


def count_by_source(nodes) -> Counter[str]:
    """Count the nodes by the source of their context, and ``""`` for nodes without one."""
    return Counter(str(node.metadata.get("context_source", "")) for node in nodes)


def run(step, nodes, *, falls_back=0):
    """Run a step, and expect one warning if and only if chunks fall back."""
    if falls_back:
        with pytest.warns(
            ContextualWarning,
            match=rf"^{falls_back} of \d+ chunks fell back .*{re.escape(PAID)} gave none",
        ) as caught:
            step(nodes)
        assert sum(issubclass(warning.category, ContextualWarning) for warning in caught) == 1
    else:
        step(nodes)
    for node in nodes:
        assert node.metadata["context"]
    counts = count_by_source(nodes)
    assert counts.get(PAID, 0) == len(nodes) - falls_back
    assert counts.total() == len(nodes)
    return counts
