"""Two embeddings of one class that have no name of their own are not taken for one."""

from __future__ import annotations

import re

import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.utils.errors import FingerprintError


class Numbers(BaseEmbedding):
    """A vector for the number that a text names, turned by some places."""

    _turn: int = PrivateAttr(default=0)
    _calls: int = PrivateAttr(default=0)

    def turned(self, places):
        self._turn = places
        return self

    def _get_text_embedding(self, text):
        self._calls += 1
        found = re.search(r"number (\d+)", text)
        vector = [0.0] * 40
        vector[(int(found[1]) + self._turn) % 39 if found else 39] = 1.0
        return vector

    def _get_query_embedding(self, query):
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query):
        return self._get_text_embedding(query)


@pytest.fixture
def folder(tmp_path):
    for number in range(20):
        (tmp_path / f"{number:02}.md").write_text(
            f"# Note\n\nThis is the note of number {number}.\n", "utf-8"
        )
    with ContextualIndex.open(tmp_path, embed_model=Numbers()) as index:
        index.refresh()
    return tmp_path


def found(folder, embedding):
    with ContextualIndex.open(folder, embed_model=embedding) as index:
        [vectors] = [
            retriever
            for retriever in index.as_retriever(1).retrievers
            if "Vector" in type(retriever).__name__
        ]
        return vectors.retrieve("number 7")[0].node.metadata["path"]


def test_the_same_one_finds_what_it_embedded(folder):
    assert found(folder, Numbers()) == "07.md"


def test_another_one_is_refused_at_the_question(folder):
    with pytest.raises(
        FingerprintError, match=r"not those of the index.*Use the former.*model_name"
    ):
        found(folder, Numbers().turned(10))


def test_keywords_do_not_answer_in_its_place(folder):
    with ContextualIndex.open(folder, embed_model=Numbers().turned(10)) as index:
        index.refresh()
        with pytest.raises(FingerprintError, match="not those of the index"):
            index.as_retriever(1).retrieve("number 7")


def test_another_one_is_refused_before_it_writes(folder):
    (folder / "new.md").write_text("# Note\n\nThis is number 30.\n", "utf-8")
    with (
        ContextualIndex.open(folder, embed_model=Numbers().turned(10)) as index,
        pytest.raises(FingerprintError, match="not those of the index"),
    ):
        index.refresh()
    assert found(folder, Numbers()) == "07.md"


def test_it_may_take_over_by_a_name_of_its_own(folder):
    named = Numbers(model_name="turned by ten").turned(10)
    with ContextualIndex.open(folder, embed_model=named, reindex=True) as index:
        index.refresh(confirm=True)
    assert found(folder, Numbers(model_name="turned by ten").turned(10)) == "07.md"


def test_a_refresh_of_nothing_embeds_nothing(folder):
    embedding = Numbers()
    with ContextualIndex.open(folder, embed_model=embedding) as index:
        index.refresh()
    assert embedding._calls == 0
