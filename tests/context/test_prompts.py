"""The prompt for contexts: its chunks, its fields, and how a window is divided."""

from __future__ import annotations

import pytest
from llama_index.core.llms import LLMMetadata, MockLLM
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import TextNode

from llama_index_contextual.context import prompts
from llama_index_contextual.context.base import SourceDocument
from llama_index_contextual.context.generators.llm import LLMContextGenerator, _Run
from llama_index_contextual.context.prompts import CODE_PROMPT, CONTEXT_PROMPT, count_tokens

DOCUMENT = SourceDocument("1", "log.md", "It rained.")


def filled(*nodes, prompt="{document}|{chunks}|{count}|{title}"):
    """Return the text after the document in a prompt."""
    return prompts.fill_prompt(prompt, nodes, DOCUMENT, nodes, 1000).after


@pytest.mark.parametrize(
    ("length", "shown"),
    [
        (400, "x" * 400),
        (401, f"{'x' * 300} […] {'x' * 100}"),
    ],
)
def test_the_prompt_has_the_first_300_and_the_last_100_characters_of_a_long_chunk(length, shown):
    expected = f'|<chunk number="1">\n{shown}\n</chunk>|1|'
    assert filled(TextNode(text="x" * length)) == expected


def test_an_excerpt_consists_of_whole_words():
    chunk = filled(TextNode(text="harbour " * 100)).split("\n")[1]
    assert set(chunk.split()) == {"harbour", "[…]"}


def test_each_chunk_has_its_number_and_its_section():
    first = TextNode(text="One.", metadata={"header_path": 'The "log"'})
    assert filled(first, TextNode(text="Two.")) == (
        '|<chunk number="1" section="The \'log\'">\nOne.\n</chunk>\n'
        '<chunk number="2">\nTwo.\n</chunk>|2|'
    )


def test_a_title_of_several_lines_is_shown_on_one():
    assert filled(TextNode(text="One.", metadata={"title": "Log\nof 1902"})).endswith(
        "|Log of 1902"
    )


def test_words_in_braces_that_are_no_fields_stay():
    node = TextNode(text="Use {title} and {document}.")
    assert "Use {title} and {document}." in filled(node)


@pytest.mark.parametrize(
    ("path", "prompt"), [("log.md", CONTEXT_PROMPT), ("log.py", CODE_PROMPT), ("", CONTEXT_PROMPT)]
)
def test_source_code_has_a_prompt_of_its_own(path, prompt):
    document = SourceDocument("1", path, "It rained.")
    assert prompts.prompt_for(document, prompts.PROMPTS) == prompt


def test_a_single_prompt_serves_prose_and_source_code():
    document = SourceDocument("1", "log.py", "It rained.")
    assert prompts.prompt_for(document, ("{document}{chunks}",)) == "{document}{chunks}"


def test_values_that_a_template_contains_are_no_unknown_fields():
    template = PromptTemplate("Write {language}. {document}{chunks}", language="German")
    assert prompts.check_prompt(template) == "Write German. {document}{chunks}"


def test_the_length_of_a_prompt_includes_the_text_around_the_document():
    filled_prompt = prompts.FilledPrompt("Read this:", "It rained.", "Describe it.")
    around = count_tokens("Read this:\nDescribe it.")
    assert filled_prompt.tokens == count_tokens("It rained.") + around


def test_without_a_mark_a_prompt_is_one_text():
    filled_prompt = prompts.FilledPrompt("Read this: ", "It rained.", " Describe it.")
    [message] = filled_prompt.messages(cache_point=False)
    assert message.content == "Read this: It rained. Describe it."


class Sized(MockLLM):
    """A model that reports a context window."""

    window: int = 0

    @property
    def metadata(self):
        return LLMMetadata(context_window=self.window)


def run_of(window, **options):
    """Return a run without chunks, and its number of concurrent calls."""
    llm = Sized()
    llm.window = window
    run = _Run(LLMContextGenerator(llm, cache=False, **options), [], None)
    run._divide_window()
    return run, run._workers()


@pytest.mark.parametrize(
    ("window", "batch_size", "document"),
    [
        (8192, 8, 5230),  # 9/10 of what 8 chunks of 260 tokens and 300 for instructions leave
        (2000, 3, 828),  # chunks take at most half of the window
        (600, 1, 75),  # at least an eighth of the window is left for the document
    ],
)
def test_a_window_is_divided_between_document_and_chunks(window, batch_size, document):
    run, _ = run_of(window)
    assert (run._batch_size, run._window) == (batch_size, document)


@pytest.mark.parametrize(("options", "calls"), [({}, 4), ({"num_workers": 2}, 2)])
def test_a_distant_server_gets_four_calls_at_a_time_unless_another_number_is_set(options, calls):
    assert run_of(8192, **options)[1] == calls
