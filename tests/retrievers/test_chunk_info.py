"""What the ranking reads of a chunk: computed once, stored as JSON."""

from __future__ import annotations

import json
import time
from datetime import date

import pytest

from llama_index_contextual.retrievers.chunk_info import ChunkInfo, describe_chunk

NOTE = {
    "path": "notes/2026-04-09.md",
    "header_path": "Plans > Retries of the worker",
    "context": "Document: notes/2026-04-09.md > Plans",
    "start_line": 3,
    "end_line": 5,
}


def test_a_note():
    info = describe_chunk(NOTE, "# Plans\n\nThree retries.")
    assert info.citation == "notes/2026-04-09.md#L3-L5"
    assert info.day == date(2026, 4, 9)
    assert info.names == {"plans": 0.76, "retries of the worker": 0.5}
    assert info.heading_terms == {"retri", "worker"}
    assert info.context_terms["plan"] == 1
    assert not info.is_code


def test_a_source_file():
    info = describe_chunk({"path": "src/retry_queue.py"}, "class RetryQueue:\n    # Comment\n")
    [defined] = info.definitions
    assert defined == ("RetryQueue", "retryqueue", {"retri", "queue"})
    assert info.file_terms == {"retri", "queue"}
    assert info.names == {}


def test_an_implementation_for_a_type_defines_only_the_type():
    definitions = describe_chunk({"path": "a.rs"}, "impl Display for Plan {\nstruct Plan;")
    assert [name for name, _, _ in definitions.definitions] == ["Plan"]


@pytest.mark.parametrize("metadata", [NOTE, {"path": "src/retry_queue.py"}, {}])
def test_json_keeps_everything(metadata):
    info = describe_chunk(metadata, "# Title\n\ndef run():\n    pass")
    assert ChunkInfo.from_json(json.loads(json.dumps(info.to_json()))) == info


def test_texts_with_the_same_words_have_the_same_hash():
    first, second, third = (
        describe_chunk({}, text).text_hash for text in ("One two", "ONE\n two ", "two one")
    )
    assert first == second != third


def test_headings_in_a_text_are_names():
    text = "#seed\n###### upstream: [[Paths|Path]]\n\n### Why so?\n\n```\n# no\n```\n\nUnderlined\n---\nText."
    assert describe_chunk({"path": "a.md"}, text).names.keys() == {
        "upstream path",
        "why so",
        "underlined",
    }


@pytest.mark.parametrize("text", ["#" * 100_000, "-" * 100_000, " #\n" * 30_000, "=\n" * 30_000])
def test_odd_texts_take_no_time(text):
    started = time.thread_time()
    describe_chunk({"path": "a.md"}, text)
    assert time.thread_time() - started < 1
