"""What is wrong with chunks, counted: atoms split, words lost, budgets overrun, headings orphaned.

Atoms (fences, tables), paragraphs and headings are markdown-it-py's, so that our own parser is no judge of itself. The
top of benchmarks/chunking.py says what each count means.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chunkers import SIZE, count
from markdown_it import MarkdownIt

from llama_index_contextual.chunking import read_front_matter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkers import Splitter

_WORD: Final = re.compile(r"\w+")
_NOT_ALNUM: Final = re.compile(r"[\W_]+")
_SENTENCE_END: Final = re.compile(r"[.!?…。！？:;][\s\"'”’»)\]}*_`~]*$")


@dataclass
class Facts:
    """What markdown-it-py says of one document, in character offsets."""

    text: str
    fences: list[str] = field(default_factory=list)  # alphanumeric content of those within the budget
    tables: list[str] = field(default_factory=list)
    paragraphs: list[tuple[int, int]] = field(default_factory=list)
    headings: list[tuple[int, int]] = field(default_factory=list)
    words: Counter[str] = field(default_factory=Counter)
    body: int = 0


def facts_of(text: str) -> Facts:
    """Parse one document (front matter blanked out)."""
    body = read_front_matter(text).end
    lines = text.splitlines(keepends=True) if "\r" in text else re.findall(r"[^\n]*\n|[^\n]+", text)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    facts = Facts(text, body=body, words=Counter(_WORD.findall(text[body:])))
    blanked = "\n" * text.count("\n", 0, body) + text[body:]
    parser = MarkdownIt("commonmark").enable("table").disable(["inline"])
    for token in parser.parse(blanked):
        if token.map is None:
            continue
        start, end = starts[token.map[0]], starts[min(token.map[1], len(lines))]
        if token.type in {"fence", "table_open"} and count(text[start:end].strip()) <= SIZE:
            content = _NOT_ALNUM.sub("", text[start:end])
            (facts.fences if token.type == "fence" else facts.tables).append(content)
        elif token.type == "paragraph_open":
            facts.paragraphs.append((start, end))
        elif token.type == "heading_open" and token.level == 0:
            facts.headings.append((start, end))
    return facts


def measure(facts: Sequence[Facts], splitter: Splitter) -> Counter[str]:
    """Add up the defects over all documents."""
    total: Counter[str] = Counter()
    for doc in facts:
        chunks = splitter(doc.text)
        texts = [text for text, _ in chunks]
        total["chunks"] += len(chunks)
        total["over"] += sum(count(text) > SIZE for text in texts)
        total["tiny"] += sum(count(text) < 40 for text in texts)
        total["tiny, of several"] += sum(count(text) < 40 for text in texts) if len(texts) > 1 else 0
        total["offsets"] += sum(at is not None and doc.text[at : at + len(text)] == text for text, at in chunks)
        squeezed = [_NOT_ALNUM.sub("", text) for text in texts]
        for name, atoms in (("fence", doc.fences), ("table", doc.tables)):
            total[name] += len(atoms)
            total[f"{name} split"] += sum(not any(atom in chunk for chunk in squeezed) for atom in atoms)
        words: Counter[str] = Counter()
        for text in texts:
            words.update(_WORD.findall(text))
        total["words"] += sum(doc.words.values())
        total["lost"] += sum((doc.words - words).values())
        _positions(doc, texts, total)
    return total


def _positions(doc: Facts, texts: Sequence[str], total: Counter[str]) -> None:
    paragraph_starts = [start for start, _ in doc.paragraphs]
    heading_starts = [start for start, _ in doc.headings]
    search = 0
    for number, text in enumerate(texts):
        stripped = text.strip()
        start = doc.text.find(stripped, search)
        if start < 0 or not stripped:
            continue  # rewritten text has no position: it cannot be judged
        search, end = start + 1, start + len(stripped)
        inside = bisect_right(paragraph_starts, start) - 1
        if inside >= 0 and doc.paragraphs[inside][0] < start < doc.paragraphs[inside][1]:
            before = doc.text[doc.paragraphs[inside][0] : start]
            total["mid"] += bool(before.strip()) and not _SENTENCE_END.search(before)
        last = bisect_right(heading_starts, end - 1) - 1
        if last >= 0 and doc.headings[last][0] < end <= doc.headings[last][1] and number < len(texts) - 1:
            total["orphan"] += 1
        crossing = [h for h in heading_starts if start < h < end]
        total["cross"] += any(_has_body(doc, start, heading) for heading in crossing)


def _has_body(doc: Facts, start: int, heading: int) -> bool:
    text = doc.text[max(start, doc.body) : heading]
    for low, high in doc.headings:
        if start <= low < heading:
            text = text.replace(doc.text[low:high], "", 1)
    return bool(text.strip())
