"""What is current wins: the newest note of a fact is shown, and what notes said before is named as older."""

from datetime import date

import pytest
from llama_index.core.schema import Document

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    HeadingAwareMarkdownNodeParser,
    MemoryContext,
)
from llama_index_contextual.memory.gate import clean_message

NOW = date(2026, 4, 10)
OTHERS = {
    "2026-01-04": "- Rain all day. We stayed in and read.",
    "2026-01-19": "- Bought paint for the shed, blue this time.",
    "2026-02-01": "- JC came for dinner, late as ever, and told of Lima.",
    "2026-02-23": "- The boiler was mended by a man with one glove.",
    "2026-03-17": "- A long walk by the river, and soup.",
}


def memory_of(notes):
    """Memory over notes of some days."""
    notes = {
        f"memory/{day}.md": f"# {day}\n\n{text}\n" for day, text in {**OTHERS, **notes}.items()
    }
    documents = [
        Document(text=text, id_=path, metadata={"path": path}) for path, text in notes.items()
    ]
    nodes = ContextualNodePostprocessor()(
        HeadingAwareMarkdownNodeParser().get_nodes_from_documents(documents)
    )
    return MemoryContext(ContextualFusionRetriever([ContextualBM25Retriever(nodes)]))


@pytest.mark.parametrize(
    ("question", "older", "newer"),
    [
        ("what is the upload timeout?", "- upload timeout: 30", "- upload timeout: 60"),
        ("what is the upload timeout?", "upload timeout = 30", "- **upload timeout**: 60"),
        ("what is the upload timeout?", "| upload timeout | 30 |", "| upload timeout | 60 |"),
        ("what is the upload timeout?", "## Upload\n\n- timeout: 30", "## Upload\n\n- timeout: 60"),
        ("how much is the rent?", "- The rent is 1200 a month", "- **The rent** is now 1350"),
        (
            "where is Priya's desk?",
            "- The desk of Priya is in 4.12.",
            "- We met. The desk of Priya is in 5.01.",
        ),
        (
            "when is tea on Sundays?",
            "- Tea is at four on Sundays.",
            "- 14:05 Tea is at five on Sundays.",
        ),
        ("who owns the archive?", "- The archive owner is Ana.", "- The archive owner is now Ben."),
    ],
)
def test_the_newer_value_is_shown_and_the_older_one_named(question, older, newer):
    digest = memory_of({"2026-02-11": older, "2026-03-02": newer}).get(question, now=NOW)
    first, named = digest.entries[0], older.splitlines()[-1]
    assert (first.path, first.since) == ("memory/2026-03-02.md", "2026-03-02")
    [before] = first.older
    assert (before.snippet, before.since, before.until) == (named, "2026-02-11", "2026-03-02")
    assert before.citation.startswith("memory/2026-02-11.md#L")
    assert "memory/2026-02-11.md" not in [one.path for one in digest.entries]
    assert first.block.splitlines()[-2:] == [
        "  - current since 2026-03-02",
        f"  - [{before.citation}] older, until 2026-03-02: {named}",
    ]
    assert clean_message(f"{digest.markdown}\nAnd now?") == "And now?"


def test_a_value_that_changed_several_times_has_a_history():
    values = {
        "2026-01-07": 30,
        "2026-02-11": 45,
        "2026-02-12": 45,
        "2026-03-02": 30,
        "2026-03-20": 60,
    }
    memory = memory_of({day: f"- upload timeout: {value}" for day, value in values.items()})
    first = memory.get("what is the upload timeout?", now=NOW).entries[0]
    assert first.since == "2026-03-20"
    assert [(one.since, one.until, one.snippet[-2:]) for one in first.older] == [
        ("2026-03-02", "2026-03-20", "30"),
        ("2026-02-11", "2026-03-02", "45"),
        ("2026-01-07", "2026-02-11", "30"),
    ]


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("- upload timeout: 30", "- upload timeout: 30"),  # nothing changed
        ("## Upload\n\n- timeout: 30", "## Download\n\n- timeout: 60"),  # of something else
        (
            "- **Ana**: upload timeout trouble again",
            "- **Ana**: no more upload timeout",
        ),  # who speaks is no fact
        ("- Is the upload timeout 30?", "- Is the upload timeout 60?"),
        (
            "- **Upload timeout**: hey!",
            "- **Upload timeout**: so glad!",
        ),  # nothing is said of a value
        (
            "- upload timeout: ok\n- upload timeout: bye",
            "- upload timeout: sure, see you",
        ),  # a speaker
        ("- timeout of the upload: 30", "## Retries\n\n- timeout of the upload: 60"),
        (
            "We hit the upload timeout after 30 rows.",
            "We hit the upload timeout after 60 rows.",
        ),  # what happened
        ("The upload timeout is our enemy.", "The upload timeout and the retry is a pain."),
    ],
)
def test_what_is_no_change_is_not_called_older(older, newer):
    digest = memory_of({"2026-02-11": older, "2026-03-02": newer}).get(
        "what is the upload timeout?", now=NOW
    )
    assert digest.entries
    assert not any(one.older for one in digest.entries)


def test_a_fact_under_the_heading_alone_is_not_what_is_asked():
    values = {"2026-02-11": 30, "2026-03-02": 60}
    memory = memory_of({day: f"## Gateway\n\n- timeout: {value}" for day, value in values.items()})
    assert not any(one.older for one in memory.get("who is at the gateway?", now=NOW).entries)
    assert (
        memory.get("what is the timeout of the gateway?", now=NOW).entries[0].since == "2026-03-02"
    )


def test_what_a_day_changes_twice_is_not_called_older():
    digest = memory_of(
        {"2026-02-11": "## Upload\n\n- timeout: 30\n\n## Upload\n\n- timeout: 60"}
    ).get("what is the upload timeout?", now=NOW)
    assert digest.entries
    assert not any(one.older for one in digest.entries)


def test_where_a_day_is_named_the_note_of_that_day_counts():
    memory = memory_of({"2026-02-11": "- upload timeout: 30", "2026-03-02": "- upload timeout: 60"})
    first = memory.get("what was the upload timeout on 11 February 2026?", now=NOW).entries[0]
    assert (first.path, first.since) == ("memory/2026-02-11.md", None)


def test_an_older_note_that_says_more_of_the_matter_stays_below():
    older = "- upload timeout: 30\n- upload timeout owner: Ana"
    memory = memory_of({"2026-02-11": older, "2026-03-02": "- upload timeout: 60"})
    paths = [one.path for one in memory.get("what about the upload timeout?", now=NOW).entries]
    assert paths == ["memory/2026-03-02.md", "memory/2026-02-11.md"]


def test_what_was_shown_before_is_not_shown_again_as_current():
    memory = memory_of({"2026-02-11": "- upload timeout: 30", "2026-03-02": "- upload timeout: 60"})
    question = "what is the upload timeout?"
    shown = {one.id for one in memory.get(question, now=NOW).entries}
    assert not shown & {one.id for one in memory.get(question, now=NOW, seen=shown).entries}
