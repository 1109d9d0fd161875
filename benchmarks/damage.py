"""Damage one byte of an index, or cut its files as a loss of power does.

It answers right or names what repairs it.

*Bytes*: for each file of a whole index in turn one byte at a random place becomes another one.
*Cuts*: a refresh is stopped while its database, log and index of the log (``-wal``, ``-shm``) are
open, and one of the three is cut at a random place. Then the index is asked with and without
filters, its status is read and checked, it is refreshed once, asked and checked again; after damage
to a file of the cache, which a refresh writes anew, every fifth time. A finding is one of these:
another answer than before without an error that names a remedy or a line in the log, after a cut a
document of which a part is there, anything that ``status --check`` finds after the refresh, another
answer then. Texts are counted whose vectors are embedded again.

    python benchmarks/damage.py --rounds 1000 --cuts 66       # seeds give the same places and bytes
    again
"""

from __future__ import annotations

import logging
import os
import random
import re
import shutil
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from logging.handlers import BufferingHandler
from multiprocessing import get_context
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

from common import command_line, fast_folder, machine, markdown_table
from llama_index.core import MockEmbedding

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.retrievers.query import note_filters
from llama_index_contextual.utils.errors import StorageError

PAGES, PARTS, EDITED = 12, 3, "7.md"
FILTERS: list[dict[str, str]] = [{}, {"tag": "odd"}, {"since": "2026-03-05"}, {"path": "1"}]
COLUMNS = ("answered right", "named or logged what repairs it", "findings", "texts embedded again")
STORAGE = ".index"
SELDOM = 5  # how often an index with a damaged cache is refreshed
AT_ONCE = 50  # trials that a process does in one go

if TYPE_CHECKING:
    from collections.abc import Callable

    Documents = dict[str, frozenset[str]]  # ids of chunks by document


class Letters(MockEmbedding):
    """Vectors of a text's length and letters, long enough to fill pages of the database."""

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [
            [len(text), *(float(text.count(letter)) for letter in ascii_lowercase), *[1.0] * 38]
            for text in texts
        ]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]


def opened(folder: Path) -> ContextualIndex:
    """Open the index of a folder; it and the content cache are inside, so that a copy has them."""
    storage = folder / STORAGE
    os.environ["LLAMA_INDEX_CONTEXTUAL_STORAGE"] = str(storage)
    return ContextualIndex.open(
        folder, storage=storage, embed_model=Letters(65, model_name="letters")
    )


def answers(index: ContextualIndex) -> list[Any]:
    """Return ids, texts and scores of the hits of a question, with each of the filters."""
    hit_lists = []
    for conditions in FILTERS:
        hits = index.as_retriever(
            3, filters=note_filters(**conditions) if conditions else None
        ).retrieve("word7 word2")
        hit_lists.append(
            [(hit.node.node_id, hit.node.text, round(hit.score or 0.0, 5)) for hit in hits]
        )
    return hit_lists


def documents_of(index: ContextualIndex) -> Documents:
    """Return the ids of the chunks of each document."""
    chunk_ids = defaultdict[str, set[str]](set)
    for node in index.nodes():
        chunk_ids[node.ref_doc_id or ""].add(node.node_id)
    return {key: frozenset(ids) for key, ids in chunk_ids.items()}


def page(number: int, word: str) -> str:
    """Return a dated page with a tag."""
    head = (
        f"---\ntags: [{'odd' if number % 2 else 'even'}]\ndate: 2026-03-{number + 1:02}\n---\n"
        f"# Page {number}\n\n"
    )
    return head + "\n\n".join(
        f"## Part {part}\n\n" + f"{word}{number} word{part} " * 40 for part in range(PARTS)
    )


def make(folder: Path, logs: Path) -> tuple[list[Any], list[Documents]]:
    """Make an index, and a copy whose logs were open when the power went.

    Answers, and documents before and after.
    """
    folder.mkdir()
    for number in range(PAGES):
        (folder / f"{number}.md").write_text(page(number, "word"))
    with opened(folder) as index:
        index.refresh()
        moments = [documents_of(index)]
        (folder / EDITED).write_text(page(7, "other"))
        index.refresh()
        shutil.copytree(folder, logs)  # not closed: its last commits are in the logs
        moments.append(documents_of(index))
    with opened(folder) as index:
        return answers(index), moments


def attempt(work: Callable[[], Any]) -> Any:
    """Return the result of a call, or None if it fails with an error that names a remedy."""
    try:
        return work()
    except StorageError as error:
        if "Run: " not in str(error):
            raise AssertionError(f"nothing to do is named: {error}") from error
        return None


def checked(
    folder: Path,
    expected: list[Any],
    moments: list[Documents],
    lines: BufferingHandler,
    *,
    refreshes: bool,
) -> Counter[str]:
    """Ask a damaged index, refresh it and check it.

    Return how it answered, and how many texts were embedded. Where a log was cut, its last commits
    are lost, so a question is answered from an earlier moment.
    """
    lines.flush()
    with opened(folder) as index:
        actual = attempt(lambda: answers(index))
        is_right = actual == expected
        if moments:
            is_right = actual is not None
            documents = attempt(lambda: documents_of(index)) or {}
            halves = [
                key
                for key, ids in documents.items()
                if ids not in [moment.get(key) for moment in moments]
            ]
            assert not halves, f"a part of {halves}"
        assert is_right or actual is None or lines.buffer, "another answer"
        if not refreshes:
            return Counter({COLUMNS[int(not is_right)]: 1})
        is_named = attempt(lambda: index.status(check=True)) is None or not is_right
        embedded = index.refresh().embedded
    with opened(folder) as index:
        status = index.status(check=True)
        assert status.ok, str(status)
        assert status.documents == PAGES, f"{status.documents} documents"
        assert answers(index) == expected, "another answer after the refresh"
    return Counter({COLUMNS[int(is_named)]: 1, COLUMNS[3]: embedded})


def trials(
    whole: Path, kind: str, expected: list[Any], moments: list[Documents], numbers: range
) -> Counter[str]:
    """Damage the files of a kind in turn; with moments they are cut."""
    outcomes, lines = Counter[str](), BufferingHandler(10**6)  # what the package logs
    logger = logging.getLogger("llama_index_contextual")
    logger.addHandler(lines)
    logger.propagate = False
    for number in numbers:
        with tempfile.TemporaryDirectory(dir=whole.parent) as place:
            folder = Path(shutil.copytree(whole, Path(place) / "docs"))
            files, dice = files_of(folder)[kind], random.Random(f"{kind} {number}")  # noqa: S311  not secret
            file = files[number % len(files)]
            content = bytearray(file.read_bytes())
            offset = dice.randrange(len(content))
            if moments:
                content = content[:offset]
            else:
                content[offset] ^= dice.randrange(1, 256)
            file.write_bytes(content)
            refreshes = not kind.startswith("cache") or number % SELDOM == 0
            try:
                outcomes += checked(folder, expected, moments, lines, refreshes=refreshes)
            except Exception:  # noqa: BLE001  each is a finding
                outcomes["findings"] += 1
                print(f"{kind} {number}, byte {offset}:\n{traceback.format_exc()}", flush=True)
    logger.removeHandler(lines)
    return outcomes


def files_of(folder: Path) -> dict[str, list[Path]]:
    """Return the files of an index by their names without the keys of parts."""
    storage, files = folder / STORAGE, defaultdict[str, list[Path]](list)
    for file in sorted(storage.rglob("*.*")):
        if file.suffix.startswith((".sqlite3", ".arrays")):
            files[re.sub(r"-[0-9a-f]{12}-", "-KEY-", str(file.relative_to(storage)))].append(file)
    return files


def main() -> None:
    """Damage each file a number of times, and print a table."""
    options = command_line(__doc__, rounds=1000, cuts=66)
    rows, began = [], time.monotonic()
    with fast_folder() as place:
        whole, logs = Path(place) / "whole", Path(place) / "logs"
        expected, moments = make(Path(place) / "made", logs)
        (Path(place) / "made").rename(whole)  # a copy of an index is of a folder that is gone
        cuts = {kind: options.cuts // 6 for kind in files_of(logs) if ".sqlite3" in kind}
        bytes_ = dict.fromkeys(files_of(whole), options.rounds)
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
            running = []
            for folder, rounds_of, states in ((whole, bytes_, []), (logs, cuts, moments)):
                for kind, rounds in rounds_of.items():
                    if rounds:
                        parts = [
                            range(start, min(start + AT_ONCE, rounds))
                            for start in range(0, rounds, AT_ONCE)
                        ]
                        jobs = [
                            pool.submit(trials, folder, kind, expected, states, part)
                            for part in parts
                        ]
                        sizes = " and ".join(
                            f"{file.stat().st_size:,}" for file in files_of(folder)[kind]
                        )
                        running.append((f"{'cut: ' * bool(states)}{kind}", sizes, rounds, jobs))
            for name, sizes, rounds, jobs in running:
                outcomes = sum((job.result() for job in jobs), Counter[str]())
                rows.append([name, sizes, rounds, *(outcomes[column] for column in COLUMNS)])
                print(rows[-1], flush=True)
    table = markdown_table(["file", "bytes", "rounds", *COLUMNS], rows)
    print(f"\n{machine()}; {(time.monotonic() - began) / 60:.1f} min\n\n{table}")


if __name__ == "__main__":
    main()
