"""Which questions need context, by two rules."""

import numpy as np
import pytest
from llama_index.core.schema import TextNode

from llama_index_contextual.app.evaluation import Passage, Question
from llama_index_contextual.app.evaluation.metrics import NEEDED, ContextNeed, failures_avoided, parts_of


def chunk(number, text, path, headings):
    metadata = {"path": path, "header_path": headings, "heading_level": 2}
    return TextNode(id_=str(number), text=text, metadata=metadata)


@pytest.fixture
def chunks():
    filler = [chunk(n, f"Water and bread number {n}.", f"food/{n}.md", "Food") for n in range(10, 30)]
    return [
        chunk(1, "The default value is 60.", "docs/gateway.md", "Gateway > Timeout settings"),
        chunk(2, "The gateway listens on port 80.", "docs/gateway.md", "Gateway > Port"),
        *filler,
    ]


def test_a_question_for_words_of_the_headings_alone_needs_context(chunks):
    need = ContextNeed(chunks)
    asked = "What is the default timeout of the gateway?"
    assert need.share(asked, chunks[:1]) >= NEEDED  # "gateway" is in its path, and in the text of another chunk
    assert need.share("On which port does the gateway listen?", chunks[1:2]) == 0
    assert need.share("zebra?", chunks[:1]) == 0, "a word that no text has says nothing"


def test_of_several_answers_the_one_whose_text_says_most_counts(chunks):
    assert ContextNeed(chunks).share("On which port does the gateway listen?", chunks[:2]) == 0


def test_a_question_may_name_a_section(chunks):
    need = ContextNeed(chunks)
    assert need.names("Where are the timeout settings?", chunks[:1])
    assert not need.names("Where is the timeout?", chunks[:1])
    assert not need.names("What is the gateway?", chunks[:1]), "a name of one word names nothing"


def test_the_parts_of_the_questions(chunks):
    asked = [
        Question("What is the default timeout of the gateway?", (Passage(text="value is 60"),)),
        Question("Where are the timeout settings?", (Passage("gateway.md", text="value is 60"),)),
        Question("On which port does the gateway listen?", (Passage("docs/gateway.md", text="port 80"),)),
        Question("Where is the moon?", (Passage("moon.md"),)),
    ]
    parts = parts_of(asked, chunks)
    assert parts["context needed"] == (True, False, False, False), "no text has the words “timeout settings”"
    assert parts["elsewhere"] == (False, True, True, True)
    assert parts["place named"] == (False, True, False, False)
    assert parts["not named"] == (True, False, True, True)


def test_failures_avoided_in_per_cent_of_those_without():
    without = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    with_contexts = np.array([[1.0, 1.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    (percent, low, high), nothing_failed = failures_avoided(without, with_contexts)
    assert percent == pytest.approx(50)
    assert low <= 50 <= high
    assert nothing_failed is None
    assert failures_avoided(np.empty((0, 2)), np.empty((0, 2))) == []
