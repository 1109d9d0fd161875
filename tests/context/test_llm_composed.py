"""Contexts from a language model follow the pattern context, and paid answers stay usable."""

from __future__ import annotations

from fake_model import MODEL
from llama_index.core import Document
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import TextNode

from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser

NOTE = "# Morning Check-in\n\nWe moved the freeze to the twelfth.\n"
SENTENCE = "Explains matter A of this very treatise."


def note():
    return HeadingAwareMarkdownNodeParser()(
        [Document(text=NOTE, metadata={"path": "memory/2026-01-28.md"})]
    )


def test_path_headings_and_date_precede_the_sentence(step):
    [node] = note()
    step()([node])
    assert node.metadata["context"].splitlines() == [
        "Document: memory/2026-01-28.md > Morning Check-in",
        "Wednesday, 28 January 2026",
        SENTENCE,
    ]
    assert node.metadata["context_source"] == f"llm:{MODEL}+pattern"


def test_source_code_gets_the_pattern_line_and_a_separate_prompt(step, fake_model):
    code = "class Engine:\n    def search(self, text):\n        return self.index.find(text)\n"
    node = TextNode(
        text=code, start_char_idx=0, end_char_idx=len(code), metadata={"path": "search/engine.py"}
    )
    step()([node])
    first, second = node.metadata["context"].splitlines()
    assert first.startswith("From file: search/engine.py. Defines: class Engine, function search.")
    assert second == SENTENCE
    assert "say what it defines" in fake_model.requests[0].prompt
    step()(note())
    assert "say what it defines" not in fake_model.requests[1].prompt


def test_the_prompt_contains_path_title_and_date(step, fake_model):
    prompt = PromptTemplate("[{path}|{title}|{date}]{document}[{count}]{chunks}")
    [node] = note()
    node.metadata["title"] = 'The "freeze"'
    step(prompt=prompt)([node])
    asked = fake_model.requests[0].prompt
    assert asked.startswith("[memory/2026-01-28.md|The 'freeze'|Wednesday, 28 January 2026]")
    assert "[1]" in asked


def test_the_default_prompt_contains_them_too(step, fake_model):
    step()(note())
    assert '<document path="memory/2026-01-28.md" title="" date="Wednesday, 28 January 2026">' in (
        fake_model.requests[0].prompt
    )
