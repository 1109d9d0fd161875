"""Damage one byte of an index, again and again: it answers right or says what mends it, and one refresh mends it.

For each file of a whole index in turn (two databases, the arrays of the cache and what names them) one byte at a random
place becomes another one. Then the index is asked, its status is read, it is verified, refreshed once, asked and
verified again. A finding is one of these: another answer than before, an error without a cure, anything that `verify`
finds after the refresh, a document that is lost. Texts are counted whose vectors are embedded again.

    python benchmarks/damage.py --rounds 1000        # of each file; seeds give the same places and bytes again
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
COLUMNS = ("answered right", "said what mends it", "findings", "texts embedded again")

if TYPE_CHECKING:
    from collections.abc import Callable


class Letters(MockEmbedding):
    """Vectors of a text's length and vowels."""

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [[float(len(text)), *(float(text.count(letter)) for letter in "aeiou"), 1.0] for text in texts]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]


def opened(folder: Path) -> ContextualIndex:
    """Open the index of a folder."""
    return ContextualIndex.open(folder, embed_model=Letters(7, model_name="letters"))


def answers(index: ContextualIndex) -> list[Any]:
    """Ask; return ids, texts and scores."""
    hits = index.as_retriever(3).retrieve("word7 word2")
    return [(hit.node.node_id, hit.node.text, round(hit.score or 0.0, 5)) for hit in hits]


def make(folder: Path) -> None:
    """Make a whole index."""
    for number in range(PAGES):
        text = "\n\n".join(f"## Part {part}\n\n" + f"word{number} word{part} " * 40 for part in range(PARTS))
        (folder / f"{number}.md").write_text(f"# Page {number}\n\n{text}\n")
    with opened(folder) as index:
        index.refresh()


def files_of(storage: Path) -> list[Path]:
    """Return the files of an index but for locks, and what keeps it out of version control."""
    ours = (".sqlite3", ".npy", ".json")
    return sorted(one for one in storage.rglob("*") if one.suffix in ours)


def attempt(work: Callable[[], Any]) -> Any:
    """Do something that may fail if the error names a cure; return None then."""
    try:
        return work()
    except StorageError as error:
        if "Cure: " not in str(error):
            raise AssertionError(f"no cure: {error}") from error
        return None


def round_of(folder: Path, file: Path, expected: list[Any], seed: str) -> tuple[str, int]:
    """Damage one byte, look, mend; return how it answered, and how many texts were embedded."""
    dice = random.Random(seed)  # noqa: S311  reproducible, not secret
    content = bytearray(file.read_bytes())
    at = dice.randrange(len(content))
    content[at] ^= dice.randrange(1, 256)
    file.write_bytes(content)
    said = False
    with opened(folder) as index:
        for work in (lambda: answers(index), lambda: index.status(check=True)):
            result = attempt(work)
            said = said or result is None
            assert not isinstance(result, list) or result == expected, "another answer"
        embedded = index.refresh().embedded
    with opened(folder) as index:
        verification = index.status(check=True)
        assert verification.ok, str(verification)
        assert verification.documents == PAGES, f"{verification.documents} documents"
        assert answers(index) == expected, "another answer after the refresh"
    return "said what mends it" if said else "answered right", embedded


def main() -> None:
    """Damage each file so many times, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000, help="of each file")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    rows, began = [], time.process_time()
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        whole.mkdir()
        make(whole)
        with opened(whole) as index:
            expected = answers(index)
        for file in files_of(whole / ".contextual"):
            name = str(file.relative_to(whole / ".contextual"))
            kind = re.sub(r"-[0-9a-f]{12}-", "-KEY-", name)
            outcomes = Counter[str]()
            for number in range(given.first, given.first + given.rounds):
                folder = Path(shutil.copytree(whole, Path(place) / "docs"))
                try:
                    outcome, embedded = round_of(folder, folder / ".contextual" / name, expected, f"{kind} {number}")
                    outcomes[outcome] += 1
                    outcomes["texts embedded again"] += embedded
                except Exception:  # noqa: BLE001  each is a finding
                    outcomes["findings"] += 1
                    print(f"{kind} {number}:\n{traceback.format_exc()}", flush=True)
                shutil.rmtree(folder)
            rows.append([kind, f"{file.stat().st_size:,}", given.rounds, *(outcomes[one] for one in COLUMNS)])
            print(rows[-1], flush=True)
    table = markdown_table(["file", "bytes", "rounds", *COLUMNS], rows)
    print(f"\n{machine()}; {time.process_time() - began:.0f} CPU s\n\n{table}")


if __name__ == "__main__":
    main()
