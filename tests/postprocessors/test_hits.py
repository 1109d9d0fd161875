"""Each postprocessor rejects anything but hits, and says what to pass."""

import pytest
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_contextual.postprocessors import (
    GroupingPostprocessor,
    RecencyPostprocessor,
    RerankWithContext,
)
from llama_index_contextual.utils.errors import SettingError

NODE = TextNode(text="Tea at four.")
POSTPROCESSORS = [
    GroupingPostprocessor(),
    RecencyPostprocessor(),
    RerankWithContext(SimilarityPostprocessor(similarity_cutoff=0)),
]


@pytest.mark.parametrize("postprocessor", POSTPROCESSORS, ids=lambda item: type(item).__name__)
@pytest.mark.parametrize(
    ("nodes", "class_name"),
    [
        (["Tea at four."], "str"),
        ("Tea at four.", "str"),
        ([NodeWithScore(node=NODE, score=1.0), NODE], "TextNode"),
        (NodeWithScore(node=NODE, score=1.0), "NodeWithScore"),
        (None, "NoneType"),
    ],
    ids=["a list of strings", "a string", "a node without a score", "no list", "nothing"],
)
async def test_anything_but_a_list_of_hits_is_named(postprocessor, nodes, class_name):
    message = rf"`nodes` must be a list of NodeWithScore objects \(got {class_name}\)\. Pass what"
    with pytest.raises(SettingError, match=message):
        postprocessor.postprocess_nodes(nodes)
    with pytest.raises(SettingError, match=message):
        await postprocessor.apostprocess_nodes(nodes)


@pytest.mark.parametrize("postprocessor", POSTPROCESSORS, ids=lambda item: type(item).__name__)
def test_an_empty_list_of_hits_stays_empty(postprocessor):
    assert postprocessor.postprocess_nodes([]) == []
