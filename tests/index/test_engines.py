"""Chat over a folder, and answers with sources: what a model is shown, and what it is not."""

from __future__ import annotations

import pytest
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import CitationQueryEngine
from llama_index.core.schema import MetadataMode

from llama_index_contextual.errors import SettingError

QUESTION = "Which vegetable does Cookie love, carrots?"


class Listening(MockLLM):
    """Answers with one question, which stands for a condensed one, too; keeps what it was shown."""

    def complete(self, prompt, formatted=False, **kwargs):
        self.__dict__.setdefault("shown", []).append(prompt)
        return super().complete(QUESTION, formatted, **kwargs)

    async def acomplete(self, prompt, formatted=False, **kwargs):
        return self.complete(prompt, formatted, **kwargs)


@pytest.fixture(params=["all-MiniLM-L6-v2", "none"])
def index(opened, request):
    found = opened() if request.param != "none" else opened(embed_model="none")
    found.refresh()
    return found


@pytest.mark.parametrize("mode", ["condense_plus_context", "best", "context", "condense_question"])
async def test_a_chat_over_a_folder_answers_questions_and_greetings(index, mode):
    llm = Listening()
    chat = index.as_chat_engine(mode, llm, similarity_top_k=2)
    for message in ("Hello World!", "how are you?", QUESTION):
        answer = chat.chat(message)
        assert str(answer) not in {"", "Empty Response"}
        assert answer.source_nodes
    assert "path: memory/2026-01-28.md" in llm.shown[-1]
    assert "start_line: " in llm.shown[-1]
    chat.reset()
    assert str(await chat.achat("Hello World!")) != "Empty Response"
    assert "".join(chat.stream_chat("Hello World!").response_gen) != "Empty Response"


def test_a_chat_that_abstains_says_so(index):
    chat = index.as_chat_engine(llm=Listening(), min_score=0.9)
    assert str(chat.chat("asdfghjkl qwertz")) == "Empty Response"


def test_options_reach_the_retriever_and_the_engine_and_no_others_pass(index):
    chat = index.as_chat_engine(llm=Listening(), similarity_top_k=1, candidate_pool=50, system_prompt="Be kind.")
    assert (chat._retriever.similarity_top_k, chat._retriever.candidate_pool) == (1, 50)
    assert chat._system_prompt == "Be kind."
    with pytest.raises(
        SettingError, match=r"as_chat_engine does not take chat_historyy\. Cure: use some of .*chat_history"
    ):
        index.as_chat_engine(chat_historyy=[])
    with pytest.raises(SettingError, match=r"as_query_engine does not take similarity_topk\. Cure: "):
        index.as_query_engine(similarity_topk=3)
    with pytest.raises(SettingError, match=r"chat_mode='react' is not known\. Cure: one of 'condense_plus_context'"):
        index.as_chat_engine("react")


def test_a_citation_engine_shows_path_and_lines_with_each_source(index):
    llm = Listening()
    engine = CitationQueryEngine.from_args(index, llm=llm, metadata_mode=MetadataMode.LLM, similarity_top_k=2)
    answer = engine.query(QUESTION)
    sources = llm.shown[-1].split("\nSource ")[-len(answer.source_nodes) :]
    for number, (shown, source) in enumerate(zip(sources, answer.source_nodes, strict=True), start=1):
        meta = source.node.metadata
        assert shown.startswith(f"{number}:\npath: {meta['path']}\n")
        assert f"\nstart_line: {meta['start_line']}\nend_line: {meta['end_line']}\n" in shown
