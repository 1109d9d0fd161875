"""How well documents are converted and their pages found, how fast, and in how much memory.

    python benchmarks/documents.py [--kept | --speed | --reports FILE.pdf …] [--embed-model local]

``--kept`` writes pages of ``kubernetes-docs`` in each format and counts which words, headings, items, rows and pages
come back, and compares the words and pages of the documents of ``pdf-reports`` and ``faults`` with those that PDFium,
python-docx, lxml and openpyxl read. ``--reports`` without a file takes all. The reports and questions are those of
``pdf-reports``: a page is found where one of the first 1, 5 or 10 pages that the hits name holds the answer. Pages
count once, in the order of their best chunk.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

from common import machine, markdown_table
from datasets import DATA
from document_files import KEPT, WRITERS, Block, blocks_of

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.folder.convert import ConversionProcess, DocumentReader, Limits

THREE = ("AMAZON_2019_10K.pdf", "JPMORGAN_2021Q1_10Q.pdf", "VERIZON_2021_10K.pdf")
CUTS = (1, 5, 10)
HITS = 60  # chunks, of which some are of one page
_SHOWN = ("heading", "item", "row")
_HEAD = ["files", "words %", "headings", "list items", "table rows", "pages", "headings that are none", "seconds"]


def speed(corpus: Path) -> str:
    """Convert all reports in one process."""
    worker, pages = ConversionProcess(), 0
    for path in sorted(corpus.glob("*.pdf")):
        pages += len(worker.convert(path, ".pdf", Limits(600.0, 4000)).parts)
    worker.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    row = [f"{pages:,}", f"{pages / (used.ru_utime + used.ru_stime):.0f}", f"{used.ru_maxrss / 1024:.0f} MB"]
    return markdown_table(["pages", "pages a CPU second", "peak memory"], [row])


def kept(count: int) -> str:
    """What converters keep of pages that are written in each format, and of documents of others."""
    pages = [blocks for path in sorted((DATA / "kubernetes-docs" / "corpus").rglob("*.md")) if (blocks := _page(path))]
    pages.sort(key=lambda blocks: -sum(len(block.rows) for block in blocks))  # half of them with tables
    chosen = [*pages[: count // 2], *pages[count // 2 :: max(1, len(pages) // (count - count // 2))]][:count]
    rows = []
    for suffix, write in WRITERS.items():
        found, extra, seconds = Counter[str](), 0, time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            for number, blocks in enumerate(chosen):
                wanted = [block for block in blocks if block.kind in KEPT.get(suffix, {block.kind})]
                if not wanted:
                    continue
                path = Path(folder) / f"{number}{suffix}"
                parts = write(path, blocks)
                texts = [document.text for document in DocumentReader().load_data(path)]
                got = blocks_of("\n\n".join(texts), is_plain=False)
                found += _found(wanted, got) + Counter(file=1, page=len(texts) == parts)
                extra += (_bag(got, "heading") - _bag(blocks, "heading")).total()
        shares = (f"{found[key]:,} / {found[f'all {key}']:,}" if found[f"all {key}"] else "–" for key in _SHOWN)
        rows.append([
            suffix, f"{found['file']}", f"{100 * found['word'] / found['all word']:.2f}", *shares,
            f"{found['page']} / {found['file']}", str(extra), f"{time.perf_counter() - seconds:.0f}",
        ])  # fmt: skip
    return markdown_table(["made by the benchmark", *_HEAD], rows) + "\n\n" + _of_others()


def _of_others() -> str:
    """Words and pages of documents of the data beside what other packages read."""
    paths = [*(DATA / "pdf-reports" / "corpus").glob("*.pdf"), *(DATA / "faults").glob("*/*")]
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(paths):
        if path.suffix in _READ_BY:
            expected = _READ_BY[path.suffix](path)
            texts = [document.text for document in DocumentReader().load_data(path)]
            got, wanted = _words("\n".join(texts)), _words("\n".join(expected))
            key = f"{path.suffix} of {path.relative_to(DATA).parts[0]}"
            found[key] += Counter(file=1, word=(got & wanted).total(), page=len(texts) == len(expected))
            found[key]["all word"] += wanted.total()
    rows = [
        [key, str(one["file"]), f"{100 * one['word'] / one['all word']:.2f}", f"{one['page']} / {one['file']}"]
        for key, one in found.items()
    ]
    return markdown_table(["of others", "files", "words %", "pages"], rows)


def _pdf(path: Path) -> list[str]:
    import pypdfium2

    with pypdfium2.PdfDocument(path) as document:
        return [page.get_textpage().get_text_range() for page in document]


def _docx(path: Path) -> list[str]:
    import docx

    document = docx.Document(str(path))
    cells = [cell.text for table in document.tables for row in table.rows for cell in row.cells]
    return ["\n".join([*(paragraph.text for paragraph in document.paragraphs), *cells])]


def _html(path: Path) -> list[str]:
    from lxml import html

    return [" ".join(html.parse(str(path)).getroot().find("body").itertext())]


def _xlsx(path: Path) -> list[str]:
    import openpyxl

    sheets = openpyxl.load_workbook(path).worksheets
    return ["\n".join(cell.value for row in sheet for cell in row if isinstance(cell.value, str)) for sheet in sheets]


_READ_BY = {".pdf": _pdf, ".docx": _docx, ".html": _html, ".xlsx": _xlsx}


def _page(path: Path) -> list[Block]:
    text = re.sub(r"\A---\n.*?\n---\n", "", path.read_text("utf-8", "replace"), flags=re.DOTALL)
    return [block for block in blocks_of(text) if block.kind != "table" or len(block.rows[0]) > 1]


def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text))


def _bag(blocks: list[Block], kind: str) -> Counter[str]:
    """The texts of a kind of blocks, without spaces, and without what a page of text cannot tell."""
    texts = (block.text for block in blocks if block.kind == kind)
    if kind == "row":
        texts = ("".join(row) for block in blocks for row in block.rows)
    return Counter("".join(re.findall(r"\w+", text)) for text in texts)


def _found(wanted: list[Block], got: list[Block]) -> Counter[str]:
    """How many headings, items, rows and words of a page are there, of how many."""
    counts: Counter[str] = Counter()
    for kind in _SHOWN:
        counts += Counter(
            {kind: (_bag(wanted, kind) & _bag(got, kind)).total(), f"all {kind}": _bag(wanted, kind).total()}
        )
    words = [_words(" ".join(" ".join((one.text, *map(" ".join, one.rows))) for one in some)) for some in (wanted, got)]
    return counts + Counter({"word": (words[0] & words[1]).total(), "all word": words[0].total()})


def recall(corpus: Path, questions: list[dict[str, object]], names: tuple[str, ...], model: str) -> str:
    """Index some reports, and ask the questions whose answers are in them."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            shutil.copy(corpus / name, folder)
        with ContextualIndex.open(folder, embed_model=model) as index:
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
    head = f"{len(names)} reports, {report.chunks:,} chunks, {cpu:.0f} CPU seconds to index, {model}"
    return f"{head}\n\n{markdown_table(['questions', 'number', *(f'page@{cut}' for cut in CUTS)], rows)}"


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--reports", nargs="*", default=THREE)
    parser.add_argument("--embed-model", default="local")
    options = parser.parse_args()
    corpus = DATA / "pdf-reports" / "corpus"
    print(machine(), os.linesep)
    if options.speed or options.kept:
        print(speed(corpus) if options.speed else kept(options.files))
        return
    lines = map(json.loads, (corpus.parent / "queries.jsonl").read_text("utf-8").splitlines())
    names = tuple(options.reports) or tuple(sorted(path.name for path in corpus.glob("*.pdf")))
    asked = [one for one in lines if {gold["path"] for gold in one["gold"]} <= set(names)]
    print(recall(corpus, asked, names, options.embed_model))


if __name__ == "__main__":
    main()
