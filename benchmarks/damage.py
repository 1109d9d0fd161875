"""Damage one byte of an index, or cut its files as a loss of power does: it answers right or names what repairs it.

*Bytes*: for each file of a whole index in turn one byte at a random place becomes another one. *Cuts*: a refresh is
stopped while its database, log and index of the log (``-wal``, ``-shm``) are open, and one of the three is cut at a
random place. Then the index is asked, its status is read, it is checked, refreshed once, asked and checked again. A
finding is one of these: another answer than before, an error without a cure, anything that ``status --check`` finds
after the refresh, a document that is lost. Texts are counted whose vectors are embedded again.

    python benchmarks/damage.py --rounds 1000 --cuts 66       # seeds give the same places and bytes again
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import shutil
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import machine, markdown_table
from llama_index.core import MockEmbedding

from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.errors import StorageError

PAGES, PARTS = 30, 3
COLUMNS = ("answered right", "named what repairs it", "findings", "texts embedded again")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Letters(MockEmbedding):
    """Vectors of a text's length and vowels."""

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [[float(len(text)), *(float(text.count(letter)) for letter in "aeiou"), 1.0] for text in texts]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]


def opened(folder: Path) -> ContextualIndex:
    """The index of a folder."""
    return ContextualIndex.open(folder, embed_model=Letters(7, model_name="letters"))


def answers(index: ContextualIndex) -> list[Any]:
    """Ids, texts and scores of the hits of a question."""
    hits = index.as_retriever(3).retrieve("word7 word2")
    return [(hit.node.node_id, hit.node.text, round(hit.score or 0.0, 5)) for hit in hits]


def make(folder: Path, logs: Path) -> None:
    """Make a whole index, and a copy of it whose logs a process held open when the power went."""
    folder.mkdir()
    for number in range(PAGES):
        text = "\n\n".join(f"## Part {part}\n\n" + f"word{number} word{part} " * 40 for part in range(PARTS))
        (folder / f"{number}.md").write_text(f"# Page {number}\n\n{text}\n")
    with opened(folder) as index:
        index.refresh()
        (folder / "20.md").write_text("# Page 20\n\nAnother text.\n")
        index.refresh()
        shutil.copytree(folder, logs)  # not closed: its last commits are in the logs


def attempt(work: Callable[[], Any]) -> Any:
    """Result of something that may fail if the error names a cure; None then."""
    try:
        return work()
    except StorageError as error:
        if "Cure: " not in str(error):
            raise AssertionError(f"no cure: {error}") from error
        return None


def checked(folder: Path, expected: list[Any], *, is_cut: bool) -> Counter[str]:
    """Ask a damaged index, refresh it, check it; how it answered, and how many texts were embedded.

    Where a log was cut its last commits are lost, so a question is answered from an earlier moment.
    """
    with opened(folder) as index:
        results = [attempt(work) for work in (lambda: answers(index), lambda: index.status(check=True))]
        assert is_cut or results[0] in (None, expected), "another answer"
        embedded = index.refresh().embedded
    with opened(folder) as index:
        status = index.status(check=True)
        assert status.ok, str(status)
        assert status.documents == PAGES, f"{status.documents} documents"
        assert answers(index) == expected, "another answer after the refresh"
    return Counter({COLUMNS[int(None in results)]: 1, COLUMNS[3]: embedded})


def rows_of(
    name: str, whole: Path, expected: list[Any], rounds: int, harm: Callable[[Path, random.Random], None]
) -> Iterator[list[Any]]:
    """A row of the table: one file of an index, harmed so many times."""
    path, outcomes = whole / ".contextual" / name, Counter[str]()
    kind = re.sub(r"-[0-9a-f]{12}-", "-KEY-", name)
    for number in range(rounds):
        folder = Path(shutil.copytree(whole, whole.parent / "docs"))
        try:
            harm(folder / ".contextual" / name, random.Random(f"{kind} {number}"))  # noqa: S311  reproducible, not secret
            outcomes += checked(folder, expected, is_cut=harm is cut)
        except Exception:  # noqa: BLE001  each is a finding
            outcomes["findings"] += 1
            print(f"{kind} {number}:\n{traceback.format_exc()}", flush=True)
        shutil.rmtree(folder)
    yield [kind, f"{path.stat().st_size:,}", rounds, *(outcomes[one] for one in COLUMNS)]


def other_byte(file: Path, dice: random.Random) -> None:
    """Make one byte another one."""
    content = bytearray(file.read_bytes())
    content[dice.randrange(len(content))] ^= dice.randrange(1, 256)
    file.write_bytes(content)


def cut(file: Path, dice: random.Random) -> None:
    """Take the end of a file away."""
    file.write_bytes(file.read_bytes()[: dice.randrange(file.stat().st_size)])


def main() -> None:
    """Damage each file so many times, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000, help="of each file")
    parser.add_argument("--cuts", type=int, default=66, help="of database, log and index of the log, all together")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    rows, began = [], time.process_time()
    with tempfile.TemporaryDirectory() as place:
        whole, logs = Path(place) / "whole", Path(place) / "logs"
        make(whole, logs)
        with opened(whole) as index:
            expected = answers(index)
        files = (one for one in (whole / ".contextual").rglob("*") if one.suffix in (".sqlite3", ".npy", ".json"))
        for name in sorted(str(one.relative_to(whole / ".contextual")) for one in files):
            rows += rows_of(name, whole, expected, options.rounds, other_byte)
            print(rows[-1], flush=True)
        for name in [f"{kind}.sqlite3{part}" for kind in ("index", "paid") for part in ("", "-wal", "-shm")]:
            for row in rows_of(name, logs, expected, options.cuts // 6, cut):
                rows.append([f"cut: {row[0]}", *row[1:]])
                print(rows[-1], flush=True)
    table = markdown_table(["file", "bytes", "rounds", *COLUMNS], rows)
    print(f"\n{machine()}; {time.process_time() - began:.0f} CPU s\n\n{table}")


if __name__ == "__main__":
    main()
