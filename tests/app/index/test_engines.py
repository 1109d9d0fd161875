"""Chat over a folder, and answers with sources: what a model is shown, and what it is not."""

from __future__ import annotations

import pytest
from llama_index.core.chat_engine import CondensePlusContextChatEngine
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import CitationQueryEngine
from llama_index.core.schema import MetadataMode

QUESTION = "Which vegetable does Cookie love, carrots?"


class Listening(MockLLM):
    """A model that answers with one question, also where it condenses, and keeps the messages."""

    def complete(self, prompt, formatted=False, **kwargs):
        self.__dict__.setdefault("shown", []).append(prompt)
        return super().complete(QUESTION, formatted, **kwargs)

    async def acomplete(self, prompt, formatted=False, **kwargs):
        return self.complete(prompt, formatted, **kwargs)


@pytest.fixture(params=["all-MiniLM-L6-v2", "none"])
def index(opened, request):
    opened_index = opened() if request.param != "none" else opened(embed_model="none")
    opened_index.refresh()
    return opened_index


async def test_a_chat_over_a_folder_answers_questions_and_greetings(opened):
    index, llm = opened(), Listening()
    index.refresh()
    chat = CondensePlusContextChatEngine.from_defaults(index.as_retriever(2), llm=llm)
    for message in ("Hello World!", "how are you?", QUESTION):
        answer = chat.chat(message)
        assert str(answer) not in {"", "Empty Response"}
        assert answer.source_nodes
    assert "path: memory/2026-01-28.md" in llm.shown[-1]
    assert "start_line: " in llm.shown[-1]
    chat.reset()
    assert str(await chat.achat("Hello World!")) != "Empty Response"


def test_a_citation_engine_shows_path_and_lines_with_each_source(index):
    llm = Listening()
    engine = CitationQueryEngine.from_args(
        index, llm=llm, metadata_mode=MetadataMode.LLM, similarity_top_k=2
    )
    answer = engine.query(QUESTION)
    sources = llm.shown[-1].split("\nSource ")[-len(answer.source_nodes) :]
    for number, (shown, source) in enumerate(
        zip(sources, answer.source_nodes, strict=True), start=1
    ):
        meta = source.node.metadata
        assert shown.startswith(f"{number}:\npath: {meta['path']}\n")
        assert f"\nstart_line: {meta['start_line']}\nend_line: {meta['end_line']}\n" in shown
