"""Messages and notes that are made to take time.

Memory handles them in linear time.
"""

from datetime import date
from itertools import count

import pytest
from growth import FACTOR, grows_too_fast

from llama_index_contextual.memory.digest import HEADER, quoted
from llama_index_contextual.memory.gate import MAX_MESSAGE, clean_message, reason_to_skip
from llama_index_contextual.memory.snippets import choose_snippet
from llama_index_contextual.retrievers.query_dates import find_dates, load_lexicon, unaccented
from llama_index_contextual.retrievers.terms import terms_of

HOSTILE = [
    " ", "\t", "\u3000", "\n", "\r\n", "`", "` ", "```\n", "~", "~~~ \n", "#", "# ", "> ", "- ",
    "1. ", "a", "a ",
    "a.", "a. ", "a@", "a@b.", "'", "a'", "'s", "[", "](", "<", "<a", "|", "| ", "-", "=-*", "吗 ",
    "か。", "1",
    "2026-", "last ", "on monday ", "http://", "\ufe0f", "\u200d", "\U0001f468\u200d", "a\u0301",
    "\u0301\u0316",
    "``~~~`",
    f"{HEADER}\n", "today ", "> - [", ": ", "? ", "# a\n", "## 2026-11-1\n",
]  # fmt: skip
SMALL = 2_000
_TURN = count()


def slows(work, seed):
    """Return whether the work grows too fast on a repeated seed whose ending never matches."""
    return grows_too_fast(work, *((seed * size)[:size] + "!" for size in (SMALL, SMALL * FACTOR)))


def dates(text):
    find_dates(text, date(2026, 4, 10), load_lexicon())


def snippet(text):
    text = f"{next(_TURN)} {text}"  # what was read from a shorter text is cached
    choose_snippet(text, {"a": 1.0, "b": 2.0}, terms_of, limit=600)


@pytest.mark.parametrize(
    "step",
    [
        lambda text: reason_to_skip(text, load_lexicon()),
        clean_message,
        quoted,
        snippet,
        unaccented,
        dates,
    ],
    ids=["gate", "clean_message", "quoted", "snippet", "unaccented", "dates"],
)
@pytest.mark.long
def test_every_step_of_memory_is_linear(step):
    assert [seed for seed in HOSTILE if slows(step, seed)] == []


def test_a_message_is_read_up_to_its_limit():
    question = "\nwhere did Marta move to?"
    assert not reason_to_skip(" " * (MAX_MESSAGE - len(question)) + question, load_lexicon())
    assert reason_to_skip(" " * MAX_MESSAGE + question, load_lexicon()) == "empty message"
