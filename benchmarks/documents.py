"""How fast documents are converted, in how much memory, and how well their pages are found.

    python benchmarks/documents.py [--speed | --mixed | --kept] [--reports FILE.pdf …] [--embed-model local]

``--reports`` without a file takes all. ``--mixed`` indexes a folder of 1,000 files of eight kinds, made from pages of
``kubernetes-docs``, and then the text that they were converted to as Markdown; both as files with the local embedding.
``--kept`` writes pages of ``kubernetes-docs`` in each format
and counts which words, headings, items and rows come back; what a page holds is known from its Markdown.
The reports and questions are those of ``pdf-reports``. A page is found where one of the first 1, 5 or 10 pages that the
hits name is one that holds the answer. Pages count once, in the order of their best chunk.
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
from llama_index_contextual.app.folder.convert import _PROCESS, ConversionProcess, DocumentReader, Limits

THREE = ("AMAZON_2019_10K.pdf", "JPMORGAN_2021Q1_10Q.pdf", "VERIZON_2021_10K.pdf")
CUTS = (1, 5, 10)
_KINDS = {"heading", "text", "item", "row", "code"}
_MIXED = (".pdf", ".docx", ".pptx", ".html", ".eml", ".ipynb", ".rst", ".odt")
HITS = 60  # chunks, of which some are of one page


def speed(corpus: Path) -> str:
    """Convert all reports in one process."""
    worker, pages = ConversionProcess(), 0
    started = time.perf_counter()
    for path in sorted(corpus.glob("*.pdf")):
        pages += len(worker.convert(path, ".pdf", Limits(600.0, 4000)).parts)
    elapsed = time.perf_counter() - started
    worker.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    row = [f"{pages:,}", f"{pages / cpu:.0f}", f"{pages / elapsed:.0f}", f"{used.ru_maxrss / 1024:.0f} MB"]
    return markdown_table(["pages", "pages a CPU second", "pages a second", "peak memory"], [row])


def mixed(count: int) -> str:
    """Index files of many kinds, and the same text as Markdown; CPU seconds with those of processes that convert."""
    pages = [text for path in sorted((DATA / "kubernetes-docs" / "corpus").rglob("*.md")) if (text := _plain(path))]
    rows = []
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        for number in range(count):
            suffix = _MIXED[number % len(_MIXED)]
            text = [Block("text", block) for block in pages[number % len(pages)]]
            WRITERS[suffix](Path(one) / f"{number:04}{suffix}", text)
        reader = DocumentReader()
        for path in sorted(Path(one).iterdir()):
            text = "\n\n".join(part.text for part in reader.load_data(path))
            (Path(other) / f"{path.name.replace('.', '-')}.md").write_text(text, "utf-8")
        _PROCESS.close()
        for name, folder in (("mixed files", one), ("their text as Markdown", other)):
            before = _cpu()
            with ContextualIndex.open(folder, embed_model="local") as index:
                report = index.refresh()
            _PROCESS.close()
            rows.append([name, str(len(report.added)), f"{report.chunks:,}", f"{_cpu() - before:.0f}"])
    return markdown_table(["folder", "files", "chunks", "CPU seconds to index"], rows)


def _cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _plain(path: Path) -> list[str]:
    """Return some paragraphs of a page."""
    blocks = path.read_text("utf-8", "replace").split("\n\n")
    prose = (" ".join(block.split()) for block in blocks)
    return [block for block in prose if block[:1].isalpha() and len(block) > 80][:12]


def kept(count: int) -> str:
    """What converters keep of pages of Kubernetes' documentation that are written in each format."""
    pages = [blocks for path in sorted((DATA / "kubernetes-docs" / "corpus").rglob("*.md")) if (blocks := _page(path))]
    pages.sort(key=lambda blocks: -sum(block.kind == "row" for block in blocks))  # half of them with tables
    chosen = [*pages[: count // 2], *pages[count // 2 :: max(1, len(pages) // (count - count // 2))]][:count]
    rows = []
    for suffix, write in WRITERS.items():
        found, all_of, extra, seconds = Counter[str](), Counter[str](), 0, time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            for number, blocks in enumerate(chosen):
                wanted = [block for block in blocks if block.kind in KEPT.get(suffix, _KINDS)]
                if not wanted:
                    continue
                path = Path(folder) / f"{number}{suffix}"
                write(path, blocks)
                text = "\n\n".join(part.text for part in DocumentReader().load_data(path))
                got = blocks_of(text, is_plain=False)
                found += _found(wanted, got)
                all_of += _found(wanted, wanted)
                extra += (_bag(got, "heading") - _bag(blocks, "heading")).total()
        seconds = time.perf_counter() - seconds
        shares = (f"{found[key]:,} / {all_of[key]:,}" if all_of[key] else "–" for key in ("heading", "item", "row"))
        rows.append([suffix, f"{100 * found['word'] / all_of['word']:.2f}", *shares, str(extra), f"{seconds:.0f}"])
    head = [
        "format",
        "words %",
        "headings",
        "list items",
        "table rows",
        "headings that are none",
        "seconds, with writing",
    ]
    return markdown_table(head, rows)


def _page(path: Path) -> list[Block]:
    text = re.sub(r"\A---\n.*?\n---\n", "", path.read_text("utf-8", "replace"), flags=re.DOTALL)
    return [block for block in blocks_of(text) if block.kind != "row" or len(block.cells) > 1]


def _bag(blocks: list[Block], kind: str) -> Counter[str]:
    """The texts of a kind of blocks, without spaces, and without what a page of text cannot tell."""
    return Counter("".join(re.findall(r"\w+", block.text)) for block in blocks if block.kind == kind)


def _found(wanted: list[Block], got: list[Block]) -> Counter[str]:
    """How many headings, items, rows and words of a page are there."""
    counts = {kind: (_bag(wanted, kind) & _bag(got, kind)).total() for kind in ("heading", "item", "row")}
    words = [Counter(word for block in blocks for word in re.findall(r"\w+", block.text)) for blocks in (wanted, got)]
    return Counter({**counts, "word": (words[0] & words[1]).total()})


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
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--reports", nargs="*", default=THREE)
    parser.add_argument("--embed-model", default="local")
    options = parser.parse_args()
    corpus = DATA / "pdf-reports" / "corpus"
    print(machine(), os.linesep)
    if options.speed:
        print(speed(corpus))
        return
    if options.kept:
        print(kept(min(options.files, 60)))
        return
    if options.mixed:
        print(mixed(options.files))
        return
    lines = map(json.loads, (corpus.parent / "queries.jsonl").read_text("utf-8").splitlines())
    names = tuple(options.reports) or tuple(sorted(path.name for path in corpus.glob("*.pdf")))
    asked = [one for one in lines if {gold["path"] for gold in one["gold"]} <= set(names)]
    print(recall(corpus, asked, names, options.embed_model))


if __name__ == "__main__":
    main()
