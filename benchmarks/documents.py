"""How fast documents are converted, in how much memory, and how well their pages are found.

    python benchmarks/documents.py [--speed] [--reports FILE.pdf …] [--converter pdfium] [--embed-model local]

The reports and questions are those of ``pdf-reports``. A page is found where one of the first 1, 5 or 10 pages that the
hits name is one that holds the answer. Pages count once, in the order of their best chunk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from common import machine, markdown_table
from datasets import DATA

from llama_index_contextual import ContextualIndex
from llama_index_contextual.config import Configuration
from llama_index_contextual.documents.worker import Limits, Worker

if TYPE_CHECKING:
    from pathlib import Path

THREE = ("AMAZON_2019_10K.pdf", "JPMORGAN_2021Q1_10Q.pdf", "VERIZON_2021_10K.pdf")
CUTS = (1, 5, 10)
HITS = 60  # chunks, of which some are of one page


def speed(corpus: Path, converter: str) -> str:
    """Convert all reports in one process."""
    worker, pages = Worker(), 0
    started = time.perf_counter()
    for path in sorted(corpus.glob("*.pdf")):
        pages += len(worker.convert(path, converter, ".pdf", Limits(600.0, 4000)).parts)
    elapsed = time.perf_counter() - started
    worker.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    row = [converter, f"{pages:,}", f"{pages / cpu:.0f}", f"{pages / elapsed:.0f}", f"{used.ru_maxrss / 1024:.0f} MB"]
    return markdown_table(["converter", "pages", "pages a CPU second", "pages a second", "peak memory"], [row])


def recall(corpus: Path, questions: list[dict[str, object]], names: tuple[str, ...], converter: str, model: str) -> str:
    """Index some reports, and ask the questions whose answers are in them."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            shutil.copy(corpus / name, folder)
        config = Configuration.model_validate({"documents": {"pdf": converter}})
        with ContextualIndex.open(folder, embed_model=model, config=config) as index:
            started = time.process_time()
            report = index.refresh()
            cpu = time.process_time() - started
            retriever = index.as_retriever(HITS, candidate_pool=200)
            found: dict[str, list[list[float]]] = defaultdict(list)
            for question in questions:
                hits = retriever.retrieve(str(question["query"]))
                pages = list(dict.fromkeys((hit.metadata["path"], hit.metadata.get("page")) for hit in hits))
                gold = {(one["path"], one["page"]) for one in question["gold"]}  # type: ignore[attr-defined]
                shares = [len(gold & set(pages[:cut])) / len(gold) for cut in CUTS]
                for source in ("all", str(question["source"])):
                    found[source].append(shares)
    rows = [
        [
            source,
            str(len(shares)),
            *(f"{100 * sum(one[at] for one in shares) / len(shares):.1f}" for at in range(len(CUTS))),
        ]
        for source, shares in found.items()
    ]
    head = f"{len(names)} reports, {report.chunks:,} chunks, {cpu:.0f} CPU seconds to index, {converter}, {model}"
    return f"{head}\n\n{markdown_table(['questions', 'number', *(f'page@{cut}' for cut in CUTS)], rows)}"


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--reports", nargs="*", default=THREE)
    parser.add_argument("--converter", default="pdfium")
    parser.add_argument("--embed-model", default="local")
    options = parser.parse_args()
    corpus = DATA / "pdf-reports" / "corpus"
    print(machine(), os.linesep)
    if options.speed:
        print(speed(corpus, options.converter))
        return
    lines = map(json.loads, (corpus.parent / "queries.jsonl").read_text("utf-8").splitlines())
    names = tuple(options.reports) or tuple(sorted(path.name for path in corpus.glob("*.pdf")))
    asked = [one for one in lines if {gold["path"] for gold in one["gold"]} <= set(names)]
    print(recall(corpus, asked, names, options.converter, options.embed_model))


if __name__ == "__main__":
    main()
