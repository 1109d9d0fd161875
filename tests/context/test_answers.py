"""Cleaning and checking the answers of models."""

from __future__ import annotations

import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.context.answers import (
    MAX_CHARS,
    MOST_READ,
    clean,
    refusal,
    split_answers,
    storable_line,
)

WORDS = "The harbour log of Bergen, part 2."

WRAPPED = {
    "plain": WORDS,
    "thinking": f"<think>\nHm, 1: no.\n</think>\n\n{WORDS}",
    "thinking begun in the prompt": f"so it is about ships.</think>{WORDS}",
    "preamble": f"Here is the context: {WORDS}",
    "preamble of chatter": f"Sure! Here's a succinct context for the chunk:\n\n{WORDS}",
    "label": f"Context: {WORDS}",
    "quotes": f'"{WORDS}"',
    "curly quotes": f"\u201c{WORDS}\u201d",
    "quotes within quotes": f"\u201c'\u00ab{WORDS}\u00bb'\u201d",
    "fence": f"```text\n{WORDS}\n```",
    "heading": f"## {WORDS}",
    "bold": f"**{WORDS}**",
    "bullet": f"- {WORDS}",
    "tag": f"<context>{WORDS}</context>",
    "newlines": WORDS.replace(" ", "\n"),
    "everything": f'<think>x</think>```\nHere is the short context:\n**"{WORDS}"**\n```',
}


@pytest.mark.parametrize("answer", WRAPPED.values(), ids=WRAPPED)
def test_a_context_is_unwrapped(answer):
    assert split_answers(answer, 1) == {1: WORDS}


@pytest.mark.parametrize("answer", ['""', '"', "\u201c''\u201d", '" "'])
def test_quotes_alone_are_no_context(answer):
    assert clean(answer) == ""


KEPT = [
    'He said "ahoy" and left.',
    "Here is where the Aurora lies, in Bergen.",
    "Version 2.0 of snake_case_names and __init__.py",
]


@pytest.mark.parametrize("words", KEPT)
def test_words_of_the_context_itself_are_kept(words):
    assert clean(words) == words


NUMBERED = {
    "1: one\n2: two": {1: "one", 2: "two"},
    "1. one\n2. two": {1: "one", 2: "two"},
    "1) one\n\n2) two": {1: "one", 2: "two"},
    "[1] - one\n[2] - two": {1: "one", 2: "two"},
    "Chunk 1: one\nChunk 2: two": {1: "one", 2: "two"},
    "**Chunk 1:** one\n**Chunk 2:** two": {1: "one", 2: "two"},
    "### 1. one\n### 2. two": {1: "one", 2: "two"},
    "Here are the contexts:\n1: one\n2: two": {1: "one", 2: "two"},
    "2: two\n1: one": {1: "one", 2: "two"},
    "1: one\nand more\n2: two": {1: "one and more", 2: "two"},
    "<think>1: no 2: no</think>1: one\n2: two": {1: "one", 2: "two"},
    "1: one": {1: "one"},
    "1: one\n2:": {1: "one"},
    "2: two\n3: three": {},
    "0: one\n1: two": {},
    "1: one\n1: two": {},
    "1\uff1aone\n2\u3001two": {1: "one", 2: "two"},
    "### Chunk 1\none\n\n### Chunk 2\ntwo": {1: "one", 2: "two"},
    '<chunk number="1" section="A">\none\n</chunk>\n<chunk number="2">\ntwo\n</chunk>': {
        1: "one",
        2: "two",
    },
    "| chunk | context |\n|---|---|\n| 1 | one |\n| 2 | two |": {1: "one", 2: "two"},
    '{"1": "one", "2": "two"}': {1: "one", 2: "two"},
    '```json\n[{"number": 1, "context": "one"}, {"number": 2, "context": "two"}]\n```': {
        1: "one",
        2: "two",
    },
    'Here it is: {"contexts": ["one", "two"]}': {1: "one", 2: "two"},
    'These are they\n["one", "two"]': {1: "one", 2: "two"},
    'These are ["one", "two"]': {},
    '["one", "two", "three"]': {},
    "[" * 100_000 + "]": {},
    "[THINK]1: no[/THINK]1: one\n2: two": {1: "one", 2: "two"},
    "<|channel|>analysis<|message|>1: no<|end|><|channel|>final<|message|>1: one\n2: two": {
        1: "one",
        2: "two",
    },
    "one\ntwo": {},
    "": {},
}


@pytest.mark.parametrize(("answer", "contexts"), NUMBERED.items())
def test_answers_are_matched_by_number(answer, contexts):
    assert split_answers(answer, 2) == contexts


@pytest.mark.parametrize(
    ("answer", "context"),
    [
        ("1: one", "one"),
        ("one", "one"),
        ("2: two", "2: two"),
        ("", None),
        ('["one"]', "one"),
        ('Ships of Bergen: ["one"]', "one"),
        ('Ships of Bergen ["one"]', 'Ships of Bergen ["one"]'),
    ],
)
def test_one_chunk_needs_no_number(answer, context):
    assert split_answers(answer, 1).get(1) == context


CHUNK = "The ferry Aurora left the harbour at seven in the morning with forty passengers on board."
DOCUMENT = "Harbour log of the town of Bergen, kept by the harbour master since 1902. " + CHUNK

NO_CONTEXTS = {
    "empty": ["", "...", "n/a", "None."],
    "refused": [
        "I'm sorry, but I cannot do that.",
        "As an AI language model, I do not know.",
        "Lo siento, no puedo hacerlo.",
    ],
    "copy": [
        CHUNK,
        CHUNK.upper(),
        "Aurora left the harbour at seven in the morning",
        DOCUMENT.partition(CHUNK)[0],
    ],
    "repetition": [
        "1:1:1:1:1:1:1:1:1:1:1",
        (
            "ferries and more ferries and more ferries and more ferries and more ferries and "
            "more ferries and more"
        ),
        (
            "the log of the town and the log of the harbour and the town and the harbour and "
            "the log of the town"
        ),
    ],
}


@pytest.mark.parametrize(
    ("reason", "text"), [(reason, text) for reason, texts in NO_CONTEXTS.items() for text in texts]
)
def test_an_unusable_answer_is_refused_with_the_reason(reason, text):
    assert refusal(clean(text), CHUNK, DOCUMENT) in (reason, "empty")
    if reason != "refused" and len(text) > 10:
        assert refusal(clean(text), CHUNK, DOCUMENT) == reason


def test_a_context_may_use_words_of_the_chunk():
    assert (
        refusal("Departure of the ferry Aurora, in the harbour log of Bergen.", CHUNK, DOCUMENT)
        == ""
    )


def words(count, *, different):
    """Return a text with a number of words, some of which are distinct."""
    return " ".join(f"{'abcdefghijkl'[number % different]}word" for number in range(count))


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        (words(11, different=4), ""),
        (words(12, different=4), "repetition"),
        (words(12, different=5), ""),
        (words(15, different=6), ""),  # two fifths
        (words(16, different=6), "repetition"),
    ],
)
def test_a_context_of_twelve_words_repeats_itself_when_few_of_them_differ(context, reason):
    assert refusal(context, CHUNK, DOCUMENT) == reason


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        ("Write a short context for this chunk.", "copy of the prompt"),
        ("Write a short context for this: the harbour log, kept in Bergen.", "copy of the prompt"),
        ("Bergen's log. Write a short context for this chunk.", ""),
        ("Write a short context for ferries.", ""),
    ],
)
def test_a_context_that_begins_with_words_of_the_prompt_is_refused(context, reason):
    prompt = "Please write a short context for this chunk."
    assert refusal(context, CHUNK, DOCUMENT, prompt) == reason


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        ("A ferry of 1902, in the harbour log.", ""),  # of the document
        ("The ferry of 7 passengers, in the log.", ""),  # of the chunk
        ("The ferry of 07 passengers, in the log.", ""),
        ("The ferry of 1,902 tons and 7.000 miles.", "invented"),
        ("The ferry of 1,902 tons, in the log.", ""),
        ("The ferry of 1903, in the harbour log.", "invented"),
        ("Chunk 3 is about the ferry, as items 4 and part 5 are.", ""),
        ("Ferry 3 left, as the harbour log says.", "invented"),
        ("Ferry 0 left, as the harbour log says.", "invented"),
    ],
)
def test_a_number_in_neither_chunk_nor_document_is_invented(context, reason):
    chunk = CHUNK.replace("seven", "7")
    assert refusal(context, chunk, DOCUMENT) == reason


def test_a_few_words_of_the_chunk_are_allowed_and_most_are_not():
    log = "In the log of ships"
    assert refusal(f"{log}: the ferry Aurora left the harbour.", CHUNK, DOCUMENT) == ""
    assert (
        refusal(
            f"{log} and men: the ferry Aurora left the harbour at seven in the morning.",
            CHUNK,
            DOCUMENT,
        )
        == ""
    )
    assert refusal(f"Log: {CHUNK}", CHUNK, DOCUMENT) == "copy"


def test_words_of_the_chunk_count_as_copied_only_when_whole():
    context = "Aurora left the harbour at seven"
    assert refusal(context, CHUNK, "") == "copy"
    assert refusal(context, CHUNK.replace("seven", "seventeen"), "") == ""


@pytest.mark.parametrize("words", [CHUNK.split()[:6], CHUNK.split()[-6:]], ids=["first", "last"])
def test_a_copy_of_the_first_or_last_words_is_refused(words):
    assert refusal(" ".join(words), CHUNK, "") == "copy"


def test_a_copy_of_the_chunk_is_refused_without_the_document():
    assert refusal(CHUNK, CHUNK, "") == "copy"


@pytest.mark.parametrize(("context", "reason"), [("Ferries", "empty"), ("Ferry log", "")])
def test_a_context_has_eight_letters_or_more(context, reason):
    assert refusal(context, CHUNK, DOCUMENT) == reason


def test_a_long_context_ends_with_a_whole_word_and_an_ellipsis():
    for word in ("harbour", "harbours"):
        context = clean(f"{word} " * 100)
        assert context.endswith(f" {word}…")
        assert MAX_CHARS - len(f" {word}…") < len(context) <= MAX_CHARS
    assert clean("x" * MAX_CHARS) == "x" * MAX_CHARS


def test_the_end_of_a_very_long_answer_is_not_read():
    blank = " " * MOST_READ
    assert clean(f"{blank}about ships") == ""
    assert storable_line(f"{blank}about ships") == ""
    thoughts = f"<think>{'hm ' * MOST_READ}</think>"
    dashes = "-" * MOST_READ
    answer = f"{thoughts}1: about ships\n{dashes}\n2: about ropes\n{dashes}\n3: about cabins"
    assert split_answers(answer, 2).keys() == {1, 2}
    assert split_answers(answer, 3).keys() == {1, 2, 3}


@given(st.text(max_size=2000))
def test_cleaning_gives_one_line_of_bounded_length_and_never_fails(text):
    once = clean(text)
    assert len(once) <= MAX_CHARS
    assert "\n" not in once
    refusal(once, text, text)


@given(
    st.lists(
        st.sampled_from(["about ships", "about ropes", "about cabins"]), min_size=2, max_size=12
    ),
    st.data(),
)
def test_numbers_and_not_order_match_answers_to_chunks(contexts, data):
    lines = [f"{number}: {context}" for number, context in enumerate(contexts, 1)]
    answer = "\n".join(data.draw(st.permutations(lines)))
    assert split_answers(answer, len(contexts)) == dict(enumerate(contexts, 1))


def test_cleaning_takes_linear_time():
    def seconds(lines):
        answer = "Chunk 1:" + "\n" * lines + "It is about tea."
        return min(timeit.repeat(lambda: clean(answer), number=1, repeat=3))

    assert seconds(16_000) < 9 * seconds(4_000) + 0.01
