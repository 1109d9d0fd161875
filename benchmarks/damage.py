"""Damage one byte of an index, or cut its files as a loss of power does, and see if it is noticed.

    python benchmarks/damage.py --rounds 1000 --cuts 66

- Bytes: one random byte is changed, in each file of an intact index in turn.
- Cuts: the files of an index are copied while its database, its log and the index of the log
  (``-wal``, ``-shm``) are open, and one of the three is cut at a random place.

Then the index answers questions with and without filters, its status is checked, it is refreshed
once, and it answers and is checked again. After damage to a file of the cache, which a refresh
writes again, this is done every fifth time. These are findings:

- a different answer without an error that names a remedy or a line in the log
- after a cut, a document of which only a part is left
- anything that ``status --check`` finds after the refresh
- a different answer after the refresh

The table also counts the texts that are embedded again. A seed for each trial makes trials
repeatable.
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
from typing import TYPE_CHECKING, Any, NamedTuple

from common import command_line, fast_folder, machine, markdown_table
from llama_index.core import MockEmbedding

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.retrievers.query import note_filters
from llama_index_contextual.utils.errors import StorageError

PAGES = 12
PARTS = 3  # of a page
EDITED = 7  # the number of the page that changes
FILTERS: list[dict[str, str]] = [{}, {"tag": "odd"}, {"since": "2026-03-05"}, {"path": "1"}]
RIGHT = "answered right"
EXPLAINED = "named or logged what repairs it"
FINDINGS = "findings"
EMBEDDED = "texts embedded again"
COLUMNS = (RIGHT, EXPLAINED, FINDINGS, EMBEDDED)
STORAGE = ".index"
TRIALS_PER_REFRESH = 5  # of an index with a damaged cache
TRIALS_PER_JOB = 50

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    Documents = dict[str, frozenset[str]]  # ids of chunks by document


class LetterEmbedding(MockEmbedding):
    """An embedding by length and letters. Its vectors are long enough to fill database pages."""

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors = []
        for text in texts:
            letters = [float(text.count(letter)) for letter in ascii_lowercase]
            vectors.append([float(len(text)), *letters, *[1.0] * 38])
        return vectors

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]


def opened(folder: Path) -> ContextualIndex:
    """Open the index of a folder. It is inside the folder with the content cache, to be copied."""
    storage = folder / STORAGE
    os.environ["LLAMA_INDEX_CONTEXTUAL_STORAGE"] = str(storage)
    return ContextualIndex.open(
        folder, storage=storage, embed_model=LetterEmbedding(65, model_name="letters")
    )


def answers(index: ContextualIndex) -> list[Any]:
    """Return ids, texts and scores of the hits of a question, with each of the filters."""
    answers = []
    for conditions in FILTERS:
        filters = note_filters(**conditions) if conditions else None
        hits = index.as_retriever(3, filters=filters).retrieve("word7 word2")
        answers.append(
            [(hit.node.node_id, hit.node.text, round(hit.score or 0.0, 5)) for hit in hits]
        )
    return answers


def documents_of(index: ContextualIndex) -> Documents:
    """Return the ids of the chunks of each document."""
    chunk_ids = defaultdict[str, set[str]](set)
    for node in index.nodes():
        chunk_ids[node.ref_doc_id or ""].add(node.node_id)
    return {key: frozenset(ids) for key, ids in chunk_ids.items()}


def page(number: int, word: str) -> str:
    """Return a dated page with a tag."""
    tag = "odd" if number % 2 else "even"
    front_matter = f"---\ntags: [{tag}]\ndate: 2026-03-{number + 1:02}\n---\n"
    parts = []
    for part in range(PARTS):
        text = f"{word}{number} word{part} " * 40
        parts.append(f"## Part {part}\n\n{text}")
    return f"{front_matter}# Page {number}\n\n" + "\n\n".join(parts)


class Original(NamedTuple):
    """An index before the damage.

    Attributes:
        answers: What it answers.
        moments: Its documents before and after an edit.
    """

    answers: list[Any]
    moments: list[Documents]


def make(folder: Path, cut_folder: Path) -> Original:
    """Make an index in a folder, and a copy whose logs were open at the loss of power."""
    folder.mkdir()
    for number in range(PAGES):
        (folder / f"{number}.md").write_text(page(number, "word"))
    with opened(folder) as index:
        index.refresh()
        moments = [documents_of(index)]
        (folder / f"{EDITED}.md").write_text(page(EDITED, "other"))
        index.refresh()
        shutil.copytree(folder, cut_folder)  # not closed: its last commits are in the logs
        moments.append(documents_of(index))
    with opened(folder) as index:
        return Original(answers(index), moments)


def attempt(work: Callable[[], Any]) -> Any:
    """Return the result of a call, or None if it fails with an error that names a remedy."""
    try:
        return work()
    except StorageError as error:
        if "Run: " not in str(error):
            raise AssertionError(f"an error names no remedy: {error}") from error
        return None


def checked(
    folder: Path, original: Original, log: BufferingHandler, *, was_cut: bool, refreshes: bool
) -> Counter[str]:
    """Use a damaged index, refresh it and check it.

    Args:
        folder: The folder with the damaged index.
        original: The index before the damage.
        log: What the package logs.
        was_cut: Whether a log was cut. Its last commits are then lost, so that answers come from
            an earlier moment.
        refreshes: Whether to refresh the index.

    Returns:
        How it answered, and the number of texts that were embedded.
    """
    log.flush()
    with opened(folder) as index:
        actual = attempt(lambda: answers(index))
        is_right = actual == original.answers
        if was_cut:
            is_right = actual is not None
            documents = attempt(lambda: documents_of(index)) or {}
            for key, ids in documents.items():
                is_whole = ids in [moment.get(key) for moment in original.moments]
                assert is_whole, f"only a part of {key}"
        assert is_right or actual is None or log.buffer, "another answer"
        if not refreshes:
            return Counter({RIGHT if is_right else EXPLAINED: 1})
        is_explained = attempt(lambda: index.status(check=True)) is None or not is_right
        embedded = index.refresh().embedded
    with opened(folder) as index:
        status = index.status(check=True)
        assert status.ok, str(status)
        assert status.documents == PAGES, f"{status.documents} documents"
        assert answers(index) == original.answers, "another answer after the refresh"
    return Counter({EXPLAINED if is_explained else RIGHT: 1, EMBEDDED: embedded})


def trials(
    whole: Path, kind: str, original: Original, numbers: range, *, cuts: bool
) -> Counter[str]:
    """Damage the files of a kind in turn, and count the outcomes.

    Args:
        whole: The folder with the index, of which each trial damages a copy.
        kind: The kind of file. See :func:`files_of`.
        original: The index before the damage.
        numbers: The numbers of the trials.
        cuts: Whether files are cut. Otherwise a byte is changed.
    """
    outcomes = Counter[str]()
    log = BufferingHandler(10**6)
    logger = logging.getLogger("llama_index_contextual")
    logger.addHandler(log)
    logger.propagate = False
    for number in numbers:
        with tempfile.TemporaryDirectory(dir=whole.parent) as place:
            folder = Path(shutil.copytree(whole, Path(place) / "docs"))
            files = files_of(folder)[kind]
            file = files[number % len(files)]
            dice = random.Random(f"{kind} {number}")  # noqa: S311  not secret
            offset = damage(file, dice, cuts=cuts)
            refreshes = not kind.startswith("cache") or number % TRIALS_PER_REFRESH == 0
            try:
                outcomes += checked(folder, original, log, was_cut=cuts, refreshes=refreshes)
            except Exception:  # noqa: BLE001  each is a finding
                outcomes[FINDINGS] += 1
                print(f"{kind} {number}, byte {offset}:\n{traceback.format_exc()}", flush=True)
    logger.removeHandler(log)
    return outcomes


def damage(file: Path, dice: random.Random, *, cuts: bool) -> int:
    """Cut a file or change a byte of it, and return the place."""
    content = bytearray(file.read_bytes())
    offset = dice.randrange(len(content))
    if cuts:
        content = content[:offset]
    else:
        content[offset] ^= dice.randrange(1, 256)
    file.write_bytes(content)
    return offset


def files_of(folder: Path) -> dict[str, list[Path]]:
    """Return the files of an index by kind, which is their name without the hashes of parts."""
    storage = folder / STORAGE
    files = defaultdict[str, list[Path]](list)
    for file in sorted(storage.rglob("*.*")):
        if file.suffix.startswith((".sqlite3", ".arrays")):
            kind = re.sub(r"-[0-9a-f]{12}-", "-KEY-", str(file.relative_to(storage)))
            files[kind].append(file)
    return files


class Batch(NamedTuple):
    """The trials with a kind of file.

    Attributes:
        name: The first cell of its row.
        sizes: The sizes of the files in bytes.
        rounds: The number of trials.
        jobs: The trials, in several processes.
    """

    name: str
    sizes: str
    rounds: int
    jobs: list[Future[Counter[str]]]


def start(
    pool: ProcessPoolExecutor, folder: Path, original: Original, rounds: int, *, cuts: bool
) -> Iterator[Batch]:
    """Start the trials with each kind of file, and yield them."""
    for kind, files in files_of(folder).items():
        if not rounds or (cuts and ".sqlite3" not in kind):
            continue
        jobs = []
        for first in range(0, rounds, TRIALS_PER_JOB):
            numbers = range(first, min(first + TRIALS_PER_JOB, rounds))
            jobs.append(pool.submit(trials, folder, kind, original, numbers, cuts=cuts))
        sizes = " and ".join(f"{file.stat().st_size:,}" for file in files)
        yield Batch(f"cut: {kind}" if cuts else kind, sizes, rounds, jobs)


def main() -> None:
    """Damage each file a number of times, and print a table."""
    options = command_line(__doc__, rounds=1000, cuts=66)
    began = time.monotonic()
    rows: list[list[object]] = []
    with fast_folder() as place:
        root = Path(place)
        whole = root / "whole"
        with_logs = root / "logs"
        original = make(root / "made", with_logs)
        (root / "made").rename(whole)  # the folder of a copied index may be gone
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
            batches = [
                *start(pool, whole, original, options.rounds, cuts=False),
                *start(pool, with_logs, original, options.cuts // 6, cuts=True),
            ]
            for batch in batches:
                outcomes = Counter[str]()
                for job in batch.jobs:
                    outcomes += job.result()
                counts = [outcomes[column] for column in COLUMNS]
                rows.append([batch.name, batch.sizes, batch.rounds, *counts])
                print(rows[-1], flush=True)
    table = markdown_table(["file", "bytes", "rounds", *COLUMNS], rows)
    print(f"\n{machine()}; {(time.monotonic() - began) / 60:.1f} min\n\n{table}")


if __name__ == "__main__":
    main()
