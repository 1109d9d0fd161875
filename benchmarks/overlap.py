"""What it gives to prepare documents while those before them are embedded and written.

    python benchmarks/overlap.py [--pages 60] [--rounds 2] [--only service]

The same pages are indexed with and without the overlap; "without" waits for each batch before the next one is prepared.
A language model and an embedding service are stand-ins that sleep: 0.25 s a document (four calls at a time, each of a
second), and 0.5 s for 64 texts. The rounds alternate, so that what else the machine does falls on both. The two
must store the same: ids, texts, contexts and the hashes of what is embedded.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from common import machine, markdown_table
from scale import OfWords, pages

from llama_index_contextual.app import ContextualIndex, LocalEmbedding
from llama_index_contextual.app.index import refresh
from llama_index_contextual.app.index.pipeline import default_parser
from llama_index_contextual.context import ChunkContext, ContextGenerator


class SlowModel(ContextGenerator):
    """A language model that takes its time."""

    name, version, free = "slow", "1", True

    def generate(self, nodes: Any, document: Any) -> list[ChunkContext | None]:
        """Sleep, then name the document."""
        time.sleep(0.25)
        return [ChunkContext(f"From {document.path}.", self.name, version=self.version) for _ in nodes]


class SlowService(OfWords):
    """An embedding service that takes its time."""

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        time.sleep(0.5 * len(texts) / 64)
        return [self._get_text_embedding(text) for text in texts]


KINDS: dict[str, tuple[type[Any], type[ContextGenerator] | None]] = {
    "local embedding, headings": (LocalEmbedding, None),
    "local embedding, contexts of a slow model": (LocalEmbedding, SlowModel),
    "embedding service, headings": (SlowService, None),
    "embedding service, contexts of a slow model": (SlowService, SlowModel),
}
TOGETHER = refresh.in_thread


def one_after_the_other(action: Any, *arguments: Any) -> Future[Any]:
    """Do now what is otherwise done beside."""
    done: Future[Any] = Future()
    done.set_result(action(*arguments))
    return done


def index_pages(count: int, embedding: Any, context: Any = "headings", workers: Any = None) -> tuple[float, int, str]:
    """Index so many pages; return seconds, chunks, and a hash of all that is stored."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in pages(count):
            (Path(folder) / path).write_text(text, "utf-8")
        options: dict[str, Any] = {"context": context, "node_parser": default_parser(LocalEmbedding())}
        with ContextualIndex.open(folder, embed_model=embedding, **options) as index:
            began = time.perf_counter()
            chunks = index.refresh(workers=workers).chunks
            took = time.perf_counter() - began
            stored = index._storage.reader.ask(lambda view: list(view.snapshot.nodes()))  # noqa: SLF001
            rows = sorted((one.node_id, one.text, sorted(one.metadata.items()), one.embed_hash) for one in stored)
    return took, chunks, hashlib.sha256(repr(rows).encode()).hexdigest()


def index_once(kind: str, count: int, *, together: bool) -> tuple[float, int, str]:
    """Index the pages with the embedding and the contexts of a kind, at the same time or one after the other."""
    embedding, generator = KINDS[kind]
    model = embedding() if embedding is LocalEmbedding else embedding(model_name="slow", embed_batch_size=64)
    refresh.in_thread = TOGETHER if together else one_after_the_other
    return index_pages(count, model, "headings" if generator is None else generator())


def main() -> None:
    """Measure each kind and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", help="kinds whose name holds this")
    given = parser.parse_args()
    rows = []
    for kind in (name for name in KINDS if given.only in name):
        seconds: dict[bool, list[float]] = {True: [], False: []}
        hashes, chunks = set(), 0
        for turn in range(given.rounds):
            for together in (True, False) if turn % 2 else (False, True):
                took, chunks, found = index_once(kind, given.pages, together=together)
                seconds[together].append(took)
                hashes.add(found)
        assert len(hashes) == 1, "the two differ in what they store"
        before, after = (float(np.min(seconds[together])) for together in (False, True))
        rows.append([kind, chunks, before, after, f"{before / after:.2f} x"])
        print(rows[-1], flush=True)
    header = ["", "chunks", "one after the other, s", "at the same time, s", "faster"]
    print(f"\n{machine()}\n\n{markdown_table(header, rows)}")


if __name__ == "__main__":
    main()
