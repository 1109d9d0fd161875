"""The sentences of a message are asked together and get the same hits as alone.

Each text is embedded once.
"""

from __future__ import annotations

from datetime import date

import numpy as np
import pytest
from hashed_words import HashedWords
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import QueryBundle

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.index.database import Snapshot
from llama_index_contextual.memory.context import MemoryContext

MESSAGE = (
    "I came back from the lake with Ana. The red boat needs new paint. Marta lent me her old "
    "brushes for it."
)
DATED = (
    "On 2026-03-04 we were at the lake. The red boat needs new paint. Marta lent me her old "
    "brushes for it."
)
NOW = date(2026, 4, 10)


class Counting(HashedWords):
    """An embedding that remembers the texts it embedded."""

    _texts: list[str] = PrivateAttr(default_factory=list)

    def _get_query_embedding(self, query):
        self._texts.append(query)
        return super()._get_query_embedding(query)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """200 dated notes of a few words each."""
    folder, rng = tmp_path_factory.mktemp("notes"), np.random.default_rng(3)
    words = [
        "lake",
        "boat",
        "red",
        "paint",
        "brushes",
        "Marta",
        "kitchen",
        "tiles",
        "budget",
        "tea",
        "sleep",
        "rain",
    ]
    for number in range(200):
        day = date.fromordinal(date(2026, 1, 1).toordinal() + number // 2)
        said = " ".join(rng.choice(words, 9).tolist())
        (folder / f"{day.isoformat()}-{number % 2}.md").write_text(
            f"# {words[number % 12]}\n\n{said}.\n", "utf-8"
        )
    with ContextualIndex.open(folder, embed_model=Counting()) as index:
        index.refresh()
        yield index


def retrievers_of(index):
    return index._reader.retrievers(None)


def test_sentences_get_the_same_hits_together_as_alone(index):
    queries = [QueryBundle(MESSAGE), *map(QueryBundle, MESSAGE.split(". ")), QueryBundle(" ")]
    together = retrievers_of(index)[0].candidates(queries, 20)
    alone = [
        retrievers_of(index)[0].candidates([query], 20)[0] for query in queries
    ]  # another retriever, which remembers nothing
    assert together == alone
    assert [len(candidates) for candidates in together] == [20, 20, 20, 20, 0]


async def test_a_message_is_embedded_once_and_each_of_its_sentences_too(index):
    texts = index.settings.embedding._texts
    for message in (MESSAGE, DATED):
        texts.clear()
        digest = MemoryContext(index).get(message, now=NOW)
        assert digest.form == "message"
        assert digest.dates == (("2026-03-04",) if message is DATED else ())
        assert sorted(texts) == sorted(digest.queries)
        texts.clear()
        assert await MemoryContext(index).aget(message, now=NOW) == digest
        assert sorted(texts) == sorted(digest.queries)


def test_an_earlier_message_does_not_change_the_digest_of_a_dated_message(index):
    fresh = MemoryContext(index).get(DATED, now=NOW)
    memory = MemoryContext(index)
    memory.get(MESSAGE, now=NOW)
    assert memory.get(DATED, now=NOW) == memory.get(DATED, now=NOW) == fresh
    assert fresh.entries


def test_a_message_reads_no_column_of_the_database(index, monkeypatch):
    monkeypatch.setattr(Snapshot, "column", None)
    memory = MemoryContext(index)
    first = memory.get(MESSAGE, now=NOW)
    assert memory.get(MESSAGE, now=NOW) == first
    new = index.folder / "2026-04-09-9.md"
    new.write_text("# Boat\n\nMarta has painted the red boat at the lake.\n", encoding="utf-8")
    try:
        index.refresh()
        assert memory.get(MESSAGE, now=NOW).entries[0].path == new.name
    finally:
        new.unlink()
        index.refresh()
    assert memory.get(MESSAGE, now=NOW) == first
